//! One position: our znode in one queue, and what we know of that queue.
//!
//! The code of a position sees its own queue only. It gets a [`Here`] with the parts of the acquisition that it may
//! use, and returns a [`Then`]: what its result means for the whole acquisition. [`Machine::at`] runs that code.

use super::*;

/// The position of an acquisition in the queue of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Position {
    /// Our znode in this queue. `None` before its create, after its loss, and once a clean-up deletes it.
    pub(super) node: Option<Node>,
    pub(super) state: PositionState,
    /// Set if our znode was created or read since the last wait. During a wait another client may delete our znode, and
    /// another contender may then get its name.
    pub(super) is_fresh: bool,
    /// Set if the contender for which we wait seems to wait itself, so that its leaving does not grant us the lock. A wrong
    /// value costs a renewal, or makes the grant wait for one.
    pub(super) is_far: bool,
    /// The answers to the reads of this directory that were sent with the create of our znode. `None` for the first
    /// directory, because `round_trip.rs` keeps its answers together with the answer to the create.
    pub(super) early_answers: Option<Box<Answers>>,
    /// Our znodes in this directory that the search after a lost reply has found so far.
    pub(super) found: Vec<Node>,
    /// The directory. Read when our znode was the head of the queue, and updated when our `held` marker is written. Our
    /// release overwrites the record only if the version is still this one. With look-ahead, this field is set before
    /// our znode is the head: [`LookAhead`] says to which value.
    pub(super) directory: Option<Directory>,
    /// Sequence number of the predecessor that we watched last, if that predecessor is exclusive. Its release marker
    /// grants the lock to every reader that waits for it.
    pub(super) exclusive_predecessor: Option<Sequence>,
    /// The way in which the previous holder left, as far as it is known. Set when our znode becomes the head of the
    /// queue.
    pub(super) previous: Option<Previous>,
    /// Set while our `held` marker must still be written, or its write is not confirmed. The value is copied to `undo`
    /// when the write is sent.
    pub(super) unrecorded: Option<Undo>,
    /// Set once our `held` marker may have been written. The value says what to restore if we give up.
    pub(super) undo: Option<Undo>,
    /// Set if a reply to the write of our `held` marker was lost.
    pub(super) perhaps_marked: bool,
    /// Set once the delay after a possible crash has passed.
    pub(super) delayed: bool,
    pub(super) ahead: LookAhead,
    pub(super) permits: permits::SemaphoreState,
    /// The watch on our znode, once it is in force. During look-ahead, [`LookAhead`] keeps that watch.
    pub(super) own_watch: Option<WatchId>,
}

/// The progress in one queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) enum PositionState {
    /// Waiting for the answers to a read of the queue, or for the end of the pause before that read. Also the state
    /// before the create.
    #[default]
    Reading,
    /// Setting a watch on the contender `before`. This is the predecessor, or at the start of look-ahead the second
    /// predecessor (two positions ahead of us).
    Watching { before: String },
    /// Waiting for an event of `watch`, which is on the contender `before`, or on the children of the directory if
    /// `before` is `None`.
    Waiting { before: Option<String>, watch: WatchId },
    /// Head of the queue. The previous holder may have crashed, so the delay must pass first.
    Delaying,
    /// Head of the queue, and ready for the grant.
    First,
}

/// The parts of the acquisition that the code of one position may use, during one step.
pub(super) struct Here<'m, 's> {
    pub(super) index: usize,
    pub(super) config: &'m Config,
    pub(super) trips: &'m mut RoundTrips,
    pub(super) tries: &'m mut u8,
    /// [`Machine::waited`].
    pub(super) waited: &'m mut bool,
    /// [`Machine::revoked`].
    pub(super) revoked: &'m mut bool,
    pub(super) offline: bool,
    /// Set if the acquisition holds all its locks.
    pub(super) is_held: bool,
    /// To be set if time passes before the next step. Then the last reads of our znodes in all queues count as old.
    pub(super) time_passes: bool,
    pub(super) step: &'m mut Step<'s>,
}

/// The result of one position's code for the whole acquisition.
pub(super) enum Then {
    /// Nothing follows. The position may have sent requests.
    Nothing,
    /// Our znode is the head of the queue, and nothing is left to do before the grant.
    First,
    /// Look-ahead grants the lock.
    HeldAhead(Grant),
    Fail(Reason),
    /// Another client deleted our znode.
    Removed,
    /// Another client deleted our reader's znode, and we are its upgrade. The acquisition fails, and deletes this znode.
    Withdraw(Leftover),
    Delete(Leftover),
}

/// A znode of ours that was not granted.
pub(super) struct Leftover {
    pub(super) node: Node,
    /// Set if the record must be restored.
    pub(super) undo: Option<Undo>,
    /// Set to read the znode before the delete, because our last read is old, and another contender may have a znode of
    /// that name now.
    pub(super) checks: bool,
}

impl Here<'_, '_> {
    /// Sends a round trip to this directory. Nothing follows for the acquisition.
    pub(super) fn send(
        &mut self,
        purpose: PositionPurpose,
        requests: impl IntoIterator<Item = (RequestKind, Request)>,
    ) -> Then {
        self.trips.send(self.index, Purpose::Position(purpose), requests, self.step);
        Then::Nothing
    }

    /// Adds a request to the round trip that was sent last.
    pub(super) fn add(&mut self, kind: RequestKind, request: Request) {
        self.trips.add(self.index, kind, request, self.step);
    }

    /// Waits for some milliseconds.
    pub(super) fn sleep(&mut self, purpose: PositionPurpose, ms: u32) -> Then {
        self.send(purpose, [(RequestKind::Timer, Request::Sleep(ms))])
    }

    /// Waits before the next try, longer after each failure in a row.
    pub(super) fn back_off(&mut self, purpose: PositionPurpose) -> Then {
        let wait = backoff(self.tries);
        self.sleep(purpose, wait)
    }

    pub(super) fn is_open(&self, purpose: PositionPurpose) -> bool {
        self.trips.is_open(self.index, Purpose::Position(purpose))
    }

    /// Removes the watch, if there is one.
    pub(super) fn unwatch(&mut self, watch: Option<WatchId>) -> Then {
        self.step.actions.extend(watch.map(Action::Unwatch));
        Then::Nothing
    }
}

impl Position {
    /// Records our znode in this queue. A create or a search has reported it.
    pub(super) fn record_node(&mut self, node: Node) {
        (self.node, self.state, self.is_fresh) = (Some(node), PositionState::Reading, true);
    }

    pub(super) fn is_first(&self) -> bool {
        self.node.is_some() && self.state == PositionState::First
    }

    /// Handles the answers of a round trip of this position.
    pub(super) fn handle_answers(
        &mut self,
        purpose: PositionPurpose,
        trip: &RoundTrip,
        here: &mut Here,
    ) -> Then {
        let answers = &trip.answers;
        match purpose {
            PositionPurpose::Look => self.handle_queue_read(answers, here),
            PositionPurpose::List => self.handle_listing(trip, here),
            PositionPurpose::Watch => self.handle_predecessor_watch_answer(trip, here),
            PositionPurpose::CheckOwn => self.handle_own_check(answers, here),
            PositionPurpose::WriteSize => self.handle_size_answer(answers, here),
            PositionPurpose::WatchOwn => self.handle_own_watch_answer(trip, here),
            PositionPurpose::LookPause => self.read_queue(here),
            PositionPurpose::Spread => self.send_listing(Watches::Nothing, here),
            PositionPurpose::Delay => self.handle_delay_end(here),
            PositionPurpose::OwnPause => self.watch_own(here),
            PositionPurpose::MarkGranted => self.handle_mark_granted_answer(answers, here),
            PositionPurpose::ReadRecord => self.handle_record_answer(answers, here),
            PositionPurpose::RecordPause => here.read_record(),
        }
    }

    /// Removes the watches of the position, and ignores the answers to its open requests.
    pub(super) fn stop(&mut self, here: &mut Here) -> Then {
        if let PositionState::Waiting { watch, .. } = std::mem::take(&mut self.state) {
            here.unwatch(Some(watch));
        }
        here.unwatch(self.own_watch.take());
        self.forget_ahead(here);
        here.trips.void(here.index, here.step);
        Then::Nothing
    }

    /// Stops after another client has deleted our znode. Deletes no znode of that name, because it would be another
    /// contender's.
    pub(super) fn stop_removed(&mut self, here: &mut Here) -> Then {
        self.stop(here);
        self.node = None;
        Then::Removed
    }

    /// Stops, and gives up our znode, which was not granted.
    pub(super) fn leave(&mut self, here: &mut Here) -> Then {
        // The watch on our own znode stays, because our delete makes it fire, which ends it without a request.
        self.own_watch = None;
        self.stop(here);
        let Some(node) = self.node.take() else { return Then::Nothing };
        let checks = !self.is_fresh && here.config.rules.reads_after_wait();
        Then::Delete(Leftover { node, undo: self.undo.take(), checks })
    }

    /// Forgets the state of the position. Returns its znode, which the caller must delete if it is not deleted yet.
    /// Does not remove watches from the server.
    pub(super) fn clear(&mut self) -> Option<Node> {
        (self.state, self.own_watch, self.ahead) = (PositionState::Reading, None, LookAhead::Off);
        self.node.take()
    }

    /// Returns an unused id for a new watch in this directory.
    pub(super) fn new_watch(&self, here: &Here) -> WatchId {
        let is_set = |watch: WatchId| {
            let waiting = matches!(self.state, PositionState::Waiting { watch: known, .. } if known == watch);
            waiting || self.own_watch == Some(watch) || self.ahead.own_watch() == Some(watch)
        };
        let upper = (here.index as u16) << 8;
        let mut ids = (0..=0xff).map(|low| WatchId(upper | low));
        let free = ids.find(|watch| !is_set(*watch) && !here.trips.sets(*watch));
        free.expect("a machine has few watches in one directory")
    }
}

impl Config {
    /// Returns whether our znode still exists, or `None` if the answer `own` does not show this. `own` is the answer to
    /// a read of the znode with our name. It is `None` only if a test has switched off the rule
    /// `OwnNodeAfterDirectory`. Then no read was sent, and the znode counts as ours.
    pub(super) fn is_znode_ours(&self, me: Node, own: Option<&Answer<NodeRead>>) -> Option<bool> {
        match own {
            None => Some(true),
            Some(Ok(read)) => Some(self.rules.is_own(me, read.czxid, read.owner, self.session)),
            Some(Err(RequestFailure::NoNode)) => Some(false),
            Some(Err(_)) => None,
        }
    }
}
