//! One session with ZooKeeper, with the operations that locks need.
//!
//! The methods send their requests when they are *called*; only a deferred release is sent later.
//! Without a connection, a request is refused. A returned future is only for the answer: dropping
//! it does not cancel the request. An `async fn` would send its request when it is first polled.
//! That would lose the order of the requests, on which acquisitions rely.
//!
//! * `open.rs`: opens a session.
//! * `requests.rs`: sends requests.
//! * `inbox.rs`: passes replies and events on, in order.
//! * `join.rs`: creates the znode of a contender. Defers a release before it, so that both can be one transaction.
//! * `connection_log.rs`: logs outages.
//! * `codes.rs`: error codes, and the results of transactions.

mod codes;
mod connection_log;
mod inbox;
mod join;
mod open;
mod requests;

pub(crate) use codes::{created_znodes, zk_error};
pub(crate) use connection_log::ConnectionLog;
#[cfg(test)]
pub(crate) use inbox::WatchKind;
pub(crate) use inbox::{
    Arrival, Receiver, ReplyAddress, ReplyOutcome, TransactionPart, WatchKey, WatchNumber,
};
pub(crate) use join::{NewZnode, PendingJoin, czxid_of_new_znode, reply_or_error};
#[cfg(feature = "internals")]
pub(crate) use open::end_session;
pub(crate) use open::{open, open_requests};
pub(crate) use requests::{
    delete_request, ephemerals_request, exists_request, into_children, into_data, into_paths, list_request,
    read_request, write_request,
};

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;
use zeroize::Zeroizing;
use zoolock_client::{Client, DialError, Host};

use zoolock_core::acquisition::{RequestFailure, SessionEnd};
use zoolock_core::{Instant, SessionId, Zxid};
use zoolock_wire::Acl;

use inbox::{DroppedWatches, Inbox};
use join::Deferral;

use crate::base::tasks::Tasks;
use crate::zk::transport::Transport;

/// The error if the server finds no identity for an ACL that grants access to the creator only.
pub(crate) const NO_IDENTITY: &str = "the server knows no identity of this client that could own the znodes; check that it requests client certificates";

/// A batch of requests. The requests are sent together when the batch is dropped.
pub(crate) type Batch = zoolock_client::RequestBatch<Inbox>;

/// The parameters of a new session.
#[derive(Clone)]
pub(crate) struct SessionParameters {
    pub(crate) hosts: Vec<Host>,
    pub(crate) timeout: Duration,
    pub(crate) auth: Vec<(String, Zeroizing<Vec<u8>>)>,
    pub(crate) access: ZnodeAccess,
    pub(crate) transport: Transport,
    /// The runtime that runs the session.
    pub(crate) tasks: Tasks,
}

/// A session that was opened.
pub(crate) struct Opened {
    pub(crate) zk: Arc<ZkSession>,
    pub(crate) connection_state: watch::Receiver<ConnectionState>,
    /// The time at which the session was requested. The session did not exist before that time.
    pub(crate) requested: Instant,
}

/// The reason why a session was not opened.
#[derive(Debug, Clone)]
pub(crate) enum SessionOpenError {
    /// The credentials are missing or refused. Another attempt would fail, too.
    Denied,
    /// The last attempt reached no server.
    Unreachable(Vec<DialError>),
    /// A server was reached, or may have been, and no session was opened in time.
    NotInTime,
}

/// A future for the answer to a request.
pub(crate) type Answer<T, E = ZkError> = BoxFuture<'static, Result<T, E>>;

/// A future that resolves when the watch fires, to true if the znode was deleted. Dropping it removes the watch.
pub(crate) type Watch = BoxFuture<'static, bool>;

/// The reason and the message of a failed request.
#[derive(Debug, Clone)]
pub(crate) struct ZkError {
    pub(crate) failure: RequestFailure,
    pub(crate) message: String,
}

/// The access to the znodes that this client creates. ZooKeeper's ACLs are not inherited, so each create contains one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ZnodeAccess {
    /// Anyone may do everything.
    Anyone,
    /// Clients with the same credentials may do everything. The `readers`, pairs of scheme and id, may also read.
    Creator { readers: Vec<(String, String)> },
}

/// The fields of a Stat that the library uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZnodeStat {
    pub(crate) czxid: Zxid,
    pub(crate) pzxid: Zxid,
    pub(crate) version: i32,
    pub(crate) children: u32,
    /// Number of children that the znode has ever had.
    pub(crate) created_children: u32,
    pub(crate) owner: SessionId,
    /// The time at which the znode was created, in milliseconds of Unix time, by the server's
    /// clock.
    pub(crate) created_ms: i64,
    /// The time at which the data was last written, by the server's clock.
    pub(crate) modified_ms: i64,
}

/// One operation of a transaction.
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
    /// Creates a persistent znode.
    CreatePersistent {
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
    /// `None` if the server does not return it (ZOOKEEPER-4026).
    pub(crate) czxid: Option<Zxid>,
}

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    Up,
    Down,
    Ended(SessionEnd),
}

/// One ZooKeeper session. Dropping it closes the session.
pub(crate) struct ZkSession {
    client: Client<Inbox>,
    session: SessionId,
    acls: Arc<[Acl]>,
    deferral: Deferral,
    dropped: Arc<DroppedWatches>,
    /// The runtime of the tasks that send deferred releases.
    tasks: Tasks,
}
