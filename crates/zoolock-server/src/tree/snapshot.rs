//! A walk over the slots of the tree, which returns the tree as it was when the walk began.
//!
//! When a znode is about to change before the walk visits it, its record is saved for the next
//! chunk. The znode is then marked with the number of the snapshot. A znode that is created during
//! the walk is marked from the start. The walk skips marked znodes.

use super::NodeRecord;

#[derive(Debug, Clone, Default)]
pub(super) struct SnapshotWalk {
    walk: Option<TreeWalk>,
    /// The number of the last snapshot. It would wrap around after thousands of years.
    number: u32,
}

#[derive(Debug, Clone)]
struct TreeWalk {
    /// The next slot to visit.
    at: u32,
    end: u32,
    saved: Vec<NodeRecord>,
}

impl SnapshotWalk {
    pub(super) fn begin(&mut self, end: u32) {
        self.number = self.number.wrapping_add(1);
        self.walk = Some(TreeWalk { at: 0, end, saved: Vec::new() });
    }

    pub(super) fn abandon(&mut self) {
        self.walk = None;
    }

    /// Returns the number of the last snapshot, which marks the znodes that its walk skips.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns whether the walk has not visited this slot yet and its znode is not marked.
    pub(super) fn needs_copy(&self, id: u32, snapshot_number: u32) -> bool {
        self.walk.as_ref().is_some_and(|walk| walk.at <= id && snapshot_number != self.number)
    }

    pub(super) fn save(&mut self, record: NodeRecord) {
        if let Some(walk) = &mut self.walk {
            walk.saved.push(record);
        }
    }

    /// Takes at most `max` of the saved records. Returns `None` if the walk is complete, or if no
    /// walk is in progress.
    pub(super) fn take_saved(&mut self, max: usize) -> Option<Vec<NodeRecord>> {
        let walk = self.walk.as_mut()?;
        // The walk advances only when all saved records have been taken, so no record is left at
        // its end.
        if walk.at == walk.end {
            self.walk = None;
            return None;
        }
        Some(walk.saved.split_off(walk.saved.len().saturating_sub(max)))
    }

    /// Advances the walk, and returns the slot to visit.
    pub(super) fn advance(&mut self) -> Option<u32> {
        let walk = self.walk.as_mut().filter(|walk| walk.at < walk.end)?;
        walk.at += 1;
        Some(walk.at - 1)
    }
}
