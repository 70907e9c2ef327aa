//! The Rust of the guide, compiled and run with the examples in the documentation. Everything else in the guide is run
//! by `zoolock-cli/tests/guide`, which also looks that no chapter is missing here.

#[doc = include_str!("../../../guide/src/service.md")]
struct Service;

#[doc = include_str!("../../../guide/src/fencing.md")]
struct Fencing;
