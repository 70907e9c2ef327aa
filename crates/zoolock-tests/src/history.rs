//! What happened inside a lock, in the order in which it happened, and whether that was allowed.
//!
//! The recorder's own mutex is the global order: a holder that records `enter` after it was granted and `exit`
//! before it lets go can only look *less* overlapping than it was, so a violation found is a violation.

use std::fmt::{self, Debug, Display};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One step of one contender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// It joined the queue.
    Join,
    /// It was granted the lock, with this token.
    Enter(T),
    /// It let go, or knows that it lost the lock.
    Exit(T),
}

/// A step and whose it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<T> {
    /// The contender.
    pub who: String,
    /// What it did.
    pub step: Step<T>,
}

/// Takes down the steps of many tasks; shared as `Arc<Recorder<_>>`.
#[derive(Debug)]
pub struct Recorder<T> {
    events: Mutex<Vec<Event<T>>>,
}

impl<T> Default for Recorder<T> {
    fn default() -> Self {
        Self { events: Mutex::new(Vec::new()) }
    }
}

impl<T: Clone> Recorder<T> {
    /// Begins an empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes down that `who` joined the queue.
    pub fn join(&self, who: impl Display) {
        self.record(who, Step::Join);
    }

    /// Takes down that `who` was granted the lock.
    pub fn enter(&self, who: impl Display, token: T) {
        self.record(who, Step::Enter(token));
    }

    /// Takes down that `who` is about to let go, or has lost the lock.
    pub fn exit(&self, who: impl Display, token: T) {
        self.record(who, Step::Exit(token));
    }

    /// The history so far.
    pub fn history(&self) -> History<T> {
        History { events: self.events().clone() }
    }

    fn record(&self, who: impl Display, step: Step<T>) {
        let who = who.to_string();
        self.events().push(Event { who, step });
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event<T>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A history to be checked.
#[derive(Clone, Debug)]
pub struct History<T> {
    events: Vec<Event<T>>,
}

/// Why a history is not allowed: the first offending pair, in words.
#[derive(Clone, PartialEq, Eq)]
pub struct Violation(String);

impl<T: Ord + Debug> History<T> {
    /// All events, in order.
    pub fn events(&self) -> &[Event<T>] {
        &self.events
    }

    /// Who was granted the lock, in order.
    pub fn entered(&self) -> Vec<&str> {
        self.entries().map(|(_, who, _)| who).collect()
    }

    /// Who joined, in order, as recorded.
    pub fn joined(&self) -> Vec<&str> {
        self.events.iter().filter(|event| matches!(event.step, Step::Join)).map(|event| &*event.who).collect()
    }

    /// Checks that at most one was inside at any time.
    ///
    /// # Errors
    /// Names the first two who were inside together, or one who left without having entered.
    pub fn one_holder(&self) -> Result<(), Violation> {
        self.at_most(1)
    }

    /// Checks that at most `permits` were inside at any time.
    ///
    /// # Errors
    /// As [`History::one_holder`].
    pub fn at_most(&self, permits: usize) -> Result<(), Violation> {
        let mut inside: Vec<(usize, &str, &T)> = Vec::new();
        for (at, Event { who, step }) in self.events.iter().enumerate() {
            match step {
                Step::Join => {}
                Step::Enter(token) => {
                    if inside.len() >= permits {
                        let (since, other, theirs) = inside[0];
                        return Err(Violation(format!(
                            "two inside: event {at}, {who} entered with {token:?}, while {other} was inside \
                             since event {since} with {theirs:?} (at most {permits} may be)"
                        )));
                    }
                    inside.push((at, who, token));
                }
                Step::Exit(token) => {
                    let Some(place) =
                        inside.iter().position(|(_, other, theirs)| other == who && *theirs == token)
                    else {
                        return Err(Violation(format!(
                            "event {at}, {who} left with {token:?} and was not inside; inside were {inside:?}"
                        )));
                    };
                    inside.remove(place);
                }
            }
        }
        Ok(())
    }

    /// Checks that each token was higher than the one before.
    ///
    /// # Errors
    /// Names the first two that were not.
    pub fn tokens_rise(&self) -> Result<(), Violation> {
        for ((before, earlier, low), (after, later, high)) in self.entries().zip(self.entries().skip(1)) {
            if high <= low {
                return Err(Violation(format!(
                    "token does not rise: event {after}, {later} entered with {high:?}, after {earlier} had \
                     entered with {low:?} at event {before}"
                )));
            }
        }
        Ok(())
    }

    /// Checks that those who entered did so in the order of `queue`; some may never have entered.
    ///
    /// # Errors
    /// Names the first who entered after somebody it stood before, or who was not in the queue.
    pub fn in_order<W: AsRef<str>>(&self, queue: &[W]) -> Result<(), Violation> {
        let mut next = 0;
        let mut previous = None;
        for (at, who, _) in self.entries() {
            if let Some(ahead) = queue[next..].iter().position(|name| name.as_ref() == who) {
                next += ahead + 1;
                previous = Some((at, who));
                continue;
            }
            return Err(Violation(match (queue[..next].iter().any(|name| name.as_ref() == who), previous) {
                (true, Some((before, overtaker))) => format!(
                    "not first come, first served: event {at}, {who} entered after {overtaker} (event {before}), \
                     though it stood before it in the queue, or entered twice"
                ),
                _ => format!("event {at}, {who} entered and was never in the queue"),
            }));
        }
        Ok(())
    }

    /// Checks that each of `queue` got its turn as often as it is named there.
    ///
    /// # Errors
    /// Names the first who did not, and how many more.
    pub fn everyone_entered<W: AsRef<str>>(&self, queue: &[W]) -> Result<(), Violation> {
        let mut turns = std::collections::HashMap::<&str, usize>::new();
        for (_, who, _) in self.entries() {
            *turns.entry(who).or_default() += 1;
        }
        let mut starved = Vec::new();
        for who in queue {
            match turns.get_mut(who.as_ref()) {
                Some(left) if *left > 0 => *left -= 1,
                _ => starved.push(who.as_ref()),
            }
        }
        match starved.split_first() {
            None => Ok(()),
            Some((first, rest)) => {
                Err(Violation(format!("{first} never got its turn, nor did {} more", rest.len())))
            }
        }
    }

    /// Checks all of it for a mutex: one holder, tokens rise, queue order, everyone's turn.
    ///
    /// # Errors
    /// The first violation found.
    pub fn is_fair_mutex<W: AsRef<str>>(&self, queue: &[W]) -> Result<(), Violation> {
        self.one_holder()?;
        self.tokens_rise()?;
        self.in_order(queue)?;
        self.everyone_entered(queue)
    }

    fn entries(&self) -> impl Iterator<Item = (usize, &str, &T)> {
        self.events.iter().enumerate().filter_map(|(at, event)| match &event.step {
            Step::Enter(token) => Some((at, &*event.who, token)),
            Step::Join | Step::Exit(_) => None,
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
