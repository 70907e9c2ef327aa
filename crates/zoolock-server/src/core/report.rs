//! Reports on a core, for the four-letter words and for metrics.

use super::{Core, CoreConfig, ServerStats};
use crate::ids::ConnId;
pub use crate::watches::DataWatchCounts;

/// A connection, as the four-letter word `stat` shows it.
#[derive(Debug, Clone)]
pub struct ConnectionReport {
    /// The connection.
    pub conn: ConnId,
    /// Number of frames received.
    pub received: u64,
    /// Number of frames sent.
    pub sent: u64,
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
            state.received += 1;
        }
    }

    /// Returns the connections, oldest first.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionReport> {
        self.conns.iter().map(|(&conn, state)| ConnectionReport {
            conn,
            received: state.received,
            sent: state.sent,
        })
    }

    /// Returns the counts of watches on data.
    pub fn data_watch_counts(&self) -> DataWatchCounts {
        self.watches.data_watch_counts()
    }
}
