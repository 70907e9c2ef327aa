//! What a core says about itself: for the words of administrators and for metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::connection::{ConnId, Counts, Phase};
use super::{Core, Stats};
use crate::ids::SessionId;
pub use crate::watches::OnData;

/// A connection, as `cons` shows it.
#[derive(Debug, Clone)]
pub struct ConnectionReport {
    /// Which one.
    pub conn: ConnId,
    /// Its session and the session's timeout in milliseconds; `None` before it has one.
    pub session: Option<(SessionId, u32)>,
    /// What happened on it.
    pub counts: Counts,
}

/// The watches on data, which `wchp` and `wchc` tell of: who has which.
#[derive(Debug, Clone, Default)]
pub struct WatchReport {
    /// The sessions that watch a path.
    pub by_path: BTreeMap<Arc<str>, BTreeSet<SessionId>>,
}

impl Core {
    /// Counts what there is.
    pub fn stats(&self) -> Stats {
        Stats {
            received: self.received,
            sent: self.sent,
            connections: self.conns.len(),
            sessions: self.state.sessions.len(),
            znodes: self.state.tree.len(),
            ephemerals: self.state.tree.ephemerals_count(),
            watches: self.watches.len(),
            watch_sides: self.watches.sides(),
            zxid: self.state.zxid.get(),
            bytes_received: self.bytes_received,
            bytes_sent: self.bytes_sent,
            queued: self.queued,
            auth_failures: self.auth_failures,
            expired: self.expired,
            cut_off: self.cut_off,
        }
    }

    /// Counts a word that was asked instead of a session, as ZooKeeper does, or its answer.
    pub fn count_word(&mut self, conn: ConnId, answered: bool) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if answered {
            self.sent += 1;
        } else {
            self.received += 1;
            state.counts.received += 1;
        }
    }

    /// Notes how long some requests of a connection took.
    pub fn took(&mut self, conn: ConnId, requests: u64, ms: u64) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.counts.latency.add(requests, ms);
        }
    }

    /// Begins to count anew.
    pub fn reset_counts(&mut self) {
        (self.received, self.sent) = (0, 0);
    }

    /// Begins to count anew on every connection.
    pub fn reset_connection_counts(&mut self) {
        for state in self.conns.values_mut() {
            state.counts = Counts { last_xid: -1, last_zxid: -1, ..Counts::default() };
        }
    }

    /// The connections, in the order in which they came.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionReport> {
        self.conns.iter().map(|(&conn, state)| ConnectionReport {
            conn,
            session: match state.phase {
                Phase::New => None,
                Phase::Attached { session, timeout_ms, .. } => Some((session, timeout_ms)),
            },
            counts: state.counts,
        })
    }

    /// The sessions by the time at which they expire, in milliseconds of the monotonic clock.
    pub fn expiries(&self) -> &BTreeMap<u64, BTreeSet<SessionId>> {
        self.expiry.buckets()
    }

    /// How many watch data.
    pub fn count_on_data(&self) -> OnData {
        self.watches.count_on_data()
    }

    /// Who watches which data.
    pub fn watch_report(&self) -> WatchReport {
        let mut report = WatchReport::default();
        for (path, conns) in self.watches.on_data() {
            let sessions = conns.filter_map(|conn| match self.conns.get(&conn)?.phase {
                Phase::New => None,
                Phase::Attached { session, .. } => Some(session),
            });
            let sessions: BTreeSet<_> = sessions.collect();
            if sessions.is_empty() {
                continue;
            }
            report.by_path.insert(Arc::clone(path), sessions);
        }
        report
    }
}
