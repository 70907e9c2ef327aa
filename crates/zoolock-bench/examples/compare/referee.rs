//! Watches the critical section from inside, and knows nothing of locks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counts who is inside, and writes down whose turn it was.
#[derive(Default)]
pub(crate) struct Referee {
    inside: AtomicUsize,
    most_inside: AtomicUsize,
    turns: Mutex<Vec<usize>>,
}

impl Referee {
    /// `who` enters. Says how many turns there were.
    pub(crate) fn enter(&self, who: usize) -> usize {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(inside, Ordering::SeqCst);
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.push(who);
        turns.len()
    }

    /// Somebody leaves.
    pub(crate) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    /// The most that were ever inside together.
    pub(crate) fn most_inside(&self) -> usize {
        self.most_inside.load(Ordering::SeqCst)
    }

    /// Whose turn it was, in order.
    pub(crate) fn turns(&self) -> Vec<usize> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
