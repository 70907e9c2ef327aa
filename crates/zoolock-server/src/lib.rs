//! One node that speaks the ZooKeeper protocol, small enough to live inside a program or a test.
//!
//! It answers what a standalone Apache ZooKeeper 3.8.0 answers, [`Server::builder`] starts it, and any client can
//! use it. It is no cluster: whoever outgrows one machine points the client at Apache ZooKeeper instead.
//!
//! # What it does differently
//! - The zxids of each start are above those of all earlier ones. Without a data directory, or with
//!   [`Durability::Memory`], everything else is gone after a restart.
//! - Session passwords come from the operating system's random source, and a session moves only with its password.
//!   (Apache ZooKeeper computes the password from the session id.)
//! - A session that moves to a new connection keeps the timeout it began with, or a shorter one: a longer one would
//!   not outlive a restart of the server, but its owner would believe in it.
//! - An operation it does not know is answered "unimplemented" and the connection stays; Apache ZooKeeper closes it.
//! - A session that expires while it is connected hears no events of its own ephemerals: its connection is closed.
//! - `createSession` sent by a client is such an operation; Apache ZooKeeper answers with a connect response.
//! - A request with bytes after its last field, or text that is not UTF-8, is a marshalling error.
//! - A one-shot watch, a persistent and a recursive one on the same path do not overwrite each other
//!   (ZOOKEEPER-4466).
//! - `checkWatches` tells of one's own watches; Apache ZooKeeper says yes when anybody watches the path.
//! - A `check` by itself that succeeds is answered; Apache ZooKeeper never answers it.
//! - Attaching to a session with a wrong password leaves the connection of its owner alone.
//! - An access list may name IPv6 addresses.
//! - `createTTL` without the flags for it is a bad argument; it makes Apache ZooKeeper exit.
//! - There are no quotas. `/zookeeper/quota` can be read, and a create, `setData` or delete below it is answered
//!   "unimplemented". The answer is not "no authentication" because no credentials would help.
//! - Znodes with a time to live are on unless [`Limits::extended_types`] says otherwise.
//! - A part of a certificate's name that is not UTF-8 is written in hexadecimal: Java writes several such names alike.
//! - An access list has 256 subnets at most, and 1,024 entries.
//! - The data of one `multiRead` answer is limited to 16 MiB.
//!
//! # What is missing
//! `reconfig` and SASL (answered as by a standalone Apache ZooKeeper without them), quotas, and the words `gtmk`, `stmk`
//! and `hash`.
//!
//! # How it is built
//! [`prepare()`] decides a write against the [`State`] and changes nothing; [`commit()`] makes the decided change and
//! says what to answer and what happened. Both are pure. [`core::Core`] adds sessions, watches and connections, still
//! without a clock or a socket; the server around it does the rest. Everything but [`Server`], [`Builder`],
//! [`Limits`], [`ServerHandle`], [`TlsConfig`], [`ClientCertificates`], [`Users`], [`Word`], [`Secret`] and [`Error`] is public for tests and simulations, and may change in any release.

#![forbid(unsafe_code)]

mod access;
pub mod acl;
mod builder;
mod code;
mod commit;
pub mod core;
mod data_dir;
mod error;
mod expiry;
mod ids;
mod limits;
#[doc(hidden)]
pub mod log;
pub mod path;
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
mod view;
mod watches;
pub mod wire;
mod word;
mod x500;

pub use access::{Access, Users};
pub use builder::Builder;
pub use code::Code;
pub use commit::{Event, Outcome, commit};
pub use error::Error;
pub use ids::{SessionId, Zxid};
pub use limits::Limits;
pub use prepare::{Asker, prepare};
pub use query::query;
pub use secret::{Hidden, Secret};
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
