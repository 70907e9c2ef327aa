//! Ghost state: the facts about the whole history that no client knows, and the violations that
//! these facts show. A machine is the state machine of one client's acquisition.

use zoolock_core::Record;
use zoolock_core::acquisition::{Grant, Loss, Node, Previous, Reason, ReleaseOutcome, Reply, RequestFailure};
use zoolock_core::names::Prefix;

use super::bugs::Bug;
use super::holds::{Hold, exclude_each_other};
use super::scenario::Scenario;
use super::tree::{LASTING_CHILD, Name};
use super::world::World;

/// A violation: an event that must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub(crate) enum Violation {
    /// A contender was granted without a lease, or twice, or after its acquisition had failed. Or
    /// it was granted although there was no moment at which each of its znodes existed as the head
    /// of its queue.
    NeverFirst = 1,
    /// A contender was granted while a conflicting waiter was queued before it, and that waiter had
    /// not given up.
    OutOfTurn = 1 << 1,
    /// The token of a grant is not above the token of every earlier grant in that directory.
    TokenFell = 1 << 2,
    /// A delete hit the znode of another contender, and the sender had not checked that its own znode exists.
    DeletedAnothers = 1 << 3,
    /// A machine reported `Clean`, though the last exclusive holder did not release.
    FalseClean = 1 << 4,
    /// A machine reported an end of its acquisition that did not happen, or reported the end twice,
    /// or not at all.
    FalseEnd = 1 << 5,
    /// A machine reported `Crashed`, though the last exclusive holder released, or still holds.
    FalseCrash = 1 << 6,
    /// A machine did not report `Crashed`, though the last holder ended without a release, all
    /// holders track crashes, and no fault touched the record.
    UntoldCrash = 1 << 7,
    /// A machine reported a downgrade, though there was no moment at which the reader's znode had
    /// no conflicting znode before it.
    WriterBetween = 1 << 8,
    /// A release overwrote foreign data in the record, in a case that `World::check_overwritten_record` does not
    /// allow.
    WroteOver = 1 << 9,
    /// A machine reported `Unknown`, though the predecessor released and its marker says so.
    Untold = 1 << 10,
    /// A contender that was not granted overwrote a record that it had not written.
    WroteOverAnothers = 1 << 11,
    /// A machine reported a request to release, though its client does not hold or no operator made
    /// such a request. Or it reported the request twice.
    FalseRevoke = 1 << 12,
}

/// Facts about the past of all clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// The record of the directory that was deleted last.
    pub(crate) last_record: Record,
    /// Exclusive holds, and how they ended.
    pub(crate) holds: Vec<Hold>,
    /// The largest size that the semaphore had.
    pub(crate) largest_size: u32,
    /// Number of readers that became writers.
    pub(crate) upgrades: u8,
    /// The highest token granted in each directory.
    tokens: Vec<i64>,
    /// Violations so far, as bits.
    violations: u16,
}

impl History {
    pub(crate) fn new(scenario: &Scenario) -> History {
        History {
            last_record: Record::Empty,
            holds: Vec::new(),
            largest_size: 0,
            upgrades: 0,
            tokens: vec![0; scenario.directories.len()],
            violations: 0,
        }
    }
}

/// The znode of the reader that an acquisition upgrades.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reader {
    pub(crate) czxid: i64,
    pub(crate) prefix: Prefix,
    pub(crate) position: i64,
}

/// A znode that the current acquisition of a client created. If the reply to the create was lost,
/// the client does not know of this znode.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Trace {
    /// The index of its directory.
    pub(crate) at: usize,
    /// The transaction that created its directory.
    pub(crate) directory: i64,
    pub(crate) czxid: i64,
    pub(crate) name: Name,
    pub(crate) position: i64,
    /// Set if there was a moment at which no conflicting znode was before this znode, nor before any other znode of the
    /// same create.
    pub(crate) was_clear: bool,
    pub(crate) fate: Fate,
    /// Set if an answer showed the client that the znode exists, and since then the client has
    /// neither sent a delete of it nor received its deletion. The end of a wait clears the flag,
    /// because an answer from before the wait is old.
    ///
    /// A follower that lags may still show a deleted znode. So machines send a sync before a read
    /// on which a delete relies.
    ///
    /// The server deletes by name. Between a read and the delete that relies on it, another
    /// contender may create a znode of that name, and the delete hits that znode. The protocol does
    /// not prevent this, so the model does not count it as a violation. A delete that relies on
    /// *no* read is a violation.
    pub(crate) fresh: bool,
    /// Set if a later read has shown no znode of this name, or another contender's znode of this
    /// name.
    gone: bool,
}

impl Trace {
    /// Creates the trace of a znode that is about to be created.
    pub(crate) fn new(at: usize, directory: i64, czxid: i64, name: Name, position: i64) -> Trace {
        let (fate, was_clear, fresh, gone) = (Fate::Exists, false, false, false);
        Trace { at, directory, czxid, name, position, was_clear, fate, fresh, gone }
    }

    /// Returns whether the client knows that the znode exists. Clears `fresh`, because one read
    /// justifies only one delete.
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh) && !self.gone
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Exists,
    /// Deleted by a request of its own acquisition.
    Withdrawn,
    /// Deleted by another client or an operator, or with its session.
    Taken,
}

/// Facts about the current acquisition of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    pub(crate) traces: Vec<Trace>,
    /// Set if the caller gave up, or was told that it will not get the lock.
    pub(crate) gave_up: bool,
    pub(crate) timed_out: bool,
    pub(crate) failed: bool,
    pub(crate) granted: bool,
    /// Set if the caller has taken the grant.
    pub(crate) claimed: bool,
    /// Set if the caller never polls its future again.
    pub(crate) forgotten: bool,
    /// The czxid of the znode that was granted. After a downgrade: the czxid of the reader's znode.
    pub(crate) held: i64,
    pub(crate) lost: Option<Loss>,
    /// Set if the holder released.
    pub(crate) released: bool,
    /// Set if the holder released, and was not unwinding from a panic.
    pub(crate) cleanly: bool,
    /// Set if the holder was told the outcome of its release.
    pub(crate) answered: bool,
    pub(crate) lease_lost: bool,
    /// Set if the holder asked for a downgrade.
    pub(crate) downgrading: bool,
    /// Set if the holder had not lost the lock when it asked for the downgrade. Then its writes were complete.
    pub(crate) held_until_downgrade: bool,
    /// Set if the last answer during a downgrade showed that the writer's znode does not exist. The
    /// next downgrade, release or delete clears the flag, as with [`Trace::fresh`].
    pub(crate) seen_missing: bool,
    /// For an upgrade: the reader that it upgrades.
    pub(crate) reader: Option<Reader>,
    /// The token of the first grant. An upgrade and a downgrade keep it.
    pub(crate) token: i64,
    /// Set if the holder knows the record.
    pub(crate) read: bool,
    /// Set if the connection broke before the holder knew the record.
    pub(crate) interrupted: bool,
    /// Set if an operator asked the holder or waiter to release.
    pub(crate) asked: bool,
    /// Set if the holder was told that it should release.
    pub(crate) revoked: bool,
}

impl Ghost {
    /// Returns the traces of the znodes that a transaction created, one for each lock.
    pub(crate) fn traces_of(&self, czxid: i64) -> impl Iterator<Item = &Trace> {
        self.traces.iter().filter(move |trace| trace.czxid == czxid)
    }

    pub(crate) fn traces_named(&mut self, at: usize, name: Name) -> impl Iterator<Item = &mut Trace> {
        self.traces.iter_mut().filter(move |trace| (trace.at, trace.name) == (at, name))
    }

    fn was_broken(&self) -> bool {
        self.traces.iter().any(|trace| trace.fate == Fate::Taken)
    }

    /// Records which znodes of the client an answer shows. `about`: the client's own znode that the
    /// request read, if it read one. `known_to_exist`: set if that znode existed when the read was
    /// sent.
    pub(crate) fn on_answer(
        &mut self,
        at: usize,
        outcome: &Result<Reply, RequestFailure>,
        about: Option<Name>,
        known_to_exist: bool,
        wants: &[usize],
    ) {
        // During a downgrade, the holder reads the writer's znode after a sync. If that znode is
        // missing, an earlier downgrade may have replaced it. So the holder may send the downgrade
        // again.
        self.seen_missing = *outcome == Err(RequestFailure::NoNode) && self.downgrading;
        let here = |node: &Node| (at, node.czxid.0);
        let seen: Vec<(usize, i64)> = match outcome {
            Ok(Reply::Joined(node)) => vec![here(node)],
            Ok(Reply::AllJoined(nodes)) => {
                wants.iter().zip(nodes).map(|(&at, node)| (at, node.czxid.0)).collect()
            }
            Ok(Reply::Node { czxid, .. }) if known_to_exist => vec![(at, czxid.0)],
            Ok(Reply::Mine(nodes)) => nodes.iter().map(here).collect(),
            _ => Vec::new(),
        };
        // The czxid of the znode that has the name `about` now; zero if there is none.
        let now = match outcome {
            Ok(Reply::Node { czxid, .. }) => Some(czxid.0),
            Err(RequestFailure::NoNode) => Some(0),
            _ => None,
        };
        for trace in &mut self.traces {
            if seen.contains(&(trace.at, trace.czxid)) {
                (trace.fresh, trace.gone) = (true, false);
            }
            let was_read = trace.at == at && about == Some(trace.name);
            trace.gone |= was_read && now.is_some_and(|now| now != trace.czxid);
        }
    }
}

impl World {
    pub(crate) fn record_violation(&mut self, violation: Violation) {
        if !self.has(violation) {
            self.history.violations |= violation as u16;
        }
    }

    pub(crate) fn has(&self, violation: Violation) -> bool {
        self.history.violations & violation as u16 != 0
    }

    pub(crate) fn note_size(&mut self) {
        let size = (0..self.leader.0.len()).filter_map(|at| self.leader.size(at)).max().unwrap_or(0);
        if size > self.history.largest_size {
            self.history.largest_size = size;
        }
    }

    pub(crate) fn on_granted(&mut self, i: usize, grant: Grant, scenario: &Scenario) {
        let client = &self.clients[i];
        let (czxid, prefix) = (grant.node.czxid.0, grant.node.prefix);
        let traces: Vec<Trace> = client.ghost.traces_of(czxid).cloned().collect();
        let clear = !traces.is_empty() && traces.iter().all(|trace| trace.was_clear);
        if !clear || !client.lease || client.ghost.granted || client.ghost.failed {
            self.record_violation(Violation::NeverFirst);
        }
        if traces.iter().any(|trace| self.passes_over(i, trace, prefix, scenario)) {
            self.record_violation(Violation::OutOfTurn);
        }
        let previous = match grant.previous {
            Previous::Unknown if scenario.has(Bug::UnknownIsClean) => Previous::Clean,
            previous => previous,
        };
        self.clients[i].ghost.read = !scenario.looks_ahead(i) || previous != Previous::Unknown;
        self.check_previous(i, &traces, previous, scenario);
        if prefix.is_exclusive() {
            traces.iter().for_each(|trace| self.record_hold(i, trace.at, czxid, true));
        }
        let reader = self.clients[i].ghost.reader;
        let token = match reader {
            Some(_) => self.clients[i].ghost.token,
            None if scenario.has(Bug::TokenIsTheNumber) => i64::from(grant.node.sequence.0) + 1,
            None => czxid,
        };
        for at in traces.iter().map(|trace| trace.at) {
            // If the granted znode was deleted before the client was granted, a later contender may
            // already hold with a higher token. So the token is checked only while the znode
            // exists.
            let exists = |czxid| self.leader.holds(at, czxid);
            if prefix.is_exclusive() && exists(czxid) && reader.is_none_or(|reader| exists(reader.czxid)) {
                // A reader that upgrades twice has the same token twice.
                let last = self.history.tokens[at];
                if token < last || (token == last && reader.is_none()) {
                    self.record_violation(Violation::TokenFell);
                }
                self.history.tokens[at] = last.max(token);
            }
        }
        if reader.is_some() {
            self.history.upgrades += 1;
        }
        let ghost = &mut self.clients[i].ghost;
        ghost.granted = true;
        ghost.held = czxid;
        ghost.token = token;
    }

    /// Records that a grant ends before the caller has taken it. Then no caller has held the lock.
    pub(crate) fn on_unclaimed(&mut self, i: usize) {
        let ghost = &mut self.clients[i].ghost;
        let is_true = ghost.granted && !ghost.claimed;
        (ghost.granted, ghost.gave_up) = (false, true);
        let czxid = ghost.held;
        if !is_true {
            self.record_violation(Violation::FalseEnd);
        }
        for at in 0..self.history.holds.len() {
            if self.history.holds[at].czxid == czxid {
                self.history.holds[at].granted = false;
            }
        }
    }

    /// Checks a report about the previous holder that comes after the grant.
    pub(crate) fn on_previous(&mut self, i: usize, previous: Previous, scenario: &Scenario) {
        let ghost = &mut self.clients[i].ghost;
        ghost.read = true;
        let traces: Vec<Trace> = ghost.traces_of(ghost.held).cloned().collect();
        self.check_previous(i, &traces, previous, scenario);
    }

    pub(crate) fn on_downgraded(&mut self, i: usize, node: Node) {
        let ghost = &mut self.clients[i].ghost;
        ghost.held = node.czxid.0;
        if !ghost.traces_of(ghost.held).any(|trace| trace.was_clear) {
            self.record_violation(Violation::WriterBetween);
        }
    }

    /// Returns whether a waiter that is queued before this znode should have been granted first.
    fn passes_over(&self, i: usize, granted: &Trace, prefix: Prefix, scenario: &Scenario) -> bool {
        let reader = self.clients[i].ghost.reader;
        self.clients.iter().enumerate().any(|(j, other)| {
            let ghost = &other.ghost;
            // A waiter whose znode was deleted has lost its queue position (`was_broken`), even if
            // it has not received the event yet.
            let waits = j != i
                && other.is_running()
                && other.session
                && !ghost.gave_up
                && !ghost.granted
                && !ghost.was_broken();
            let retires = |trace: &Trace| {
                let number = trace.name.sequence;
                number < 0 || number >= scenario.retire_from
            };
            waits
                && ghost.traces.iter().any(|trace| {
                    let theirs = trace.name.prefix;
                    let permits = matches!((theirs, prefix), (Prefix::Permit(_), Prefix::Permit(_)));
                    let conflicts = match reader {
                        // The reader of an upgrade already holds. So the upgrade may be granted
                        // before contenders that wait for that reader.
                        Some(reader) => {
                            trace.position < reader.position || !exclude_each_other(theirs, reader.prefix)
                        }
                        None if permits => !trace.was_clear && trace.fate == Fate::Exists,
                        None => exclude_each_other(theirs, prefix),
                    };
                    trace.directory == granted.directory
                        && trace.position < granted.position
                        && conflicts
                        && !ghost.traces_of(trace.czxid).any(retires)
                })
        })
    }

    pub(crate) fn on_failed(&mut self, i: usize, reason: Reason, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        let ghost = &client.ghost;
        let lost_reader = |reader: Reader| !self.leader.holds(scenario.wants[i][0], reader.czxid);
        let reads_record = scenario.tracks(i) || scenario.plans[i].is_permits();
        let is_true = match reason {
            Reason::TimedOut => ghost.timed_out,
            Reason::Busy => scenario.tries,
            Reason::Broken => ghost.was_broken() || ghost.reader.is_some_and(lost_reader),
            Reason::SessionOver(_) => !client.session,
            Reason::OtherKind | Reason::OtherLayout(_) => scenario.mixes_kinds(),
            Reason::Clash(_) => scenario.may_clash(),
            Reason::OtherSize(_) => scenario.budget.resizes > 0,
            Reason::ForeignRecord => {
                (reads_record && scenario.budget.scribbles > 0) || scenario.mixes_kinds()
            }
            Reason::Outranked => ghost.reader.is_some(),
            Reason::Exhausted => ghost.reader.is_some() && scenario.ends(),
            Reason::Occupied(at, child) => {
                at == 0 && child == LASTING_CHILD && scenario.has_lasting_child && scenario.ends()
            }
            Reason::Refused(_) => scenario.budget.denials > 0,
        };
        let again = ghost.failed || ghost.granted || (ghost.gave_up && !ghost.timed_out);
        client.ghost.gave_up = true;
        client.ghost.failed = true;
        if !is_true || again {
            self.record_violation(Violation::FalseEnd);
        }
    }

    pub(crate) fn on_lost(&mut self, i: usize, loss: Loss, scenario: &Scenario) {
        let client = &mut *self.clients[i];
        let ghost = &mut client.ghost;
        let is_true = match loss {
            Loss::Broken => ghost.was_broken(),
            Loss::Unreachable => ghost.lease_lost,
            Loss::SessionOver(_) => !client.session,
        };
        let again = ghost.lost.is_some() || !ghost.granted || ghost.answered;
        ghost.lost = Some(loss);
        // If one znode of a multi-lock was deleted, its other znodes still exist. So their `fresh`
        // stays set.
        if loss != Loss::Broken || scenario.wants[i].len() == 1 {
            ghost.traces.iter_mut().for_each(|trace| trace.fresh = false);
        }
        if !is_true || again {
            self.record_violation(Violation::FalseEnd);
        }
    }

    pub(crate) fn on_released(&mut self, i: usize, departed: ReleaseOutcome, scenario: &Scenario) {
        let ghost = &self.clients[i].ghost;
        let gone = ghost.traces_of(ghost.held).all(|trace| trace.fate != Fate::Exists);
        let is_true = match departed {
            ReleaseOutcome::Clean => gone && ghost.lost.is_none(),
            ReleaseOutcome::Lost(Loss::Broken) if scenario.wants[i].len() == 1 => gone,
            ReleaseOutcome::Lost(Loss::Broken) => ghost.was_broken(),
            ReleaseOutcome::Lost(_) => ghost.lost.is_some() || !self.clients[i].session,
            ReleaseOutcome::Refused(_) => false,
        };
        if !is_true || !ghost.released || ghost.answered {
            self.record_violation(Violation::FalseEnd);
        }
        self.clients[i].ghost.answered = true;
    }

    /// Records that an operator asks the owner of a znode to release.
    pub(crate) fn on_asked(&mut self, at: usize, name: Name) {
        let Some(child) = self.leader.child(at, name) else { return };
        let (owner, round) = (child.owner as usize, child.round);
        let owner = &mut *self.clients[owner];
        owner.ghost.asked |= round == owner.round;
    }

    pub(crate) fn on_revoked(&mut self, i: usize) {
        let ghost = &mut self.clients[i].ghost;
        let is_true = ghost.granted && !ghost.released && ghost.asked && !ghost.revoked;
        ghost.revoked = true;
        if !is_true {
            self.record_violation(Violation::FalseRevoke);
        }
    }

    pub(crate) fn on_over(&mut self, i: usize) {
        let ghost = &self.clients[i].ghost;
        let told = if ghost.granted { ghost.answered } else { ghost.gave_up };
        if !told {
            self.record_violation(Violation::FalseEnd);
        }
    }
}
