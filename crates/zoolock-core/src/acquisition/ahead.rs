//! Look-ahead: grants the lock when the predecessor's znode is deleted, without another read.
//!
//! Without look-ahead, the successor of a holder reads the record after the deletion of the predecessor's znode. This
//! takes one round trip, in which no contender holds the lock. With look-ahead the successor makes its reads while the
//! predecessor still holds.
//!
//! 1. A waiter watches only its second predecessor (two positions ahead).
//! 2. When that znode is deleted, the waiter sends three requests together, as one round trip: a watch on the
//!    predecessor, a read of the record, and a watch on our own znode. If our znode is deleted before the
//!    predecessor's, the driver must report the deletion of ours first.
//! 3. If the record proves that the predecessor is the head of the queue, the deletion of the predecessor's znode
//!    grants the lock.
//!
//! If the queue had only two contenders at our create, there is no second predecessor. The waiter then begins with step
//! 2, without the read of the record, which it has read with the create.
//!
//! Look-ahead works only behind a predecessor with a `lock-` name. The deletion of the znode of a read/write lock's
//! writer is no proof. That znode is also deleted when the writer becomes a reader and keeps its queue position.
//!
//! A holder that was granted by look-ahead reads the record soon after its grant. Until then it assumes that the
//! predecessor released the lock and left a release marker.

use super::*;

/// The progress of look-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum LookAhead {
    /// Look-ahead is not in use.
    #[default]
    Off,
    /// The look-ahead round trip is under way. The field `directory` of the position is already set if the directory
    /// was read in the round trip of our create.
    Arming { proof: HeadProof, own: WatchId },
    /// The deletion of the predecessor grants the lock. The field `directory` of the position is the directory as the
    /// predecessor's release will leave it.
    Armed { own: WatchId, previous: Previous },
}

/// The proof that the predecessor is the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum HeadProof {
    /// The directory had two children when our znode was created: ours and the predecessor's.
    OnlyTwoChildren,
    /// The proof is valid if the record says that the contender with this number, directly before the predecessor,
    /// released the lock.
    ReleasedBefore(Sequence),
}

impl HeadProof {
    fn is_in(self, directory: &Directory) -> bool {
        match self {
            HeadProof::OnlyTwoChildren => true,
            HeadProof::ReleasedBefore(second_predecessor) => {
                let marker = directory.record.marker_of(directory.czxid);
                marker
                    .is_some_and(|marker| marker.state.is_release() && marker.sequence == second_predecessor)
            }
        }
    }
}

impl LookAhead {
    /// Returns the watch on our own znode, once it is in force.
    pub(super) fn own_watch(self) -> Option<WatchId> {
        match self {
            LookAhead::Off | LookAhead::Arming { .. } => None,
            LookAhead::Armed { own, .. } => Some(own),
        }
    }
}

impl Machine {
    /// Ends all look-ahead when the connection is interrupted, because watches fire in any order after a reconnect.
    pub(super) fn end_look_ahead(&mut self, step: &mut Step) {
        if self.config.rules.look_ahead_ends_with_connection() {
            self.at_each(step, Position::forget_ahead);
        }
    }

    /// Grants the lock after the deletion of the predecessor's znode.
    pub(super) fn hold_ahead(&mut self, index: usize, grant: Grant, step: &mut Step) {
        self.phase = Phase::Held;
        step.actions.push(Action::Granted(grant));
        self.at(index, step, |position, here| position.complete_grant_ahead(grant.previous, here));
    }
}

impl Config {
    /// Returns whether this acquisition looks ahead. Only a wait for one mutex with native names can look ahead. If a
    /// delay or a `held` marker comes before the grant, look-ahead would save nothing, so it is off.
    fn may_look_ahead(&self, me: Node) -> bool {
        let Config { looks_ahead, delay, tracks_crashes, mode, .. } = *self;
        looks_ahead && delay == 0 && !tracks_crashes && mode == Mode::Wait && me.prefix.is_computable()
    }
}

impl Here<'_, '_> {
    fn may_hold_ahead(&self) -> bool {
        self.step.lease_valid && self.config.rules.may_hold_ahead(self.offline)
    }

    /// Removes the watch on our own znode that a round trip has set, if it has set one.
    fn unwatch_own(&mut self, trip: &RoundTrip) {
        let is_set = matches!(trip.answers.own, Some(Ok(_)));
        self.unwatch(trip.own_watch().filter(|_| is_set));
    }

    /// Reads the record after the grant. If the lock is lost or released before the answer, the round trip is void.
    pub(super) fn read_record(&mut self) -> Then {
        self.send(PositionPurpose::ReadRecord, [(RequestKind::Directory, Request::ReadDirectory)])
    }
}

impl Position {
    /// Starts to wait for the predecessor, with look-ahead if it applies. `directory` was read in the round trip of our
    /// create.
    pub(super) fn wait_for_predecessor(
        &mut self,
        predecessor: Sequence,
        directory: Directory,
        here: &mut Here,
    ) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        let is_ours = directory.czxid < me.czxid;
        // Contenders behind us count, too, if they have joined since.
        self.is_far = directory.children > 2;
        if here.config.may_look_ahead(me) && is_ours && !directory.is_tracked() {
            if directory.children == 2 && directory.pzxid == me.czxid {
                return self.start_arming(predecessor, HeadProof::OnlyTwoChildren, Some(directory), here);
            }
            if let Some(second_predecessor) = predecessor.before() {
                return self.watch_contender(me.prefix.name(second_predecessor), here);
            }
        }
        self.watch_contender(me.prefix.name(predecessor), here)
    }

    /// Sends the look-ahead round trip and returns `true` if `gone` is the name of the predecessor's predecessor.
    /// Otherwise returns `false`.
    fn start_look_ahead_if_near(&mut self, gone: &str, here: &mut Here) -> bool {
        let Some(me) = self.node else { return false };
        let Some(predecessor) = me.sequence.before() else { return false };
        let Some(second_predecessor) = predecessor.before() else { return false };
        let is_near = here.config.may_look_ahead(me) && gone == me.prefix.name(second_predecessor);
        if is_near {
            self.start_arming(predecessor, HeadProof::ReleasedBefore(second_predecessor), None, here);
        }
        is_near
    }

    fn start_arming(
        &mut self,
        predecessor: Sequence,
        proof: HeadProof,
        directory: Option<Directory>,
        here: &mut Here,
    ) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        self.watch_contender(me.prefix.name(predecessor), here);
        if directory.is_none() {
            here.add(RequestKind::Directory, Request::ReadDirectory);
        }
        let own = self.new_watch(here);
        if here.config.rules.watches_own_node_ahead() {
            here.add(RequestKind::Own(Some(own)), Request::WatchOwn { node: me, watch: own });
        } else {
            here.add(RequestKind::Own(None), Request::Exists(me));
        }
        (self.ahead, self.directory, self.is_far) = (LookAhead::Arming { proof, own }, directory, false);
        Then::Nothing
    }

    /// Handles the look-ahead in a round trip that watches the predecessor. `predecessor`: the read of its znode;
    /// `None` if the read failed or the znode is younger than ours. Arms the look-ahead if everything is proven.
    /// Otherwise removes the watch on our own znode.
    pub(super) fn finish_arming(&mut self, trip: &RoundTrip, predecessor: Option<NodeRead>, here: &mut Here) {
        let (ahead, answers, rules) = (std::mem::take(&mut self.ahead), &trip.answers, here.config.rules);
        // Does not look ahead behind a predecessor that tracks crashes, because it writes a `held` marker, and then we
        // must write one before our grant, too.
        let predecessor = predecessor.filter(|read| rules.is_untracked(read.flags.untracked));
        if let (LookAhead::Arming { proof, own }, Some(_)) = (ahead, predecessor)
            && let Some(directory) = self.directory.or_else(|| answers.directory.and_then(Result::ok))
            && self.is_ours_and_not_revoked(answers, here.config)
            && let Some((directory, previous)) =
                self.directory_after_predecessor(Some(proof), directory, rules)
        {
            (self.ahead, self.directory) = (LookAhead::Armed { own, previous }, Some(directory));
            return;
        }
        here.unwatch_own(trip);
    }

    /// Handles the round trip if the predecessor's znode did not exist: it was deleted before the watch was set, or
    /// never existed.
    pub(super) fn handle_missing_predecessor(
        &mut self,
        before: &str,
        trip: &RoundTrip,
        here: &mut Here,
    ) -> Then {
        // A round trip has passed since our znode was created or last read, so that create or read counts as old.
        here.time_passes = true;
        let (ahead, answers) = (std::mem::take(&mut self.ahead), &trip.answers);
        let LookAhead::Arming { proof: proof @ HeadProof::ReleasedBefore(_), own } = ahead else {
            here.unwatch_own(trip);
            let is_arming = matches!(ahead, LookAhead::Arming { .. });
            if is_arming || !self.start_look_ahead_if_near(before, here) {
                self.read_queue(here);
            }
            return Then::Nothing;
        };
        let directory = answers
            .directory
            .and_then(Result::ok)
            .filter(|_| self.is_ours_and_not_revoked(answers, here.config));
        let left = directory
            .and_then(|directory| self.directory_after_predecessor(None, directory, here.config.rules));
        if let Some((directory, previous)) = left
            && here.may_hold_ahead()
        {
            return self.grant_ahead(directory, own, previous, here);
        }
        here.unwatch_own(trip);
        if directory.is_some_and(|directory| proof.is_in(&directory)) {
            // Lists without a pause, because no other contender has a reason to list now: the predecessor gave up, or
            // its znode does not have the name that we computed.
            self.send_listing(Watches::Nothing, here)
        } else {
            self.read_queue(here)
        }
    }

    /// Returns whether our own znode exists and no client has asked us to release. Such a request ends the look-ahead,
    /// because only a read after the grant reports it.
    fn is_ours_and_not_revoked(&self, answers: &Answers, config: &Config) -> bool {
        let is_revoked = matches!(answers.own, Some(Ok(read)) if read.flags.revoked);
        !is_revoked
            && self.node.is_some_and(|me| config.is_znode_ours(me, answers.own.as_ref()) == Some(true))
    }

    /// Handles the deletion of the predecessor.
    pub(super) fn handle_predecessor_deletion(&mut self, before: &str, here: &mut Here) -> Then {
        if let (LookAhead::Armed { own, previous }, Some(directory)) = (self.ahead, self.directory)
            && here.may_hold_ahead()
        {
            return self.grant_ahead(directory, own, previous, here);
        }
        let is_armed = self.ahead != LookAhead::Off;
        self.forget_ahead(here);
        if is_armed || !self.start_look_ahead_if_near(before, here) {
            self.read_queue(here);
        }
        Then::Nothing
    }

    /// Returns the directory as the predecessor leaves it, and what is known about how the previous holder left. `None`
    /// if the predecessor is not proven to be the head of the queue. `proof`: the proof to check; `None` if the
    /// predecessor's znode was missing when the directory was read.
    fn directory_after_predecessor(
        &self,
        proof: Option<HeadProof>,
        directory: Directory,
        rules: Rules,
    ) -> Option<(Directory, Previous)> {
        let me = self.node?;
        // Look-ahead needs a record that our release may overwrite, and a directory that is older than our znode. It
        // does not apply if crashes are tracked, because then a `held` marker must be written before the grant.
        let is_writable = directory.record.is_writable(directory.czxid);
        let is_usual = is_writable && !directory.is_tracked();
        if !is_usual || directory.czxid >= me.czxid {
            return None;
        }
        if self.is_released_to(me, &directory, rules) {
            return Some((directory, self.read_previous(me, &directory, &[], rules)));
        }
        // `proof` is `None` if the predecessor's znode was missing. Then the predecessor may be queued under another
        // name, so nothing proves that it is the head.
        if !rules.is_head(proof?.is_in(&directory)) {
            return None;
        }
        // Assumes that the predecessor releases the lock, because a holder that leaves in another way writes to its
        // znode first (`LeaveAloud`). If the predecessor crashes instead, our release names the wrong version of the
        // record, unless we have read the record by then. The server refuses that release, and we leave no marker.
        let version = directory.version.wrapping_add(1);
        Some((Directory { version, ..directory }, Previous::Unknown))
    }

    fn grant_ahead(
        &mut self,
        directory: Directory,
        own: WatchId,
        previous: Previous,
        here: &mut Here,
    ) -> Then {
        let watch = here.config.rules.watches_own_node_ahead().then_some(own);
        let Some(node) = self.node else { return Then::Nothing };
        (self.ahead, self.state, self.own_watch) = (LookAhead::Off, PositionState::First, watch);
        (self.directory, self.previous) = (Some(directory), Some(previous));
        Then::HeldAhead(Grant { node, previous })
    }

    /// Sends the requests that follow a grant by look-ahead.
    fn complete_grant_ahead(&mut self, previous: Previous, here: &mut Here) -> Then {
        if self.own_watch.is_none() {
            self.watch_own(here);
        }
        if previous != Previous::Unknown {
            // Does not read the record, because it was read after the previous holder had left.
            return Then::Nothing;
        }
        match here.config.watch_own_after {
            0 => here.read_record(),
            // Reads the record later, because a holder that releases during the pause does not need it.
            pause => here.sleep(PositionPurpose::RecordPause, pause),
        }
    }

    /// Handles the record that was read after the grant. It says how the previous holder left, and which version our
    /// release may overwrite.
    pub(super) fn handle_record_answer(&mut self, answers: &Answers, here: &mut Here) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        let read = answers.directory.unwrap_or(Err(RequestFailure::Unknown));
        // Forgets the directory if its record could not be read, because our release must not overwrite that record.
        self.directory = read.ok().filter(|directory| directory.czxid < me.czxid);
        if let Err(RequestFailure::Unknown | RequestFailure::Throttled) = read {
            return here.back_off(PositionPurpose::RecordPause);
        }
        if let Some(directory) = self.directory {
            let previous = self.read_previous(me, &directory, &[], here.config.rules);
            here.step.actions.push(Action::Previous(previous));
        }
        Then::Nothing
    }

    /// Continues without look-ahead, and removes the watch on our own znode. While the look-ahead round trip is open,
    /// its end removes the watch.
    pub(super) fn forget_ahead(&mut self, here: &mut Here) -> Then {
        here.unwatch(std::mem::take(&mut self.ahead).own_watch())
    }
}

impl Rules {
    /// Returns whether a waiter that looks ahead watches its own znode ([`Rule::AheadWithOwnNode`]).
    pub(super) fn watches_own_node_ahead(self) -> bool {
        !self.off(Rule::AheadWithOwnNode)
    }

    /// Returns whether the predecessor counts as the head of the queue ([`Rule::AheadByProof`]).
    pub(super) fn is_head(self, is_proven: bool) -> bool {
        is_proven || self.off(Rule::AheadByProof)
    }

    /// Returns whether the predecessor counts as a holder that writes no `held` marker ([`Rule::AheadUntracked`]).
    pub(super) fn is_untracked(self, untracked: bool) -> bool {
        untracked || self.off(Rule::AheadUntracked)
    }

    /// Returns whether look-ahead ends with the connection ([`Rule::AheadOnOneConnection`]).
    pub(super) fn look_ahead_ends_with_connection(self) -> bool {
        !self.off(Rule::AheadOnOneConnection)
    }

    /// Returns whether look-ahead may grant the lock, given the state of the connection
    /// ([`Rule::AheadOnOneConnection`]).
    pub(super) fn may_hold_ahead(self, is_offline: bool) -> bool {
        !is_offline || self.off(Rule::AheadOnOneConnection)
    }
}
