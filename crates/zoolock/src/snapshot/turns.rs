//! Who has the lock, and who has it when.

use zoolock_core::names::Name;

use super::entry;
use super::gather::{Contender, Part};
use crate::keeper::Stat;

/// A contender whose node was read.
pub(super) struct Reading {
    pub(super) contender: Contender,
    /// `None` where that is not allowed: it stands in the queue, readable or not.
    pub(super) read: Option<(Vec<u8>, Stat)>,
}

/// Everybody in the order of their turns.
pub(super) struct Turns {
    pub(super) holders: Vec<Reading>,
    pub(super) waiters: Vec<Reading>,
}

/// Tells the holders from the waiters. `queue`: the names of those that stand in the one queue of the lock.
pub(super) fn of(readings: Vec<Reading>, queue: &[Name], permits: Option<u32>) -> Turns {
    let (standing, mut elsewhere): (Vec<_>, Vec<_>) =
        readings.into_iter().partition(|reading| reading.contender.part == Part::Queue);
    let upgrades = |at: usize| {
        let reading = standing.get(at);
        reading.and_then(|reading| reading.read.as_ref()).is_some_and(|(data, _)| entry::upgrades(data))
    };
    let holds = zoolock_core::queue::holders(queue, upgrades, permits);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (reading, holds) in standing.into_iter().zip(holds) {
        if holds { holders.push(reading) } else { waiters.push(reading) }
    }
    let guard = elsewhere.iter().position(|reading| reading.contender.part == Part::Guard);
    let mut guard = elsewhere.split_off(guard.unwrap_or(elsewhere.len()));
    let mut leases = elsewhere;
    leases.sort_by_key(|lease| match (&lease.contender.name, &lease.read) {
        (Some(name), _) => i64::from(name.position()),
        (None, read) => read.as_ref().map_or(i64::MAX, |(_, stat)| stat.czxid.0),
    });
    // Whoever has come to the head of Curator's guard makes its lease first and waits then, until it is within the
    // number that only clients know. It is one waiter, with two nodes.
    let waits = |lease: &Reading, head: &Reading| match (&lease.read, &head.read) {
        (Some((_, lease)), Some((_, head))) => lease.owner == head.owner && lease.czxid > head.czxid,
        _ => false,
    };
    let next = match (leases.last(), guard.first()) {
        (Some(lease), Some(head)) if lease.contender.name.is_some() && waits(lease, head) => leases.pop(),
        _ => None,
    };
    if next.is_some() {
        guard.remove(0);
    }
    holders.extend(leases);
    waiters.extend(next);
    waiters.extend(guard);
    Turns { holders, waiters }
}
