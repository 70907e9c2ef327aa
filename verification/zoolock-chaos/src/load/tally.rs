//! The counts of a client process, and its reports to the parent process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use zoolock_tests::lock;

use crate::Outcome;
use crate::orders::send_report;

/// The progress of a client process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum ChurnPhase {
    #[default]
    Starting,
    Ready,
    /// All sessions are open.
    Open,
    Churning,
    /// No task holds a lock or waits for one.
    Idle,
    /// All sessions are closed.
    Closed,
}

/// The progress and the counts of a client process, reported as a line of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ChurnTally {
    pub(crate) phase: ChurnPhase,
    /// Number of successful turns, by the name of their `TurnKind` (`session_pair.rs`). In a turn, a task
    /// uses one lock or reopens one session.
    pub(crate) turns: BTreeMap<String, u64>,
    /// Number of failed turns, by the name of their `TurnKind` and the error.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Number of different locks that were held.
    pub(crate) locks: usize,
    /// Number of sessions that were opened, including the first ones.
    pub(crate) opened: u64,
}

impl ChurnTally {
    pub(crate) fn turns(&self) -> u64 {
        self.turns.values().sum()
    }

    /// Adds another tally. The phase is that of the slower process.
    pub(crate) fn add(&mut self, other: &ChurnTally) {
        self.phase = self.phase.min(other.phase);
        self.locks += other.locks;
        self.opened += other.opened;
        for (own, others) in [(&mut self.turns, &other.turns), (&mut self.errors, &other.errors)] {
            for (what, count) in others {
                *own.entry(what.clone()).or_default() += count;
            }
        }
    }
}

/// The tally of a client process. Each of its session pairs (`session_pair.rs`) adds its own counts.
#[derive(Default)]
pub(super) struct SharedTally(Mutex<ChurnTally>);

impl SharedTally {
    pub(super) fn tally(&self) -> MutexGuard<'_, ChurnTally> {
        lock(&self.0)
    }

    pub(super) fn set_phase(&self, phase: ChurnPhase) -> Outcome<()> {
        self.tally().phase = phase;
        self.report()
    }

    /// Reports the tally to the parent process.
    pub(super) fn report(&self) -> Outcome<()> {
        let tally = self.tally().clone();
        send_report(&tally)
    }
}
