//! The port: the dozen ZooKeeper operations that locks need.
//!
//! Every method puts its request on the wire (or in the client's queue, while there is no connection) when it is
//! *called*, and returns a future for the answer alone: an `async fn` would send when first polled, and the order of
//! requests, on which one-flight acquire depends, would be lost. Dropping an answer takes nothing back.

mod client;
mod held_back;
mod nodelay;

pub(crate) use client::{NO_IDENTITY, Opening, open};

use std::pin::Pin;
use std::time::Duration;

use zoolock_core::contender::{Failure, SessionEnd};
use zoolock_core::{Sequence, SessionId, Zxid};

/// The answer to a request.
pub(crate) type Answer<T, E = KeeperError> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'static>>;

/// Resolves when the watch fires: whether the node was deleted. Dropping it takes the watch back.
///
/// The watches of a session fire in the order in which the service made the events, over one connection: when one is
/// ready, those before it are. A grant relies on that (`driver/guard.rs`). That holds of a poll which is not held back by
/// the budget of the task.
pub(crate) type Watch = Pin<Box<dyn Future<Output = bool> + Send + 'static>>;

/// Whether the connection was lost, or made, since it was asked for or last called.
pub(crate) type Interruptions = Box<dyn FnMut() -> bool + Send + 'static>;

/// Why a request failed, and in what words.
#[derive(Debug, Clone)]
pub(crate) struct KeeperError {
    pub(crate) failure: Failure,
    pub(crate) message: String,
}

/// Who may do what with the znodes that we create. ACLs are not inherited: it is said of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody may do everything.
    Everybody,
    /// Whoever has our credentials may do everything, and these may look: scheme and id.
    Ours { readers: Vec<(String, String)> },
}

/// What locks need of a Stat.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) czxid: Zxid,
    pub(crate) pzxid: Zxid,
    pub(crate) version: i32,
    pub(crate) children: u32,
    pub(crate) owner: SessionId,
    /// When it was created, in milliseconds of Unix time by the server's clock.
    pub(crate) created_ms: i64,
}

/// A part of a transaction.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Creates an ephemeral sequential node; the number is appended to `prefix`.
    Join {
        prefix: String,
        data: Vec<u8>,
    },
    /// Creates an ephemeral node.
    Create {
        path: String,
        data: Vec<u8>,
    },
    Delete(String),
    DeleteVersion(String, i32),
    Write {
        path: String,
        data: Vec<u8>,
        version: Option<i32>,
    },
    /// Creates a persistent sequential node; the number is appended to `prefix`.
    Log {
        prefix: String,
        data: Vec<u8>,
    },
    /// Only if there is such a node.
    Check(String),
}

/// What a transaction created.
#[derive(Debug, Clone)]
pub(crate) struct Created {
    pub(crate) path: String,
    /// `None` from servers that do not tell (ZOOKEEPER-4026).
    pub(crate) czxid: Option<Zxid>,
}

/// What the connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    Down,
    Over(SessionEnd),
}

/// One ZooKeeper session.
pub(crate) trait Keeper: Send + Sync + 'static {
    fn session(&self) -> SessionId;
    /// The negotiated session timeout.
    fn timeout(&self) -> Duration;
    /// Whether a request would go out now, rather than wait for a connection.
    fn is_connected(&self) -> bool;
    /// An interruption is known before any event, or answer, that comes after it.
    fn interruptions(&self) -> Interruptions;

    /// Creates an ephemeral sequential node; the number is appended to `prefix`.
    fn join(&self, prefix: &str, data: &[u8]) -> Answer<(Sequence, Zxid)>;
    /// Creates an ephemeral node that is no contender.
    fn create_ephemeral(&self, path: &str, data: &[u8]) -> Answer<()>;
    /// Creates a container, which the service removes some time after its last child.
    fn create_container(&self, path: &str) -> Answer<()>;
    /// Creates a persistent node.
    fn create_persistent(&self, path: &str) -> Answer<()>;
    fn delete(&self, path: &str) -> Answer<()>;
    fn exists(&self, path: &str) -> Answer<Option<Stat>>;
    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)>;
    /// Reads a node and watches it. Where there is none, no watch is left behind.
    fn watch(&self, path: &str) -> Answer<(Vec<u8>, Stat, Watch)>;
    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<Stat>;
    fn children(&self, path: &str) -> Answer<(Vec<String>, Stat)>;
    /// Lists the children of a node and watches them. Where there is no node, no watch is left behind.
    fn watch_children(&self, path: &str) -> Answer<(Vec<String>, Stat, Watch)>;
    fn sync(&self, path: &str) -> Answer<()>;
    /// The paths of this session's ephemeral nodes under a prefix.
    fn ephemerals(&self, prefix: &str) -> Answer<Vec<String>>;
    /// One transaction. Tells what it created, in order.
    fn commit(&self, ops: Vec<Op>) -> Answer<Vec<Created>>;
    /// One transaction that deletes a node first, together with the [`Keeper::join`] in the same directory that is called
    /// right after it. Otherwise it goes out before the next request, or as soon as the runtime has a thread for it.
    fn commit_soon(&self, ops: Vec<Op>) -> Answer<()>;
}
