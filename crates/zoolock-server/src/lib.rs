//! A single server for the ZooKeeper protocol, small enough to embed in a program or a test.
//!
//! The server answers like a standalone Apache ZooKeeper 3.8.0, and works with any ZooKeeper
//! client. [`Server::builder`] configures and starts a server. A server runs on one machine only.
//! To survive the loss of a machine, use an ensemble of Apache ZooKeeper servers instead.
//!
//! # Differences from Apache ZooKeeper
//! - With a data directory, each zxid is greater than all zxids from before the last start. With
//!   [`Durability::Memory`], znodes and sessions are lost on a restart. Without a data directory, a
//!   restart also begins the zxids at the first epoch again.
//! - Session passwords come from the operating system's random source, and a client attaches to an existing session
//!   only with its password. (Apache ZooKeeper computes the password from the session id.)
//! - A client that reconnects is granted at most the timeout that its session began with. The
//!   server stores only that timeout. After a restart, a longer timeout would become shorter while
//!   the client relies on it.
//! - Unknown operations are answered "unimplemented", and the connection stays open; Apache ZooKeeper closes it.
//!   `createSession` sent by a client is an unknown operation; Apache ZooKeeper answers with a connect response.
//! - A client whose session expires while it is connected gets no events for the deletion of its
//!   own ephemerals. The server only closes the connection.
//! - A request with bytes after its last field, or with text that is not UTF-8, is answered with a marshalling error.
//! - A one-shot, a persistent and a recursive watch on the same path do not replace each other (ZOOKEEPER-4466).
//! - `checkWatches` checks only the watches of the client that sends it; Apache ZooKeeper also counts watches of other
//!   clients.
//! - A successful `check` outside a multi is answered; Apache ZooKeeper never answers it.
//! - A client that tries to attach to a session with a wrong password does not disconnect the client of that session.
//! - An access list may name IPv6 addresses.
//! - `createTTL` without the flags for a time to live is answered "bad arguments"; some such requests make Apache
//!   ZooKeeper exit.
//! - There are no quotas. `/zookeeper` and its children can be read. Only a client with the identity `super` may write to
//!   them, and a write below `/zookeeper/quota` is answered "unimplemented" for every client.
//! - Znodes with a time to live are enabled unless [`Limits::extended_types`] disables them.
//! - A part of a certificate's name is written in hexadecimal if the part is not UTF-8. Java, and
//!   so Apache ZooKeeper, writes different parts of this kind as the same text.
//! - An access list has at most 256 subnets and 1,024 entries.
//! - A request that is too large is answered "quota exceeded" (-125): a `multi` or `multiRead` of more than 16,384
//!   operations; a reply with more than 6 MiB of data, names and
//!   paths, of which each counts 16 bytes more than its length; a path of more than 4,096 names. So is a write that creates
//!   znodes when the memory for them is used up.
//! - `getEphemerals` counts the paths of all ephemerals of the session, also of those outside of the prefix.
//! - A session with more than 1,000 ephemerals ends in several transactions.
//!
//! # Not supported
//! Not supported are `reconfig`, SASL, quotas, and the four-letter words `cons`, `crst`, `dirs`, `dump`, `gtmk`, `hash`,
//! `srst`, `stmk`, `wchc` and `wchp`. `reconfig` and SASL requests get the replies of a standalone Apache ZooKeeper that has
//! both disabled. Each of these words gets the answer of an Apache ZooKeeper whose whitelist does not contain it.
//!
//! # Implementation
//! [`prepare()`] decides how a write request changes the [`State`], without changing the state.
//! [`commit()`] applies the decided change and returns the reply and the events. Neither function
//! does input or output. [`core::Core`] adds sessions, watches and connections, still without a
//! clock or a socket. [`Server`] adds sockets, clocks and the log. Everything but [`Server`],
//! [`Builder`], [`Limits`], [`Durability`], [`LogLoss`], [`Zxid`], [`ServerHandle`], [`TlsConfig`],
//! [`ClientCertificates`], [`Users`], [`FourLetterWord`], [`Secret`] and [`Error`] is public only
//! for tests, simulations and zoolock's command, and may change in any release.

#![forbid(unsafe_code)]

mod access;
pub mod acl;
mod builder;
mod caps;
mod client;
mod commit;
// Public in the module `http`.
#[cfg_attr(not(feature = "http"), expect(unreachable_pub))]
mod connection_limits;
pub mod core;
mod data_dir;
mod directory;
mod error;
mod expiry;
mod group;
#[cfg(feature = "http")]
#[doc(hidden)]
pub mod http;
mod ids;
mod limits;
#[doc(hidden)]
pub mod log;
mod pending;
mod prepare;
mod query;
mod secret;
pub mod sent_acl;
mod serve;
mod server;
mod state;
mod storage;
#[cfg(feature = "tls")]
mod tls;
pub mod tree;
pub mod txn;
mod watches;
mod word;
mod x500;

pub use access::{Access, Users};
pub use builder::Builder;
pub use client::Client;
pub use commit::{Committed, PathChange, commit};
pub use error::Error;
#[doc(hidden)]
pub use group::mode_of_others;
pub use ids::{SessionId, Zxid};
pub use limits::Limits;
pub use prepare::{Requester, prepare};
pub use query::query;
pub use secret::Secret;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use serve::fuzzing;
pub use server::{Server, ServerHandle};
pub use state::{State, StoredSession};
pub use storage::{Durability, LogLoss};
#[cfg(feature = "tls")]
pub use tls::{ClientCertificates, TlsConfig};
pub use word::FourLetterWord;

/// The README, so that its example is compiled with the doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
