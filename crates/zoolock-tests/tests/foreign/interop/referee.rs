//! The referee: finds contenders that hold the lock together although they must exclude each other.

use std::sync::{Mutex, MutexGuard};

/// A contender's share of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    Exclusive,
    Shared,
    Permits(u32),
}

/// A record of the contenders that hold the lock.
///
/// A contender is recorded after its client has reported the grant. It is removed before its client
/// gets the command to release the lock. So contenders that are recorded at the same time hold the
/// lock at the same time.
pub(crate) struct Referee {
    /// Number of permits of the semaphore.
    permits: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    holders: Vec<(String, Hold)>,
    entries: usize,
}

impl Referee {
    pub(crate) fn new(permits: u32) -> Referee {
        Referee { permits, state: Mutex::default() }
    }

    /// Records that a contender acquired the lock. Returns the number of grants that were recorded
    /// before.
    ///
    /// # Errors
    /// Fails if the contender must not hold the lock beside the recorded holders, and if more
    /// permits are taken than the semaphore has.
    pub(crate) fn enter(&self, name: &str, hold: Hold) -> Result<usize, String> {
        let mut state = self.state();
        for (other, other_hold) in &state.holders {
            match (hold, *other_hold) {
                (Hold::Exclusive, Hold::Exclusive) => {
                    return Err(format!("{name} and {other} both hold exclusively"));
                }
                (Hold::Shared, Hold::Shared) | (Hold::Permits(_), Hold::Permits(_)) => {}
                _ => return Err(format!("{name} and {other} hold as reader and writer")),
            }
        }
        state.holders.push((name.to_owned(), hold));
        let taken = state.taken();
        if taken > self.permits {
            return Err(format!("{taken} permits of {} are taken: {:?}", self.permits, state.holders));
        }
        state.entries += 1;
        Ok(state.entries - 1)
    }

    /// Records that a contender releases the lock.
    pub(crate) fn leave(&self, name: &str) {
        self.state().holders.retain(|(holder, _)| holder != name);
    }

    /// Returns the number of grants that were recorded so far.
    pub(crate) fn entries(&self) -> usize {
        self.state().entries
    }

    pub(crate) fn all_permits_taken(&self) -> bool {
        self.state().taken() == self.permits
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds this lock")
    }
}

impl State {
    /// Returns the number of permits that are taken.
    fn taken(&self) -> u32 {
        let permits = self.holders.iter().map(|(_, hold)| match hold {
            Hold::Permits(permits) => *permits,
            Hold::Exclusive | Hold::Shared => 0,
        });
        permits.sum()
    }
}
