//! Positions in lists of children that are read bit by bit while the lists change.

use std::collections::BTreeMap;

/// A position in the list of the children of a znode. Children that are created later come after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildCursor(u64);

/// The slots of the children that were read last, by cursor.
#[derive(Debug, Clone, Default)]
pub(super) struct Cursors {
    positions: BTreeMap<u64, CursorPosition>,
    /// The number of the last cursor. No cursor gets the number of an earlier one.
    last: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CursorPosition {
    pub(super) parent: u32,
    /// The child that was read last, or `None` at the start.
    pub(super) last: Option<u32>,
}

impl Cursors {
    pub(super) fn open(&mut self, parent: u32) -> ChildCursor {
        self.last += 1;
        self.positions.insert(self.last, CursorPosition { parent, last: None });
        ChildCursor(self.last)
    }

    pub(super) fn close(&mut self, cursor: ChildCursor) {
        self.positions.remove(&cursor.0);
    }

    pub(super) fn get_mut(&mut self, cursor: ChildCursor) -> Option<&mut CursorPosition> {
        self.positions.get_mut(&cursor.0)
    }

    /// Moves the cursors from a child that is about to be deleted to the child before it. Closes the cursors in the
    /// children of the deleted znode.
    pub(super) fn leave(&mut self, id: u32, previous: Option<u32>) {
        if self.positions.is_empty() {
            return;
        }
        self.positions.retain(|_, position| position.parent != id);
        for position in self.positions.values_mut().filter(|position| position.last == Some(id)) {
            position.last = previous;
        }
    }
}
