//! Separates the holders of a lock from its waiters.

use zoolock_core::names::{Name, Role};

use super::entry;
use crate::engine::gather::FoundContender;
use crate::zk::session::ZnodeStat;

/// A contender, and the data of its znode.
pub(super) struct ContenderRead {
    pub(super) contender: FoundContender,
    /// `None` if this client has no permission to read the znode, or has not tried. The contender
    /// is in the queue in any case.
    pub(super) read: Option<(Vec<u8>, ZnodeStat)>,
    /// Set once a read was tried.
    pub(super) was_tried: bool,
}

impl ContenderRead {
    pub(super) fn new(contender: FoundContender) -> ContenderRead {
        ContenderRead { contender, read: None, was_tried: false }
    }

    fn is_upgrade_writer(&self) -> bool {
        self.read.as_ref().is_some_and(|(data, _)| entry::is_upgrade_writer(data))
    }
}

/// Maximum queue index up to which contenders are read to find the writer's znode of an upgraded
/// reader. Further back, that znode is counted as a waiter although its owner holds.
const MAX_UPGRADE_DISTANCE: usize = 16;

/// Returns the indexes of the contenders that must still be read, so that all holders and the first `waiters`
/// waiters are known.
///
/// The names of the contenders show which of them hold. The exception is the writer's znode of an
/// upgraded reader: only the data of this znode shows that it holds.
pub(super) fn indexes_to_read(
    readings: &[ContenderRead],
    permits: Option<u32>,
    waiters: usize,
) -> Vec<usize> {
    let names = super::names_in(readings);
    let holds = zoolock_core::queue::which_hold(
        &names,
        |at| readings.get(at).is_some_and(ContenderRead::is_upgrade_writer),
        permits,
    );
    // The writer's znode of an upgraded reader is behind the reader's znode, and may also be behind
    // writers that wait for that reader.
    let lone_reader = holds.iter().filter(|holds| **holds).count() == 1
        && names.first().is_some_and(|name| name.role != Role::Exclusive);
    let mut queued = 0;
    let is_needed = |(at, reading): (usize, &ContenderRead)| {
        let needed = holds.get(at) == Some(&true) || {
            queued += 1;
            let perhaps_upgrades =
                lone_reader && at <= MAX_UPGRADE_DISTANCE && names[at].role == Role::Exclusive;
            perhaps_upgrades || queued <= waiters
        };
        (needed && !reading.was_tried).then_some(at)
    };
    readings.iter().enumerate().filter_map(is_needed).collect()
}

/// Returns the holders and the waiters, both in queue order. `queue`: the names of all contenders; `permits`: the size of a
/// semaphore.
pub(super) fn separate_holders(
    readings: Vec<ContenderRead>,
    queue: &[Name],
    permits: Option<u32>,
) -> (Vec<ContenderRead>, Vec<ContenderRead>) {
    let upgrades = |at: usize| readings.get(at).is_some_and(ContenderRead::is_upgrade_writer);
    let mut holds = zoolock_core::queue::which_hold(queue, upgrades, permits).into_iter();
    readings.into_iter().partition(|_| holds.next() == Some(true))
}
