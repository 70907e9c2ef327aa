//! What an observer knows who sees all of history, and what it calls a violation.

use zoolock_core::contender::{Departed, Grant, Loss, Previous, Reason};

use crate::scenario::Scenario;
use crate::world::World;

/// Something that must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub(crate) enum Foul {
    /// Granted, though at no moment since its creation was the node the oldest of its directory; or granted without a
    /// lease.
    NeverFirst = 1,
    /// Granted before somebody who stood before it and never gave up.
    OutOfTurn = 1 << 1,
    /// A grant's token is not above every earlier one.
    TokenFell = 1 << 2,
    /// The node of another contender was deleted on old knowledge.
    DeletedAnothers = 1 << 3,
    /// Told `Clean`, though the contender right before did not release the lock.
    FalseClean = 1 << 4,
    /// Told an end that is not so: broken though nobody broke it, refused though nobody may refuse, released though
    /// still there; or never told the end at all.
    FalseEnd = 1 << 5,
}

/// A node that the current acquisition of a client created, whether or not the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trace {
    pub(crate) czxid: i64,
    pub(crate) sequence: i32,
    pub(crate) directory: i64,
    pub(crate) was_first: bool,
    pub(crate) fate: Fate,
    /// The client was told that it is there, and has neither sent a delete since nor been told that it lost it.
    ///
    /// A look through a follower that had not heard yet that the node is gone is none: hence the sync before it.
    ///
    /// The server's delete looks at the name only, so between a look and the delete that relies on it somebody else
    /// may come to own the name. That sliver stays open and is no violation; a delete that relies on *no* look is one.
    pub(crate) fresh: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    There,
    /// Deleted by a request of its own acquisition.
    Withdrawn,
    /// Deleted by anybody else, or with its session.
    Taken,
}

/// What the observer keeps of the current acquisition of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    pub(crate) traces: Vec<Trace>,
    /// The caller gave up, or was told that it will not get the lock.
    pub(crate) gave_up: bool,
    pub(crate) timed_out: bool,
    pub(crate) granted: bool,
    /// The node that was granted.
    pub(crate) held: i64,
    pub(crate) lost: bool,
    /// The holder let go.
    pub(crate) released: bool,
    /// The holder let go and was not unwinding.
    pub(crate) cleanly: bool,
    /// The holder was told how its release ended.
    pub(crate) answered: bool,
    pub(crate) lease_lost: bool,
}

impl World {
    pub(crate) fn note(&mut self, foul: Foul) {
        self.fouls |= foul as u16;
    }

    pub(crate) fn committed(&self, foul: Foul) -> bool {
        self.fouls & foul as u16 != 0
    }

    pub(crate) fn on_granted(&mut self, i: usize, grant: Grant, scenario: &Scenario) {
        let client = &self.clients[i];
        let czxid = grant.node.czxid.0;
        let trace = client.ghost.traces.iter().find(|trace| trace.czxid == czxid);
        let first = trace.is_some_and(|trace| trace.was_first) && client.lease && !client.ghost.granted;
        let directory = trace.map_or(0, |trace| trace.directory);
        if !first {
            self.note(Foul::NeverFirst);
        }
        if self.somebody_was_passed_over(i, directory, czxid, scenario) {
            self.note(Foul::OutOfTurn);
        }
        // A grant that comes late, to a node that was deleted in the meantime, proves nothing.
        if self.leader.holds(czxid) {
            if czxid <= self.token {
                self.note(Foul::TokenFell);
            }
            self.token = self.token.max(czxid);
        }
        if grant.previous == Previous::Clean && !self.clean.contains(&(directory, grant.node.sequence.0 - 1))
        {
            self.note(Foul::FalseClean);
        }
        self.clients[i].ghost.granted = true;
        self.clients[i].ghost.held = czxid;
    }

    fn somebody_was_passed_over(&self, i: usize, directory: i64, czxid: i64, scenario: &Scenario) -> bool {
        self.clients.iter().enumerate().any(|(j, other)| {
            let ghost = &other.ghost;
            // Whose place was taken by others has lost it, and may not have heard yet.
            let waits = j != i
                && other.is_running()
                && other.session
                && !ghost.gave_up
                && !ghost.granted
                && ghost.traces.iter().all(|trace| trace.fate != Fate::Taken);
            waits
                && ghost.traces.iter().any(|trace| {
                    let retired = trace.sequence < 0 || trace.sequence >= scenario.retire_from;
                    trace.directory == directory && trace.czxid < czxid && !retired
                })
        })
    }

    pub(crate) fn on_failed(&mut self, i: usize, reason: Reason, scenario: &Scenario) {
        let client = &mut self.clients[i];
        let ghost = &client.ghost;
        let so = match reason {
            Reason::TimedOut => ghost.timed_out,
            Reason::Busy => scenario.tries,
            Reason::Broken => ghost.traces.iter().any(|trace| trace.fate == Fate::Taken),
            Reason::SessionOver(_) => !client.session,
            // Nothing in this world refuses for good.
            Reason::OtherKind
            | Reason::OtherSize(_)
            | Reason::ForeignRecord
            | Reason::Outranked
            | Reason::Exhausted
            | Reason::Refused(_) => false,
        };
        let again = ghost.gave_up && !ghost.timed_out;
        client.ghost.gave_up = true;
        if !so || again {
            self.note(Foul::FalseEnd);
        }
    }

    pub(crate) fn on_lost(&mut self, i: usize, loss: Loss) {
        let client = &mut self.clients[i];
        let ghost = &mut client.ghost;
        let so = match loss {
            Loss::Broken => ghost.traces.iter().any(|trace| trace.fate == Fate::Taken),
            Loss::Unreachable => ghost.lease_lost,
            Loss::SessionOver(_) => !client.session,
        };
        let again = ghost.lost || !ghost.granted;
        ghost.lost = true;
        for trace in &mut ghost.traces {
            trace.fresh = false;
        }
        if !so || again {
            self.note(Foul::FalseEnd);
        }
    }

    pub(crate) fn on_released(&mut self, i: usize, departed: Departed) {
        let ghost = &self.clients[i].ghost;
        let gone = !ghost.traces.iter().any(|trace| trace.czxid == ghost.held && trace.fate == Fate::There);
        let so = match departed {
            Departed::Clean => gone && !ghost.lost,
            Departed::Lost(Loss::Broken) => gone,
            Departed::Lost(_) => ghost.lost || !self.clients[i].session,
            Departed::Refused(_) => false,
        };
        if !so || !ghost.released || ghost.answered {
            self.note(Foul::FalseEnd);
        }
        self.clients[i].ghost.answered = true;
    }

    pub(crate) fn on_over(&mut self, i: usize) {
        let ghost = &self.clients[i].ghost;
        let told = if ghost.granted { ghost.answered } else { ghost.gave_up };
        if !told {
            self.note(Foul::FalseEnd);
        }
    }
}
