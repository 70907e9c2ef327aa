//! The watches that a client sets again after a reconnect.
//!
//! One `setWatches` request may have all watches of a client. So the watches are set in parts, in the turns of the
//! connection.

use zoolock_wire::{EventKind, Reply};

use super::Core;
use super::connection::NOTHING;
use super::jobs::{Job, Readiness, SetWatch, WatchesToSet};
use crate::caps::weight;
use crate::ids::ConnId;
use crate::watches::WatchKinds;

/// Number of short paths that are set in one turn.
const PART: usize = 1024;

impl Core {
    /// Returns whether a connection has not set all watches of its last request yet.
    pub fn has_long_request(&self, conn: ConnId) -> bool {
        let job = self.conns.get(&conn).and_then(|state| state.job.as_ref());
        matches!(job, Some(Job::SetWatches(_)))
    }

    /// Sets the next watches. Replies when all are set.
    pub(super) fn continue_set_watches(&mut self, conn: ConnId, mut watches: WatchesToSet) -> Readiness {
        let mut left = PART.min(self.config.max_part);
        while let Some((kind, path)) = watches.next() {
            self.set_watch_again(conn, &path, kind, watches.since);
            left = left.saturating_sub(weight(&path));
            if left == 0 {
                self.keep_job(conn, Job::SetWatches(watches));
                return Readiness::Busy;
            }
        }
        self.reply(conn, watches.xid, NOTHING, Ok(Reply::Empty));
        Readiness::Ready
    }

    /// Sets a watch again. If a one-shot watch missed an event since `since`, the event is sent at once and the watch is
    /// not set.
    fn set_watch_again(&mut self, conn: ConnId, path: &str, kind: SetWatch, since: i64) {
        let node = self.state.tree.get(path);
        let (missed, kinds) = match kind {
            SetWatch::Data => (
                match node {
                    None => Some(EventKind::Deleted),
                    Some(node) => (node.mzxid().0 > since).then_some(EventKind::DataChanged),
                },
                WatchKinds::DATA,
            ),
            SetWatch::Exist => (node.map(|_| EventKind::Created), WatchKinds::DATA),
            SetWatch::Child => (
                match node {
                    None => Some(EventKind::Deleted),
                    Some(node) => (node.pzxid().0 > since).then_some(EventKind::ChildrenChanged),
                },
                WatchKinds::CHILD,
            ),
            SetWatch::Persistent => (None, WatchKinds::PERSISTENT),
            SetWatch::Recursive => (None, WatchKinds::RECURSIVE),
        };
        match missed {
            Some(kind) => self.send_event(conn, kind, path),
            None => self.add_watch(path, conn, kinds),
        }
    }
}
