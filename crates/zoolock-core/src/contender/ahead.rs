//! Look-ahead: grants the lock when the predecessor's znode is deleted, without another read.
//!
//! Without look-ahead, the successor of a holder reads the record after the predecessor's deletion: one round
//! trip in which no contender holds the lock. With look-ahead it reads the proof while the predecessor still
//! holds.
//!
//! 1. A waiter watches only its second predecessor (two positions ahead).
//! 2. When that znode is deleted, one flight sends a watch on the predecessor, a read of the record, and a
//!    watch on our own znode. The deletion of our own znode must be reported first.
//! 3. If the record proves that the predecessor is the head of the queue, its deletion grants the lock.
//!
//! This works only behind `lock-` names: a writer that becomes a reader changes its name and stays. The
//! record is read again when the lock has been held for a while. Until then it is assumed to be what a
//! releasing holder writes.

use super::*;

/// The progress of look-ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum LookAhead {
    /// Look-ahead is not in use.
    #[default]
    Off,
    /// The flight has been sent.
    Arming { proof: HeadProof, directory: Option<Directory>, own: WatchId, gone: PredecessorGone },
    /// The deletion of the predecessor grants the lock. `directory`: as the predecessor will leave it.
    Armed { directory: Directory, own: WatchId, previous: Previous },
}

/// The proof that the predecessor is the head of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum HeadProof {
    /// The directory had two children when our znode was created: ours and the predecessor's.
    OnlyTwoChildren,
    /// Valid if the record says that the contender with this number, directly before the predecessor,
    /// released the lock.
    ReleasedBefore(Sequence),
}

impl HeadProof {
    fn is_in(self, directory: &Directory) -> bool {
        match self {
            HeadProof::OnlyTwoChildren => true,
            HeadProof::ReleasedBefore(second_predecessor) => {
                let marker = directory.record.marker_of(directory.czxid);
                marker.is_some_and(|marker| marker.left.is_release() && marker.sequence == second_predecessor)
            }
        }
    }
}

/// The time of the predecessor's deletion, if it comes before the end of the flight. The end of the flight
/// then grants the lock, or the waiter reads the queue again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum PredecessorGone {
    No,
    /// Before the record was read.
    Before,
    /// Perhaps after the record was read.
    Since,
}

impl LookAhead {
    pub(super) fn own(self) -> Option<WatchId> {
        match self {
            LookAhead::Off => None,
            LookAhead::Arming { own, .. } | LookAhead::Armed { own, .. } => Some(own),
        }
    }
}

impl Contender {
    /// Waits for the predecessor according to `directory`, which was read in one flight with our create.
    pub(super) fn wait_for_predecessor(
        &mut self,
        me: Node,
        predecessor: Sequence,
        directory: Directory,
        context: &mut StepContext,
    ) {
        let ours = directory.czxid < me.czxid;
        let tracked = directory.record.marker_of(directory.czxid).is_some_and(|marker| marker.tracked);
        if self.looks_ahead(me) && ours && !tracked {
            if directory.children == 2 && directory.pzxid == me.czxid {
                return self.arm(me, predecessor, HeadProof::OnlyTwoChildren, Some(directory), context);
            }
            if let Some(second_predecessor) = predecessor.before() {
                return self.watch(me, me.prefix.name(second_predecessor), context);
            }
        }
        self.watch(me, me.prefix.name(predecessor), context);
    }

    /// Returns whether look-ahead can save time. It cannot if a delay or a write comes between two holders.
    fn looks_ahead(&self, me: Node) -> bool {
        let Config { looks_ahead, delay, tracks_crashes, mode, .. } = self.config;
        looks_ahead && delay == 0 && !tracks_crashes && mode == Mode::Wait && me.prefix.is_computable()
    }

    /// Starts the flight if the deleted znode was our second predecessor. Returns whether it did.
    pub(super) fn arm_behind_predecessor(&mut self, me: Node, gone: &str, context: &mut StepContext) -> bool {
        let Some(predecessor) = me.sequence.before() else { return false };
        let Some(second_predecessor) = predecessor.before() else { return false };
        let near = self.looks_ahead(me) && gone == me.prefix.name(second_predecessor);
        if near {
            self.arm(me, predecessor, HeadProof::ReleasedBefore(second_predecessor), None, context);
        }
        near
    }

    fn arm(
        &mut self,
        me: Node,
        predecessor: Sequence,
        proof: HeadProof,
        directory: Option<Directory>,
        context: &mut StepContext,
    ) {
        self.watch(me, me.prefix.name(predecessor), context);
        if directory.is_none() {
            self.send(Purpose::ArmRecord, Request::ReadDirectory, context);
        }
        let own = self.new_watch();
        let request = match self.on(Rule::AheadWithOwnNode) {
            true => Request::WatchOwn { node: me, watch: own },
            false => Request::Exists(me),
        };
        self.send(Purpose::ArmOwn(own), request, context);
        self.ahead = LookAhead::Arming { proof, directory, own, gone: PredecessorGone::No };
    }

    /// Handles the watch on the predecessor.
    pub(super) fn predecessor_watched(&mut self, reply: Reply, context: &mut StepContext) {
        let untracked = matches!(reply, Reply::Node { says: Says { untracked: true, .. }, .. });
        // The predecessor writes when it begins, and then we must, too.
        if !untracked && self.on(Rule::AheadUntracked) {
            self.disarm(context);
        }
    }

    /// Grants the lock if look-ahead is armed. During the flight, the end of the flight decides later.
    /// Returns false if the caller must read the queue.
    pub(super) fn grant_by_deletion(&mut self, me: Node, since: bool, context: &mut StepContext) -> bool {
        let may_hold = self.may_hold(context);
        match &mut self.ahead {
            LookAhead::Off => return false,
            &mut LookAhead::Armed { directory, own, previous } if may_hold => {
                self.hold_ahead(me, directory, own, previous, context);
            }
            // The predecessor's own data was never read, and the record was read while it existed.
            LookAhead::Arming { proof: HeadProof::OnlyTwoChildren, .. } if !since => {
                self.disarm(context);
                return false;
            }
            LookAhead::Arming { gone, .. } => {
                *gone = if since { PredecessorGone::Since } else { PredecessorGone::Before };
                self.phase = Phase::Looking { me, directory: None };
            }
            LookAhead::Armed { .. } => {
                self.disarm(context);
                return false;
            }
        }
        true
    }

    pub(super) fn armed_record(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let LookAhead::Arming { directory, .. } = &mut self.ahead else { return };
        match outcome {
            Ok(Reply::Directory(seen)) => *directory = Some(seen),
            _ => self.disarm(context),
        }
    }

    pub(super) fn armed_own(&mut self, outcome: &Result<Reply, Failure>, context: &mut StepContext) {
        let LookAhead::Arming { proof, directory, own, gone } = self.ahead else { return };
        let (Phase::Waiting { me, .. } | Phase::Looking { me, .. }) = self.phase else {
            return self.disarm(context);
        };
        // A revocation must be reported by a read after the grant.
        let asked = matches!(outcome, Ok(Reply::Node { says: Says { revoked: true, .. }, .. }));
        let mine = self.still_mine(me, outcome) == Some(true) && !asked;
        let proven = directory
            .filter(|_| mine)
            .and_then(|directory| self.directory_after_predecessor(me, proof, directory, gone));
        match proven {
            Some((directory, previous)) if gone == PredecessorGone::No => {
                self.ahead = LookAhead::Armed { directory, own, previous };
            }
            Some((directory, previous)) if self.may_hold(context) => {
                self.hold_ahead(me, directory, own, previous, context);
            }
            _ if mine
                && gone == PredecessorGone::Before
                && directory.is_some_and(|seen| proof.is_in(&seen)) =>
            {
                // The predecessor gave up, or queued again under another name. No other contender has a
                // reason to list now.
                self.forget_ahead(context);
                self.list(me, false, context);
            }
            _ => self.disarm(context),
        }
    }

    /// Returns the directory as the predecessor leaves it, and how the previous holder left as far as it is
    /// known. `None` if the predecessor is not proven to be the head of the queue.
    fn directory_after_predecessor(
        &self,
        me: Node,
        proof: HeadProof,
        directory: Directory,
        gone: PredecessorGone,
    ) -> Option<(Directory, Previous)> {
        let marker = directory.record.marker_of(directory.czxid);
        // If crashes are tracked the record is written before the grant. A record that we may not overwrite,
        // or of another directory, proves nothing.
        let writable = directory.record.is_writable(directory.czxid);
        let usual = writable && !marker.is_some_and(|marker| marker.tracked);
        if !usual || directory.czxid >= me.czxid {
            return None;
        }
        if self.is_released_to(&directory, me) {
            return Some((directory, self.previous(&directory, me, &[])));
        }
        // A predecessor that was missing may have queued again under another name.
        if gone == PredecessorGone::Before || (!proof.is_in(&directory) && self.on(Rule::AheadByProof)) {
            return None;
        }
        // Assume that the predecessor releases the lock: a holder that leaves in another way writes to its
        // znode first (`LeaveAloud`). If it crashes, our own release finds another version and leaves no
        // marker, unless we have read the record by then.
        let sequence = me.sequence.before()?;
        let left = Marker { directory: directory.czxid, left: Left::Released, sequence, tracked: false };
        let version = directory.version.wrapping_add(1);
        Some((Directory { version, record: Record::Marker(left), ..directory }, Previous::Unknown))
    }

    fn hold_ahead(
        &mut self,
        me: Node,
        directory: Directory,
        own: WatchId,
        previous: Previous,
        context: &mut StepContext,
    ) {
        self.ahead = LookAhead::Off;
        let watch = self.on(Rule::AheadWithOwnNode).then_some(own);
        self.phase = Phase::Held { me, directory: Some(directory), watch };
        context.actions.push(Action::Granted(Grant { node: me, previous }));
        if watch.is_none() {
            self.watch_own(context);
        }
        if previous != Previous::Unknown {
            // The record was read after the previous holder had left.
            return;
        }
        match self.config.watch_own_after {
            0 => self.read_record(context),
            // A holder that releases before that does not need the record.
            pause => self.send(Purpose::PauseRecord, Request::Sleep(pause), context),
        }
    }

    /// Reads the record after the grant.
    pub(super) fn read_record(&mut self, context: &mut StepContext) {
        if matches!(self.phase, Phase::Held { .. }) {
            self.send(Purpose::ReadRecord, Request::ReadDirectory, context);
        }
    }

    /// Handles the record that the predecessor left: how it left, and the version that our release may
    /// overwrite.
    pub(super) fn record_read(&mut self, outcome: &Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Held { me, directory, .. } = &mut self.phase else { return };
        let me = *me;
        *directory = match outcome {
            Ok(Reply::Directory(seen)) if seen.czxid < me.czxid => Some(*seen),
            // A record that we could not read is not overwritten.
            _ => None,
        };
        if let Err(Failure::Unknown | Failure::Throttled) = outcome {
            let wait = self.backoff();
            return self.send(Purpose::PauseRecord, Request::Sleep(wait), context);
        }
        let Phase::Held { directory, .. } = &self.phase else { return };
        if let Some(directory) = *directory {
            context.actions.push(Action::Previous(self.previous(&directory, me, &[])));
        }
    }

    fn may_hold(&self, context: &StepContext) -> bool {
        context.lease_valid && !(self.offline && self.on(Rule::AheadOnOneConnection))
    }

    /// Handles a watch event on our own znode. Returns whether it was one.
    pub(super) fn fired_ahead(&mut self, fired: WatchId, deleted: bool, context: &mut StepContext) -> bool {
        let own = self.ahead.own() == Some(fired);
        if own && deleted {
            if let Phase::Waiting { watch, .. } = self.phase {
                context.actions.push(Action::Unwatch(watch));
            }
            self.fail_broken(context);
        } else if own {
            self.disarm(context);
        }
        own
    }

    /// Drops the look-ahead after an interruption, because watches fire in any order after a reconnect.
    pub(super) fn interrupted(&mut self, context: &mut StepContext) {
        if self.on(Rule::AheadOnOneConnection) {
            self.disarm(context);
        }
    }

    /// Continues without look-ahead.
    pub(super) fn disarm(&mut self, context: &mut StepContext) {
        if self.forget_ahead(context)
            && let Phase::Looking { me, .. } = self.phase
        {
            self.look(me, context);
        }
    }

    /// Drops the look-ahead. Returns whether there was one.
    pub(super) fn forget_ahead(&mut self, context: &mut StepContext) -> bool {
        let Some(own) = std::mem::take(&mut self.ahead).own() else { return false };
        context.actions.push(Action::Unwatch(own));
        for (_, purpose) in &mut self.pending {
            match *purpose {
                Purpose::ArmRecord => *purpose = Purpose::Void,
                Purpose::ArmOwn(watch) => *purpose = Purpose::VoidWatch(watch),
                _ => {}
            }
        }
        true
    }
}
