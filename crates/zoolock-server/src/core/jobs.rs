//! The state of long work that the core continues later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec;

use bytes::BytesMut;
use zoolock_wire::Stat;

use crate::ids::{ConnId, SessionId};
use crate::tree::ChildCursor;

/// Whether the next request of a connection can be handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// The next request can be handled.
    Ready,
    /// The connection has unfinished work. Call [`Core::advance`](super::Core::advance) again.
    Busy,
    /// The connection is woken when the next request can be handled, or its output must be taken first.
    Blocked,
}

/// A session that has ended and still owns ephemerals.
#[derive(Debug)]
pub(super) struct SessionEnd {
    pub(super) session: SessionId,
    /// The connection and the xid of the request that closed the session.
    pub(super) request: Option<(ConnId, i32)>,
}

/// The state of the delivery of events to all connections.
#[derive(Debug, Default)]
pub(super) struct DeliveryRound {
    /// The connection that was visited last.
    pub(super) last: Option<ConnId>,
    pub(super) progress: bool,
    /// Set if a whole round made no progress. The connections must take their output first.
    pub(super) stalled: bool,
}

/// An unfinished request of a connection.
#[derive(Debug)]
pub(super) enum Job {
    /// Sets watches again after a reconnect.
    SetWatches(WatchesToSet),
    /// Lists the children of a znode.
    List(Box<Listing>),
    /// Sends this reply after the events of the write.
    Reply(BytesMut),
}

/// The watches that a client sets again after a reconnect.
#[derive(Debug)]
pub(super) struct WatchesToSet {
    pub(super) xid: i32,
    pub(super) since: i64,
    pub(super) lists: [(SetWatch, vec::IntoIter<String>); 5],
}

/// A list of children that is being built.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) xid: i32,
    pub(super) path: Arc<str>,
    pub(super) with_stat: bool,
    pub(super) watch: bool,
    /// Set while the list is being built.
    pub(super) cursor: Option<ChildCursor>,
    /// The encoded names.
    pub(super) names: BytesMut,
    pub(super) count: usize,
    /// The portions of the list: the count of names at the end of each, and the number of recorded deletions before it.
    pub(super) portions: Vec<(usize, u64)>,
    /// Number of times that the record of deletions had been cleared when the listing began.
    pub(super) cleared: usize,
    /// Number of times that the listing started over.
    pub(super) restarts: usize,
    /// Set if the connection is among those that wait.
    pub(super) waits: bool,
    /// Set when all children are listed. The deleted children are then removed from the list.
    pub(super) complete: Option<CompleteListing>,
}

/// The end of a listing: the state that the list shows.
#[derive(Debug)]
pub(super) struct CompleteListing {
    pub(super) stat: Stat,
    pub(super) zxid: i64,
    /// The numbers of the last deletions of names, by the keys of the names.
    pub(super) deleted: Arc<BTreeMap<u128, u64>>,
    /// The portion of the name to check next.
    pub(super) portion: usize,
    /// The name to check next, and the offsets from which it is read and to which it is moved.
    pub(super) checked: usize,
    pub(super) read: usize,
    pub(super) written: usize,
    pub(super) kept: usize,
    /// Events that follow the reply.
    pub(super) events: BytesMut,
}

/// The kind of a watch in a `setWatches` request.
#[derive(Debug, Clone, Copy)]
pub(super) enum SetWatch {
    Data,
    Exist,
    Child,
    Persistent,
    Recursive,
}

impl Job {
    /// Returns the events that must follow the reply of this job, if the state that the reply shows is fixed.
    pub(super) fn later_events(&mut self) -> Option<&mut BytesMut> {
        match self {
            Job::List(listing) => listing.complete.as_mut().map(|complete| &mut complete.events),
            Job::SetWatches(_) | Job::Reply(_) => None,
        }
    }
}
