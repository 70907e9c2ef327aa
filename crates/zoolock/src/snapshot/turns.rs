//! Who has the lock, and who has it when.

use zoolock_core::names::{Name, Role};

use super::entry;
use super::gather::Contender;
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
/// The names tell the holders of a queue, except a reader that writes.
pub(super) fn needed(readings: &[Reading], permits: Option<u32>, waiters: usize) -> Vec<usize> {
    let names = super::names_in(readings);
    let holds =
        zoolock_core::queue::holders(&names, |at| readings.get(at).is_some_and(Reading::upgrades), permits);
    // A reader that writes stands behind its own reader, and perhaps behind writers that wait for that one.
    let lone_reader = holds.iter().filter(|holds| **holds).count() == 1
        && names.first().is_some_and(|name| name.role != Role::Exclusive);
    let mut queued = 0;
    let is_needed = |(at, reading): (usize, &Reading)| {
        let needed = holds.get(at) == Some(&true) || {
            queued += 1;
            let perhaps_upgrades = lone_reader && at <= UPGRADES && names[at].role == Role::Exclusive;
            perhaps_upgrades || queued <= waiters
        };
        (needed && !reading.asked).then_some(at)
    };
    readings.iter().enumerate().filter_map(is_needed).collect()
}

/// Tells the holders from the waiters. `queue`: their names; `permits`: how many there are, in a semaphore.
pub(super) fn of(standing: Vec<Reading>, queue: &[Name], permits: Option<u32>) -> Turns {
    let upgrades = |at: usize| standing.get(at).is_some_and(Reading::upgrades);
    let holds = zoolock_core::queue::holders(queue, upgrades, permits);
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (reading, holds) in standing.into_iter().zip(holds) {
        if holds { holders.push(reading) } else { waiters.push(reading) }
    }
    Turns { holders, waiters }
}
