//! The state of work that the core continues later.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use zoolock_wire::SetWatches;

use crate::ids::{ConnId, SessionId};

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
    /// No connection misses the events before the one with this number.
    pub(super) droppable: u64,
    /// Set if a whole round made no progress. The connections must take their output first.
    pub(super) stalled: bool,
}

/// An unfinished request of a connection.
#[derive(Debug)]
pub(super) enum Job {
    /// Sets watches again after a reconnect.
    SetWatches(WatchesToSet),
    /// Sends this reply after the events of the write.
    Reply(BytesMut),
}

impl Job {
    /// Returns the memory of the job that counts as queued, in bytes.
    pub(super) fn queued_bytes(&self) -> usize {
        match self {
            Job::SetWatches(watches) => watches.bytes,
            Job::Reply(_) => 0,
        }
    }
}

/// The watches that a client sets again after a reconnect.
#[derive(Debug)]
pub(super) struct WatchesToSet {
    pub(super) xid: i32,
    pub(super) since: i64,
    /// The kind, the length and the bytes of each path that is left. A list of strings would take several times the
    /// memory of the request.
    paths: Bytes,
    /// Memory of all paths in bytes.
    bytes: usize,
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

impl SetWatch {
    /// All kinds, in the order of the lists in a request.
    const ALL: [SetWatch; 5] =
        [SetWatch::Data, SetWatch::Exist, SetWatch::Child, SetWatch::Persistent, SetWatch::Recursive];
}

impl WatchesToSet {
    /// Takes the watches from a request.
    pub(super) fn new(xid: i32, set: &mut SetWatches) -> Self {
        let lists = [
            std::mem::take(&mut set.data),
            std::mem::take(&mut set.exist),
            std::mem::take(&mut set.child),
            set.persistent.take().unwrap_or_default(),
            set.recursive.take().unwrap_or_default(),
        ];
        let mut paths = BytesMut::with_capacity(lists.iter().flatten().map(|path| 5 + path.len()).sum());
        for (kind, list) in lists.iter().enumerate() {
            for path in list {
                paths.put_u8(kind as u8);
                paths.put_u32(path.len() as u32);
                paths.put_slice(path.as_bytes());
            }
        }
        WatchesToSet { xid, since: set.relative_zxid, bytes: paths.len(), paths: paths.freeze() }
    }

    /// Removes and returns the next path.
    pub(super) fn next(&mut self) -> Option<(SetWatch, String)> {
        if self.paths.is_empty() {
            return None;
        }
        let kind = SetWatch::ALL[usize::from(self.paths.get_u8())];
        let len = self.paths.get_u32() as usize;
        let path = self.paths.split_to(len);
        Some((kind, String::from_utf8_lossy(&path).into_owned()))
    }
}
