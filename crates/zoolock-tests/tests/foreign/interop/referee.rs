//! The referee: finds contenders that hold the lock together and may not. The tests let it find some.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::timeout;
use zoolock_tests::{Place, on_both_arms};

use crate::clients::Library::{Java, Kazoo, NewKazoo};
use crate::interop::contenders::{Role, available, prepare, role, run, sections, violation};

/// A contender's share of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    Exclusive,
    Shared,
    Permits(u32),
}

/// Compares the contenders that hold the lock.
///
/// A contender enters after its client has said that it acquired the lock, and leaves before its client is told to
/// release it. So contenders that are in at the same time hold at the same time.
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

    /// Records that a contender acquired the lock. Returns the number of entries before this one.
    ///
    /// # Errors
    /// Fails if the contender may not hold beside the other holders.
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

    /// Returns the number of contenders that have entered.
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

/// Lets the contenders run until the referee finds a violation that contains `expected`.
pub(crate) async fn assert_violation(place: &Place, roles: &[Role], expected: &str) {
    if !available(roles, place) {
        return;
    }
    prepare(place).await;
    let found = violation(place, roles).await;
    assert!(found.contains("violation: ") && found.contains(expected), "{found}");
}

on_both_arms!(two_exclusive_holders_are_found, |place| async move {
    let roles = [role(Java, "curator-mutex", 2), role(Kazoo, "lock", 2)];
    assert_violation(&place, &roles, "both hold exclusively").await;
});

on_both_arms!(reader_beside_writer_is_found, |place| async move {
    let roles = [role(Java, "curator-write", 1), role(NewKazoo, "read", 2)];
    assert_violation(&place, &roles, "hold as reader and writer").await;
});

on_both_arms!(excess_permit_is_found, |place| async move {
    // kazoo counts the two directories of Curator as leases.
    let roles = [role(Java, "curator-semaphore:1:1", 2), role(Kazoo, "semaphore:3", 2)];
    assert_violation(&place, &roles, "permits of 1 are taken").await;
});

on_both_arms!(excess_permit_of_larger_semaphore_is_found, |place| async move {
    let roles = [role(Java, "curator-semaphore:3:1", 3), role(Java, "curator-semaphore:5:1", 2)];
    if !available(&roles, &place) {
        return;
    }
    prepare(&place).await;
    // By chance, the contenders of the larger semaphore may never use its other permits in one run.
    for _ in 0..5 {
        let ended = timeout(Duration::from_secs(60), run(&place, &roles, Some(sections(&roles)))).await;
        if let Err(found) = ended.expect("the contenders make progress") {
            let found = found.to_string();
            assert!(found.contains("violation: ") && found.contains(" permits of 3 are taken"), "{found}");
            return;
        }
    }
    panic!("a permit too many is found");
});
