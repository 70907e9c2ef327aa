//! The Rust of the guide and of the README, compiled and run with the examples in the documentation. Everything else there is
//! run by `zoolock-cli/tests/verbs/guide`, which also looks that no chapter is missing here.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../guide/src/service.md")]
struct Service;

#[doc = include_str!("../../../guide/src/fencing.md")]
struct Fencing;
