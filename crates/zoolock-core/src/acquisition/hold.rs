//! Holding, detecting a loss, releasing.

use super::*;

impl Machine {
    /// Watches our own znode, at once or after the configured time.
    pub(super) fn watch_own_soon(&mut self, lock_index: usize, step: &mut Step) {
        match self.config.watch_own_after {
            0 => self.watch_own(lock_index, step),
            // Sets the watch late, because it costs a request and an event, and most holders release
            // before another client could delete the znode.
            pause => self.sleep(lock_index, Purpose::OwnPause, pause, step),
        }
    }

    /// Watches our own znode, to detect a delete by another client. The grant does not wait for
    /// this watch.
    pub(super) fn watch_own(&mut self, lock_index: usize, step: &mut Step) {
        // Chooses the id before the field is cleared, because the earlier watch may still be set, and
        // must have another id.
        let watch = self.new_watch(lock_index);
        let position = &mut self.positions[lock_index];
        position.own_watch = None;
        let Some(me) = position.node else { return };
        let request = Request::Watch { name: me.name(), watch };
        self.send_one(lock_index, Purpose::WatchOwn, RequestKind::Own(Some(watch)), request, step);
    }

    pub(super) fn handle_own_watch_answer(
        &mut self,
        lock_index: usize,
        watch: WatchId,
        answers: &Answers,
        step: &mut Step,
    ) {
        let Some(me) = self.positions[lock_index].node else { return };
        match (self.is_znode_ours(me, answers.own.as_ref()), answers.own) {
            (Some(true), Some(Ok(read))) => {
                self.positions[lock_index].own_watch = Some(watch);
                self.handle_own_flags(lock_index, me, read, step);
            }
            (Some(false), own) => {
                step.actions.extend(own.filter(|own| own.is_ok()).map(|_| Action::Unwatch(watch)));
                self.lose_position(lock_index, step);
            }
            _ => self.back_off(lock_index, Purpose::OwnPause, step),
        }
    }

    /// Handles the flags in our own znode: reports a request to release, and writes a missing
    /// `granted` flag.
    fn handle_own_flags(&mut self, lock_index: usize, me: Node, read: NodeRead, step: &mut Step) {
        if read.flags.revoked && !self.revoked {
            self.revoked = true;
            // Before the grant of a multi-lock, only records the request, because the grant reports it.
            if self.phase == Phase::Held {
                step.actions.push(Action::Revoked);
            }
        }
        self.mark_granted_if_missing(lock_index, me, read, step);
    }

    /// Handles the deletion of our own znode by another client. Sends no delete, because a znode of
    /// that name would be another contender's.
    pub(super) fn lose_position(&mut self, lock_index: usize, step: &mut Step) {
        self.stop_position(lock_index, step);
        self.positions[lock_index].node = None;
        match self.phase {
            Phase::Held => self.lose(Loss::Broken, step),
            Phase::Releasing(_) => {}
            _ => self.fail(Reason::Broken, step),
        }
    }

    pub(super) fn lease_lost(&mut self, step: &mut Step) {
        match self.phase {
            // Keeps the znode until the holder releases, because it may keep other contenders out while
            // the holder still stops its work.
            Phase::Held => {
                self.is_doubtful = true;
                (0..self.positions.len()).for_each(|lock_index| self.stop_position(lock_index, step));
                self.lose(Loss::Unreachable, step);
            }
            Phase::Downgrading(_) => {
                self.is_doubtful = true;
                self.lose(Loss::Unreachable, step);
            }
            // Reports nothing before the grant, because the caller does not rely on the lease yet.
            _ => {}
        }
    }

    /// Reports a loss, once.
    pub(super) fn lose(&mut self, loss: Loss, step: &mut Step) {
        if self.lost.is_none() {
            self.lost = Some(loss);
            step.actions.push(Action::Lost(loss));
        }
    }

    // ---- release ----

    /// Releases the lock.
    pub(super) fn release(&mut self, state: HolderState, step: &mut Step) {
        match &mut self.phase {
            Phase::Downgrading(release) => *release = Some(state),
            Phase::Held => {
                // From now on, the end of the session is the outcome of the release, and no failed
                // acquisition.
                self.wanted = false;
                // Without a connection, releases each lock by itself, because the request arrives
                // late, and only a release by itself checks the znode before its delete.
                if self.positions.len() > 1 && self.lost.is_none() && !self.offline {
                    self.release_all(state, step);
                } else {
                    self.release_each(state, ReleaseMode::Usual, step);
                }
            }
            _ => {}
        }
    }

    /// Releases several locks in one transaction.
    fn release_all(&mut self, state: HolderState, step: &mut Step) {
        let op = |position: &Position| {
            let node = position.node?;
            Some(ReleaseOp { node, marker: self.release_marker(position, node, state) })
        };
        let ops = self.positions.iter().filter_map(op).collect();
        self.phase = Phase::Releasing(state);
        self.void_holder(step);
        self.open_to_all(Purpose::ReleaseAll);
        self.add_request(0, RequestKind::Main, Request::ReleaseAll(ops), step);
    }

    pub(super) fn handle_joint_release_answer(
        &mut self,
        outcome: Result<Reply, RequestFailure>,
        step: &mut Step,
    ) {
        let Phase::Releasing(state) = self.phase else { return };
        match outcome {
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

    /// Ignores the answers that only a holder needs. The watches on our own znodes stay, because our
    /// deletes make them fire, which ends them without a request.
    fn void_holder(&mut self, step: &mut Step) {
        (0..self.positions.len()).for_each(|lock_index| self.void_own_reads(lock_index));
        self.void_all(step);
    }

    /// Releases each lock by itself, so that a missing znode does not block the other releases.
    fn release_each(&mut self, state: HolderState, mode: ReleaseMode, step: &mut Step) {
        self.phase = Phase::Leaving;
        // The markers of the other locks do not say `released`, because the lost lock did not protect
        // the caller's work to the end.
        let has_lost = self.lost.is_some() && state == HolderState::Released;
        let state = if has_lost { HolderState::Broken } else { state };
        self.unreported = self.positions.len();
        self.void_holder(step);
        for lock_index in 0..self.positions.len() {
            let position = &self.positions[lock_index];
            let marker = position.node.and_then(|me| self.release_marker(position, me, state));
            match (self.clear_position(lock_index), self.lost, mode) {
                (Some(me), Some(loss), _) if self.is_doubtful => {
                    self.report_release(ReleaseOutcome::Lost(loss), step);
                    self.clean_up_lost(lock_index, me, step);
                }
                (Some(me), _, mode) => self.clean_up_hold(lock_index, me, marker, mode, step),
                // Counts as clean, because the joint release may have deleted the znode: the watch
                // reported the deletion after that release was sent.
                (None, _, ReleaseMode::Repeated) => self.report_release(ReleaseOutcome::Clean, step),
                (None, loss, _) => {
                    let loss = loss.unwrap_or(Loss::Broken);
                    self.report_release(ReleaseOutcome::Lost(loss), step);
                }
            }
        }
    }

    /// Records the outcome of one release. After the last one, reports the worst outcome.
    pub(super) fn report_release(&mut self, outcome: ReleaseOutcome, step: &mut Step) {
        let worst = worse_outcome(self.released, outcome);
        self.released = Some(worst);
        self.unreported = self.unreported.saturating_sub(1);
        if self.unreported == 0 {
            let outcome = self.lost.map_or(worst, ReleaseOutcome::Lost);
            step.actions.push(Action::Released(outcome));
        }
    }

    /// Returns the marker that a releasing holder leaves, and the version that it replaces. `None`
    /// if it leaves no marker.
    pub(super) fn release_marker(
        &self,
        position: &Position,
        me: Node,
        state: HolderState,
    ) -> Option<(Marker, Option<i32>)> {
        let directory = position.directory?;
        let tracked = directory.record.marker_of(directory.czxid).is_some_and(|marker| marker.tracked);
        let state = match self.config.kind {
            _ if self.config.rules.reader_marks(me) => state,
            kind if kind.properties().leaves_marker && me.prefix.is_exclusive() => state,
            // Does not leave `released`, because the reader of an upgrade still holds, and the marker
            // must not grant the lock to a successor. After a panic the `held` marker stays.
            Kind::Upgrade { .. } if tracked && state == HolderState::Released => HolderState::Downgraded,
            _ => return None,
        };
        let marker = Marker { directory: directory.czxid, state, sequence: me.sequence, tracked };
        directory.record.is_writable(directory.czxid).then_some((marker, Some(directory.version)))
    }

    /// Undoes a grant that the caller never saw. Restores the record, because it must not name a
    /// caller as the last holder that has not worked under the lock.
    pub(super) fn undo_unseen_grant(&mut self, step: &mut Step) {
        self.wanted = false;
        self.void_all(step);
        self.phase = Phase::Leaving;
        for lock_index in 0..self.positions.len() {
            let Some(me) = self.clear_position(lock_index) else { continue };
            let position = &mut self.positions[lock_index];
            let version = position.directory.map(|directory| directory.version);
            let marker = position.undo.take().map(|undo| (undo.marker, version));
            let is_old = !position.is_fresh && self.config.rules.reads_after_wait();
            self.clean_up(lock_index, me, marker, is_old, step);
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
    /// An attempt after the joint release was refused, because one znode was missing or a record
    /// had changed. It checks each znode first, because the missing one may be replaced by another
    /// contender's znode of the same name.
    Refused,
}

pub(super) fn worse_outcome(so_far: Option<ReleaseOutcome>, now: ReleaseOutcome) -> ReleaseOutcome {
    match (so_far, now) {
        (Some(ReleaseOutcome::Lost(loss)), _) | (_, ReleaseOutcome::Lost(loss)) => ReleaseOutcome::Lost(loss),
        (Some(refused @ ReleaseOutcome::Refused(_)), _) => refused,
        _ => now,
    }
}
