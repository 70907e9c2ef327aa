//! The harness of zoolock's tests: real servers, a proxy that misbehaves on command, checkers of histories.
//!
//! A conformance test is written once and runs on each server ([`on_both_arms!`]):
//!
//! ```no_run
//! zoolock_tests::on_both_arms!(a_fresh_chroot_is_empty, |place| async move {
//!     let nodes = zoolock_tests::tree::descendants(&place.connect_string(), "/").await.expect("a live server");
//!     assert_eq!(nodes, Vec::<String>::new());
//! });
//! ```
//!
//! Nothing here is shared between processes but the machine: ports are reserved ([`ports`]), directories are
//! temporary, servers end when their handle is dropped.

#![forbid(unsafe_code)]

pub mod apache;
pub mod arm;
pub mod authority;
pub mod binary;
pub mod embedded;
pub mod failure;
pub mod four_letter;
#[cfg(doctest)]
mod guide;
pub mod history;
pub mod options;
pub mod own_runtime;
pub mod ports;
pub mod proxy;
pub mod random;
#[cfg(feature = "gssapi")]
pub mod realm;
pub mod serving;
pub mod skip;
pub mod tree;
pub mod wait;

pub use apache::Apache;
pub use arm::{Arm, Place, Server};
pub use authority::Authority;
pub use binary::ZoolockBinary;
pub use embedded::Embedded;
pub use failure::{Failure, Result};
pub use history::Recorder;
pub use options::ServerOptions;
pub use proxy::{Direction, Proxy};
pub use random::Random;
#[cfg(feature = "gssapi")]
pub use realm::{Realm, in_realm};
pub use serving::Serving;
/// The numbers of ZooKeeper's operations.
pub use zoolock_server::wire::op as opcode;
