//! The `held` marker, and its undoing.
//!
//! If crashes are tracked, a holder writes the `held` marker before its grant. The code calls this write the beginning
//! of the hold. A holder that crashes leaves its marker behind, and so the next holder learns of the crash. A contender
//! that gives up after the write restores the record, because it has not worked under the lock.

use super::*;
use crate::names::{Name, Role};

/// The record before our `held` marker: the marker to restore if we give up, and the version of the directory's data at
/// that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Undo {
    pub(super) marker: Marker,
    pub(super) version: i32,
}

impl Undo {
    /// Returns a second write of our `held` marker. Its answer is a barrier, because the first write cannot arrive
    /// after the second.
    pub(super) fn barrier(self, node: Node) -> Request {
        let marker = node.held_record_in(self.marker.directory);
        Request::Hold { node: Some(node), marker, version: self.version }
    }

    /// Returns the marker to restore and the version that it replaces, or `None` if the record is not our `held` marker
    /// any more. `read`: the answer to a read of the directory after the barrier. Fails if the answer does not show this.
    pub(super) fn restored(
        self,
        node: Node,
        read: Option<Answer<Directory>>,
    ) -> Answer<Option<(Marker, Option<i32>)>> {
        match read.unwrap_or(Err(RequestFailure::Unknown)) {
            Ok(Directory { record, version, .. }) => {
                let is_ours = record == Record::Marker(node.held_record_in(self.marker.directory));
                Ok(is_ours.then_some((self.marker, Some(version))))
            }
            // A contender without permission to read the record must still delete its znode.
            Err(RequestFailure::NoNode | RequestFailure::Refused(_)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

impl Directory {
    /// Returns whether every holder writes a `held` marker, because crashes are tracked.
    pub(super) fn is_tracked(&self) -> bool {
        self.record.marker_of(self.czxid).is_some_and(|marker| marker.tracked)
    }
}

impl Node {
    /// Returns the `held` marker of this znode, for the directory with this czxid.
    pub fn held_record_in(self, directory: Zxid) -> Marker {
        Marker { directory, state: HolderState::Held, sequence: self.sequence, tracked: true }
    }
}

impl Position {
    /// Waits before the grant, because the previous holder may have crashed.
    pub(super) fn start_delay(&mut self, here: &mut Here) -> Then {
        *here.waited = true;
        here.time_passes = true;
        self.state = PositionState::Delaying;
        here.sleep(PositionPurpose::Delay, here.config.delay)
    }

    pub(super) fn handle_delay_end(&mut self, here: &mut Here) -> Then {
        if self.state != PositionState::Delaying {
            return Then::Nothing;
        }
        self.delayed = true;
        self.read_queue(here)
    }

    /// Prepares our `held` marker, if crashes are tracked. Fails if the record is another program's.
    pub(super) fn prepare_held_record(&mut self, others: &[String], config: &Config) -> Result<(), Reason> {
        self.unrecorded = None;
        let Some(me) = self.node.filter(|me| me.prefix.is_exclusive()) else { return Ok(()) };
        let marker = self.directory.and_then(|directory| directory.record.marker_of(directory.czxid));
        let is_tracked = marker.is_some_and(|marker| marker.tracked);
        let has_begun = marker.is_some_and(|marker| marker == me.held_record_in(marker.directory));
        if !(is_tracked || config.tracks_crashes) || has_begun {
            return Ok(());
        }
        let Some(directory) = self.directory.filter(|seen| seen.record.is_writable(seen.czxid)) else {
            // Forgets the record to restore, because restoring it would overwrite the present record, which is another
            // program's.
            self.undo = None;
            return Err(Reason::ForeignRecord);
        };
        // Keeps the marker that is in the record now, because we restore it if we give up, so that the crash of an
        // earlier holder stays known. The `held` marker of a holder whose znode still exists is restored as `broken`,
        // because that znode may be missing when the next waiter reads, and the holder has not crashed.
        let marker = match marker {
            Some(marker) if is_of_present_contender(&marker, others) => {
                Marker { state: HolderState::Broken, ..marker }
            }
            Some(marker) => marker,
            None => Marker { state: HolderState::Broken, ..me.held_record_in(directory.czxid) },
        };
        self.unrecorded = Some(Undo { marker, version: directory.version });
        Ok(())
    }

    /// Returns the `held` marker that must still be written. Sets `undo`, because from now on the record may contain
    /// that marker.
    pub(super) fn prepare_hold_op(&mut self, lock_index: usize) -> Option<HoldOp> {
        let (node, directory, undo) = (self.node?, self.directory?, self.unrecorded?);
        self.undo = Some(undo);
        let marker = node.held_record_in(directory.czxid);
        Some(HoldOp { lock_index, node, marker, version: directory.version })
    }

    /// Updates what we know of the directory after the write of our `held` marker.
    fn remember_held_record(&mut self, here: &mut Here) -> Then {
        if self.unrecorded.is_some() {
            self.report_crash(here);
        }
        if let (Some(me), Some(directory), Some(_)) = (self.node, &mut self.directory, self.unrecorded.take())
        {
            directory.record = Record::Marker(me.held_record_in(directory.czxid));
            directory.version = directory.version.wrapping_add(1);
        }
        Then::Nothing
    }

    /// Reports the crash of the previous holder. Does nothing if our own marker has replaced its marker.
    pub(super) fn report_crash(&mut self, here: &mut Here) -> Then {
        let (Some(Previous::Crashed), Some(me), Some(directory)) = (self.previous, self.node, self.directory)
        else {
            return Then::Nothing;
        };
        // A reader does not report the crash, because it writes no marker: the crash stays in the record, and a later
        // writer reports it.
        let is_replaced = |marker: &Marker| me.prefix.is_exclusive() && marker.sequence != me.sequence;
        if let Some(marker) = here.config.rules.marker_in(&directory).filter(is_replaced) {
            here.step.actions.push(Action::CrashFound { lock_index: here.index, marker });
        }
        Then::Nothing
    }

    /// Reads the queue again after the write of our `held` marker has failed.
    fn handle_held_record_failure(&mut self, failure: RequestFailure, here: &mut Here) -> Then {
        if self.unrecorded.take().is_none() {
            return Then::Nothing;
        }
        self.perhaps_marked |= failure == RequestFailure::Unknown;
        if !self.perhaps_marked {
            // A marker that was not written must not be undone, because that would overwrite later records.
            self.undo = None;
        }
        if failure.is_transient() {
            self.stop(here);
            return self.read_queue_after(failure, here);
        }
        Then::Nothing
    }
}

impl Machine {
    /// Returns whether we are the head of a queue, and wait for the delay after a possible crash to pass.
    pub fn is_delaying(&self) -> bool {
        let delays = |position: &Position| position.state == PositionState::Delaying;
        self.phase == Phase::Queued && self.positions.iter().any(delays)
    }

    /// Writes the `held` markers that are due.
    pub(super) fn begin(&mut self, step: &mut Step) {
        self.phase = Phase::Beginning;
        if self.is_of_several() { self.write_held_records(step) } else { self.write_held_record(0, step) }
    }

    /// Writes the `held` marker of one lock, in one transaction with a check of our znode.
    pub(super) fn write_held_record(&mut self, index: usize, step: &mut Step) {
        let Some(hold) = self.positions[index].prepare_hold_op(index) else { return };
        let node = self.config.rules.checks_own_node_at_beginning().then_some(hold.node);
        let request = Request::Hold { node, marker: hold.marker, version: hold.version };
        self.trips.send(index, Purpose::Begin, [(RequestKind::Main, request)], step);
    }

    /// Handles the answer to the write of the `held` marker of the lock with this index, or of all locks. Fails if the
    /// server refuses the write for good. After any other failure, reads the queues again. Another client may have
    /// written a record, one of our znodes may be missing, the server may be busy, or the reply may be lost.
    pub(super) fn handle_held_record_answer(
        &mut self,
        index: Option<usize>,
        answers: &Answers,
        step: &mut Step,
    ) {
        let failure = answers.main().err();
        if failure.is_some() {
            self.phase = Phase::Queued;
            self.mark_reads_stale();
        }
        for index in index.map_or(0..self.positions.len(), |index| index..index + 1) {
            self.at(index, step, |position, here| match failure {
                None => position.remember_held_record(here),
                Some(failure) => position.handle_held_record_failure(failure, here),
            });
        }
        match (failure, index) {
            (Some(failure), _) if failure.is_transient() => {}
            (Some(failure), _) => self.fail(Reason::Refused(failure), step),
            (None, Some(index)) if self.phase != Phase::Beginning => self.continue_begun_alone(index, step),
            (None, _) => self.grant(step),
        }
    }
}

/// Returns whether this is the `held` marker of a contender that has not crashed, because its znode still exists.
///
/// Only an upgraded reader can have written such a marker before another contender becomes the head of the queue. It
/// has two znodes: its reader's and, later in the queue, its writer's. If a reply was lost, the writer's znode may be
/// deleted after the reader's. In between, a contender that queued between the two is the head.
pub(super) fn is_of_present_contender(marker: &Marker, others: &[String]) -> bool {
    let is_its_writer = |other: &String| {
        let name = Name::parse(other).filter(|name| name.role == Role::Exclusive);
        name.is_some_and(|name| name.sequence == marker.sequence)
    };
    marker.state == HolderState::Held && others.iter().any(is_its_writer)
}

impl Rules {
    /// Returns whether the `held` marker is written with a check of our own znode ([`Rule::HeldWithOwnNode`]).
    pub(super) fn checks_own_node_at_beginning(self) -> bool {
        !self.off(Rule::HeldWithOwnNode)
    }

    /// Returns whether the record is restored only if it is still our `held` marker ([`Rule::UndoWhatIsThere`]).
    pub(super) fn undoes_what_is_there(self) -> bool {
        !self.off(Rule::UndoWhatIsThere)
    }
}
