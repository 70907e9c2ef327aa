//! The ZooKeeper protocol as bytes: frames, records, operation codes, error codes, access lists and paths.
//!
//! Every record can be encoded and decoded, so a client, a server, a test and a fuzzer share one codec. All records are
//! in jute, ZooKeeper's encoding: integers are big-endian, and a length precedes each buffer and vector. Field names
//! are those of `zookeeper.jute` in ZooKeeper's source.
//!
//! [`Reader`] trusts no length in a frame: before it allocates, it compares each length with the
//! number of bytes that are left.
//!
//! The types of session ids, zxids and times are here, because the client, the server and the locks share them.
//!
//! This crate does no input or output.

#![forbid(unsafe_code)]

mod acl;
mod code;
mod connect;
mod events;
mod frame;
mod hidden;
mod ids;
mod multi;
pub mod op;
pub mod path;
mod reader;
mod replies;
mod requests;
mod stat;
mod time;
mod writer;

pub use acl::{Acl, Identity, perms};
pub use code::Code;
pub use connect::{ConnectRequest, ConnectResponse};
pub use events::{EventKind, WatchEvent, encode_event};
pub use frame::{FrameError, MAX_FRAME, split_frame};
pub use hidden::Hidden;
pub use ids::{SessionId, Zxid};
pub use multi::OpResult;
pub use reader::{Reader, WireError};
pub use replies::{Reply, ReplyHeader};
pub use requests::{CreateRequest, Request, RequestHeader, SetWatches};
pub use stat::Stat;
pub use time::Instant;
pub use writer::Writer;

/// Compiles the README's example with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
