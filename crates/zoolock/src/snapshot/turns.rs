//! Who has the lock, and who has it when.

use zoolock_core::names::{Name, Role};

use super::entry;
use super::gather::{Contender, Part};
use crate::keeper::Stat;

/// A contender whose node was read.
pub(super) struct Reading {
    pub(super) contender: Contender,
    /// `None` where that is not allowed: it stands in the queue, readable or not.
    pub(super) read: Option<(Vec<u8>, Stat)>,
    /// Whether that was tried.
    pub(super) asked: bool,
}

impl Reading {
    pub(super) fn new(contender: Contender) -> Reading {
        Reading { contender, read: None, asked: false }
    }

    fn upgrades(&self) -> bool {
        self.read.as_ref().is_some_and(|(data, _)| entry::upgrades(data))
    }
}

/// Everybody in the order of their turns.
pub(super) struct Turns {
    pub(super) holders: Vec<Reading>,
    pub(super) waiters: Vec<Reading>,
}

/// How far behind a lone reader its writer is looked for; whoever counts all of a longer queue may count one too many.
const UPGRADES: usize = 16;

/// The numbers of those who are yet to be read, so that all who hold and the first `waiters` of the others are known.
///
/// Who holds in a queue follows from the names, but for a reader that writes. Where every permit is a node of its own,
/// and at the head of its guard, it takes the data as well.
pub(super) fn needed(readings: &[Reading], permits: Option<u32>, waiters: usize) -> Vec<usize> {
    let names: Vec<Name> = super::names_in(readings, Part::Queue).collect();
    let holds =
        zoolock_core::queue::holders(&names, |at| readings.get(at).is_some_and(Reading::upgrades), permits);
    // A reader that writes stands behind its own reader, and perhaps behind writers that wait for that one.
    let lone_reader = holds.iter().filter(|holds| **holds).count() == 1
        && names.first().is_some_and(|name| name.role != Role::Exclusive);
    let (mut queued, mut guarding) = (0, 0);
    let is_needed = |(at, reading): (usize, &Reading)| {
        let needed = match reading.contender.part {
            // Those of the queue come first.
            Part::Queue if holds.get(at) == Some(&true) => true,
            Part::Queue => {
                queued += 1;
                let perhaps_upgrades = lone_reader && at <= UPGRADES && names[at].role == Role::Exclusive;
                perhaps_upgrades || queued <= waiters
            }
            Part::Lease => true,
            // The first may be one with the last lease.
            Part::Guard => {
                guarding += 1;
                guarding - 1 <= waiters
            }
        };
        (needed && !reading.asked).then_some(at)
    };
    readings.iter().enumerate().filter_map(is_needed).collect()
}

/// Tells the holders from the waiters. `queue`: the names of those that stand in the one queue of the lock; `permits`:
/// how many there are in it; `size`: how many leases of another make there may be, where that is known.
pub(super) fn of(readings: Vec<Reading>, queue: &[Name], permits: Option<u32>, size: Option<u32>) -> Turns {
    let (standing, mut elsewhere): (Vec<_>, Vec<_>) =
        readings.into_iter().partition(|reading| reading.contender.part == Part::Queue);
    let upgrades = |at: usize| standing.get(at).is_some_and(Reading::upgrades);
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
    // Whoever has come to the head of the guard may make its lease first, and wait then until it is within the number
    // of permits: Curator does, and so do we. It is one waiter with two nodes. Where that number is unknown, the lease
    // that was made last is such a one if whoever made it is still at the guard.
    let of_head = |lease: &Reading| match (&lease.read, guard.first().and_then(|head| head.read.as_ref())) {
        (Some((_, lease)), Some((_, head))) => lease.owner == head.owner && lease.czxid > head.czxid,
        _ => false,
    };
    let granted = match size {
        Some(size) => leases.len().min(size as usize),
        None => leases.len() - usize::from(leases.last().is_some_and(of_head)),
    };
    let next = leases.split_off(granted);
    if next.last().is_some_and(of_head) {
        guard.remove(0);
    }
    holders.extend(leases);
    waiters.extend(next);
    waiters.extend(guard);
    Turns { holders, waiters }
}
