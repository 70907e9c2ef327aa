//! From the head of the queue to the grant: how the previous holder left, the delay after a crash,
//! the lease, the second read of a multi-lock's znodes, and the `held` marker.
//!
//! If crashes are tracked, a holder writes the `held` marker before its grant. The code calls this
//! write the beginning of the hold.

use super::*;
use crate::names::{Name, Role};

/// The record before our `held` marker: the marker to restore if we give up, and the version of the
/// directory's data at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Undo {
    pub(super) marker: Marker,
    pub(super) version: i32,
}

impl Node {
    /// Returns the `held` marker of this znode, for the directory with this czxid.
    pub fn held_record_in(self, directory: Zxid) -> Marker {
        Marker { directory, state: HolderState::Held, sequence: self.sequence, tracked: true }
    }
}

impl Machine {
    /// Continues when our znode has become the head of one queue. `directory` was read after that.
    /// `others`: the names of the children at that time, if they were listed.
    pub(super) fn reach_head(
        &mut self,
        lock_index: usize,
        directory: Option<Directory>,
        others: &[String],
        step: &mut Step,
    ) {
        let Some(me) = self.positions[lock_index].node else { return };
        let read = |directory| self.read_previous(lock_index, &directory, me, others);
        let previous = directory.map_or(Previous::Unknown, read);
        // The first contender of a directory has no previous holder.
        let is_clean = previous == Previous::Clean || me.sequence == Sequence(0);
        if self.config.delay > 0 && !self.positions[lock_index].delayed && !is_clean {
            self.waited = true;
            self.mark_reads_stale();
            self.positions[lock_index].state = PositionState::Delaying;
            return self.sleep(lock_index, Purpose::Delay, self.config.delay, step);
        }
        let position = &mut self.positions[lock_index];
        (position.state, position.directory, position.previous) =
            (PositionState::First, directory, Some(previous));
        if !self.prepare_held_record(lock_index, others, step) {
            return;
        }
        if self.positions.len() > 1 {
            if self.positions[lock_index].unrecorded.is_some() && self.config.rules.begins_alone() {
                self.positions[lock_index].state = PositionState::Reading;
                return self.write_held_record(lock_index, step);
            }
            // Watches this znode before the grant, because it may be deleted while the acquisition
            // still waits in other queues.
            self.watch_own_soon(lock_index, step);
        }
    }

    pub(super) fn handle_delay_end(&mut self, lock_index: usize, step: &mut Step) {
        if self.positions[lock_index].state == PositionState::Delaying {
            self.positions[lock_index].delayed = true;
            self.read_queue(lock_index, step);
        }
    }

    /// Prepares our `held` marker, if crashes are tracked. Returns false if the acquisition has
    /// failed.
    fn prepare_held_record(&mut self, lock_index: usize, others: &[String], step: &mut Step) -> bool {
        let tracks_crashes = self.config.tracks_crashes;
        let position = &mut self.positions[lock_index];
        position.unrecorded = None;
        let Some(me) = position.node.filter(|me| me.prefix.is_exclusive()) else { return true };
        let marker = position.directory.and_then(|directory| directory.record.marker_of(directory.czxid));
        let is_tracked = marker.is_some_and(|marker| marker.tracked);
        let has_begun = marker.is_some_and(|marker| marker == me.held_record_in(marker.directory));
        if !(is_tracked || tracks_crashes) || has_begun {
            return true;
        }
        let Some(directory) = position.directory.filter(|seen| seen.record.is_writable(seen.czxid)) else {
            // Forgets the record to restore, because restoring it would overwrite the present record,
            // which is another program's.
            position.undo = None;
            self.fail(Reason::ForeignRecord, step);
            return false;
        };
        // Keeps the marker that is in the record now, because we restore it if we give up, so that
        // the crash of an earlier holder stays known. The `held` marker of a holder whose znode
        // still exists is restored as `broken`, because that znode may be missing when the next
        // waiter reads, and the holder has not crashed.
        let marker = match marker {
            Some(marker) if is_of_present_contender(&marker, others) => {
                Marker { state: HolderState::Broken, ..marker }
            }
            Some(marker) => marker,
            None => Marker { state: HolderState::Broken, ..me.held_record_in(directory.czxid) },
        };
        position.unrecorded = Some(Undo { marker, version: directory.version });
        true
    }

    /// Continues when each position is the head of its queue.
    pub(super) fn verify_or_grant(&mut self, step: &mut Step) {
        // Reads all our znodes again if a queue has changed since our create, because the reads that
        // are sent with the create show the queues at different moments, and one of our znodes may
        // have been deleted in between. If no queue has changed, all reads show the moment of the
        // create.
        let is_untouched = self.positions.iter().all(Position::is_untouched);
        let is_old = self.positions.len() > 1 && (self.waited || !is_untouched);
        if is_old && self.config.rules.verifies_all() {
            self.verify(step);
        } else {
            self.grant(step);
        }
    }

    pub(super) fn handle_lease_renewal(&mut self, step: &mut Step) {
        if self.phase != Phase::AwaitingLease {
            return;
        }
        match self.positions.len() {
            1 => {
                self.phase = Phase::Queued;
                self.read_queue(0, step);
            }
            _ => self.verify(step),
        }
    }

    // ---- a multi-lock reads all its znodes again ----

    /// Reads all our znodes again. If all of them exist, there was a moment at which each was the
    /// head of its queue.
    pub(super) fn verify(&mut self, step: &mut Step) {
        self.phase = Phase::Verifying;
        self.unsure = false;
        self.send_to_all(
            Purpose::Verify,
            RequestKind::Own(None),
            |position| position.node.map(Request::Exists),
            step,
        );
    }

    pub(super) fn record_verify_answer(&mut self, lock_index: usize, outcome: Result<Reply, RequestFailure>) {
        let mut answers = Answers::default();
        answers.add(RequestKind::Own(None), outcome);
        let Some(me) = self.positions[lock_index].node else { return };
        match self.is_znode_ours(me, answers.own.as_ref()) {
            Some(true) => self.positions[lock_index].is_fresh = true,
            // Sends no delete, because a znode with that name now is another contender's. The watch on
            // our own znode may have been set too late to report the deletion of ours.
            Some(false) => self.positions[lock_index].node = None,
            None => self.unsure = true,
        }
    }

    pub(super) fn handle_verify_answers(&mut self, step: &mut Step) {
        if self.positions.iter().any(|position| position.node.is_none()) {
            self.fail(Reason::Broken, step);
        } else if self.unsure {
            self.pause(AfterPause::Verify, step);
        } else {
            self.grant(step);
        }
    }

    // ---- the grant and the `held` marker ----

    /// Grants the lock. Waits first for a valid lease, and writes the `held` markers that are due.
    fn grant(&mut self, step: &mut Step) {
        if !self.config.rules.may_grant(step.lease_valid) {
            self.phase = Phase::AwaitingLease;
            return self.mark_reads_stale();
        }
        if self.positions.iter().any(|position| position.unrecorded.is_some()) {
            self.phase = Phase::Beginning;
            return match self.positions.len() {
                1 => self.write_held_record(0, step),
                _ => self.write_held_records(step),
            };
        }
        let Some(node) = self.positions[0].node else { return };
        let has = |what| self.positions.iter().any(|position| position.previous == Some(what));
        let previous = match () {
            () if has(Previous::Crashed) => Previous::Crashed,
            () if has(Previous::Unknown) => Previous::Unknown,
            () => Previous::Clean,
        };
        self.phase = Phase::Held;
        (0..self.positions.len()).for_each(|lock_index| self.report_crash(lock_index, step));
        step.actions.push(Action::Granted(Grant { node, previous }));
        if self.positions.len() > 1 {
            // Reports a request to release that was read before the grant, because the watches on our
            // znodes may have been set before it.
            step.actions.extend(self.revoked.then_some(Action::Revoked));
        } else {
            self.mark_granted(0, node, step);
            self.watch_own_soon(0, step);
        }
    }

    /// Writes the `held` marker of one lock, in one transaction with a check of our znode.
    fn write_held_record(&mut self, lock_index: usize, step: &mut Step) {
        let Some(HoldOp { node, marker, version, .. }) = self.prepare_hold_op(lock_index) else { return };
        let node = self.config.rules.checks_own_node_at_beginning().then_some(node);
        let request = Request::Hold { node, marker, version };
        self.send_one(lock_index, Purpose::Begin, RequestKind::Main, request, step);
    }

    fn write_held_records(&mut self, step: &mut Step) {
        let holds =
            (0..self.positions.len()).filter_map(|lock_index| self.prepare_hold_op(lock_index)).collect();
        self.open_to_all(Purpose::BeginAll);
        self.add_request(0, RequestKind::Main, Request::HoldAll(holds), step);
    }

    /// Returns the `held` marker that must still be written. Sets `undo`, because from now on the
    /// record may contain that marker.
    fn prepare_hold_op(&mut self, lock_index: usize) -> Option<HoldOp> {
        let position = &mut self.positions[lock_index];
        let (node, directory, undo) = (position.node?, position.directory?, position.unrecorded?);
        position.undo = Some(undo);
        let marker = node.held_record_in(directory.czxid);
        Some(HoldOp { lock_index, node, marker, version: directory.version })
    }

    pub(super) fn handle_held_record_answer(
        &mut self,
        lock_index: usize,
        outcome: Result<Reply, RequestFailure>,
        step: &mut Step,
    ) {
        match outcome {
            Ok(_) => self.remember_held_record(lock_index, step),
            Err(failure) => return self.handle_held_record_failure(&[lock_index], failure, step),
        }
        if self.phase == Phase::Beginning {
            self.grant(step);
        } else {
            self.positions[lock_index].state = PositionState::First;
            self.watch_own_soon(lock_index, step);
        }
    }

    pub(super) fn handle_held_record_answers(
        &mut self,
        outcome: Result<Reply, RequestFailure>,
        step: &mut Step,
    ) {
        let places: Vec<usize> = (0..self.positions.len()).collect();
        match outcome {
            Ok(_) => places.into_iter().for_each(|lock_index| self.remember_held_record(lock_index, step)),
            Err(failure) => return self.handle_held_record_failure(&places, failure, step),
        }
        self.grant(step);
    }

    fn remember_held_record(&mut self, lock_index: usize, step: &mut Step) {
        if self.positions[lock_index].unrecorded.is_some() {
            self.report_crash(lock_index, step);
        }
        let position = &mut self.positions[lock_index];
        if let (Some(me), Some(directory), Some(_)) =
            (position.node, &mut position.directory, position.unrecorded.take())
        {
            directory.record = Record::Marker(me.held_record_in(directory.czxid));
            directory.version = directory.version.wrapping_add(1);
        }
    }

    /// Reports the crash of the previous holder. Does nothing if our own marker has replaced its marker.
    fn report_crash(&self, lock_index: usize, step: &mut Step) {
        let position = &self.positions[lock_index];
        let (Some(Previous::Crashed), Some(me), Some(directory)) =
            (position.previous, position.node, position.directory)
        else {
            return;
        };
        // A reader does not report the crash, because it writes no marker: the crash stays in the
        // record, and a later writer reports it.
        let is_replaced = |marker: &Marker| me.prefix.is_exclusive() && marker.sequence != me.sequence;
        if let Some(marker) = self.config.rules.marker_in(&directory).filter(is_replaced) {
            step.actions.push(Action::CrashFound { lock_index, marker });
        }
    }

    /// Handles a failed write of `held` markers. Fails if the server refuses the write for good.
    /// After any other failure, reads the queues again. Another client may have written a record,
    /// one of our znodes may be missing, the server may be busy, or the reply may be lost.
    fn handle_held_record_failure(&mut self, places: &[usize], failure: RequestFailure, step: &mut Step) {
        self.phase = Phase::Queued;
        self.mark_reads_stale();
        for &lock_index in places {
            let position = &mut self.positions[lock_index];
            if position.unrecorded.take().is_none() {
                continue;
            }
            position.perhaps_marked |= failure == RequestFailure::Unknown;
            if !position.perhaps_marked {
                // A marker that was not written must not be undone, because that would overwrite later
                // records.
                position.undo = None;
            }
            if failure.is_transient() {
                self.stop_position(lock_index, step);
                match failure.is_answer() {
                    true => self.read_queue(lock_index, step),
                    false => self.read_queue_later(lock_index, step),
                }
            }
        }
        if !failure.is_transient() {
            self.fail(Reason::Refused(failure), step);
        }
    }

    // ---- the last holder ----

    /// Returns whether the record has the release marker of the holder directly before `me`.
    pub(super) fn is_released_to(&self, lock_index: usize, directory: &Directory, me: Node) -> bool {
        let marker = self.config.rules.marker_in(directory);
        marker.is_some_and(|marker| {
            marker.state.is_release() && self.is_right_before(lock_index, marker.sequence, me)
        })
    }

    /// Returns true if it is certain that we need not wait for any contender between sequence
    /// number `theirs` and ours.
    fn is_right_before(&self, lock_index: usize, theirs: Sequence, me: Node) -> bool {
        let reads = me.prefix.reads();
        me.sequence.before() == Some(theirs)
            || (reads && self.positions[lock_index].exclusive_predecessor == Some(theirs))
    }

    /// Returns how the previous holder left, as far as the record says.
    pub(super) fn read_previous(
        &self,
        lock_index: usize,
        directory: &Directory,
        me: Node,
        others: &[String],
    ) -> Previous {
        let Some(marker) = self.config.rules.marker_in(directory) else { return Previous::Unknown };
        if marker.state == HolderState::Held && marker.sequence == me.sequence {
            // Keeps what was read before, because this is our own marker: we wrote it, and then were
            // interrupted.
            return self.positions[lock_index].previous.unwrap_or(Previous::Unknown);
        }
        if is_of_present_contender(&marker, others) {
            return Previous::Unknown;
        }
        // If crashes are tracked, every holder writes its marker, so this is the marker of the last
        // holder.
        let is_last = marker.tracked || self.is_right_before(lock_index, marker.sequence, me);
        match marker.state {
            HolderState::Released | HolderState::Downgraded if is_last => Previous::Clean,
            HolderState::Panicked | HolderState::Held if is_last => Previous::Crashed,
            _ => Previous::Unknown,
        }
    }
}

/// Returns whether this is the `held` marker of a contender that has not crashed, because its znode
/// still exists.
///
/// Only an upgraded reader can have written such a marker before another contender becomes the head
/// of the queue. It has two znodes: its reader's and, later in the queue, its writer's. If a reply was
/// lost, the writer's znode may be deleted after the reader's. In between, a contender that queued
/// between the two is the head.
fn is_of_present_contender(marker: &Marker, others: &[String]) -> bool {
    let is_its_writer = |other: &String| {
        let name = Name::parse(other).filter(|name| name.role == Role::Exclusive);
        name.is_some_and(|name| name.sequence == marker.sequence)
    };
    marker.state == HolderState::Held && others.iter().any(is_its_writer)
}
