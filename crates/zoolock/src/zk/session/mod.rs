//! One session with ZooKeeper, as locks need it.
//!
//! Every method sends its request when it is *called*. Without a connection the request is refused. A returned future is only
//! for the answer: dropping it does not cancel the request. An `async fn` would send when first polled. That would lose the
//! order of the requests, on which one-flight acquire depends.
//!
//! * `open.rs`: opens a session.
//! * `requests.rs`: sends requests.
//! * `inbox.rs`: passes replies and events on, in order.
//! * `deferral.rs`: a release that waits for the next create.
//! * `codes.rs`: error codes, and the results of transactions.

mod codes;
mod deferral;
mod inbox;
mod open;
mod requests;

pub(crate) use codes::{failed, transaction};
pub(crate) use deferral::{Joined, Joining, reply};
#[cfg(test)]
pub(crate) use inbox::WatchKind;
pub(crate) use inbox::{Address, Arrival, Arrivals, Part, ReplyOutcome, WatchKey, WatchNumber};
pub(crate) use open::{open, open_requests};
pub(crate) use requests::{
    data, delete_request, exists_request, list_request, names, read_request, write_request,
};

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use zeroize::Zeroizing;
use zoolock_client::{Client, DialError, Host};

use zoolock_core::contender::{Failure, SessionEnd};
use zoolock_core::{Instant, SessionId, Zxid};
use zoolock_wire::Acl;

use deferral::Deferral;
use inbox::{Dropped, Inbox};

use crate::base::tasks::Tasks;
use crate::zk::transport::Transport;

/// The error if the server finds no identity for an ACL that grants access to the creator only.
pub(crate) const NO_IDENTITY: &str = "the server knows no identity of this client that could own the znodes; check that it requests client certificates";

/// A flight of requests. It ends when it is dropped.
pub(crate) type Flight = zoolock_client::Flight<Inbox>;

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
    pub(crate) zk: Arc<ZkSession>,
    pub(crate) arrivals: Arc<Arrivals>,
    pub(crate) connection_state: watch::Receiver<ConnectionState>,
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
pub(crate) type Answer<T, E = ZkError> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'static>>;

/// A future that resolves when the watch fires, to true if the znode was deleted. Dropping it removes the watch.
pub(crate) type Watch = Later<bool>;

/// The reason and the message of a failed request.
#[derive(Debug, Clone)]
pub(crate) struct ZkError {
    pub(crate) failure: Failure,
    pub(crate) message: String,
}

/// The access to the znodes that this client creates. ACLs are not inherited, so each create has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anyone may do everything.
    Anyone,
    /// Clients with the same credentials may do everything, and these identities may read: scheme and id.
    Creator { readers: Vec<(String, String)> },
}

/// The fields of a Stat that the library uses.
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
    CreatePersistentSequential {
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
pub(crate) enum ConnectionState {
    Up,
    Down,
    Over(SessionEnd),
}

/// A function that gets the time of the request for an attach, and the shortest session timeout that was granted so far.
pub(crate) type OnGrant = Box<dyn Fn(Instant, Duration) + Send + Sync>;

/// A boxed future.
pub(crate) type Later<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// One ZooKeeper session. Dropping it closes the session.
pub(crate) struct ZkSession {
    client: Client<Inbox>,
    session: SessionId,
    acls: Arc<[Acl]>,
    deferral: Deferral,
    dropped: Arc<Dropped>,
    /// The runtime of the tasks that send a deferred release that no create joins.
    tasks: Tasks,
}
