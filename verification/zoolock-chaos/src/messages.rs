//! The messages of workers to the referee, one line of JSON each.

use serde::{Deserialize, Serialize};
use zoolock_tests::judge::Share;

/// A task of a worker. `life` counts the starts of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct TaskId {
    pub(crate) worker: usize,
    pub(crate) life: u32,
    pub(crate) task: usize,
}

/// A message of a task to the referee.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum TaskMessage {
    /// The task begins to acquire locks.
    Asks { who: TaskId, locks: Vec<String> },
    /// The task has checked its guard, and will write this number of milliseconds later.
    WillWrite { who: TaskId, millis: u64 },
    /// The task writes under a lock that it holds. The referee answers with the line `true` if it accepted the write,
    /// or else `false`.
    Writes { who: TaskId, locks: Vec<String>, token: String },
    /// The attempt to hold a lock has ended.
    Done(CriticalSection),
}

/// One attempt to hold a lock. Times are those of [`now`](crate::clock::now).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CriticalSection {
    pub(crate) who: TaskId,
    pub(crate) kind: String,
    pub(crate) locks: Vec<String>,
    pub(crate) share: Share,
    pub(crate) asked: i64,
    /// The time of the grant.
    pub(crate) granted: Option<i64>,
    /// The last time at which the guard was valid. The task read the clock, and then checked the guard.
    pub(crate) last_valid: Option<i64>,
    /// The time at which the task noticed that the session or its lease had ended. `None` if the
    /// lock was not lost, or was lost for another reason.
    pub(crate) lost: Option<i64>,
    /// The time at which the server confirmed the release.
    pub(crate) released: Option<i64>,
    pub(crate) ticket: Option<String>,
    /// The number of refused writes, after whose refusal the guard was still valid.
    pub(crate) refused_while_valid: u32,
    /// The number of refused writes, after whose refusal the guard was not valid.
    pub(crate) refused_while_invalid: u32,
    pub(crate) end: String,
}
