//! What went through the proxy.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// What went through one connection, or through all. Lengths include the four bytes of a frame's own length;
/// only what was forwarded counts, and it counts before it is forwarded: who has an answer finds it counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes from clients to the server.
    pub bytes_to_server: u64,
    /// Bytes from the server to clients.
    pub bytes_to_client: u64,
    /// Events of watches.
    pub notifications: u64,
    /// Their bytes.
    pub notification_bytes: u64,
    by_opcode: BTreeMap<i32, OfOpcode>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfOpcode {
    requests: u64,
    request_bytes: u64,
    replies: u64,
    reply_bytes: u64,
}

impl Counts {
    /// How many requests of this kind there were ([`crate::opcode`]).
    pub fn requests(&self, opcode: i32) -> u64 {
        self.of(opcode).requests
    }

    /// How many requests of any kind there were, handshakes included.
    pub fn all_requests(&self) -> u64 {
        self.by_opcode.values().map(|of| of.requests).sum()
    }

    /// The bytes of the requests of this kind.
    pub fn request_bytes(&self, opcode: i32) -> u64 {
        self.of(opcode).request_bytes
    }

    /// How many requests of this kind were answered.
    pub fn replies(&self, opcode: i32) -> u64 {
        self.of(opcode).replies
    }

    /// The bytes of the answers to requests of this kind.
    pub fn reply_bytes(&self, opcode: i32) -> u64 {
        self.of(opcode).reply_bytes
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &Counts) -> Counts {
        let mut added = self.clone();
        added.bytes_to_server -= earlier.bytes_to_server;
        added.bytes_to_client -= earlier.bytes_to_client;
        added.notifications -= earlier.notifications;
        added.notification_bytes -= earlier.notification_bytes;
        for (opcode, before) in &earlier.by_opcode {
            let of = added.by_opcode.entry(*opcode).or_default();
            of.requests -= before.requests;
            of.request_bytes -= before.request_bytes;
            of.replies -= before.replies;
            of.reply_bytes -= before.reply_bytes;
        }
        added
    }

    pub(super) fn add_request(&mut self, opcode: i32, bytes: u64) {
        let of = self.by_opcode.entry(opcode).or_default();
        of.requests += 1;
        of.request_bytes += bytes;
        self.bytes_to_server += bytes;
    }

    pub(super) fn add_reply(&mut self, opcode: i32, bytes: u64) {
        let of = self.by_opcode.entry(opcode).or_default();
        of.replies += 1;
        of.reply_bytes += bytes;
        self.bytes_to_client += bytes;
    }

    pub(super) fn add_notification(&mut self, bytes: u64) {
        self.notifications += 1;
        self.notification_bytes += bytes;
        self.bytes_to_client += bytes;
    }

    fn of(&self, opcode: i32) -> OfOpcode {
        self.by_opcode.get(&opcode).cloned().unwrap_or_default()
    }
}

/// One connection through the proxy, in the order they were accepted.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// What went through it.
    pub counts: Counts,
    /// Whether it has ended.
    pub closed: bool,
}

/// All that went through the proxy so far.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Of all connections together.
    pub total: Counts,
    /// Of each connection.
    pub connections: Vec<Connection>,
    /// Requests that `drop_next_request` swallowed.
    pub dropped_requests: u64,
    /// Replies that `drop_next_reply` swallowed.
    pub dropped_replies: u64,
}

impl Stats {
    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.connections.iter().filter(|connection| !connection.closed).count()
    }
}

/// The living statistics, and the bell that rings when they change.
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

    /// Counts something both for a connection and for all.
    pub(super) fn count(&self, connection: usize, count: impl Fn(&mut Counts)) {
        self.update(|stats| {
            count(&mut stats.total);
            count(&mut stats.connections[connection].counts);
        });
    }
}
