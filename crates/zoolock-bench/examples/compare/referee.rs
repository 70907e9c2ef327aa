//! A referee that observes the critical section, independently of the locks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use zoolock_tests::lock;

/// A counter of the holders in the critical section, and a list of their turns. A turn is one hold
/// of the lock.
#[derive(Default)]
pub(crate) struct Referee {
    inside: AtomicUsize,
    most_inside: AtomicUsize,
    turns: Mutex<Vec<usize>>,
}

impl Referee {
    /// Records that the waiter `who` enters the critical section. Returns the number of turns so far.
    pub(crate) fn enter(&self, who: usize) -> usize {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(inside, Ordering::SeqCst);
        let mut turns = lock(&self.turns);
        turns.push(who);
        turns.len()
    }

    /// Records that a holder leaves the critical section.
    pub(crate) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the largest number of simultaneous holders.
    pub(crate) fn most_inside(&self) -> usize {
        self.most_inside.load(Ordering::SeqCst)
    }

    /// Returns the waiter of each turn, in order.
    pub(crate) fn turns(&self) -> Vec<usize> {
        lock(&self.turns).clone()
    }
}
