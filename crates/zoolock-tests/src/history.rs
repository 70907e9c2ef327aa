//! Records when contenders hold a lock, and checks the record for violations.
//!
//! The recorder's mutex puts the events of all tasks in one order. A holder records `enter` after the grant and `exit`
//! before the release, so the recorded holds are shorter than the real ones. A violation in the record is therefore a
//! real violation.

use std::fmt::{self, Debug, Display};
use std::sync::{Mutex, MutexGuard};

use crate::lock;

/// A step of a contender.
#[derive(Clone, Debug)]
enum HistoryStep<T> {
    /// The lock was granted with this fencing token.
    Enter(T),
    /// The contender is about to release the lock with this fencing token, or has lost it.
    Exit(T),
}

/// A recorded step.
#[derive(Clone, Debug)]
struct HistoryEvent<T> {
    contender: String,
    step: HistoryStep<T>,
}

/// A recorder of the steps of many tasks, shared as `Arc<Recorder<_>>`.
#[derive(Debug)]
pub struct Recorder<T> {
    events: Mutex<Vec<HistoryEvent<T>>>,
}

impl<T> Default for Recorder<T> {
    fn default() -> Self {
        Self { events: Mutex::new(Vec::new()) }
    }
}

impl<T: Clone> Recorder<T> {
    /// Creates an empty recorder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that `contender` was granted the lock with fencing token `token`.
    pub fn enter(&self, contender: impl Display, token: T) {
        self.record(contender, HistoryStep::Enter(token));
    }

    /// Records that `contender` is about to release the lock, or has lost it.
    pub fn exit(&self, contender: impl Display, token: T) {
        self.record(contender, HistoryStep::Exit(token));
    }

    /// Returns a copy of the record so far.
    pub fn history(&self) -> GrantHistory<T> {
        GrantHistory { events: self.events().clone() }
    }

    /// Checks that at most one contender held the lock at any time, and that each grant has a
    /// higher token than the grant before it. Returns a copy of the record.
    ///
    /// # Panics
    /// Panics if the record violates either rule.
    pub fn checked_history(&self) -> GrantHistory<T>
    where
        T: Ord + Debug,
    {
        let history = self.history();
        history.check_one_holder().expect("one holder at a time");
        history.check_tokens_rise().expect("tokens rise");
        history
    }

    fn record(&self, contender: impl Display, step: HistoryStep<T>) {
        let contender = contender.to_string();
        self.events().push(HistoryEvent { contender, step });
    }

    fn events(&self) -> MutexGuard<'_, Vec<HistoryEvent<T>>> {
        lock(&self.events)
    }
}

/// A copy of a record, to be checked.
#[derive(Clone, Debug)]
pub struct GrantHistory<T> {
    events: Vec<HistoryEvent<T>>,
}

/// A description of the first events in a record that violate a rule.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation(String);

impl<T: Ord + Debug> GrantHistory<T> {
    /// Returns the contenders that were granted the lock, in the order of the grants.
    pub fn contenders_by_grant(&self) -> Vec<&str> {
        self.grants().map(|(_, contender, _)| contender).collect()
    }

    /// Checks that at most one contender held the lock at any time.
    ///
    /// # Errors
    /// Names the first two contenders that held the lock together, or the first contender that
    /// exited without having entered.
    pub fn check_one_holder(&self) -> Result<(), Violation> {
        let mut holder: Option<(usize, &str, &T)> = None;
        for (at, HistoryEvent { contender, step }) in self.events.iter().enumerate() {
            match step {
                HistoryStep::Enter(token) => {
                    if let Some((since, other, theirs)) = holder {
                        return Err(Violation(format!(
                            "two holders: event {at}, {contender} entered with {token:?}, while {other} was inside \
                             since event {since} with {theirs:?}"
                        )));
                    }
                    holder = Some((at, contender.as_str(), token));
                }
                HistoryStep::Exit(token) => match holder.take() {
                    Some((_, other, theirs)) if other == contender && theirs == token => {}
                    holder => {
                        return Err(Violation(format!(
                            "event {at}, {contender} exited with {token:?} without having entered; the holder was \
                             {holder:?}"
                        )));
                    }
                },
            }
        }
        Ok(())
    }

    /// Checks that each grant has a higher token than the grant before it.
    ///
    /// # Errors
    /// Names the first two successive grants of which the second does not have the higher token.
    pub fn check_tokens_rise(&self) -> Result<(), Violation> {
        for ((before, earlier, low), (after, later, high)) in self.grants().zip(self.grants().skip(1)) {
            if high <= low {
                return Err(Violation(format!(
                    "token does not rise: event {after}, {later} entered with {high:?}, after {earlier} had \
                     entered with {low:?} at event {before}"
                )));
            }
        }
        Ok(())
    }

    fn grants(&self) -> impl Iterator<Item = (usize, &str, &T)> {
        self.events.iter().enumerate().filter_map(|(at, event)| match &event.step {
            HistoryStep::Enter(token) => Some((at, &*event.contender, token)),
            HistoryStep::Exit(_) => None,
        })
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}
