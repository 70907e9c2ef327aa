//! The watches of one acquisition. The machine is the acquisition's state machine.

use zoolock_core::acquisition::WatchId;

use crate::zk::session::{WatchKey, WatchNumber};

/// A watch that is set on the server, or that a request in flight sets.
pub(super) struct SetWatch {
    /// The machine's id of the watch.
    pub(super) id: WatchId,
    pub(super) number: WatchNumber,
    pub(super) key: WatchKey,
}

/// The watches that the machine has set, and has not forgotten.
#[derive(Default)]
pub(super) struct KnownWatches {
    set: Vec<SetWatch>,
    /// The watches that fired before the replies to their requests were handled. The flag is set if
    /// the znode was deleted.
    early: Vec<(WatchNumber, bool)>,
    last: WatchNumber,
}

impl KnownWatches {
    /// Returns an unused number, for a new watch.
    pub(super) fn new_number(&mut self) -> WatchNumber {
        self.last.0 += 1;
        self.last
    }

    /// Adds a watch. If it has fired already, returns whether its znode was deleted.
    pub(super) fn add(&mut self, watch: SetWatch) -> Option<bool> {
        let early = self.early.iter().position(|(number, _)| *number == watch.number);
        self.set.push(watch);
        early.map(|at| self.early.swap_remove(at).1)
    }

    /// Removes a watch that has fired, and returns its id. Returns `None` for a watch that was not
    /// added yet, or that the machine has forgotten.
    pub(super) fn remove_fired(&mut self, number: WatchNumber) -> Option<WatchId> {
        let at = self.set.iter().position(|watch| watch.number == number)?;
        Some(self.set.swap_remove(at).id)
    }

    /// Keeps an event until its watch is added.
    pub(super) fn keep_early_event(&mut self, number: WatchNumber, is_deleted: bool) {
        self.early.push((number, is_deleted));
    }

    /// Removes a watch that the machine forgets.
    pub(super) fn forget(&mut self, id: WatchId) -> Option<SetWatch> {
        let at = self.set.iter().position(|watch| watch.id == id)?;
        Some(self.set.swap_remove(at))
    }

    /// Removes and returns any watch; `None` if there is none left.
    pub(super) fn pop(&mut self) -> Option<SetWatch> {
        self.set.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zk::session::WatchKind;

    const ID: WatchId = WatchId(0);

    fn watch(watches: &mut KnownWatches, path: &str) -> SetWatch {
        SetWatch { id: ID, number: watches.new_number(), key: (path.to_owned(), WatchKind::Data) }
    }

    #[test]
    fn event_of_a_forgotten_watch_is_ignored() {
        let mut watches = KnownWatches::default();
        let predecessor = watch(&mut watches, "/locks/x/lock-0000000001");
        let old = predecessor.number;
        assert_eq!(watches.add(predecessor), None);
        assert_eq!(watches.forget(ID).map(|watch| watch.number), Some(old));
        let own = watch(&mut watches, "/locks/x/lock-0000000002");
        let new = own.number;
        // The old event is ignored while the request that sets the next watch is in flight, and after its
        // answer.
        assert_eq!(watches.remove_fired(old), None);
        assert_eq!(watches.add(own), None);
        assert_eq!(watches.remove_fired(old), None);
        assert_eq!(watches.remove_fired(new), Some(ID));
        assert_eq!(watches.remove_fired(new), None, "a watch fires once");
    }

    #[test]
    fn early_event_belongs_to_its_own_watch() {
        let mut watches = KnownWatches::default();
        let (first, second) = (watch(&mut watches, "/locks/a"), watch(&mut watches, "/locks/b"));
        watches.keep_early_event(second.number, true);
        assert_eq!(watches.add(first), None);
        assert_eq!(watches.add(second), Some(true));
    }
}
