//! The observations and the verdict of a run.

use std::collections::BTreeMap;

use crate::usable_spans::UsableSpans;

/// The observations of a run that are not in the referee's file.
#[derive(Default)]
pub(crate) struct Observations {
    /// Violations, in words.
    pub(crate) violations: Vec<String>,
    /// The nodes whose tree differed from that of the others.
    pub(crate) diverged: Vec<String>,
    pub(crate) samples: Vec<ProgressSample>,
    /// The spans in which the nodes were usable, and in which the links of the workers were broken.
    pub(crate) reach: UsableSpans,
    pub(crate) began: i64,
    pub(crate) ended: i64,
}

/// The number of critical sections at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgressSample {
    pub(crate) at: i64,
    pub(crate) sections: u64,
}

/// The verdict on a run.
#[derive(Default)]
pub(crate) struct RunVerdict {
    /// Violations, in words.
    pub(crate) violations: Vec<String>,
    /// Servers whose tree differed from that of the others, and which were restarted without data.
    pub(crate) diverged: Vec<String>,
    pub(crate) faults: Vec<FaultRecord>,
    pub(crate) samples: Vec<ProgressSample>,
    pub(crate) began: i64,
    pub(crate) ended: i64,
    /// Number of sections during which a guard was valid, by kind of lock.
    pub(crate) sections: BTreeMap<String, u64>,
    /// Number of accepted writes.
    pub(crate) written: u64,
    /// The times of the writes that the referee refused.
    pub(crate) refused: Vec<i64>,
    /// Number of refused writes with a valid guard, after a fault had deleted the znode or closed the session.
    pub(crate) refused_while_valid: u64,
    /// Number of overlapping holds after a fault had deleted the znode or closed the session.
    pub(crate) excused: u64,
    /// Number of confirmed releases.
    pub(crate) released: u64,
    /// Number of locks that were lost with their session or its lease.
    pub(crate) lost: u64,
    /// Number of locks that were lost although a server could have kept them.
    pub(crate) needlessly_lost: u64,
    /// Errors of acquisitions, and losses, each with its count.
    pub(crate) ends: BTreeMap<String, u64>,
    /// The longest time from an acquire call to its grant, in seconds.
    pub(crate) longest_wait: f64,
}

/// Suffix of the kind of a fault that was not injected.
pub(crate) const NOT_DONE: &str = " (not done)";

/// A fault of the run.
pub(crate) struct FaultRecord {
    pub(crate) kind: String,
    pub(crate) target: String,
    pub(crate) struck: i64,
    pub(crate) healed: i64,
    pub(crate) settled: i64,
}

impl FaultRecord {
    /// Returns whether the fault was injected. An injection may fail: for example, no session can
    /// be taken if there is no contender.
    pub(crate) fn is_done(&self) -> bool {
        !self.kind.ends_with(NOT_DONE)
    }
}
