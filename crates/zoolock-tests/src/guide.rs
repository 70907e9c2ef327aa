//! The Rust examples of the guide and of the README, compiled and run as doctests.
//!
//! `zoolock-cli/tests/verbs/guide` runs all other examples, and checks that this file names every chapter with Rust
//! examples.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../guide/src/service.md")]
struct ServiceChapter;

#[doc = include_str!("../../../guide/src/fencing.md")]
struct FencingChapter;
