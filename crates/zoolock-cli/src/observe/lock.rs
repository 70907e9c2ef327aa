//! The longest hold and the longest wait of a lock.

use zoolock::admin::{Entry, Snapshot};

use crate::base::unix_time::UnixTime as _;

/// A lock in a view, with its hand-over rate.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListedLock {
    pub(crate) lock: Snapshot,
    /// Hand-overs per second; `None` before the second read.
    pub(crate) rate: Option<f64>,
}

/// Returns the time of the grant of a holder. If it is unknown, returns the time at which the holder joined the queue,
/// which is the earliest possible time.
pub(crate) fn earliest_grant(holder: &Entry) -> Option<u64> {
    holder.held_since.unix_ms().or(holder.since.unix_ms())
}

/// Returns the holder that has held the lock longest. An unknown time counts as its maximum. Every list names this holder,
/// and counts the others.
pub(crate) fn longest_holder(lock: &Snapshot) -> Option<&Entry> {
    lock.holders().min_by_key(|holder| earliest_grant(holder).unwrap_or(u64::MAX))
}

/// Returns the time since which the lock is held, or the earliest possible time if the time is unknown.
pub(crate) fn held_since(lock: &Snapshot) -> Option<u64> {
    earliest_grant(longest_holder(lock)?)
}

/// Returns the time at which the longest waiter joined the queue, among the waiters that were read.
pub(crate) fn longest_wait(lock: &Snapshot) -> Option<u64> {
    lock.waiters.iter().filter_map(|waiter| waiter.since.unix_ms()).min()
}
