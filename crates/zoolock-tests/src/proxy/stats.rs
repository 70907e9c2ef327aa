//! Statistics of the proxy.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Counts of one connection, or of all connections.
///
/// Lengths include the four bytes of a frame's length field. Only forwarded frames count. A frame is counted before it
/// is forwarded, so a client that has a reply finds it counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
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

impl Counts {
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
    pub fn since(&self, earlier: &Counts) -> Counts {
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
pub struct Connection {
    /// Its counts.
    pub counts: Counts,
    /// True if it has ended.
    pub closed: bool,
}

/// The statistics of a proxy.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The counts of all connections together.
    pub total: Counts,
    /// The connections, in the order in which they were accepted.
    pub connections: Vec<Connection>,
    /// Number of requests dropped by `drop_next_request`.
    pub dropped_requests: u64,
    /// Number of replies dropped by `drop_next_reply`.
    pub dropped_replies: u64,
}

impl Stats {
    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.connections.iter().filter(|connection| !connection.closed).count()
    }
}

/// The current statistics, with a notification of changes.
#[derive(Debug, Default)]
pub(super) struct Meter {
    stats: Mutex<Stats>,
    pub(super) changed: Notify,
}

impl Meter {
    pub(super) fn read(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn update(&self, update: impl FnOnce(&mut Stats)) {
        update(&mut self.read());
        self.changed.notify_waiters();
    }

    /// Updates the counts of a connection and of the total.
    pub(super) fn count(&self, connection: usize, count: impl Fn(&mut Counts)) {
        self.update(|stats| {
            count(&mut stats.total);
            count(&mut stats.connections[connection].counts);
        });
    }
}
