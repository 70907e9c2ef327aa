//! Statistics of the proxy.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::lock;

/// Counts of one connection, or of all connections.
///
/// Bytes include the four bytes of each frame's length field. Only forwarded frames count. A frame is counted before it
/// is forwarded, so a reply that a client has received is already counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// Bytes from clients to the server.
    pub bytes_to_server: u64,
    /// Bytes from the server to clients.
    pub bytes_to_client: u64,
    /// Watch events.
    pub notifications: u64,
    by_opcode: BTreeMap<i32, OpcodeCounts>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OpcodeCounts {
    requests: u64,
    replies: u64,
}

impl FrameCounts {
    /// Returns the number of requests with this opcode ([`crate::opcode`]).
    pub fn requests(&self, opcode: i32) -> u64 {
        self.of(opcode).requests
    }

    /// Returns the number of all requests, including connect requests.
    pub fn all_requests(&self) -> u64 {
        self.by_opcode.values().map(|of| of.requests).sum()
    }

    /// Returns the number of replies to requests with this opcode.
    pub fn replies(&self, opcode: i32) -> u64 {
        self.of(opcode).replies
    }

    /// Returns the counts since `earlier`.
    pub fn since(&self, earlier: &FrameCounts) -> FrameCounts {
        let mut added = self.clone();
        added.bytes_to_server -= earlier.bytes_to_server;
        added.bytes_to_client -= earlier.bytes_to_client;
        added.notifications -= earlier.notifications;
        for (opcode, before) in &earlier.by_opcode {
            let of = added.by_opcode.entry(*opcode).or_default();
            of.requests -= before.requests;
            of.replies -= before.replies;
        }
        added
    }

    pub(super) fn add_request(&mut self, opcode: i32, bytes: u64) {
        self.by_opcode.entry(opcode).or_default().requests += 1;
        self.bytes_to_server += bytes;
    }

    pub(super) fn add_reply(&mut self, opcode: i32, bytes: u64) {
        self.by_opcode.entry(opcode).or_default().replies += 1;
        self.bytes_to_client += bytes;
    }

    pub(super) fn add_notification(&mut self, bytes: u64) {
        self.notifications += 1;
        self.bytes_to_client += bytes;
    }

    fn of(&self, opcode: i32) -> OpcodeCounts {
        self.by_opcode.get(&opcode).cloned().unwrap_or_default()
    }
}

/// The statistics of one connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectionStats {
    /// The counts of this connection.
    pub counts: FrameCounts,
    /// True if the connection has ended.
    pub closed: bool,
}

/// The statistics of a proxy.
#[derive(Clone, Debug, Default)]
pub struct ProxyStats {
    /// The counts of all connections together.
    pub total: FrameCounts,
    /// The connections, in the order in which they were accepted.
    pub connections: Vec<ConnectionStats>,
    /// Number of requests dropped by `drop_next_request`.
    pub dropped_requests: u64,
    /// Number of replies dropped by `drop_next_reply`.
    pub dropped_replies: u64,
}

impl ProxyStats {
    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.connections.iter().filter(|connection| !connection.closed).count()
    }
}

/// The current statistics, with a notification of changes.
#[derive(Debug, Default)]
pub(super) struct Meter {
    stats: Mutex<ProxyStats>,
    pub(super) changed: Notify,
}

impl Meter {
    pub(super) fn read(&self) -> MutexGuard<'_, ProxyStats> {
        lock(&self.stats)
    }

    pub(super) fn update(&self, update: impl FnOnce(&mut ProxyStats)) {
        update(&mut self.read());
        self.changed.notify_waiters();
    }

    /// Updates the counts of a connection and of the total.
    pub(super) fn count(&self, connection: usize, count: impl Fn(&mut FrameCounts)) {
        self.update(|stats| {
            count(&mut stats.total);
            count(&mut stats.connections[connection].counts);
        });
    }
}
