//! The machine under test: one acquisition, of one lock or of several.

use zoolock_core::contender::{Action, Config, Contender, Event, Node, RequestId};
use zoolock_core::{Multi, multi};

/// An acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "most acquisitions are of one lock")]
pub(crate) enum Machine {
    One(Contender),
    Several(Multi),
}

impl Machine {
    /// Creates an acquisition of this number of locks.
    pub(crate) fn new(config: Config, locks: usize) -> Machine {
        match locks {
            1 => Machine::One(Contender::new(config)),
            _ => Machine::Several(Multi::new(config, locks)),
        }
    }

    pub(crate) fn step(&mut self, event: Event, lease_valid: bool) -> Vec<Action> {
        match self {
            Machine::One(machine) => machine.step(event, lease_valid),
            Machine::Several(machine) => machine.step(event, lease_valid),
        }
    }

    /// Returns the znode with which it holds its first lock. The same transaction created its other znodes.
    pub(crate) fn holding(&self) -> Option<Node> {
        match self {
            Machine::One(machine) => machine.holding(),
            Machine::Several(machine) => machine.holding()?.first().copied(),
        }
    }

    pub(crate) fn is_queued(&self) -> bool {
        match self {
            Machine::One(machine) => machine.node().is_some(),
            Machine::Several(machine) => machine.node(0).is_some(),
        }
    }

    /// Returns the position, among its locks, of the lock that a request is for.
    pub(crate) fn lock_index(&self, id: RequestId) -> usize {
        match self {
            Machine::One(_) => 0,
            Machine::Several(_) => multi::place(id),
        }
    }
}
