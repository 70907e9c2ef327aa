//! The jute encoding: how ZooKeeper's records look on a socket.
//!
//! Every decoder reads through [`Reader`], which never trusts a length it was told; every record that can be
//! decoded can be encoded, so that tests and simulations can play the client.

mod connect;
mod events;
mod multi;
pub mod op;
mod reader;
mod replies;
mod requests;
mod writer;

pub use connect::{ConnectRequest, ConnectResponse};
pub(crate) use events::encode_event;
pub use events::{EventKind, WatchEvent};
pub use multi::OpResult;
pub use reader::{Reader, WireError};
pub use replies::{Reply, ReplyHeader, Stat};
pub use requests::{CreateRequest, Request, RequestHeader, SetWatches};
pub use writer::Writer;

/// The largest frame accepted by default: ZooKeeper's own `jute.maxbuffer`.
pub const MAX_FRAME: usize = 0xfffff;
