//! Leaving a directory whose sequence numbers run out.
//!
//! After the last sequence number, ZooKeeper gives that number again, or gives negative numbers (tested on 3.8.0). So
//! we wait until the directory is empty, delete it, and join the directory that is created in its place.

use super::*;
use crate::names::Name;

/// Number of polls of a retired directory before it is joined again.
const POLLS_BEFORE_JOINING_AGAIN: u8 = 20;
/// Pause between two polls of a retired directory, in milliseconds.
const RETIRE_POLL: u32 = 50;

impl Config {
    /// Returns whether the number of a znode is so near to the last sequence number that its directory must be retired.
    pub(super) fn is_near_the_end(&self, me: Node) -> bool {
        let is_near = me.sequence.0 < 0 || me.sequence >= self.retire_from;
        is_near && self.rules.retires()
    }
}

impl Machine {
    /// Retires the directory if its sequence numbers have run out. Fails after any other refusal.
    pub(super) fn retire_or_fail(&mut self, failure: RequestFailure, step: &mut Step) {
        let full = match failure {
            RequestFailure::NodeExists if !self.is_of_several() => Some(0),
            RequestFailure::NodeExistsAt(index) if index < self.positions.len() => Some(index),
            _ => None,
        };
        match full {
            Some(index) if self.config.rules.retires() => self.retire(index, None, step),
            _ => {
                self.phase = Phase::Leaving;
                self.fail(Reason::Refused(failure), step);
            }
        }
    }

    /// Retires a directory after our create in it. `first`: the answers to the reads of the first directory, which were
    /// sent together with the create.
    pub(super) fn retire_joined(&mut self, index: usize, first: &Answers, step: &mut Step) {
        let later = self.positions[index].early_answers.as_deref();
        let read = if index == 0 { first.directory } else { later.and_then(|read| read.directory) };
        self.retire(index, read.and_then(Result::ok).map(|directory| directory.czxid), step);
    }

    /// Deletes our znodes that a search has found, and retires a directory.
    pub(super) fn retire_found(&mut self, ending: usize, step: &mut Step) {
        for index in 0..self.positions.len() {
            if let Some(node) = self.positions[index].node.take() {
                self.clean_up(index, node, None, false, step);
            }
        }
        self.retire(ending, None, step);
    }

    /// Retires a directory. `directory`: the transaction that created it, if that is known.
    fn retire(&mut self, index: usize, directory: Option<Zxid>, step: &mut Step) {
        if !self.wanted {
            return self.end_all_but_cleanups(step);
        }
        if self.config.kind.reader().is_some() {
            // The znode of our own reader keeps the directory from becoming empty.
            self.phase = Phase::Leaving;
            return self.fail(Reason::Exhausted, step);
        }
        self.phase = Phase::Retiring { index, directory, polls: 0 };
        self.read_retired(step);
    }

    /// Reads the directory. Lists it before the contender gives up its wait for the other children.
    pub(super) fn read_retired(&mut self, step: &mut Step) {
        let Phase::Retiring { index, polls, .. } = self.phase else { return };
        let ends_wait = self.config.mode == Mode::Try || polls >= POLLS_BEFORE_JOINING_AGAIN;
        let list = ends_wait.then_some((RequestKind::Children(None), Request::List));
        let read = (RequestKind::Directory, Request::ReadDirectory);
        self.trips.send(index, Purpose::RetireRead, list.into_iter().chain([read]), step);
    }

    pub(super) fn handle_retired_read(&mut self, answers: &Answers, step: &mut Step) {
        let Phase::Retiring { index, directory, polls } = self.phase else { return };
        match answers.directory {
            Some(Ok(seen)) => {
                let retired = directory.unwrap_or(seen.czxid);
                let next = polls.saturating_add(1);
                self.phase = Phase::Retiring { index, directory: Some(retired), polls: next };
                if retired != seen.czxid {
                    self.join(step);
                } else if seen.children == 0 {
                    let delete = (RequestKind::Main, Request::DeleteDirectory);
                    self.trips.send(index, Purpose::RetireDelete, [delete], step);
                } else if let Some(child) = lasting_child(&answers.children) {
                    self.fail(Reason::Occupied(index, child.clone()), step);
                } else if self.config.mode == Mode::Try {
                    self.fail(Reason::Busy, step);
                } else if polls >= POLLS_BEFORE_JOINING_AGAIN {
                    // Tries to join the directory, because it may be one that was created later, whose numbers do not
                    // run out yet, if the first read was lost.
                    self.join(step);
                } else {
                    self.trips.sleep(index, Purpose::RetirePause, RETIRE_POLL, step);
                }
            }
            Some(Err(RequestFailure::NoNode)) => self.join(step),
            Some(Err(failure @ RequestFailure::Refused(_))) => self.fail(Reason::Refused(failure), step),
            None | Some(Err(_)) => self.back_off(index, Purpose::RetirePause, step),
        }
    }

    pub(super) fn handle_retired_delete(&mut self, answers: &Answers, step: &mut Step) {
        let Phase::Retiring { index, .. } = self.phase else { return };
        match answers.main() {
            Ok(_) | Err(RequestFailure::NoNode) => self.join(step),
            Err(failure @ RequestFailure::Refused(_)) => self.fail(Reason::Refused(failure), step),
            Err(_) => self.back_off(index, Purpose::RetirePause, step),
        }
    }
}

/// Returns a child if none is a contender. It may stay for ever, such as the directory of a lock below this lock.
fn lasting_child(listing: &Option<Answer<Children>>) -> Option<&String> {
    let names = &listing.as_ref()?.as_ref().ok()?.names;
    if names.iter().any(|name| Name::parse(name).is_some()) { None } else { names.iter().min() }
}

impl Rules {
    /// Returns whether directories near the end of their numbers are retired ([`Rule::RetireNearTheEnd`]).
    pub(super) fn retires(self) -> bool {
        !self.off(Rule::RetireNearTheEnd)
    }
}
