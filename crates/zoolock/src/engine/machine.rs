//! The machine of one lock or of several.

use zoolock_core::contender::{Node, RequestId};
use zoolock_core::{Action, Config, Contender, Event, Multi, multi};

use crate::base::path::LockPath;

pub(super) enum Machine {
    One(Box<Contender>),
    Several(Box<Multi>),
}

impl Machine {
    pub(super) fn new(config: Config, lock_count: usize) -> Machine {
        match lock_count {
            1 => Machine::One(Box::new(Contender::new(config))),
            _ => Machine::Several(Box::new(Multi::new(config, lock_count))),
        }
    }

    pub(super) fn step(&mut self, event: Event, lease_valid: bool) -> Vec<Action> {
        match self {
            Machine::One(machine) => machine.step(event, lease_valid),
            Machine::Several(machine) => machine.step(event, lease_valid),
        }
    }

    pub(super) fn node(&self, lock_index: usize) -> Option<Node> {
        match self {
            Machine::One(machine) => machine.node(),
            Machine::Several(machine) => machine.node(lock_index),
        }
    }

    pub(super) fn watches_own(&self) -> bool {
        match self {
            Machine::One(machine) => machine.watches_own(),
            Machine::Several(machine) => machine.watches_own(),
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        match self {
            Machine::One(machine) => machine.is_waiting(),
            Machine::Several(machine) => machine.is_waiting(),
        }
    }

    pub(super) fn is_delaying(&self) -> bool {
        match self {
            Machine::One(machine) => machine.is_delaying(),
            Machine::Several(machine) => machine.is_delaying(),
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        match self {
            Machine::One(machine) => machine.is_leaving(),
            Machine::Several(machine) => machine.is_leaving(),
        }
    }
}

/// Returns the position of the directory that a request is for.
pub(super) fn lock_index(directories: &[LockPath], id: RequestId) -> usize {
    if directories.len() == 1 { 0 } else { multi::place(id) }
}
