//! Look-ahead: grants the lock when the predecessor's znode is deleted, without another read.
//!
//! Without look-ahead, the successor of a holder reads the record after the deletion of the
//! predecessor's znode. This takes one round trip, in which no contender holds the lock. With
//! look-ahead the successor makes its reads while the predecessor still holds.
//!
//! 1. A waiter watches only its second predecessor (two positions ahead).
//! 2. When that znode is deleted, the waiter sends three requests together, as one round trip: a watch
//!    on the predecessor, a read of the record, and a watch on our own znode. If our znode is
//!    deleted before the predecessor's, the driver must report the deletion of ours first.
//! 3. If the record proves that the predecessor is the head of the queue, the deletion of the
//!    predecessor's znode grants the lock.
//!
//! If the queue had only two contenders at our create, there is no second predecessor. The waiter
//! then begins with step 2, without the read of the record, which it has read with the create.
//!
//! Look-ahead works only behind a predecessor with a `lock-` name. The deletion of the znode of a
//! read/write lock's writer is no proof. That znode is also deleted when the writer becomes a
//! reader and keeps its queue position.
//!
//! A holder that was granted by look-ahead reads the record soon after its grant. Until then it
//! assumes that the predecessor released the lock and left a release marker.

use super::*;

/// The progress of look-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum LookAhead {
    /// Look-ahead is not in use.
    #[default]
    Off,
    /// The look-ahead round trip is under way. The field `directory` of the position is already set if the
    /// directory was read in the round trip of our create.
    Arming { proof: HeadProof, own: WatchId },
    /// The deletion of the predecessor grants the lock. The field `directory` of the position is the
    /// directory as the predecessor's release will leave it.
    Armed { own: WatchId, previous: Previous },
}

/// The proof that the predecessor is the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum HeadProof {
    /// The directory had two children when our znode was created: ours and the predecessor's.
    OnlyTwoChildren,
    /// The proof is valid if the record says that the contender with this number, directly before
    /// the predecessor, released the lock.
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
    /// Starts to wait for the predecessor, with look-ahead if it applies. `directory` was read in
    /// the round trip of our create.
    pub(super) fn wait_for_predecessor(
        &mut self,
        lock_index: usize,
        predecessor: Sequence,
        directory: Directory,
        step: &mut Step,
    ) {
        let Some(me) = self.positions[lock_index].node else { return };
        let is_ours = directory.czxid < me.czxid;
        let is_tracked = directory.record.marker_of(directory.czxid).is_some_and(|marker| marker.tracked);
        if self.looks_ahead(me) && is_ours && !is_tracked {
            if directory.children == 2 && directory.pzxid == me.czxid {
                let proof = HeadProof::OnlyTwoChildren;
                return self.start_arming(lock_index, predecessor, proof, Some(directory), step);
            }
            if let Some(second_predecessor) = predecessor.before() {
                return self.watch_contender(lock_index, me.prefix.name(second_predecessor), step);
            }
        }
        self.watch_contender(lock_index, me.prefix.name(predecessor), step);
    }

    /// Returns whether this acquisition looks ahead. Only a wait for one mutex with native names
    /// can look ahead. If a delay or a `held` marker comes before the grant, look-ahead would save
    /// nothing, so it is off.
    fn looks_ahead(&self, me: Node) -> bool {
        let Config { looks_ahead, delay, tracks_crashes, mode, .. } = self.config;
        let waits = mode == Mode::Wait && self.positions.len() == 1;
        looks_ahead && delay == 0 && !tracks_crashes && waits && me.prefix.is_computable()
    }

    /// Sends the look-ahead round trip and returns `true` if `gone` is the name of the predecessor's
    /// predecessor. Otherwise returns `false`.
    fn start_look_ahead_if_near(&mut self, lock_index: usize, gone: &str, step: &mut Step) -> bool {
        let Some(me) = self.positions[lock_index].node else { return false };
        let Some(predecessor) = me.sequence.before() else { return false };
        let Some(second_predecessor) = predecessor.before() else { return false };
        let is_near = self.looks_ahead(me) && gone == me.prefix.name(second_predecessor);
        if is_near {
            let proof = HeadProof::ReleasedBefore(second_predecessor);
            self.start_arming(lock_index, predecessor, proof, None, step);
        }
        is_near
    }

    fn start_arming(
        &mut self,
        lock_index: usize,
        predecessor: Sequence,
        proof: HeadProof,
        directory: Option<Directory>,
        step: &mut Step,
    ) {
        let Some(me) = self.positions[lock_index].node else { return };
        self.watch_contender(lock_index, me.prefix.name(predecessor), step);
        if directory.is_none() {
            self.add_request(lock_index, RequestKind::Directory, Request::ReadDirectory, step);
        }
        let own = self.new_watch(lock_index);
        if self.config.rules.watches_own_node_ahead() {
            self.add_request(
                lock_index,
                RequestKind::Own(Some(own)),
                Request::WatchOwn { node: me, watch: own },
                step,
            );
        } else {
            self.add_request(lock_index, RequestKind::Own(None), Request::Exists(me), step);
        }
        let position = &mut self.positions[lock_index];
        (position.ahead, position.directory) = (LookAhead::Arming { proof, own }, directory);
    }

    /// Handles the look-ahead in a round trip that watches the predecessor. `predecessor`: the read of
    /// its znode; `None` if the read failed or the znode is younger than ours. Arms the look-ahead
    /// if everything is proven. Otherwise removes the watch on our own znode.
    pub(super) fn finish_arming(
        &mut self,
        lock_index: usize,
        own: Option<WatchId>,
        answers: &Answers,
        predecessor: Option<NodeRead>,
        step: &mut Step,
    ) {
        let ahead = std::mem::take(&mut self.positions[lock_index].ahead);
        // Does not look ahead behind a predecessor that tracks crashes, because it writes a `held`
        // marker, and then we must write one before our grant, too.
        let predecessor = predecessor.filter(|read| self.config.rules.is_untracked(read.flags.untracked));
        if let (LookAhead::Arming { proof, own }, Some(_)) = (ahead, predecessor)
            && let Some(directory) =
                self.positions[lock_index].directory.or_else(|| answers.directory.and_then(Result::ok))
            && self.is_ours_and_not_revoked(lock_index, answers)
            && let Some((directory, previous)) =
                self.directory_after_predecessor(lock_index, Some(proof), directory)
        {
            let position = &mut self.positions[lock_index];
            (position.ahead, position.directory) = (LookAhead::Armed { own, previous }, Some(directory));
            return;
        }
        self.unwatch_own(own, answers, step);
    }

    /// Handles the round trip if the predecessor's znode did not exist: it was deleted before the watch
    /// was set, or never existed.
    pub(super) fn handle_missing_predecessor(
        &mut self,
        lock_index: usize,
        before: &str,
        own: Option<WatchId>,
        answers: &Answers,
        step: &mut Step,
    ) {
        // A round trip has passed since our znode was created or last read, so that create or read
        // counts as old.
        self.mark_reads_stale();
        let ahead = std::mem::take(&mut self.positions[lock_index].ahead);
        let LookAhead::Arming { proof: proof @ HeadProof::ReleasedBefore(_), own: watch, .. } = ahead else {
            self.unwatch_own(own, answers, step);
            let is_arming = matches!(ahead, LookAhead::Arming { .. });
            if is_arming || !self.start_look_ahead_if_near(lock_index, before, step) {
                self.read_queue(lock_index, step);
            }
            return;
        };
        let directory = answers
            .directory
            .and_then(Result::ok)
            .filter(|_| self.is_ours_and_not_revoked(lock_index, answers));
        let left =
            directory.and_then(|directory| self.directory_after_predecessor(lock_index, None, directory));
        match left {
            Some((directory, previous)) if self.may_hold(step) => {
                self.grant_ahead(lock_index, directory, watch, previous, step);
            }
            _ => {
                self.unwatch_own(own, answers, step);
                if directory.is_some_and(|directory| proof.is_in(&directory)) {
                    // Lists without a pause, because no other contender has a reason to list now: the
                    // predecessor gave up, or its znode does not have the name that we computed.
                    self.send_listing(lock_index, false, step);
                } else {
                    self.read_queue(lock_index, step);
                }
            }
        }
    }

    fn unwatch_own(&self, own: Option<WatchId>, answers: &Answers, step: &mut Step) {
        let is_set = matches!(answers.own, Some(Ok(_)));
        step.actions.extend(own.filter(|_| is_set).map(Action::Unwatch));
    }

    /// Returns whether our own znode exists and no client has asked us to release. Such a request
    /// ends the look-ahead, because only a read after the grant reports it.
    fn is_ours_and_not_revoked(&self, lock_index: usize, answers: &Answers) -> bool {
        let is_revoked = matches!(answers.own, Some(Ok(read)) if read.flags.revoked);
        let me = self.positions[lock_index].node;
        !is_revoked && me.is_some_and(|me| self.is_znode_ours(me, answers.own.as_ref()) == Some(true))
    }

    /// Handles the deletion of the predecessor.
    pub(super) fn handle_predecessor_deletion(&mut self, lock_index: usize, before: &str, step: &mut Step) {
        let ahead = self.positions[lock_index].ahead;
        if let (LookAhead::Armed { own, previous }, Some(directory)) =
            (ahead, self.positions[lock_index].directory)
            && self.may_hold(step)
        {
            return self.grant_ahead(lock_index, directory, own, previous, step);
        }
        let is_armed = ahead != LookAhead::Off;
        self.forget_ahead(lock_index, step);
        if is_armed || !self.start_look_ahead_if_near(lock_index, before, step) {
            self.read_queue(lock_index, step);
        }
    }

    /// Returns the directory as the predecessor leaves it, and what is known about how the previous
    /// holder left. `None` if the predecessor is not proven to be the head of the queue. `proof`:
    /// the proof to check; `None` if the predecessor's znode was missing when the directory was
    /// read.
    fn directory_after_predecessor(
        &self,
        lock_index: usize,
        proof: Option<HeadProof>,
        directory: Directory,
    ) -> Option<(Directory, Previous)> {
        let me = self.positions[lock_index].node?;
        let marker = directory.record.marker_of(directory.czxid);
        // Look-ahead needs a record that our release may overwrite, and a directory that is older than
        // our znode. It does not apply if crashes are tracked, because then a `held` marker must be
        // written before the grant.
        let is_writable = directory.record.is_writable(directory.czxid);
        let is_usual = is_writable && !marker.is_some_and(|marker| marker.tracked);
        if !is_usual || directory.czxid >= me.czxid {
            return None;
        }
        if self.is_released_to(lock_index, &directory, me) {
            return Some((directory, self.read_previous(lock_index, &directory, me, &[])));
        }
        // `proof` is `None` if the predecessor's znode was missing. Then the predecessor may be
        // queued under another name, so nothing proves that it is the head.
        if !self.config.rules.is_head(proof?.is_in(&directory)) {
            return None;
        }
        // Assumes that the predecessor releases the lock, because a holder that leaves in another way
        // writes to its znode first (`LeaveAloud`). If the predecessor crashes instead, our release
        // names the wrong version of the record, unless we have read the record by then. The server
        // refuses that release, and we leave no marker.
        let version = directory.version.wrapping_add(1);
        Some((Directory { version, ..directory }, Previous::Unknown))
    }

    fn grant_ahead(
        &mut self,
        lock_index: usize,
        directory: Directory,
        own: WatchId,
        previous: Previous,
        step: &mut Step,
    ) {
        let watch = self.config.rules.watches_own_node_ahead().then_some(own);
        let position = &mut self.positions[lock_index];
        let Some(node) = position.node else { return };
        (position.ahead, position.state, position.own_watch) = (LookAhead::Off, PositionState::First, watch);
        (position.directory, position.previous) = (Some(directory), Some(previous));
        self.phase = Phase::Held;
        step.actions.push(Action::Granted(Grant { node, previous }));
        if watch.is_none() {
            self.watch_own(lock_index, step);
        }
        if previous != Previous::Unknown {
            // Does not read the record, because it was read after the previous holder had left.
            return;
        }
        match self.config.watch_own_after {
            0 => self.read_record(lock_index, step),
            // Reads the record later, because a holder that releases during the pause does not need it.
            pause => self.sleep(lock_index, Purpose::RecordPause, pause, step),
        }
    }

    /// Reads the record after the grant. If the lock is lost or released before the answer, the
    /// round trip is void.
    pub(super) fn read_record(&mut self, lock_index: usize, step: &mut Step) {
        self.send_one(lock_index, Purpose::ReadRecord, RequestKind::Directory, Request::ReadDirectory, step);
    }

    /// Handles the record that was read after the grant. It says how the previous holder left, and
    /// which version our release may overwrite.
    pub(super) fn handle_record_answer(&mut self, lock_index: usize, answers: Answers, step: &mut Step) {
        let Some(me) = self.positions[lock_index].node else { return };
        let read = answers.directory.unwrap_or(Err(RequestFailure::Unknown));
        // Forgets the directory if its record could not be read, because our release must not
        // overwrite that record.
        let directory = read.ok().filter(|directory| directory.czxid < me.czxid);
        self.positions[lock_index].directory = directory;
        if let Err(RequestFailure::Unknown | RequestFailure::Throttled) = read {
            return self.back_off(lock_index, Purpose::RecordPause, step);
        }
        if let Some(directory) = directory {
            let previous = self.read_previous(lock_index, &directory, me, &[]);
            step.actions.push(Action::Previous(previous));
        }
    }

    fn may_hold(&self, step: &Step) -> bool {
        step.lease_valid && self.config.rules.may_hold_ahead(self.offline)
    }

    /// Handles an event of the watch on our own znode during look-ahead.
    pub(super) fn handle_own_watch_event_ahead(&mut self, lock_index: usize, deleted: bool, step: &mut Step) {
        if deleted {
            self.fail_after_removal(lock_index, step);
        } else {
            self.forget_ahead(lock_index, step);
        }
    }

    /// Continues without look-ahead, and removes the watch on our own znode. While the look-ahead
    /// round trip is open, its end removes the watch.
    pub(super) fn forget_ahead(&mut self, lock_index: usize, step: &mut Step) {
        let ahead = std::mem::take(&mut self.positions[lock_index].ahead);
        step.actions.extend(ahead.own_watch().map(Action::Unwatch));
    }
}
