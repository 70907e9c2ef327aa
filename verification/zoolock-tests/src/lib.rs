//! Support for zoolock's tests: real servers, a proxy that injects faults, and a judge of grants.
//!
//! [`on_both_servers!`] runs a test body on the embedded server and on Apache ZooKeeper:
//!
//! ```no_run
//! zoolock_tests::on_both_servers!(new_chroot_is_empty, |place| async move {
//!     let nodes = zoolock_tests::tree::descendants(&place.connect_string(), "/").await.expect("listed");
//!     assert_eq!(nodes, Vec::<String>::new());
//! });
//! ```
//!
//! Several test processes can run at the same time on one machine. Ports are reserved ([`ports`]),
//! directories are temporary, and a server ends when its handle is dropped.

#![forbid(unsafe_code)]

pub mod apache;
pub mod authority;
pub mod binary;
pub mod both_servers;
pub mod embedded;
pub mod failure;
pub mod four_letter;
#[cfg(doctest)]
mod guide;
pub mod judge;
pub mod locks;
pub mod name_servers;
pub mod namespaces;
pub mod options;
pub mod other_libraries;
mod own_runtime;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod raw_client;
pub mod serve_process;
pub mod server_process;
pub mod skip;
pub mod source;
mod sync;
pub mod tmux;
pub mod tree;
pub mod wait;

pub use apache::Apache;
pub use authority::Authority;
pub use binary::ZoolockBinary;
pub use both_servers::{AnyServer, Place, ServerKind};
pub use embedded::Embedded;
pub use failure::{Result, TestFailure};
pub use judge::Judge;
pub use options::ServerOptions;
pub use proxy::{Direction, Proxy};
pub use serve_process::ServeProcess;
pub use server_process::ServerProcess;
pub use sync::lock;
/// ZooKeeper's operation codes.
pub use zoolock_wire::op as opcode;
