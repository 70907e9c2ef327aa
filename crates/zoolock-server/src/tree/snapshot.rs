//! A walk over the slots that shows the tree as it was when the walk began.
//!
//! A change of a znode that the walk has not visited yet first puts its record aside, for the next chunk. A znode
//! carries the number of the snapshot that has it. A znode that is created during a snapshot carries that number from
//! the start, so the walk skips it in any slot.

use super::NodeRecord;

#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    walk: Option<Walk>,
    /// The number of the last snapshot. It would wrap around after thousands of years.
    number: u32,
}

#[derive(Debug, Clone)]
struct Walk {
    /// The next slot to visit.
    at: u32,
    end: u32,
    aside: Vec<NodeRecord>,
}

impl Snapshot {
    pub(super) fn begin(&mut self, end: u32) {
        self.number = self.number.wrapping_add(1);
        self.walk = Some(Walk { at: 0, end, aside: Vec::new() });
    }

    pub(super) fn abandon(&mut self) {
        self.walk = None;
    }

    /// Returns the mark of a znode that the snapshot has, or must not have.
    pub(super) fn mark(&self) -> u32 {
        self.number
    }

    /// Returns whether the walk has not visited this slot yet, and its znode belongs to the snapshot.
    pub(super) fn lacks(&self, id: u32, mark: u32) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.at <= id && mark != self.number)
    }

    pub(super) fn put_aside(&mut self, record: NodeRecord) {
        if let Some(walk) = &mut self.walk {
            walk.aside.push(record);
        }
    }

    /// Takes at most `max` of the records that were put aside. Returns `None` if nothing is left to do.
    pub(super) fn take_aside(&mut self, max: usize) -> Option<Vec<NodeRecord>> {
        let walk = self.walk.as_mut()?;
        // The walk goes on only after all records put aside were taken, so none is left at its end.
        if walk.at == walk.end {
            self.walk = None;
            return None;
        }
        Some(walk.aside.split_off(walk.aside.len().saturating_sub(max)))
    }

    /// Advances the walk, and returns the slot to visit.
    pub(super) fn advance(&mut self) -> Option<u32> {
        let walk = self.walk.as_mut().filter(|walk| walk.at < walk.end)?;
        walk.at += 1;
        Some(walk.at - 1)
    }
}
