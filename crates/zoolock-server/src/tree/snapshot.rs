//! A walk over the slots that shows the tree as it was when the walk began, whatever happens meanwhile.
//!
//! What is about to change and has not been visited yet is recorded first, and put aside for the next chunk. A znode
//! carries the number of the snapshot that has it; one that comes during a snapshot carries it from the start, so that
//! it is passed over, whichever slot it gets.

use super::NodeRecord;

#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    walk: Option<Walk>,
    /// The number of the last snapshot. It would take thousands of years to come round.
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

    /// The mark of a znode that the snapshot has, or must not have.
    pub(super) fn mark(&self) -> u32 {
        self.number
    }

    /// Whether the walk still has to come to this slot, and what stands there belongs to the snapshot.
    pub(super) fn lacks(&self, id: u32, mark: u32) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.at <= id && mark != self.number)
    }

    pub(super) fn put_aside(&mut self, record: NodeRecord) {
        if let Some(walk) = &mut self.walk {
            walk.aside.push(record);
        }
    }

    /// What was put aside, `max` at most; `None` when nothing is left to do.
    pub(super) fn take_aside(&mut self, max: usize) -> Option<Vec<NodeRecord>> {
        let walk = self.walk.as_mut()?;
        // What was put aside goes out before the walk goes on, so nothing of it is left at the end.
        if walk.at == walk.end {
            self.walk = None;
            return None;
        }
        Some(walk.aside.split_off(walk.aside.len().saturating_sub(max)))
    }

    /// The next slot to visit.
    pub(super) fn advance(&mut self) -> Option<u32> {
        let walk = self.walk.as_mut().filter(|walk| walk.at < walk.end)?;
        walk.at += 1;
        Some(walk.at - 1)
    }
}
