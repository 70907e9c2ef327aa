//! Reports on a core, for the four-letter words and for metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::connection::{ConnectionCounts, HandshakePhase};
use super::{Core, CoreConfig, ServerStats};
use crate::ids::ConnId;
use crate::ids::SessionId;
pub use crate::watches::DataWatchCounts;

/// A connection, as the four-letter word `cons` shows it.
#[derive(Debug, Clone)]
pub struct ConnectionReport {
    /// The connection.
    pub conn: ConnId,
    /// The session and its timeout in milliseconds, or `None` before the session begins.
    pub session: Option<(SessionId, u32)>,
    /// The counts of the connection.
    pub counts: ConnectionCounts,
}

/// The watches on data and their sessions, as the four-letter words `wchp` and `wchc` show them.
#[derive(Debug, Clone, Default)]
pub struct WatchReport {
    /// The sessions that watch the data of each path.
    pub by_path: BTreeMap<Arc<str>, BTreeSet<SessionId>>,
}

impl Core {
    /// Returns the counts of the server.
    pub fn stats(&self) -> ServerStats {
        ServerStats {
            connections: self.conns.len(),
            sessions: self.state.sessions.len(),
            znodes: self.state.tree.len(),
            ephemerals: self.state.tree.ephemerals_count(),
            watches: self.watches.len(),
            watch_sides: self.watches.zookeeper_count(),
            zxid: self.state.zxid.0,
            znode_memory: self.state.tree.memory(),
            watched_paths: self.watches.total_cost(),
            undelivered: self.deliveries.bytes(),
            waiting: self.conns.values().filter(|state| state.waits_for_server).count(),
            ..self.totals
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &CoreConfig {
        &self.config
    }

    /// Counts a four-letter word as a received frame, as ZooKeeper does. If `answered` is set,
    /// counts its answer as a sent frame instead.
    pub fn count_word(&mut self, conn: ConnId, answered: bool) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if answered {
            self.totals.sent += 1;
        } else {
            self.totals.received += 1;
            state.counts.received += 1;
        }
    }

    /// Records that each of these requests of a connection took `ms` milliseconds.
    pub fn record_latency(&mut self, conn: ConnId, requests: u64, ms: u64) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.counts.latency.add(requests, ms);
        }
    }

    /// Resets the server's counts of received and sent frames.
    pub fn reset_counts(&mut self) {
        (self.totals.received, self.totals.sent) = (0, 0);
    }

    /// Resets the counts of every connection.
    pub fn reset_connection_counts(&mut self) {
        for state in self.conns.values_mut() {
            state.counts = ConnectionCounts { last_xid: -1, last_zxid: -1, ..ConnectionCounts::default() };
        }
    }

    /// Returns the connections, oldest first.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionReport> {
        self.conns.iter().map(|(&conn, state)| ConnectionReport {
            conn,
            session: match state.phase {
                HandshakePhase::New => None,
                HandshakePhase::Attached { session, timeout_ms, .. } => Some((session, timeout_ms)),
            },
            counts: state.counts,
        })
    }

    /// Returns the sessions by the time at which they expire, in milliseconds of the monotonic clock.
    pub fn sessions_by_deadline(&self) -> &BTreeMap<u64, BTreeSet<SessionId>> {
        self.expiry.sessions_by_deadline()
    }

    /// Returns the counts of watches on data.
    pub fn data_watch_counts(&self) -> DataWatchCounts {
        self.watches.data_watch_counts()
    }

    /// Returns the sessions that watch data, by path.
    pub fn watch_report(&self) -> WatchReport {
        let mut report = WatchReport::default();
        for (path, conns) in self.watches.data_watches() {
            let sessions = conns.filter_map(|conn| match self.conns.get(&conn)?.phase {
                HandshakePhase::New => None,
                HandshakePhase::Attached { session, .. } => Some(session),
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
