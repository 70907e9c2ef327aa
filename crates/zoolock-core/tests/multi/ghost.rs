//! What an observer knows who sees all of history, and what it calls a violation.

use zoolock_core::contender::{Departed, Grant, Loss, Previous, Reason};

use crate::scenario::Scenario;
use crate::tree::{Called, Child};
use crate::world::World;

/// Something that must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub(crate) enum Foul {
    /// Granted, though at no moment were all of its nodes there and each the oldest of its directory; or granted
    /// without a lease.
    NeverFirst = 1,
    /// A grant's token is not above every earlier one of that directory.
    TokenFell = 1 << 1,
    /// The node of another contender was deleted on old knowledge.
    DeletedAnothers = 1 << 2,
    /// Told `Clean`, though the last holder of one of the locks did not release it.
    FalseClean = 1 << 3,
    /// Told an end that is not so, or twice, or never.
    FalseEnd = 1 << 4,
    /// Asked to let go before it held, more than once, or by nobody.
    FalseRevoke = 1 << 5,
}

/// A node that the current acquisition of a client created, whether or not the client knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trace {
    pub(crate) directory: usize,
    /// The creation of the directory, which has its own numbers.
    pub(crate) made: i64,
    pub(crate) czxid: i64,
    pub(crate) called: Called,
    pub(crate) fate: Fate,
    /// The client was told that it is there, and has neither sent a delete since nor been told that it is gone.
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
    /// Creates all of whose nodes were there at one moment, each the oldest of its directory.
    pub(crate) firsts: Vec<i64>,
    /// The caller gave up, or was told that it will not get the locks.
    pub(crate) gave_up: bool,
    pub(crate) timed_out: bool,
    pub(crate) failed: bool,
    pub(crate) granted: bool,
    /// The create that was granted.
    pub(crate) held: i64,
    pub(crate) lost: Option<Loss>,
    /// The holder let go.
    pub(crate) released: bool,
    /// The holder let go and was not unwinding.
    pub(crate) cleanly: bool,
    /// The holder was told how its release ended.
    pub(crate) answered: bool,
    pub(crate) lease_lost: bool,
    /// Somebody asked to let go.
    pub(crate) asked: bool,
    /// The holder was told of it.
    pub(crate) revoked: bool,
}

impl Ghost {
    fn was_broken(&self) -> bool {
        self.traces.iter().any(|trace| trace.fate == Fate::Taken)
    }
}

impl World {
    pub(crate) fn note(&mut self, foul: Foul) {
        self.fouls |= foul as u16;
    }

    pub(crate) fn committed(&self, foul: Foul) -> bool {
        self.fouls & foul as u16 != 0
    }

    /// After each transaction: whose nodes are all there, each the first of its directory?
    pub(crate) fn see_who_is_first(&mut self, scenario: &Scenario) {
        for (i, client) in self.clients.iter_mut().enumerate() {
            let (wants, reader) = (&scenario.wants[i], scenario.readers[i]);
            let creates: Vec<i64> = client.ghost.traces.iter().map(|trace| trace.czxid).collect();
            for czxid in creates {
                let oldest = |&directory: &usize| {
                    let children = self.leader.children(directory);
                    let in_the_way = |child: &&Child| !(reader && child.is_reader());
                    let there = children.iter().any(|child| child.czxid == czxid);
                    there && children.iter().filter(in_the_way).all(|child| child.czxid >= czxid)
                };
                if !client.ghost.firsts.contains(&czxid) && wants.iter().all(oldest) {
                    client.ghost.firsts.push(czxid);
                }
            }
        }
    }

    pub(crate) fn on_granted(&mut self, i: usize, grant: Grant, scenario: &Scenario) {
        let client = &self.clients[i];
        let czxid = grant.node.czxid.0;
        let ghost = &client.ghost;
        let set: Vec<_> = ghost.traces.iter().filter(|trace| trace.czxid == czxid).cloned().collect();
        if !ghost.firsts.contains(&czxid) || !client.lease || ghost.granted || ghost.failed {
            self.note(Foul::NeverFirst);
        }
        for trace in set {
            // A grant that comes late, to a node that was deleted in the meantime, proves nothing.
            if !scenario.readers[i] && self.leader.holds(trace.directory, czxid) {
                if czxid <= self.tokens[trace.directory] {
                    self.note(Foul::TokenFell);
                }
                self.tokens[trace.directory] = czxid;
            }
            let right_before = (trace.made, trace.called.1 - 1);
            let reader = scenario.readers[i];
            let told = |last: &(i64, i32, bool)| last.2 && (scenario.tracks || reader);
            let last = self.holders.iter().find(|holder| holder.0 == trace.made);
            let clean = self.clean.contains(&right_before) || last.is_some_and(told);
            if grant.previous == Previous::Clean && !clean {
                self.note(Foul::FalseClean);
            }
            if !reader {
                self.holders.retain(|holder| holder.0 != trace.made);
                self.holders.push((trace.made, trace.called.1, false));
            }
        }
        self.clients[i].ghost.granted = true;
        self.clients[i].ghost.held = czxid;
    }

    /// A holder that was not unwinding left by its own hand.
    pub(crate) fn on_left_cleanly(&mut self, made: i64, sequence: i32) {
        self.clean.push((made, sequence));
        for holder in &mut self.holders {
            holder.2 |= (holder.0, holder.1) == (made, sequence);
        }
    }

    pub(crate) fn on_failed(&mut self, i: usize, reason: Reason, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        let ghost = &client.ghost;
        let so = match reason {
            Reason::TimedOut => ghost.timed_out,
            Reason::Busy => scenario.tries,
            Reason::Broken => ghost.was_broken(),
            Reason::SessionOver(_) => !client.session,
            Reason::ForeignRecord => scenario.tracks && scenario.budget.scribbles > 0,
            // Nothing in this world refuses for good.
            Reason::OtherKind
            | Reason::OtherLayout(_)
            | Reason::Clash(_)
            | Reason::OtherSize(_)
            | Reason::Outranked
            | Reason::Exhausted
            | Reason::Refused(_) => false,
        };
        let again = ghost.failed || ghost.granted || (ghost.gave_up && !ghost.timed_out);
        client.ghost.gave_up = true;
        client.ghost.failed = true;
        if !so || again {
            self.note(Foul::FalseEnd);
        }
    }

    pub(crate) fn on_lost(&mut self, i: usize, loss: Loss) {
        let client = &mut *self.clients[i];
        let ghost = &mut client.ghost;
        let so = match loss {
            Loss::Broken => ghost.was_broken(),
            Loss::Unreachable => ghost.lease_lost,
            Loss::SessionOver(_) => !client.session,
        };
        let again = ghost.lost.is_some() || !ghost.granted || ghost.answered;
        ghost.lost = Some(loss);
        if loss != Loss::Broken {
            ghost.traces.iter_mut().for_each(|trace| trace.fresh = false);
        }
        if !so || again {
            self.note(Foul::FalseEnd);
        }
    }

    pub(crate) fn on_released(&mut self, i: usize, departed: Departed) {
        let ghost = &self.clients[i].ghost;
        let held = |trace: &&Trace| trace.czxid == ghost.held;
        let gone = !ghost.traces.iter().filter(held).any(|trace| trace.fate == Fate::There);
        let so = match departed {
            Departed::Clean => gone && ghost.lost.is_none(),
            Departed::Lost(Loss::Broken) => ghost.was_broken(),
            Departed::Lost(_) => ghost.lost.is_some() || !self.clients[i].session,
            Departed::Refused(_) => false,
        };
        if !so || !ghost.released || ghost.answered {
            self.note(Foul::FalseEnd);
        }
        self.clients[i].ghost.answered = true;
    }

    pub(crate) fn on_revoked(&mut self, i: usize) {
        let ghost = &mut self.clients[i].ghost;
        let so = ghost.granted && !ghost.released && ghost.asked && !ghost.revoked;
        ghost.revoked = true;
        if !so {
            self.note(Foul::FalseRevoke);
        }
    }

    pub(crate) fn on_over(&mut self, i: usize) {
        let ghost = &self.clients[i].ghost;
        let told = if ghost.granted { ghost.answered } else { ghost.gave_up };
        if !told {
            self.note(Foul::FalseEnd);
        }
    }
}
