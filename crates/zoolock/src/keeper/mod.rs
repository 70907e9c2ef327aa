//! The port: the dozen ZooKeeper operations that locks need.
//!
//! Every method sends its request when it is *called*. Without a connection the request is refused.
//! The returned future is for the answer alone. An `async fn` would send when first polled, and the order of
//! the requests, on which one-flight acquire depends, would be lost. Dropping an answer does not cancel the
//! request.

mod held_back;
pub(crate) mod line;
mod network;

pub(crate) use network::{open, open_requests};

pub(crate) use line::OnGrant;

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
pub(crate) use tokio::time::Instant as Deadline;
use zeroize::Zeroizing;
use zoolock_client::{DialError, Host};

use zoolock_core::contender::{Failure, SessionEnd};
use zoolock_core::{Instant, Sequence, SessionId, Zxid};

use crate::tasks::Tasks;
use crate::transport::Transport;

/// The error if the server finds no identity for an ACL that grants access to the creator only.
pub(crate) const NO_IDENTITY: &str = "the service knows no identity of ours to which the lock could belong; does it ask clients for certificates?";

/// A flight of requests. It ends when it is dropped.
pub(crate) type Flight = Box<dyn Any + Send>;

/// The parameters of a new session.
#[derive(Clone)]
pub(crate) struct Opening {
    pub(crate) hosts: Vec<Host>,
    pub(crate) timeout: Duration,
    pub(crate) auth: Vec<(String, Zeroizing<Vec<u8>>)>,
    pub(crate) access: Access,
    pub(crate) transport: Transport,
    /// Runs the session.
    pub(crate) tasks: Tasks,
}

/// A session that was opened.
pub(crate) struct Opened {
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) link: watch::Receiver<Link>,
    /// A time before which the server did not know the session.
    pub(crate) requested: Instant,
}

/// The reason why a session was not opened.
#[derive(Debug, Clone)]
pub(crate) enum OpenError {
    /// The credentials are missing or refused. Another attempt would fail, too.
    Denied,
    /// The last attempt reached no server.
    Unreachable(Vec<DialError>),
    /// A server was reached, or may have been, and no session was opened in time.
    NotInTime,
}

/// The answer to a request.
pub(crate) type Answer<T, E = KeeperError> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'static>>;

/// Resolves when the watch fires, to whether the znode was deleted. Dropping it removes the watch.
///
/// The watches of a session fire in the order of the server's events, over one connection: when one watch is
/// ready, all earlier ones are. A grant relies on that (`driver/guard.rs`). It holds for polls that the
/// task's budget does not block.
pub(crate) type Watch = Pin<Box<dyn Future<Output = bool> + Send + 'static>>;

/// Returns whether the connection was lost or restored since the last call, or since the creation of this
/// closure.
pub(crate) type Interruptions = Box<dyn FnMut() -> bool + Send + 'static>;

/// The reason and the message of a failed request.
#[derive(Debug, Clone)]
pub(crate) struct KeeperError {
    pub(crate) failure: Failure,
    pub(crate) message: String,
}

/// The access to the znodes that we create. ACLs are not inherited, so each create has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anyone may do everything.
    Everybody,
    /// The holder of our credentials may do everything, and these identities may read: scheme and id.
    Ours { readers: Vec<(String, String)> },
}

/// The used part of a Stat.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) czxid: Zxid,
    pub(crate) pzxid: Zxid,
    pub(crate) version: i32,
    pub(crate) children: u32,
    /// Number of children that it has ever had.
    pub(crate) created_children: u32,
    pub(crate) owner: SessionId,
    /// Time of its creation, in milliseconds of Unix time by the server's clock.
    pub(crate) created_ms: i64,
}

/// A part of a transaction.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// Creates an ephemeral sequential znode; the number is appended to `prefix`.
    Join {
        prefix: String,
        data: Vec<u8>,
    },
    /// Creates an ephemeral znode.
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
    /// Creates a persistent sequential znode; the number is appended to `prefix`.
    Log {
        prefix: String,
        data: Vec<u8>,
    },
    /// Fails if there is no such znode.
    Check(String),
}

/// A znode that a transaction created.
#[derive(Debug, Clone)]
pub(crate) struct Created {
    pub(crate) path: String,
    /// `None` from servers that do not return it (ZOOKEEPER-4026).
    pub(crate) czxid: Option<Zxid>,
}

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Up,
    Down,
    Over(SessionEnd),
}

/// One ZooKeeper session.
pub(crate) trait Keeper: Send + Sync + 'static {
    fn session(&self) -> SessionId;
    /// Returns the shortest session timeout that was granted so far.
    fn timeout(&self) -> Duration;
    /// Calls `callback` whenever a server has granted a timeout, under the lock of the session. It must not send requests.
    fn on_grant(&self, callback: OnGrant);
    /// Returns whether a request would be sent now.
    fn is_connected(&self) -> bool;
    /// Sends the next requests together, when the returned value is dropped. Renewals are sent at once.
    fn begin_flight(&self) -> Flight;
    /// Reports interruptions. An interruption is reported before every later event or answer.
    fn interruptions(&self) -> Interruptions;

    /// Creates an ephemeral sequential znode; the number is appended to `prefix`.
    fn join(&self, prefix: &str, data: &[u8]) -> Answer<(Sequence, Zxid)>;
    /// Creates a container, which the server removes some time after its last child.
    fn create_container(&self, path: &str) -> Answer<()>;
    /// Creates a persistent znode.
    fn create_persistent(&self, path: &str) -> Answer<()>;
    fn delete(&self, path: &str) -> Answer<()>;
    fn exists(&self, path: &str) -> Answer<Option<Stat>>;
    fn read(&self, path: &str) -> Answer<(Vec<u8>, Stat)>;
    /// Reads a znode and watches it. If it does not exist, no watch is left behind.
    fn watch(&self, path: &str) -> Answer<(Vec<u8>, Stat, Watch)>;
    fn write(&self, path: &str, data: &[u8], version: Option<i32>) -> Answer<Stat>;
    fn children(&self, path: &str) -> Answer<(Vec<String>, Stat)>;
    /// Lists the children of a znode and watches them. If it does not exist, no watch is left behind.
    fn watch_children(&self, path: &str) -> Answer<(Vec<String>, Stat, Watch)>;
    /// Sends a `sync`, ahead of the requests that wait for the server.
    fn sync_ahead(&self) -> Answer<()>;
    /// Attaches the session on a new connection, as [`zoolock_client::Session::reattach`] says.
    fn reattach(&self, is_hopeless: bool, works: bool);
    /// Checks in a transaction that a znode exists, ahead of the requests that wait for the server. Only a quorum can confirm
    /// it.
    fn check(&self, path: &str) -> Answer<()>;
    fn sync(&self, path: &str) -> Answer<()>;
    /// Returns the paths of this session's ephemeral znodes under a prefix.
    fn ephemerals(&self, prefix: &str) -> Answer<Vec<String>>;
    /// Commits one transaction. Returns the created znodes, in order.
    fn commit(&self, ops: Vec<Op>) -> Answer<Vec<Created>>;
    /// Commits one transaction that deletes a znode first. The next call joins the transaction if it is
    /// [`Keeper::join`] in the same directory. Otherwise the transaction is sent before the next request, or
    /// as soon as the runtime has a thread for it.
    fn commit_soon(&self, ops: Vec<Op>) -> Answer<()>;
}
