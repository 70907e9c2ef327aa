//! The crashes of previous holders that an acquisition has found, for the history of the lock.

use std::sync::Mutex;

use zoolock_core::record::Marker;

use crate::base::sync::lock;

/// A crash of a previous holder.
#[derive(Debug)]
pub(crate) struct FoundCrash {
    /// The index of the lock.
    pub(crate) lock_index: usize,
    /// The marker of that holder.
    pub(crate) marker: Marker,
    /// The host and the process of that holder, as `HOST:PID`. Empty if its marker does not name them, as after a panic.
    pub(crate) holder: String,
}

/// The crashes that one acquisition has found. Allocates nothing as long as no `held` marker was read.
#[derive(Default)]
pub(crate) struct FoundCrashes {
    state: Mutex<CrashState>,
}

#[derive(Default)]
struct CrashState {
    /// The host and the process in the last `held` marker that was read, by the index of the lock.
    holders: Vec<(usize, String)>,
    found: Vec<FoundCrash>,
}

impl FoundCrashes {
    /// Remembers the host and the process that a `held` marker names.
    pub(super) fn remember_holder(&self, lock_index: usize, holder: &str) {
        let state = &mut *lock(&self.state);
        state.holders.retain(|(index, _)| *index != lock_index);
        state.holders.push((lock_index, holder.to_owned()));
    }

    /// Adds a crash that the machine has found.
    pub(super) fn add(&self, lock_index: usize, marker: Marker) {
        let state = &mut *lock(&self.state);
        let at = state.holders.iter().position(|(index, _)| *index == lock_index);
        let holder = at.map(|at| state.holders.swap_remove(at).1).unwrap_or_default();
        state.found.push(FoundCrash { lock_index, marker, holder });
    }

    /// Returns the crashes, each once.
    pub(crate) fn take(&self) -> Vec<FoundCrash> {
        std::mem::take(&mut lock(&self.state).found)
    }
}
