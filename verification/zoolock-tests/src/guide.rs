//! The Rust blocks of the guide, of the README and of `examples/`, compiled and run as doctests.
//!
//! `zoolock-cli/tests/verbs/guide` runs all other blocks, and checks that this file names every page with Rust blocks.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../guide/src/service.md")]
struct ServiceChapter;

#[doc = include_str!("../../../guide/src/fencing.md")]
struct FencingChapter;

#[doc = include_str!("../../../examples/shards/README.md")]
struct ShardsExample;
