//! The seat of an acquisition in one lock directory: its znode, and what the acquisition knows of the queue there.

use std::ops::{Deref, DerefMut};

use super::*;

/// The place of an acquisition in the queue of one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Seat {
    /// Our znode, while it may exist and may grant the lock.
    pub(super) node: Option<Node>,
    pub(super) state: SeatState,
    /// Set if our znode was created or read since the last wait. During a wait another client may delete it, and its name
    /// may then belong to another contender.
    pub(super) is_fresh: bool,
    /// The answers to the reads that were sent with the create. Only for the second and later directories: the flight
    /// itself keeps those of the first.
    pub(super) first: Option<Box<Answers>>,
    /// Our znodes in this directory that the search after a lost reply has found so far.
    pub(super) found: Vec<Node>,
    /// The record and the version that our release may overwrite. Read after our znode had become the head of the queue;
    /// with look-ahead, read before that.
    pub(super) directory: Option<Directory>,
    /// Sequence number of the predecessor, if that is exclusive. Its marker grants the lock to every reader directly behind
    /// it.
    pub(super) exclusive_predecessor: Option<Sequence>,
    /// The way in which the previous holder left, read at the head of the queue.
    pub(super) previous: Option<Previous>,
    /// The state before our `held` marker. Set while that marker must still be written, or its write is not confirmed.
    pub(super) unrecorded: Option<Undo>,
    /// The state to restore if we give up. Set once our `held` marker may have been written.
    pub(super) undo: Option<Undo>,
    /// Set if a reply to the write of our `held` marker was lost.
    pub(super) perhaps_marked: bool,
    /// Set once the delay after a possible crash has passed.
    pub(super) delayed: bool,
    pub(super) ahead: LookAhead,
    pub(super) permits: permits::State,
    /// The watch on our znode, once it is in force.
    pub(super) own_watch: Option<WatchId>,
}

/// The progress of a seat in its queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) enum SeatState {
    /// Waiting for the answers to a read, or for the end of the pause before it.
    #[default]
    Reading,
    /// Setting a watch on the predecessor, or with look-ahead on the second predecessor.
    Watching { before: String },
    /// Waiting for the deletion of the contender `before`, or for any change of the children if that is `None`.
    Waiting { before: Option<String>, watch: WatchId },
    /// Head of the queue. The previous holder may have crashed, so the delay must pass first.
    Delaying,
    /// Head of the queue, and ready for the grant.
    First,
}

/// The seats of an acquisition, at least one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "most acquisitions are of one lock")]
pub(super) enum Seats {
    One(Seat),
    Many(Box<[Seat]>),
}

impl Seats {
    pub(super) fn new(places: usize) -> Seats {
        match places {
            0 | 1 => Seats::One(Seat::default()),
            _ => Seats::Many((0..places).map(|_| Seat::default()).collect()),
        }
    }
}

impl Deref for Seats {
    type Target = [Seat];

    fn deref(&self) -> &[Seat] {
        match self {
            Seats::One(seat) => std::slice::from_ref(seat),
            Seats::Many(seats) => seats,
        }
    }
}

impl DerefMut for Seats {
    fn deref_mut(&mut self) -> &mut [Seat] {
        match self {
            Seats::One(seat) => std::slice::from_mut(seat),
            Seats::Many(seats) => seats,
        }
    }
}

impl Seat {
    /// Puts a znode of ours, created or found by a search, into the queue of this seat.
    pub(super) fn sit(&mut self, node: Node, is_fresh: bool) {
        (self.node, self.state, self.is_fresh) = (Some(node), SeatState::Reading, is_fresh);
    }

    pub(super) fn is_first(&self) -> bool {
        self.node.is_some() && self.state == SeatState::First
    }

    /// Returns whether our create was the last change of the children when the seat became the head of the queue.
    pub(super) fn is_untouched(&self) -> bool {
        match (self.node, self.directory) {
            (Some(me), Some(directory)) => directory.pzxid == me.czxid,
            _ => false,
        }
    }
}

impl Machine {
    /// Marks what was read of our znodes as old, because time passes before the next step.
    pub(super) fn grow_stale(&mut self) {
        self.seats.iter_mut().for_each(|seat| seat.is_fresh = false);
    }

    /// Removes the watches of a seat, and ignores its open flights.
    pub(super) fn stop_seat(&mut self, place: usize, step: &mut Step) {
        let seat = &mut self.seats[place];
        let waiting = match std::mem::take(&mut seat.state) {
            SeatState::Waiting { watch, .. } => Some(watch),
            _ => None,
        };
        let own = seat.own_watch.take();
        step.actions.extend(waiting.into_iter().chain(own).map(Action::Unwatch));
        self.forget_ahead(place, step);
        self.void_seat(place, step);
    }

    /// Clears a seat. Returns its znode, which the caller must clean up. Does not remove watches from the server.
    pub(super) fn leave_seat(&mut self, place: usize) -> Option<Node> {
        let seat = &mut self.seats[place];
        (seat.state, seat.own_watch, seat.ahead) = (SeatState::Reading, None, LookAhead::Off);
        seat.node.take()
    }

    /// Fails because another client deleted our znode in the queue. Deletes no znode of that name, because it would be
    /// another contender's.
    pub(super) fn fail_broken(&mut self, place: usize, step: &mut Step) {
        self.stop_seat(place, step);
        self.seats[place].node = None;
        self.fail(Reason::Broken, step);
    }

    /// Returns whether the znode that was read is `me`; `None` if the answer does not say. If the flight has no such read,
    /// because a test switched off its rule, the znode counts as ours.
    pub(super) fn still_mine(
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
