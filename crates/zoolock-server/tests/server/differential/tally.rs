//! Counts replies and events, so that a run that tests too little fails.

use std::collections::BTreeMap;

use zoolock_wire::{OpResult, Reply, op};

use super::plan::Action;
use super::server::Message;

/// Numbers of replies by operation and error code, and of events by kind.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    answers: BTreeMap<(i32, i32), usize>,
    in_multis: BTreeMap<i32, usize>,
    events: BTreeMap<i32, usize>,
}

/// The error codes that each operation must have returned in a run, outside multis.
const ANSWERS: [(i32, &[i32]); 23] = [
    (op::CREATE, &[0, -8, -101, -102, -108, -110, -114]),
    (op::CREATE2, &[0, -8, -101, -102, -108, -110, -114]),
    (op::CREATE_CONTAINER, &[0, -8, -101, -102, -108, -110, -114]),
    (op::CREATE_TTL, &[0, -8, -101, -102, -108, -110, -114]),
    (op::DELETE, &[0, -8, -101, -102, -103, -111]),
    (op::EXISTS, &[0, -8, -101]),
    (op::GET_DATA, &[0, -101, -102]),
    (op::SET_DATA, &[0, -8, -101, -102, -103]),
    (op::GET_ACL, &[0, -101, -102]),
    (op::SET_ACL, &[0, -101, -102, -103, -114]),
    (op::GET_CHILDREN, &[0, -101, -102]),
    (op::GET_CHILDREN2, &[0, -101, -102]),
    (op::CHECK, &[-8, -101, -102, -103]),
    (op::MULTI, &[0, -5]),
    (op::MULTI_READ, &[0, -5]),
    (op::CHECK_WATCHES, &[0, -5, -121]),
    (op::REMOVE_WATCHES, &[0, -5, -121]),
    (op::ADD_WATCH, &[0, -5]),
    (op::SET_WATCHES, &[0]),
    (op::SET_WATCHES2, &[0]),
    (op::AUTH, &[0, -115]),
    (op::GET_EPHEMERALS, &[0]),
    (op::GET_ALL_CHILDREN_NUMBER, &[0, -101, -102]),
];

/// The error codes that operations in multis must have returned in a run.
const IN_MULTIS: [i32; 10] = [0, -2, -8, -101, -102, -103, -108, -110, -111, -114];

impl Tally {
    pub(crate) fn count(&mut self, calls: &[(i32, Action)], messages: &[Message]) {
        let mut calls = calls.iter();
        for message in messages {
            match message {
                Message::Event(kind, _) => *self.events.entry(kind.code()).or_default() += 1,
                Message::Reply { err, reply, .. } => {
                    let Some((_, action)) = calls.next() else { return };
                    let op = match action {
                        Action::Request(request) => request.op(),
                        Action::Broken { op, .. } => *op,
                        Action::Reattach { .. } | Action::Renew => continue,
                    };
                    *self.answers.entry((op, *err)).or_default() += 1;
                    let Reply::Multi(results) = reply else { continue };
                    for result in results {
                        let err = if let OpResult::Error(err) = result { *err } else { 0 };
                        *self.in_multis.entry(err).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the replies and events that every run must have, but that this run did not have.
    pub(crate) fn missing(&self) -> Vec<String> {
        let answers = ANSWERS.iter().flat_map(|(op, errors)| errors.iter().map(move |err| (*op, *err)));
        let answers = answers.filter(|answer| !self.answers.contains_key(answer));
        let in_multis = IN_MULTIS.iter().filter(|err| !self.in_multis.contains_key(err));
        let events = (1..=4).filter(|kind| !self.events.contains_key(kind));
        (answers.map(|(op, err)| format!("error {err} of operation {op}")))
            .chain(in_multis.map(|err| format!("error {err} in a multi")))
            .chain(events.map(|kind| format!("event {kind}")))
            .collect()
    }
}
