//! Positions in lists of children that are read bit by bit while the lists change.

use slab::Slab;

/// A position in the list of the children of a znode. Children that are created later come after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildCursor(usize);

/// The slots of the children that were read last, by cursor.
#[derive(Debug, Clone, Default)]
pub(super) struct Cursors(Slab<CursorPosition>);

#[derive(Debug, Clone, Copy)]
pub(super) struct CursorPosition {
    pub(super) parent: u32,
    /// The child that was read last, or `None` at the start.
    pub(super) last: Option<u32>,
}

impl Cursors {
    pub(super) fn open(&mut self, parent: u32) -> ChildCursor {
        ChildCursor(self.0.insert(CursorPosition { parent, last: None }))
    }

    pub(super) fn close(&mut self, cursor: ChildCursor) {
        self.0.try_remove(cursor.0);
    }

    pub(super) fn get_mut(&mut self, cursor: ChildCursor) -> Option<&mut CursorPosition> {
        self.0.get_mut(cursor.0)
    }

    /// Moves the cursors from a child that is about to be deleted to the child before it. Closes the cursors in the
    /// children of the deleted znode.
    pub(super) fn leave(&mut self, id: u32, previous: Option<u32>) {
        if self.0.is_empty() {
            return;
        }
        self.0.retain(|_, position| position.parent != id);
        for (_, position) in self.0.iter_mut().filter(|(_, position)| position.last == Some(id)) {
            position.last = previous;
        }
    }
}
