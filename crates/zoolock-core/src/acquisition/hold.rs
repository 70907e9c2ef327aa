//! Holding, detecting a loss, releasing.

use super::*;

impl Position {
    /// Watches our own znode, at once or after the configured time.
    pub(super) fn watch_own_soon(&mut self, here: &mut Here) -> Then {
        match here.config.watch_own_after {
            0 => self.watch_own(here),
            // Sets the watch late, because it costs a request and an event, and most holders release before another
            // client could delete the znode.
            pause => here.sleep(PositionPurpose::OwnPause, pause),
        }
    }

    /// Watches our own znode, to detect a delete by another client. The grant does not wait for this watch.
    pub(super) fn watch_own(&mut self, here: &mut Here) -> Then {
        // Chooses the id before the field is cleared, because the earlier watch may still be set, and must have another
        // id.
        let watch = self.new_watch(here);
        self.own_watch = None;
        let Some(me) = self.node else { return Then::Nothing };
        let request = Request::Watch { name: me.name(), watch };
        here.send(PositionPurpose::WatchOwn, [(RequestKind::Own(Some(watch)), request)])
    }

    pub(super) fn handle_own_watch_answer(&mut self, trip: &RoundTrip, here: &mut Here) -> Then {
        let (Some(me), Some(watch)) = (self.node, trip.own_watch()) else { return Then::Nothing };
        match (here.config.is_znode_ours(me, trip.answers.own.as_ref()), trip.answers.own) {
            (Some(true), Some(Ok(read))) => {
                self.own_watch = Some(watch);
                self.handle_own_flags(read, here)
            }
            (Some(false), own) => {
                here.unwatch(own.filter(Result::is_ok).map(|_| watch));
                self.stop_removed(here)
            }
            _ => here.back_off(PositionPurpose::OwnPause),
        }
    }

    /// Handles the flags in our own znode: reports a request to release, and writes a missing `granted` flag.
    fn handle_own_flags(&mut self, read: NodeRead, here: &mut Here) -> Then {
        if read.flags.revoked && !*here.revoked {
            *here.revoked = true;
            // Before the grant of a multi-lock, only records the request, because the grant reports it.
            if here.is_held {
                here.step.actions.push(Action::Revoked);
            }
        }
        self.mark_granted_if_missing(read, here)
    }

    /// Returns the marker that a releasing holder leaves, and the version that it replaces. `None` if it leaves no
    /// marker.
    pub(super) fn release_marker(
        &self,
        state: HolderState,
        config: &Config,
    ) -> Option<(Marker, Option<i32>)> {
        let (me, directory) = (self.node?, self.directory?);
        let tracked = directory.is_tracked();
        let state = match config.kind {
            _ if config.rules.reader_marks(me) => state,
            kind if kind.properties().leaves_marker && me.prefix.is_exclusive() => state,
            // Does not leave `released`, because the reader of an upgrade still holds, and the marker must not grant
            // the lock to a successor. After a panic the `held` marker stays.
            Kind::Upgrade { .. } if tracked && state == HolderState::Released => HolderState::Downgraded,
            _ => return None,
        };
        let marker = Marker { directory: directory.czxid, state, sequence: me.sequence, tracked };
        directory.record.is_writable(directory.czxid).then_some((marker, Some(directory.version)))
    }
}

impl Machine {
    pub(super) fn lease_lost(&mut self, step: &mut Step) {
        match self.phase {
            // Keeps the znode until the holder releases, because it may keep other contenders out while the holder
            // still stops its work.
            Phase::Held | Phase::Downgrading(_) => {
                self.is_doubtful = true;
                if self.phase == Phase::Held {
                    self.at_each(step, Position::stop);
                }
                self.lose(Loss::Unreachable, step);
            }
            // Reports nothing before the grant, because the caller does not rely on the lease yet.
            _ => {}
        }
    }

    /// Reports a loss, once. Gives back a grant that the caller has not taken.
    pub(super) fn lose(&mut self, loss: Loss, step: &mut Step) {
        if self.is_unclaimed() {
            self.give_back_lost(loss, step);
        } else if self.lost.is_none() {
            self.lost = Some(loss);
            step.actions.push(Action::Lost(loss));
        }
    }

    /// Releases the lock.
    pub(super) fn release(&mut self, state: HolderState, step: &mut Step) {
        match &mut self.phase {
            Phase::Downgrading(release) => *release = Some(state),
            Phase::Held => {
                // From now on, the end of the session is the outcome of the release, and no failed acquisition.
                self.wanted = false;
                // Without a connection, releases each lock by itself, because the request arrives late, and only a
                // release by itself checks the znode before its delete.
                if self.is_of_several() && self.lost.is_none() && !self.offline {
                    self.release_all(state, step);
                } else {
                    self.release_each(state, ReleaseMode::Usual, step);
                }
            }
            _ => {}
        }
    }

    /// Releases each lock by itself, so that a missing znode does not block the other releases.
    pub(super) fn release_each(&mut self, state: HolderState, mode: ReleaseMode, step: &mut Step) {
        self.phase = Phase::Leaving;
        // The markers of the other locks do not say `released`, because the lost lock did not protect the caller's work
        // to the end.
        let has_lost = self.lost.is_some() && state == HolderState::Released;
        let state = if has_lost { HolderState::Broken } else { state };
        self.unreported = self.positions.len();
        self.trips.void_holder(step);
        for index in 0..self.positions.len() {
            let position = &mut self.positions[index];
            let marker = position.release_marker(state, &self.config);
            match (position.clear(), self.lost, mode) {
                (Some(me), Some(loss), _) if self.is_doubtful => {
                    self.report_release(ReleaseOutcome::Lost(loss), step);
                    self.clean_up_lost(index, me, step);
                }
                (Some(me), _, mode) => self.clean_up_hold(index, me, marker, mode, step),
                // Counts as clean, because the joint release may have deleted the znode: the watch reported the
                // deletion after that release was sent.
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
        let worst = several::worse_outcome(self.released, outcome);
        self.released = Some(worst);
        self.unreported = self.unreported.saturating_sub(1);
        if self.unreported == 0 {
            let outcome = self.lost.map_or(worst, ReleaseOutcome::Lost);
            step.actions.push(Action::Released(outcome));
        }
    }

    /// Undoes a grant that the caller never saw. Restores the record, because it must not name a caller as the last
    /// holder that has not worked under the lock.
    pub(super) fn undo_unseen_grant(&mut self, step: &mut Step) {
        self.wanted = false;
        self.trips.void_all(step);
        self.phase = Phase::Leaving;
        for index in 0..self.positions.len() {
            let position = &mut self.positions[index];
            let Some(me) = position.clear() else { continue };
            let version = position.directory.map(|directory| directory.version);
            let marker = position.undo.take().map(|undo| (undo.marker, version));
            let is_old = !position.is_fresh && self.config.rules.reads_after_wait();
            self.clean_up(index, me, marker, is_old, step);
        }
    }
}
