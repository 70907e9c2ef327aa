//! The core with the connections of its clients, and the snapshots of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::log_sink::SnapshotSource;
use crate::core::{ConnId, Core, SnapshotStart};
use crate::ids::Zxid;
use crate::tree::NodeRecord;

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct ConnectedPeer {
    pub(super) addr: SocketAddr,
    pub(super) waker: Arc<Notify>,
}

/// The core, which a mutex guards, with what changes along with it.
#[derive(Debug)]
pub(crate) struct GuardedCore {
    pub(crate) core: Core,
    pub(crate) idle_since: Option<Instant>,
    pub(super) peers: HashMap<ConnId, ConnectedPeer>,
    pub(super) opened: u64,
    pub(super) latency: LatencyStats,
    /// Number of connections rejected by a limit.
    pub(super) rejected: u64,
    /// Number of failed TLS handshakes.
    pub(super) failed_handshakes: u64,
    /// Longest session timeout that the data directory records, in milliseconds.
    pub(super) recorded_timeout_ms: u32,
    /// The connection whose requests were handled last.
    pub(super) last_active: Option<ConnId>,
}

/// Statistics of the time that requests took, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LatencyStats {
    /// Number of requests.
    count: u64,
    /// Time that all requests took together.
    total: u64,
    /// Shortest time that a request took.
    pub(super) min: u64,
    /// Longest time that a request took.
    pub(super) max: u64,
}

impl LatencyStats {
    /// Adds a number of requests, each of which took `time`.
    pub(super) fn add(&mut self, requests: u64, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.min = if self.count == 0 { ms } else { self.min.min(ms) };
        self.max = self.max.max(ms);
        self.count += requests;
        self.total = self.total.saturating_add(ms.saturating_mul(requests));
    }

    /// Returns the average time that a request took.
    pub(super) fn average(&self) -> f64 {
        self.total as f64 / self.count.max(1) as f64
    }
}

/// After a panic of the core, `begin` returns a zxid that the log never reaches, so the snapshot is never completed.
impl SnapshotSource for Arc<Mutex<GuardedCore>> {
    fn begin(&self) -> SnapshotStart {
        let never =
            |_| SnapshotStart { zxid: Zxid(i64::MAX), sessions: BTreeMap::new(), ending: BTreeSet::new() };
        self.lock().map_or_else(never, |mut inner| inner.core.begin_snapshot())
    }

    fn chunk(&self, max: usize) -> Option<Vec<NodeRecord>> {
        self.lock().ok()?.core.snapshot_chunk(max)
    }

    fn abandon(&self) {
        if let Ok(mut inner) = self.lock() {
            inner.core.abandon_snapshot();
        }
    }
}

impl GuardedCore {
    /// Wakes the connections that have new events or must be closed. Skips `awake`, whose task is
    /// running. Updates `idle_since`.
    pub(super) fn wake_connections(&mut self, awake: Option<ConnId>) {
        for conn in self.core.take_woken() {
            if Some(conn) != awake
                && let Some(peer) = self.peers.get(&conn)
            {
                peer.waker.notify_one();
            }
        }
        match (self.core.session_count(), self.idle_since) {
            (0, None) => self.idle_since = Some(Instant::now()),
            (0, Some(_)) | (_, None) => {}
            (_, Some(_)) => self.idle_since = None,
        }
    }
}
