//! What workers tell the referee, a line of JSON each.

use serde::{Deserialize, Serialize};

/// Who speaks: a task of one life of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Who {
    pub(crate) worker: usize,
    /// Rises each time the worker is started.
    pub(crate) life: u32,
    pub(crate) task: usize,
}

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// It asks for a lock now.
    Asks { who: Who, locks: Vec<String> },
    /// It has looked whether it holds its lock, and writes only so many milliseconds later.
    Ponders { who: Who, millis: u64 },
    /// It writes under a lock, and believes that it holds it. The answer is a line, `true` or `false`: whether it was
    /// written.
    Writes { who: Who, locks: Vec<String>, token: String },
    /// It is done with a lock, in whatever way.
    Done(Section),
}

/// What came of asking for a lock once. Times are those of [`now`](crate::clock::now).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) who: Who,
    pub(crate) kind: String,
    pub(crate) locks: Vec<String>,
    pub(crate) share: Share,
    pub(crate) asked: i64,
    /// When the lock was granted, unless it was not.
    pub(crate) granted: Option<i64>,
    /// The last time before which it was sure to hold it: it looked at the clock, then asked the guard.
    pub(crate) believed: Option<i64>,
    /// When the service said that the lock is released.
    pub(crate) released: Option<i64>,
    pub(crate) ticket: Option<String>,
    /// Writes that the referee refused while the guard still said that it is valid, after the refusal.
    pub(crate) refused_in_belief: u32,
    /// Writes that the referee refused and the guard then knew why.
    pub(crate) refused_in_time: u32,
    pub(crate) end: String,
}

/// What part of a lock somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Share {
    /// All of it.
    Alone,
    /// It reads beside others.
    Reads,
    /// So many permits of so many.
    Permits(u32, u32),
}
