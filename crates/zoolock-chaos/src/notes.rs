//! The messages of workers to the referee, one line of JSON each.

use serde::{Deserialize, Serialize};

/// A task of a worker. `life` counts the starts of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Who {
    pub(crate) worker: usize,
    pub(crate) life: u32,
    pub(crate) task: usize,
}

/// A message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The task begins to acquire locks.
    Asks { who: Who, locks: Vec<String> },
    /// The task has asked its guard, and writes this number of milliseconds later.
    WillWrite { who: Who, millis: u64 },
    /// The task writes under a lock that it holds. The answer is a line, `true` or `false`: whether the write was accepted.
    Writes { who: Who, locks: Vec<String>, token: String },
    /// The attempt to hold a lock has ended.
    Done(Section),
}

/// One attempt to hold a lock. Times are those of [`now`](crate::clock::now).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) who: Who,
    pub(crate) kind: String,
    pub(crate) locks: Vec<String>,
    pub(crate) share: Share,
    pub(crate) asked: i64,
    /// The time of the grant.
    pub(crate) granted: Option<i64>,
    /// The last time at which the guard was valid. The task read the clock, then asked the guard.
    pub(crate) last_valid: Option<i64>,
    /// The time at which the session was found to have ended, or its lease. `None` if the lock was broken, or not lost.
    pub(crate) lost: Option<i64>,
    /// The time at which the server confirmed the release.
    pub(crate) released: Option<i64>,
    pub(crate) ticket: Option<String>,
    /// The number of writes that the referee refused, after which the guard was still valid.
    pub(crate) refused_while_valid: u32,
    /// The number of writes that the referee refused, after which the guard was not valid.
    pub(crate) refused_while_invalid: u32,
    pub(crate) end: String,
}

/// The share of a lock that a task holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Share {
    /// The whole lock.
    Alone,
    /// A read lock.
    Reads,
    /// The first number of permits, of the second number.
    Permits(u32, u32),
}
