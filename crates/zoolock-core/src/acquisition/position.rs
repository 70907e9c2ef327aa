//! The position of an acquisition in one lock directory: its znode, and what the acquisition knows of
//! the queue there.

use std::ops::{Deref, DerefMut};

use super::*;

/// The place of an acquisition in the queue of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Position {
    /// Our znode in this queue. `None` before its create, after its loss, and once a clean-up
    /// deletes it.
    pub(super) node: Option<Node>,
    pub(super) state: PositionState,
    /// Set if our znode was created or read since the last wait. During a wait another client may
    /// delete our znode, and another contender may then get its name.
    pub(super) is_fresh: bool,
    /// The answers to the reads of this directory that were sent with the create of our znode.
    /// `None` in the position of the first directory: `round_trip.rs` keeps its answers together with the
    /// answer to the create.
    pub(super) early_answers: Option<Box<Answers>>,
    /// Our znodes in this directory that the search after a lost reply has found so far.
    pub(super) found: Vec<Node>,
    /// The directory. Read when our znode was the head of the queue, and updated when our `held`
    /// marker is written. Our release overwrites the record only if the version is still this one.
    /// With look-ahead, this field is set before our znode is the head: [`LookAhead`] says to which
    /// value.
    pub(super) directory: Option<Directory>,
    /// Sequence number of the predecessor that we watched last, if that predecessor is exclusive.
    /// Its release marker grants the lock to every reader that waits for it.
    pub(super) exclusive_predecessor: Option<Sequence>,
    /// The way in which the previous holder left, as far as it is known. Set when our znode becomes
    /// the head of the queue.
    pub(super) previous: Option<Previous>,
    /// Set while our `held` marker must still be written, or its write is not confirmed. The value
    /// is copied to `undo` when the write is sent.
    pub(super) unrecorded: Option<Undo>,
    /// Set once our `held` marker may have been written. The value says what to restore if we give
    /// up.
    pub(super) undo: Option<Undo>,
    /// Set if a reply to the write of our `held` marker was lost.
    pub(super) perhaps_marked: bool,
    /// Set once the delay after a possible crash has passed.
    pub(super) delayed: bool,
    pub(super) ahead: LookAhead,
    pub(super) permits: permits::SemaphoreState,
    /// The watch on our znode, once it is in force. During look-ahead, [`LookAhead`] keeps that
    /// watch.
    pub(super) own_watch: Option<WatchId>,
}

/// The progress of a position in its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) enum PositionState {
    /// Waiting for the answers to a read of the queue, or for the end of the pause before that
    /// read. Also the state before the create.
    #[default]
    Reading,
    /// Setting a watch on the contender `before`. This is the predecessor, or at the start of
    /// look-ahead the second predecessor (two positions ahead of us).
    Watching { before: String },
    /// Waiting for an event of `watch`, which is on the contender `before`, or on the children of
    /// the directory if `before` is `None`.
    Waiting { before: Option<String>, watch: WatchId },
    /// Head of the queue. The previous holder may have crashed, so the delay must pass first.
    Delaying,
    /// Head of the queue, and ready for the grant.
    First,
}

/// The positions of an acquisition, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "most acquisitions are of one lock")]
pub(super) enum Positions {
    One(Position),
    Many(Box<[Position]>),
}

impl Positions {
    pub(super) fn new(places: usize) -> Positions {
        match places {
            0 | 1 => Positions::One(Position::default()),
            _ => Positions::Many((0..places).map(|_| Position::default()).collect()),
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
    /// Records a znode of ours in the queue of this position. A create or a search has reported it.
    pub(super) fn record_node(&mut self, node: Node, is_fresh: bool) {
        (self.node, self.state, self.is_fresh) = (Some(node), PositionState::Reading, is_fresh);
    }

    pub(super) fn is_first(&self) -> bool {
        self.node.is_some() && self.state == PositionState::First
    }

    /// Returns whether our create was still the last change of the children when our znode was
    /// found to be the head of the queue.
    pub(super) fn is_untouched(&self) -> bool {
        match (self.node, self.directory) {
            (Some(me), Some(directory)) => directory.pzxid == me.czxid,
            _ => false,
        }
    }
}

impl Machine {
    /// Marks the last reads of our own znodes as old, because time passes before the next step.
    pub(super) fn mark_reads_stale(&mut self) {
        self.positions.iter_mut().for_each(|position| position.is_fresh = false);
    }

    /// Removes the watches of a position, and ignores the answers to its open requests.
    pub(super) fn stop_position(&mut self, lock_index: usize, step: &mut Step) {
        let position = &mut self.positions[lock_index];
        let waiting = match std::mem::take(&mut position.state) {
            PositionState::Waiting { watch, .. } => Some(watch),
            _ => None,
        };
        let own = position.own_watch.take();
        step.actions.extend(waiting.into_iter().chain(own).map(Action::Unwatch));
        self.forget_ahead(lock_index, step);
        self.void_position(lock_index, step);
    }

    /// Clears a position. Returns its znode, which the caller must delete if it is not deleted yet.
    /// Does not remove watches from the server.
    pub(super) fn clear_position(&mut self, lock_index: usize) -> Option<Node> {
        let position = &mut self.positions[lock_index];
        (position.state, position.own_watch, position.ahead) = (PositionState::Reading, None, LookAhead::Off);
        position.node.take()
    }

    /// Fails because another client deleted our znode in the queue. Deletes no znode of that name,
    /// because it would be another contender's.
    pub(super) fn fail_after_removal(&mut self, lock_index: usize, step: &mut Step) {
        self.stop_position(lock_index, step);
        self.positions[lock_index].node = None;
        self.fail(Reason::Broken, step);
    }

    /// Returns whether our znode still exists, or `None` if the answer `own` does not show this.
    /// `own` is the answer to a read of the znode with our name. It is `None` only if a test has
    /// switched off the rule `OwnNodeAfterDirectory`. Then no read was sent, and the znode counts
    /// as ours.
    pub(super) fn is_znode_ours(
        &self,
        me: Node,
        own: Option<&Result<NodeRead, RequestFailure>>,
    ) -> Option<bool> {
        match own {
            None => Some(true),
            Some(Ok(read)) => Some(self.is_mine(me, read.czxid, read.owner)),
            Some(Err(RequestFailure::NoNode)) => Some(false),
            Some(Err(_)) => None,
        }
    }

    fn is_mine(&self, me: Node, czxid: Zxid, owner: SessionId) -> bool {
        self.config.rules.is_own(me, czxid, owner, self.config.session)
    }
}
