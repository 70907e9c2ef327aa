//! What an observer knows who sees all of history, and what it calls a violation.

use zoolock_core::contender::{Departed, Grant, Loss, Node, Previous, Reason};
use zoolock_core::names::Prefix;

use crate::bugs::Bug;
use crate::scenario::Scenario;
use crate::tenure::exclude_each_other;
use crate::tree::Name;
use crate::world::World;

/// Something that must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub(crate) enum Foul {
    /// Granted, though at no moment since the creation of its node did nobody stand in its way; or granted without a
    /// lease.
    NeverFirst = 1,
    /// Granted before somebody who stood before it, in its way, and never gave up.
    OutOfTurn = 1 << 1,
    /// A grant's token is not above every earlier one.
    TokenFell = 1 << 2,
    /// The node of another contender was deleted on old knowledge.
    DeletedAnothers = 1 << 3,
    /// Told `Clean`, though the last one that was alone did not release the lock.
    FalseClean = 1 << 4,
    /// Told an end that is not so: broken though nobody broke it, refused though nobody may refuse, released though
    /// still there; or never told the end at all.
    FalseEnd = 1 << 5,
    /// Told `Crashed`, though the last one that was alone released the lock, or still holds it.
    FalseCrash = 1 << 6,
    /// Not told `Crashed`, though all holders say that they have begun, nobody meddles, and the last one is dead.
    UntoldCrash = 1 << 7,
    /// Told to have become a reader, though somebody stood before that reader who wants to be alone.
    SomebodyBetween = 1 << 8,
    /// A release wrote over what others had put into the record, though it was known to be there.
    WroteOver = 1 << 9,
    /// Told nothing, though the one right before released the lock, and nothing kept it from saying so.
    Untold = 1 << 10,
    /// One that was not granted wrote over a record that does not say that it has begun.
    WroteOverAnothers = 1 << 11,
}

/// The reader of one that upgrades.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct From {
    /// Its node's creation.
    pub(crate) node: i64,
    pub(crate) prefix: Prefix,
    pub(crate) place: i64,
}

/// A node that the current acquisition of a client created, whether or not the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trace {
    pub(crate) czxid: i64,
    pub(crate) name: Name,
    pub(crate) place: i64,
    pub(crate) directory: i64,
    /// At some moment nobody stood in its way.
    pub(crate) was_clear: bool,
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
    /// The holder was asked to go on as a reader.
    pub(crate) downgrading: bool,
    /// It held the lock when it was asked that: whatever it wrote was written by then.
    pub(crate) wrote_all: bool,
    /// The last answer was that the writer's node is not there. Like [`Trace::fresh`].
    pub(crate) seen_gone: bool,
    /// What is upgraded.
    pub(crate) from: Option<From>,
    /// Of the first grant: what became of the holder since keeps it.
    pub(crate) token: i64,
    /// The holder knows the record as it is.
    pub(crate) read: bool,
    /// The connection broke before it knew.
    pub(crate) interrupted: bool,
}

impl Ghost {
    pub(crate) fn trace(&self, czxid: i64) -> Option<&Trace> {
        self.traces.iter().find(|trace| trace.czxid == czxid)
    }
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
        let (czxid, prefix) = (grant.node.czxid.0, grant.node.prefix);
        let trace = client.ghost.trace(czxid);
        let clear = trace.is_some_and(|trace| trace.was_clear) && client.lease && !client.ghost.granted;
        let (directory, place) = trace.map_or((0, 0), |trace| (trace.directory, trace.place));
        if !clear {
            self.note(Foul::NeverFirst);
        }
        if self.somebody_was_passed_over(i, directory, prefix, place, scenario) {
            self.note(Foul::OutOfTurn);
        }
        let previous = match grant.previous {
            Previous::Unknown if scenario.has(Bug::UnknownIsClean) => Previous::Clean,
            previous => previous,
        };
        self.check_previous(i, directory, &Grant { previous, ..grant }, scenario);
        let upgrade = self.clients[i].ghost.from;
        let token = match upgrade {
            Some(_) => self.clients[i].ghost.token,
            None if scenario.has(Bug::TokenIsTheNumber) => i64::from(grant.node.sequence.0) + 1,
            None => czxid,
        };
        // A grant that comes late, to a node that was deleted in the meantime, proves nothing.
        let there = |czxid| self.leader.holds(czxid);
        if prefix.is_exclusive() && there(czxid) && upgrade.is_none_or(|from| there(from.node)) {
            // One that reads in between and writes again has the same again.
            let rises = token > self.token || (upgrade.is_some() && token == self.token);
            if !rises {
                self.note(Foul::TokenFell);
            }
            self.token = self.token.max(token);
        }
        self.upgraded += u8::from(upgrade.is_some());
        let ghost = &mut self.clients[i].ghost;
        ghost.granted = true;
        ghost.held = czxid;
        ghost.token = token;
    }

    /// What a holder is told after its grant.
    pub(crate) fn on_previous(&mut self, i: usize, previous: Previous, scenario: &Scenario) {
        let ghost = &mut self.clients[i].ghost;
        ghost.read = true;
        let czxid = ghost.held;
        let Some(trace) = ghost.trace(czxid) else { return };
        let (directory, name) = (trace.directory, trace.name);
        self.is_it_so(i, directory, czxid, name, previous, scenario);
    }

    pub(crate) fn on_downgraded(&mut self, i: usize, node: Node) {
        let ghost = &mut self.clients[i].ghost;
        ghost.held = node.czxid.0;
        if !ghost.trace(ghost.held).is_some_and(|trace| trace.was_clear) {
            self.note(Foul::SomebodyBetween);
        }
    }

    fn somebody_was_passed_over(
        &self,
        i: usize,
        directory: i64,
        prefix: Prefix,
        place: i64,
        scenario: &Scenario,
    ) -> bool {
        let upgrade = self.clients[i].ghost.from;
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
                    let (theirs, number) = (trace.name.prefix, trace.name.sequence);
                    let retired = number < 0 || number >= scenario.retire_from;
                    let permits = matches!((theirs, prefix), (Prefix::Permit(_), Prefix::Permit(_)));
                    let in_the_way = match upgrade {
                        // It reads already, and so goes before whoever waits for it.
                        Some(from) => trace.place < from.place || !exclude_each_other(theirs, from.prefix),
                        None if permits => !trace.was_clear && trace.fate == Fate::There,
                        None => exclude_each_other(theirs, prefix),
                    };
                    trace.directory == directory && trace.place < place && !retired && in_the_way
                })
        })
    }

    pub(crate) fn on_failed(&mut self, i: usize, reason: Reason, scenario: &Scenario) {
        let client = &self.clients[i];
        let ghost = &client.ghost;
        let from = ghost.from.map(|from| from.node);
        let so = match reason {
            Reason::TimedOut => ghost.timed_out,
            Reason::Busy => scenario.tries,
            Reason::Broken => {
                ghost.traces.iter().any(|trace| trace.fate == Fate::Taken)
                    || from.is_some_and(|from| !self.leader.holds(from))
            }
            Reason::SessionOver(_) => !client.session,
            Reason::OtherKind | Reason::OtherLayout(_) => scenario.mixes_kinds(),
            Reason::Clash(_) => scenario.may_clash(),
            Reason::OtherSize(_) => scenario.budget.resizes > 0,
            Reason::ForeignRecord => scenario.budget.scribbles > 0 || scenario.mixes_kinds(),
            Reason::Outranked => ghost.from.is_some(),
            Reason::Exhausted => ghost.from.is_some() && scenario.last < 99,
            // Nothing in this world refuses for good.
            Reason::Refused(_) => false,
        };
        let again = ghost.gave_up && !ghost.timed_out;
        self.clients[i].ghost.gave_up = true;
        if !so || again {
            self.note(Foul::FalseEnd);
        }
    }

    pub(crate) fn on_lost(&mut self, i: usize, loss: Loss) {
        let client = &mut *self.clients[i];
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
