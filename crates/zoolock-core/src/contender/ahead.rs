//! Looking ahead: the one before us is known to be the first, so that its going alone grants.
//!
//! Without it, whoever was right behind a holder that left has to read the record first, a round trip between two
//! holders. With it, that is done while the one before us still holds. Whoever is far back in the queue waits for the
//! one before the one before us to go, and for nothing else; then one flight brings a watch on the one before us, the
//! record, which proves that nobody is left before that one, and a watch on our own node, whose end we would hear of
//! first. Only behind `lock-` names: a writer that becomes a reader leaves its name and stays. The record is read once more
//! when the lock has been held for a while: until then it is taken to be as a holder leaves it.

use super::*;

/// How sure we are that the one before us is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) enum Ahead {
    /// Not at all.
    #[default]
    No,
    /// The flight is under way.
    Arming { proof: Proof, directory: Option<Directory>, own: WatchId, gone: Gone },
    /// Its going grants. `directory`: as it will leave it.
    Sure { directory: Directory, own: WatchId, previous: Previous },
}

/// Why nobody stands before the one before us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Proof {
    /// There were two children when we came, and it is one of them.
    Two,
    /// If the record says that the one with this number, right before it, released the lock.
    Released(Sequence),
}

impl Proof {
    fn is_in(self, directory: &Directory) -> bool {
        match self {
            Proof::Two => true,
            Proof::Released(farther) => {
                let marker = directory.record.marker_of(directory.czxid);
                marker.is_some_and(|marker| marker.left.hands_over() && marker.sequence == farther)
            }
        }
    }
}

/// Whether the one before us went before the flight was over. If so, we are looking and not waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Gone {
    No,
    /// Before the record was read.
    Before,
    /// Perhaps after that.
    Since,
}

impl Ahead {
    pub(super) fn own(self) -> Option<WatchId> {
        match self {
            Ahead::No => None,
            Ahead::Arming { own, .. } | Ahead::Sure { own, .. } => Some(own),
        }
    }
}

impl Contender {
    /// Takes the place in the queue that `directory`, read in one flight with our create, says we have.
    pub(super) fn line_up(&mut self, me: Node, nearer: Sequence, directory: Directory, turn: &mut Turn) {
        let ours = directory.czxid < me.czxid;
        let tracked = directory.record.marker_of(directory.czxid).is_some_and(|marker| marker.tracked);
        if self.looks_ahead(me) && ours && !tracked {
            if directory.children == 2 && directory.pzxid == me.czxid {
                return self.come_near(me, nearer, Proof::Two, Some(directory), turn);
            }
            if let Some(farther) = nearer.before() {
                return self.watch(me, me.prefix.name(farther), turn);
            }
        }
        self.watch(me, me.prefix.name(nearer), turn);
    }

    /// Where a delay or the mark of a beginning may stand between two holders there is nothing to be gained.
    fn looks_ahead(&self, me: Node) -> bool {
        let Config { looks_ahead, delay, tracks_crashes, mode, .. } = self.config;
        looks_ahead && delay == 0 && !tracks_crashes && mode == Mode::Wait && me.prefix.is_computable()
    }

    /// The one whose name we waited for is gone. Whether that was the one before the one before us.
    pub(super) fn came_near(&mut self, me: Node, gone: &str, turn: &mut Turn) -> bool {
        let Some(nearer) = me.sequence.before() else { return false };
        let Some(farther) = nearer.before() else { return false };
        let near = self.looks_ahead(me) && gone == me.prefix.name(farther);
        if near {
            self.come_near(me, nearer, Proof::Released(farther), None, turn);
        }
        near
    }

    fn come_near(
        &mut self,
        me: Node,
        nearer: Sequence,
        proof: Proof,
        directory: Option<Directory>,
        turn: &mut Turn,
    ) {
        self.watch(me, me.prefix.name(nearer), turn);
        if directory.is_none() {
            self.send(Purpose::ArmRecord, Request::ReadDirectory, turn);
        }
        let own = self.new_watch();
        let request = match self.on(Rule::AheadWithOwnNode) {
            true => Request::WatchOwn { node: me, watch: own },
            false => Request::Exists(me),
        };
        self.send(Purpose::ArmOwn(own), request, turn);
        self.ahead = Ahead::Arming { proof, directory, own, gone: Gone::No };
    }

    /// The watch on the one before us is set.
    pub(super) fn armed_before(&mut self, reply: Reply, turn: &mut Turn) {
        let untracked = matches!(reply, Reply::Node { says: Says { untracked: true, .. }, .. });
        // It will say that it has begun, and then the next one has to, too.
        if !untracked && self.on(Rule::AheadUntracked) {
            self.disarm(turn);
        }
    }

    /// The one before us is gone: its going grants, or the rest of the flight may say so.
    pub(super) fn granted_ahead(&mut self, me: Node, since: bool, turn: &mut Turn) -> bool {
        let may_hold = self.may_hold(turn);
        match &mut self.ahead {
            Ahead::No => return false,
            &mut Ahead::Sure { directory, own, previous } if may_hold => {
                self.hold_ahead(me, directory, own, previous, turn);
            }
            // What it said of itself was never read, and the record was read while it was there.
            Ahead::Arming { proof: Proof::Two, .. } if !since => {
                self.disarm(turn);
                return false;
            }
            Ahead::Arming { gone, .. } => {
                *gone = if since { Gone::Since } else { Gone::Before };
                self.phase = Phase::Looking { me, directory: None };
            }
            Ahead::Sure { .. } => {
                self.disarm(turn);
                return false;
            }
        }
        true
    }

    pub(super) fn armed_record(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Ahead::Arming { directory, .. } = &mut self.ahead else { return };
        match outcome {
            Ok(Reply::Directory(seen)) => *directory = Some(seen),
            _ => self.disarm(turn),
        }
    }

    pub(super) fn armed_own(&mut self, outcome: &Result<Reply, Failure>, turn: &mut Turn) {
        let Ahead::Arming { proof, directory, own, gone } = self.ahead else { return };
        let (Phase::Waiting { me, .. } | Phase::Looking { me, .. }) = self.phase else {
            return self.disarm(turn);
        };
        // Whoever was asked to let go learns that from a look of its own.
        let asked = matches!(outcome, Ok(Reply::Node { says: Says { revoked: true, .. }, .. }));
        let mine = self.still_mine(me, outcome) == Some(true) && !asked;
        let proved = directory.filter(|_| mine).and_then(|directory| self.proved(me, proof, directory, gone));
        match proved {
            Some((directory, previous)) if gone == Gone::No => {
                self.ahead = Ahead::Sure { directory, own, previous };
            }
            Some((directory, previous)) if self.may_hold(turn) => {
                self.hold_ahead(me, directory, own, previous, turn);
            }
            _ if mine && gone == Gone::Before && directory.is_some_and(|seen| proof.is_in(&seen)) => {
                // It gave up, or stands there under another name; nobody else has a reason to list now.
                self.forget_ahead(turn);
                self.list(me, false, turn);
            }
            _ => self.disarm(turn),
        }
    }

    /// The directory as the one before us leaves it, where that one is known to be the first, and what is known of how
    /// it left.
    fn proved(
        &self,
        me: Node,
        proof: Proof,
        directory: Directory,
        gone: Gone,
    ) -> Option<(Directory, Previous)> {
        let marker = directory.record.marker_of(directory.czxid);
        // Where crashes are tracked the record is written before the grant. What is not ours to write, or tells of
        // another directory, tells nothing.
        let writable = directory.record.is_writable(directory.czxid);
        let usual = writable && !marker.is_some_and(|marker| marker.tracked);
        if !usual || directory.czxid >= me.czxid {
            return None;
        }
        if self.hands_to(&directory, me) {
            return Some((directory, self.previous(&directory, me, &[])));
        }
        // One that was not there may stand there under another name.
        if gone == Gone::Before || (!proof.is_in(&directory) && self.on(Rule::AheadByProof)) {
            return None;
        }
        // If it releases the lock: whoever holds and leaves in any other way says so first (`LeaveAloud`). If it dies, our
        // own release finds another version and leaves no marker, unless we have read the record by then.
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
        turn: &mut Turn,
    ) {
        self.ahead = Ahead::No;
        let watch = self.on(Rule::AheadWithOwnNode).then_some(own);
        self.phase = Phase::Held { me, directory: Some(directory), watch };
        turn.actions.push(Action::Granted(Grant { node: me, previous }));
        if watch.is_none() {
            self.watch_own(turn);
        }
        if previous != Previous::Unknown {
            // The record was read when that one had left.
            return;
        }
        match self.config.watch_own_after {
            0 => self.read_record(turn),
            // Whoever is gone before that has no need of it.
            pause => self.send(Purpose::PauseRecord, Request::Sleep(pause), turn),
        }
    }

    /// Off the path to the grant.
    pub(super) fn read_record(&mut self, turn: &mut Turn) {
        if matches!(self.phase, Phase::Held { .. }) {
            self.send(Purpose::ReadRecord, Request::ReadDirectory, turn);
        }
    }

    /// What the one before us left: how it went, and what our release may write over.
    pub(super) fn record_read(&mut self, outcome: &Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Held { me, directory, .. } = &mut self.phase else { return };
        let me = *me;
        *directory = match outcome {
            Ok(Reply::Directory(seen)) if seen.czxid < me.czxid => Some(*seen),
            // What we could not read we do not write over.
            _ => None,
        };
        if let Err(Failure::Unknown | Failure::Throttled) = outcome {
            let wait = self.backoff();
            return self.send(Purpose::PauseRecord, Request::Sleep(wait), turn);
        }
        let Phase::Held { directory, .. } = &self.phase else { return };
        if let Some(directory) = *directory {
            turn.actions.push(Action::Previous(self.previous(&directory, me, &[])));
        }
    }

    fn may_hold(&self, turn: &Turn) -> bool {
        turn.lease_valid && !(self.offline && self.on(Rule::AheadOnOneConnection))
    }

    /// Whether the watch was the one on our own node.
    pub(super) fn fired_ahead(&mut self, fired: WatchId, deleted: bool, turn: &mut Turn) -> bool {
        let own = self.ahead.own() == Some(fired);
        if own && deleted {
            if let Phase::Waiting { watch, .. } = self.phase {
                turn.actions.push(Action::Unwatch(watch));
            }
            self.vanished(turn);
        } else if own {
            self.disarm(turn);
        }
        own
    }

    /// What fires after a reconnect comes in any order.
    pub(super) fn interrupted(&mut self, turn: &mut Turn) {
        if self.on(Rule::AheadOnOneConnection) {
            self.disarm(turn);
        }
    }

    /// From now on as without.
    pub(super) fn disarm(&mut self, turn: &mut Turn) {
        if self.forget_ahead(turn)
            && let Phase::Looking { me, .. } = self.phase
        {
            self.look(me, turn);
        }
    }

    /// Whether there was anything to forget.
    pub(super) fn forget_ahead(&mut self, turn: &mut Turn) -> bool {
        let Some(own) = std::mem::take(&mut self.ahead).own() else { return false };
        turn.actions.push(Action::Unwatch(own));
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
