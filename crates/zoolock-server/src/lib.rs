//! A single server for the ZooKeeper protocol, small enough to embed in a program or a test.
//!
//! It answers like a standalone Apache ZooKeeper 3.8.0, and works with any ZooKeeper client. [`Server::builder`] starts
//! it. It is not a cluster: to use more than one machine, point the clients at Apache ZooKeeper instead.
//!
//! # Differences from Apache ZooKeeper
//! - The zxids of each start are above those of all earlier ones. Without a data directory, or with
//!   [`Durability::Memory`], everything else is lost on a restart.
//! - Session passwords come from the operating system's random source, and a session moves only with its password.
//!   (Apache ZooKeeper computes the password from the session id.)
//! - A session that moves to a new connection keeps its initial timeout, or a shorter one. A restart of the server
//!   would lose a longer one, but the client would rely on it.
//! - Unknown operations are answered "unimplemented", and the connection stays open; Apache ZooKeeper closes it.
//!   `createSession` sent by a client is an unknown operation; Apache ZooKeeper answers with a connect response.
//! - A session that expires while it is connected gets no events of its own ephemerals: its connection is closed.
//! - A request with bytes after its last field, or text that is not UTF-8, is a marshalling error.
//! - A one-shot watch, a persistent and a recursive one on the same path do not overwrite each other
//!   (ZOOKEEPER-4466).
//! - `checkWatches` checks watches of the same client; Apache ZooKeeper also counts watches of other clients.
//! - A successful `check` outside a multi is answered; Apache ZooKeeper never answers it.
//! - Attaching to a session with a wrong password does not affect the connection of its owner.
//! - An access list may name IPv6 addresses.
//! - `createTTL` without the flags for it is a bad argument; it makes Apache ZooKeeper exit.
//! - There are no quotas. `/zookeeper/quota` can be read, and a create, `setData` or delete below it is answered
//!   "unimplemented". The answer is not "no authentication" because no credentials would help.
//! - Znodes with a time to live are enabled unless [`Limits::extended_types`] disables them.
//! - A part of a certificate's name that is not UTF-8 is written in hexadecimal. Java writes several such names as the
//!   same text.
//! - An access list has at most 256 subnets and 1,024 entries.
//! - The data of one `multiRead` answer is limited to 16 MiB.
//!
//! # Not supported
//! `reconfig` and SASL (answered as by a standalone Apache ZooKeeper without them), quotas, and the words `gtmk`, `stmk`
//! and `hash`.
//!
//! # Implementation
//! [`prepare()`] decides a write against the [`State`] and changes nothing. [`commit()`] applies the decided change and
//! returns the reply and the events. Neither does input or output. [`core::Core`] adds sessions, watches and
//! connections, still without a clock or a socket. The server around it does the rest. Everything but [`Server`],
//! [`Builder`], [`Limits`], [`Durability`], [`ServerHandle`], [`TlsConfig`], [`ClientCertificates`], [`Users`], [`Word`],
//! [`Secret`] and [`Error`] is public only for tests and simulations, and may change in any release.

#![forbid(unsafe_code)]

mod access;
pub mod acl;
mod builder;
mod commit;
pub mod core;
mod data_dir;
mod error;
mod expiry;
mod ids;
mod limits;
#[doc(hidden)]
pub mod log;
mod pending;
mod prepare;
mod query;
mod secret;
mod serve;
mod server;
mod state;
mod storage;
mod tls;
pub mod tree;
pub mod txn;
mod watches;
mod word;
mod x500;

pub use access::{Access, Users};
pub use builder::Builder;
pub use commit::{Event, Outcome, commit};
pub use error::Error;
pub use ids::{SessionId, Zxid};
pub use limits::Limits;
pub use prepare::{Asker, prepare};
pub use query::query;
pub use secret::Secret;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use serve::fuzzing;
pub use server::{Server, ServerHandle};
pub use state::{Session, State};
pub use storage::Durability;
pub use tls::{ClientCertificates, TlsConfig};
pub use word::Word;

/// The README's example is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
