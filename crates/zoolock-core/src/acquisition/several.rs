//! Several locks at once.
//!
//! One transaction creates all znodes of the acquisition. So all queues have the same order: that of the transactions.
//! A waiter waits only for older contenders. So no cycle can form, and the caller may name the locks in any order. A
//! release also deletes all znodes in one transaction, if it can.
//!
//! A grant of several locks needs one moment at which all our znodes existed, each as the head of its queue. If no
//! queue has changed since the create, that moment is the create. Otherwise the machine reads all znodes again, after
//! each has become the head.

use std::ops::{Deref, DerefMut};

use super::*;

/// The positions of an acquisition, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "most acquisitions are of one lock")]
pub(super) enum Positions {
    One(Position),
    Many(Box<[Position]>),
}

impl Positions {
    pub(super) fn new(locks: usize) -> Positions {
        match locks {
            0 | 1 => Positions::One(Position::default()),
            _ => Positions::Many((0..locks).map(|_| Position::default()).collect()),
        }
    }
}

impl Deref for Positions {
    type Target = [Position];

    fn deref(&self) -> &[Position] {
        match self {
            Positions::One(position) => std::slice::from_ref(position),
            Positions::Many(positions) => positions,
        }
    }
}

impl DerefMut for Positions {
    fn deref_mut(&mut self) -> &mut [Position] {
        match self {
            Positions::One(position) => std::slice::from_mut(position),
            Positions::Many(positions) => positions,
        }
    }
}

impl Position {
    /// Returns whether our create was still the last change of the children when our znode was found to be the head of
    /// the queue.
    fn is_untouched(&self) -> bool {
        match (self.node, self.directory) {
            (Some(me), Some(directory)) => directory.pzxid == me.czxid,
            _ => false,
        }
    }

    /// Handles a read of our own znode that was sent after the watch on the predecessor was set. If our znode exists,
    /// the directory is still the same as at our create.
    pub(super) fn handle_own_check(&mut self, answers: &Answers, here: &mut Here) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        match (here.config.is_znode_ours(me, answers.own.as_ref()), &self.state) {
            // Fails in every state without a delete, because a znode with our name now is another contender's.
            (Some(false), _) => self.stop_removed(here),
            (None, PositionState::Waiting { watch, .. }) => {
                here.unwatch(Some(*watch));
                self.forget_ahead(here);
                self.read_queue_later(here)
            }
            (None | Some(true), _) => Then::Nothing,
        }
    }
}

impl Machine {
    pub(super) fn is_of_several(&self) -> bool {
        self.positions.len() > 1
    }

    /// Returns the transaction of the oldest complete set of our znodes that the search has found. The znodes of one
    /// create are a set, which is complete if it has a znode in every directory.
    pub(super) fn oldest_complete_set(&self) -> Option<Zxid> {
        let is_complete = |czxid: &Zxid| {
            let has = |position: &Position| position.found.iter().any(|node| node.czxid == *czxid);
            self.positions.iter().all(has)
        };
        self.positions[0].found.iter().map(|node| node.czxid).find(is_complete)
    }

    // ---- before the grant ----

    /// Continues when our znode is the head of one queue, and perhaps not yet of the others.
    pub(super) fn continue_at_head(&mut self, index: usize, step: &mut Step) {
        if self.positions[index].unrecorded.is_some() && self.config.rules.begins_alone() {
            self.positions[index].state = PositionState::Reading;
            return self.write_held_record(index, step);
        }
        // Watches this znode before the grant, because it may be deleted while the acquisition still waits in other
        // queues.
        self.at(index, step, Position::watch_own_soon);
    }

    /// Continues after the `held` marker of one lock was written alone ([`Rules::begins_alone`]).
    pub(super) fn continue_begun_alone(&mut self, index: usize, step: &mut Step) {
        self.at(index, step, |position, here| {
            position.state = PositionState::First;
            position.watch_own_soon(here)
        });
    }

    /// Returns whether all our znodes must be read again before the grant.
    pub(super) fn must_verify(&self) -> bool {
        // Reads all our znodes again if a queue has changed since our create, because the reads that are sent with the
        // create show the queues at different moments, and one of our znodes may have been deleted in between. If no
        // queue has changed, all reads show the moment of the create.
        let is_untouched = self.positions.iter().all(Position::is_untouched);
        let is_old = self.is_of_several() && (self.waited || !is_untouched);
        is_old && self.config.rules.verifies_all()
    }

    /// Reads all our znodes again. If all of them exist, there was a moment at which each was the head of its queue.
    pub(super) fn verify(&mut self, step: &mut Step) {
        self.phase = Phase::Verifying;
        self.unsure = false;
        let exists = |position: &Position| position.node.map(Request::Exists);
        self.send_to_all(Purpose::Verify, RequestKind::Own(None), exists, step);
    }

    pub(super) fn record_verify_answer(&mut self, index: usize, outcome: Answer) {
        let mut answers = Answers::default();
        answers.add(RequestKind::Own(None), outcome);
        let position = &mut self.positions[index];
        let Some(me) = position.node else { return };
        match self.config.is_znode_ours(me, answers.own.as_ref()) {
            Some(true) => position.is_fresh = true,
            // Sends no delete, because a znode with that name now is another contender's. The watch on our own znode
            // may have been set too late to report the deletion of ours.
            Some(false) => position.node = None,
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

    /// Writes the `held` markers in one transaction with checks of our znodes.
    pub(super) fn write_held_records(&mut self, step: &mut Step) {
        let positions = self.positions.iter_mut().enumerate();
        let holds = positions.filter_map(|(index, position)| position.prepare_hold_op(index)).collect();
        self.trips.begin(Purpose::Begin);
        self.trips.add(0, RequestKind::Main, Request::HoldAll(holds), step);
    }

    // ---- release ----

    /// Releases several locks in one transaction.
    pub(super) fn release_all(&mut self, state: HolderState, step: &mut Step) {
        let op = |position: &Position| {
            Some(ReleaseOp { node: position.node?, marker: position.release_marker(state, &self.config) })
        };
        let ops = self.positions.iter().filter_map(op).collect();
        self.phase = Phase::Releasing(state);
        self.trips.void_holder(step);
        self.trips.begin(Purpose::ReleaseAll);
        self.trips.add(0, RequestKind::Main, Request::ReleaseAll(ops), step);
    }

    pub(super) fn handle_joint_release_answer(&mut self, answers: &Answers, step: &mut Step) {
        let Phase::Releasing(state) = self.phase else { return };
        match answers.main() {
            Ok(_) => {
                step.actions.push(Action::Released(ReleaseOutcome::Clean));
                self.end_all_but_cleanups(step);
            }
            Err(failure) if failure != RequestFailure::Unknown && self.config.rules.leaves_the_rest() => {
                step.actions.push(Action::Released(ReleaseOutcome::Refused(failure)));
                self.end_all_but_cleanups(step);
            }
            Err(RequestFailure::Unknown) => self.release_each(state, ReleaseMode::Repeated, step),
            Err(_) => self.release_each(state, ReleaseMode::Refused, step),
        }
    }
}

/// The kind of attempt at a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReleaseMode {
    /// The first attempt.
    Usual,
    /// An attempt after one that may have succeeded.
    Repeated,
    /// An attempt after the joint release was refused, because one znode was missing or a record had changed. It checks
    /// each znode first, because the missing one may be replaced by another contender's znode of the same name.
    Refused,
}

pub(super) fn worse_outcome(so_far: Option<ReleaseOutcome>, now: ReleaseOutcome) -> ReleaseOutcome {
    match (so_far, now) {
        (Some(ReleaseOutcome::Lost(loss)), _) | (_, ReleaseOutcome::Lost(loss)) => ReleaseOutcome::Lost(loss),
        (Some(refused @ ReleaseOutcome::Refused(_)), _) => refused,
        _ => now,
    }
}

impl Rules {
    /// Returns whether the znodes of a multi-lock are read again before the grant ([`Rule::VerifyAll`]).
    pub(super) fn verifies_all(self) -> bool {
        !self.off(Rule::VerifyAll)
    }

    /// Returns true only if [`Rule::BeginTogether`] is off. Then each `held` marker of a multi-lock is written in a
    /// transaction of its own.
    pub(super) fn begins_alone(self) -> bool {
        self.off(Rule::BeginTogether)
    }

    /// Returns true only if [`Rule::ReleaseTheRest`] is off. Then all znodes stay if the joint release is refused.
    pub(super) fn leaves_the_rest(self) -> bool {
        self.off(Rule::ReleaseTheRest)
    }
}
