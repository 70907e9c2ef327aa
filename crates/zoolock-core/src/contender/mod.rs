//! One acquisition as a state machine: from the create of its znode to the last clean-up.
//!
//! The machine is told what happened ([`Event`]) and says what to do ([`Action`]); whoever drives it sends the
//! requests *in the order given, on one session*, and reports every answer exactly once, as
//! [`Failure::Unknown`] where the connection was lost before the answer came. A caller that no longer waits says
//! [`Event::Cancel`] and may forget the machine; the driver goes on until [`Action::Over`], after which nothing of
//! this acquisition is left on the server, or its session is.
//!
//! The protocol and its proof are in `docs/DESIGN.md`; the holes that its rules close are in [`crate::rules`].
//!
//! * `ahead.rs`: know that the one before us is the first, so that its going grants.
//! * `messages.rs`: events, requests, answers, actions.
//! * `join.rs`: create the znode, find it again after a lost reply, leave a directory whose numbers run out.
//! * `wait.rs`: look, wait, be granted.
//! * `grant.rs`: from "first" to "held": how the last holder left, the delay after a crash, the mark of one that begins.
//! * `part.rs`: as one of the contenders of a multi-lock.
//! * `permits.rs`: what only semaphores need.
//! * `hold.rs`: hold, notice loss, become a reader, release.
//! * `leave.rs`: delete what was ours, once, and make sure of it.

mod ahead;
mod grant;
mod hold;
mod join;
mod leave;
mod messages;
mod part;
mod permits;
mod wait;

#[cfg(test)]
mod tests;

use crate::ids::{ContenderId, Sequence, SessionId, Zxid};
use crate::names::{Names, Prefix};
use crate::queue::Asker;
use crate::record::{Left, Marker, Record};
use crate::rules::{Rule, Rules};

pub use messages::{
    Action, Departed, Directory, Event, Failure, Grant, Loss, Node, Parting, Previous, Reason, Refusal,
    Reply, Request, RequestId, Says, SessionEnd, WatchId,
};

use ahead::Ahead;
use grant::Undo;
use join::After;
pub(crate) use join::{POLLS_BEFORE_JOINING_AGAIN, RETIRE_POLL};
use leave::Departure;

/// What one acquisition needs to know from the start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// The session on which everything is sent.
    pub session: SessionId,
    /// The UUID of this acquisition.
    pub id: ContenderId,
    /// How its nodes are called.
    pub names: Names,
    /// What is asked for.
    pub kind: Kind,
    /// Whether to wait.
    pub mode: Mode,
    /// Whether to say in the directory's record that we have begun, so that the next holder knows if we die.
    pub tracks_crashes: bool,
    /// How long to wait, in milliseconds, where the last holder did not leave cleanly.
    pub delay: u32,
    /// How long to hold, in milliseconds, before our own node is watched; zero for at once.
    pub watch_own_after: u32,
    /// Whether to read beforehand what proves that we are next, so as to be granted a round trip sooner. How the holder
    /// before us left is read after the grant then.
    pub looks_ahead: bool,
    /// The first number at which a directory is retired; [`Sequence::RETIRE_FROM`] but in tests.
    pub retire_from: Sequence,
    /// The rules in force; [`Rules::all`] but in tests.
    pub rules: Rules,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// To be alone.
    Mutex,
    /// To be alone, and perhaps to read on.
    Write,
    /// To read beside other readers.
    Read,
    /// To read, and perhaps to write: one of this kind at a time.
    Upgradable,
    /// To write, for a reader that holds already.
    Upgrade {
        /// The reader's node.
        from: Node,
    },
    /// Some permits of a semaphore, all or none.
    Permits {
        /// How many.
        take: u32,
        /// Of how many.
        size: u32,
    },
}

impl Config {
    /// What the name of its contender begins with.
    ///
    /// # Panics
    /// Where the naming has no such kind. Whoever offers kinds asks [`Prefix::of`] first.
    pub fn prefix(&self) -> Prefix {
        Prefix::of(self.names.naming, self.kind, self.id, self.session).expect("a kind that this naming has")
    }
}

impl Kind {
    fn is_permits(self) -> bool {
        matches!(self, Kind::Permits { .. })
    }

    /// How many permits there are, for those who want some.
    fn size(self) -> Option<u32> {
        match self {
            Kind::Permits { size, .. } => Some(size),
            _ => None,
        }
    }

    /// Who is alone when granted, and the first in the queue.
    fn leaves_marker(self) -> bool {
        matches!(self, Kind::Mutex | Kind::Write)
    }

    fn asker(self, size: u32) -> Asker {
        match self {
            Kind::Permits { .. } => Asker::Permits { size },
            Kind::Upgrade { from } => Asker::Upgrade { prefix: from.prefix, sequence: from.sequence },
            Kind::Mutex | Kind::Write | Kind::Read | Kind::Upgradable => Asker::Lock,
        }
    }
}

/// Whether to wait for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Stand in the queue.
    Wait,
    /// Take it if it is free, or leave.
    Try,
}

/// One acquisition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Contender {
    config: Config,
    phase: Phase,
    /// Somebody waits for the lock or holds it.
    wanted: bool,
    /// A create of ours may have been carried out without our knowing.
    doubt: bool,
    /// What our create was last refused with, for when the search is done.
    refusal: Option<Failure>,
    /// Nodes known to be ours while others are searched for.
    found: Vec<Node>,
    /// Nodes that are to go.
    departures: Vec<Departure>,
    /// Requests under way.
    pending: Vec<(RequestId, Purpose)>,
    /// What is sent now waits for a connection, and may arrive in another world.
    offline: bool,
    /// Failures in a row.
    tries: u8,
    /// The directory as last read; kept only to let the model break a rule.
    seen: Option<Directory>,
    /// Whom a reader waited for, if it wanted to be alone: its marker hands over to every reader right behind it.
    behind: Option<Sequence>,
    /// How the holder before us left, once we may have written over the record that said it.
    before: Option<Previous>,
    /// What to take back if we give up after we may have written that we had begun.
    undo: Option<Undo>,
    /// A reply was lost that would have said whether we had written it.
    perhaps_marked: bool,
    /// The delay after a crash is over.
    delayed: bool,
    /// Somebody asked us to let go, and the holder was told.
    revoked: bool,
    ahead: Ahead,
    permits: permits::State,
}

/// The names of the children at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Children {
    names: Vec<String>,
    pzxid: Zxid,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    New,
    /// The create is under way.
    Joining,
    MakingDirectory,
    Pausing(After),
    /// Looking for nodes of ours after an unknown outcome.
    Searching,
    /// Waiting for the readings that went out with the create.
    FirstLook {
        me: Node,
        children: Option<Children>,
    },
    /// Reading the directory, then our own node.
    Looking {
        me: Node,
        directory: Option<Directory>,
    },
    /// Giving others a moment, lest everybody lists at once.
    Spreading {
        me: Node,
    },
    /// Listing the directory, then reading it, then our own node.
    Listing {
        me: Node,
        children: Option<Children>,
        directory: Option<Directory>,
        /// In force from the listing on.
        watch: Option<WatchId>,
    },
    /// Writing the size of the semaphore.
    Agreeing {
        me: Node,
    },
    /// Setting a watch on the one before us.
    Watching {
        me: Node,
        before: String,
    },
    /// Waiting for the one before us to go, or for any change of the children.
    Waiting {
        me: Node,
        before: Option<String>,
        watch: WatchId,
    },
    /// First in the queue, but not sure of our session.
    AwaitingLease {
        me: Node,
    },
    /// First in the queue, after one that did not leave cleanly.
    Delaying {
        me: Node,
    },
    /// First in the queue, and saying that we begin.
    Marking {
        me: Node,
        directory: Directory,
        previous: Previous,
    },
    /// Ours.
    Held {
        me: Node,
        directory: Option<Directory>,
        watch: Option<WatchId>,
    },
    /// Ours, as a writer or as a reader already.
    Downgrading {
        me: Node,
        directory: Option<Directory>,
        /// Its node is there, perhaps in another directory of that name.
        reader: Option<Node>,
        lost: Option<Loss>,
        /// The holder has let go meanwhile.
        left: Option<Left>,
    },
    /// Told lost because the lease ran out; the node may still be there, and still keep others out.
    Doubtful {
        me: Node,
    },
    /// Told lost, and nothing of ours is there.
    Lost(Loss),
    /// Waiting for a directory to become empty, so that it can be made again.
    Retiring {
        directory: Option<Zxid>,
        polls: u8,
    },
    /// Only clean-up is left.
    Leaving,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Purpose {
    Join,
    FirstChildren,
    FirstDirectory,
    MakeDirectory,
    Pause,
    Search,
    LookDirectory,
    LookOwn,
    Spread,
    ListChildren,
    ListWatched(WatchId),
    ListDirectory,
    ListOwn,
    Agree,
    WatchBefore(WatchId),
    ArmRecord,
    ArmOwn(WatchId),
    PauseRecord,
    ReadRecord,
    WaitOwn,
    Delay,
    Mark,
    SayGranted,
    WatchOwn(WatchId),
    PauseOwn,
    Downgrade,
    PauseDowngrade,
    DowngradeSync,
    DowngradeCheck,
    DowngradeDirectory,
    RetirePause,
    RetireRead,
    RetireDelete,
    Leave(Zxid),
    LeaveBarrier(Zxid),
    LeaveSync(Zxid),
    LeaveRead(Zxid),
    LeaveCheck(Zxid),
    LeavePause(Zxid),
    /// Nobody waits for the answer any more.
    Void,
    /// Nobody waits for the answer any more, and the watch it may bring is to be taken back.
    VoidWatch(WatchId),
}

/// One step in the making: what was decided so far, and what the step may rely on.
struct Turn {
    actions: Vec<Action>,
    lease_valid: bool,
}

impl Contender {
    /// A contender that has done nothing yet.
    pub fn new(config: Config) -> Contender {
        Contender {
            config,
            phase: Phase::New,
            wanted: true,
            doubt: false,
            refusal: None,
            found: Vec::new(),
            departures: Vec::new(),
            pending: Vec::new(),
            offline: false,
            tries: 0,
            seen: None,
            behind: None,
            before: None,
            undo: None,
            perhaps_marked: false,
            delayed: false,
            revoked: false,
            ahead: Ahead::No,
            permits: permits::State::default(),
        }
    }

    /// Takes one event and says what to do. `lease_valid`: whether the session's lease is valid *now*.
    pub fn step(&mut self, event: Event, lease_valid: bool) -> Vec<Action> {
        let mut turn = Turn { actions: Vec::new(), lease_valid };
        match event {
            Event::Start => self.start(&mut turn),
            Event::Answer(id, outcome) => self.answer(id, outcome, &mut turn),
            Event::Fired { watch, deleted } => self.fired(watch, deleted, &mut turn),
            Event::Disconnected => {
                self.offline = true;
                self.interrupted(&mut turn);
            }
            Event::Reconnected => self.reconnected(&mut turn),
            Event::LeaseRenewed => self.lease_renewed(&mut turn),
            Event::LeaseLost => self.lease_lost(&mut turn),
            Event::SessionOver(end) => self.session_over(end, &mut turn),
            Event::TimedOut => self.abandon(Some(Reason::TimedOut), &mut turn),
            Event::Cancel => self.abandon(None, &mut turn),
            Event::Release(left) => self.release(left, &mut turn),
            Event::Downgrade => self.downgrade(&mut turn),
        }
        self.conclude(&mut turn);
        turn.actions
    }

    /// The node that holds the lock, while it is held and not lost.
    pub fn holding(&self) -> Option<Node> {
        match self.phase {
            Phase::Held { me, .. } | Phase::Downgrading { me, lost: None, .. } => Some(me),
            _ => None,
        }
    }

    /// The node that stands in the queue or holds the lock, where there is one.
    pub fn node(&self) -> Option<Node> {
        match self.phase {
            Phase::FirstLook { me, .. }
            | Phase::Looking { me, .. }
            | Phase::Spreading { me }
            | Phase::Listing { me, .. }
            | Phase::Agreeing { me }
            | Phase::Watching { me, .. }
            | Phase::Waiting { me, .. }
            | Phase::AwaitingLease { me }
            | Phase::Delaying { me }
            | Phase::Marking { me, .. }
            | Phase::Held { me, .. }
            | Phase::Downgrading { me, .. }
            | Phase::Doubtful { me }
            | Phase::Pausing(After::Look(me)) => Some(me),
            _ => None,
        }
    }

    /// The child that is being waited for, where one is known.
    pub fn waiting_for(&self) -> Option<&str> {
        match &self.phase {
            Phase::Watching { before, .. } | Phase::Waiting { before: Some(before), .. } => Some(before),
            _ => None,
        }
    }

    /// Whether it holds and knows what its own node says: nothing is written there that is not told.
    pub fn watches_own(&self) -> bool {
        matches!(self.phase, Phase::Held { watch: Some(_), .. })
    }

    /// Whether nobody waits or holds any more and clean-up is all that is left.
    pub fn is_leaving(&self) -> bool {
        !self.wanted || matches!(self.phase, Phase::Leaving | Phase::Over)
    }

    /// Whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    fn answer(&mut self, id: RequestId, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Some(at) = self.pending.iter().position(|&(pending, _)| pending == id) else { return };
        let (_, purpose) = self.pending.remove(at);
        let was_a_pause = matches!(
            purpose,
            Purpose::Pause
                | Purpose::PauseOwn
                | Purpose::PauseRecord
                | Purpose::PauseDowngrade
                | Purpose::Spread
                | Purpose::Delay
        );
        if outcome.is_ok() && !was_a_pause {
            self.tries = 0;
        }
        match purpose {
            Purpose::Join => self.joined(outcome, turn),
            Purpose::FirstChildren => self.first_children(outcome),
            Purpose::FirstDirectory => self.first_directory(outcome, turn),
            Purpose::MakeDirectory => self.made_directory(outcome, turn),
            Purpose::Pause => self.paused(turn),
            Purpose::Search => self.searched(outcome, turn),
            Purpose::LookDirectory => self.looked_at_directory(outcome, turn),
            Purpose::LookOwn => self.looked_at_own(outcome, turn),
            Purpose::Spread => self.spread(turn),
            Purpose::ListChildren | Purpose::ListWatched(_) => self.listed(outcome, turn),
            Purpose::ListDirectory => self.listed_directory(outcome, turn),
            Purpose::ListOwn => self.listed_own(outcome, turn),
            Purpose::Agree => self.agreed(outcome, turn),
            Purpose::Delay => self.waited_out(turn),
            Purpose::Mark => self.marked(outcome, turn),
            Purpose::SayGranted => self.said_granted(outcome, turn),
            Purpose::Downgrade => self.downgraded(outcome, turn),
            Purpose::PauseDowngrade => self.downgrade_again(turn),
            Purpose::DowngradeSync => self.downgrade_synced(outcome, turn),
            Purpose::DowngradeCheck => self.downgrade_checked(outcome, turn),
            Purpose::DowngradeDirectory => self.downgraded_in(&outcome, turn),
            Purpose::WatchBefore(watch) => self.watched_before(watch, outcome, turn),
            Purpose::ArmRecord => self.armed_record(outcome, turn),
            Purpose::ArmOwn(_) => self.armed_own(&outcome, turn),
            Purpose::PauseRecord => self.read_record(turn),
            Purpose::ReadRecord => self.record_read(&outcome, turn),
            Purpose::WaitOwn => self.waited_on(&outcome, turn),
            Purpose::WatchOwn(watch) => self.watched_own(watch, outcome, turn),
            Purpose::PauseOwn => self.paused_own(turn),
            Purpose::RetirePause => self.retire_read(turn),
            Purpose::RetireRead => self.retire_look(outcome, turn),
            Purpose::RetireDelete => self.retire_deleted(outcome, turn),
            Purpose::Leave(czxid) => self.left(czxid, outcome, turn),
            Purpose::LeaveBarrier(czxid) => self.left_barrier(czxid, outcome, turn),
            Purpose::LeaveSync(czxid) => self.left_synced(czxid, outcome, turn),
            Purpose::LeaveRead(czxid) => self.left_read(czxid, outcome, turn),
            Purpose::LeaveCheck(czxid) => self.left_checked(czxid, outcome, turn),
            Purpose::LeavePause(czxid) => self.check_departure(czxid, turn),
            Purpose::Void => {}
            Purpose::VoidWatch(watch) => {
                if outcome.is_ok() {
                    turn.actions.push(Action::Unwatch(watch));
                }
            }
        }
    }

    fn session_over(&mut self, end: SessionEnd, turn: &mut Turn) {
        self.pending.clear();
        self.ahead = Ahead::No;
        let reporting = self.departures.iter().any(|d| d.report);
        self.departures.clear();
        self.doubt = false;
        let loss = Loss::SessionOver(end);
        match self.phase {
            Phase::Over => {}
            Phase::Held { .. } => {
                turn.actions.push(Action::Lost(loss));
                self.phase = Phase::Lost(loss);
            }
            Phase::Downgrading { lost, left, .. } => {
                if lost.is_none() {
                    turn.actions.push(Action::Lost(loss));
                }
                self.phase = Phase::Lost(lost.unwrap_or(loss));
                if let Some(left) = left {
                    self.release(left, turn);
                }
            }
            // The holder has been told already, and has yet to let go.
            Phase::Doubtful { .. } => self.phase = Phase::Lost(Loss::Unreachable),
            Phase::Lost(_) => {}
            _ => {
                if reporting {
                    turn.actions.push(Action::Released(Departed::Lost(loss)));
                }
                if self.wanted {
                    self.wanted = false;
                    turn.actions.push(Action::Failed(Reason::SessionOver(end)));
                }
                self.phase = Phase::Leaving;
            }
        }
    }

    /// The caller gave up: by deadline, by dropping its future, or by dropping its guard.
    fn abandon(&mut self, reason: Option<Reason>, turn: &mut Turn) {
        match self.phase {
            // A deadline is for the waiting only.
            _ if reason.is_some() && self.has_been_granted() => return,
            Phase::Held { me, directory, .. } => {
                return self.take_back(me, directory.map(|directory| directory.version), turn);
            }
            Phase::Downgrading { .. } | Phase::Doubtful { .. } | Phase::Lost(_) => {
                return self.release(Left::Released, turn);
            }
            Phase::Leaving | Phase::Over => return,
            _ => {}
        }
        if !self.wanted {
            return;
        }
        self.wanted = false;
        if let Some(reason) = reason {
            turn.actions.push(Action::Failed(reason));
        }
        self.stop_waiting(turn);
    }

    fn has_been_granted(&self) -> bool {
        matches!(
            self.phase,
            Phase::Held { .. } | Phase::Downgrading { .. } | Phase::Doubtful { .. } | Phase::Lost(_)
        )
    }

    /// It was granted, and the caller never saw it. Nobody has worked under the lock: its record must not say that the
    /// last one released it.
    fn take_back(&mut self, me: Node, version: Option<i32>, turn: &mut Turn) {
        self.void_pending();
        self.wanted = false;
        self.phase = Phase::Leaving;
        let marker = self.undo.take().map(|undo| (undo.marker, version));
        self.depart(me, marker, false, turn);
    }

    /// Ends the acquisition with a reason; what is ours goes.
    fn fail(&mut self, reason: Reason, turn: &mut Turn) {
        if self.wanted {
            self.wanted = false;
            turn.actions.push(Action::Failed(reason));
        }
        self.stop_waiting(turn);
    }

    /// Goes from wherever we are to clean-up, without losing sight of anything that may be ours.
    fn stop_waiting(&mut self, turn: &mut Turn) {
        // Whoever has just come knows its node from its create.
        let just_came = matches!(self.ahead, Ahead::Arming { proof: ahead::Proof::Two, .. })
            && matches!(self.phase, Phase::Watching { .. });
        let after_long = self.forget_ahead(turn) && !just_came;
        match &self.phase {
            // Their answers may bring a node; they look at `wanted`.
            Phase::Joining | Phase::Searching | Phase::Pausing(After::Search) => return,
            Phase::Pausing(After::Join) | Phase::MakingDirectory if self.doubt => return,
            Phase::Waiting { watch, .. } | Phase::Listing { watch: Some(watch), children: Some(_), .. } => {
                turn.actions.push(Action::Unwatch(*watch));
            }
            _ => {}
        }
        let Some(me) = self.node() else {
            self.void_pending();
            self.phase = Phase::Leaving;
            return;
        };
        // Hardly anybody watches its own node while it waits: in a long wait it may have gone, and its name may be
        // another's.
        let long_unseen = after_long
            || matches!(
                self.phase,
                Phase::Waiting { .. }
                    | Phase::Looking { .. }
                    | Phase::AwaitingLease { .. }
                    | Phase::Delaying { .. }
                    | Phase::Pausing(_)
                    | Phase::Spreading { .. }
            );
        self.void_pending();
        self.phase = Phase::Leaving;
        if !self.on(Rule::MarkerByHolderOnly) {
            self.depart(me, self.forged_marker(me), false, turn);
        } else if let Some(undo) = self.undo.take() {
            // The record may say that we have begun, which is not to be taken for a crash.
            self.depart_undone(me, undo, turn);
        } else if long_unseen {
            self.depart_if_there(me, turn);
        } else {
            self.depart(me, None, false, turn);
        }
    }

    /// What a contender that gives up would write if it did not know better.
    fn forged_marker(&self, me: Node) -> Option<(Marker, Option<i32>)> {
        let directory = self.seen?;
        let (left, sequence) = (Left::Released, me.sequence);
        Some((Marker { directory: directory.czxid, left, sequence, tracked: false }, None))
    }

    /// Forgets what is under way, but for the deletes.
    fn void_pending(&mut self) {
        for (_, purpose) in &mut self.pending {
            *purpose = match *purpose {
                Purpose::WatchBefore(watch)
                | Purpose::ArmOwn(watch)
                | Purpose::WatchOwn(watch)
                | Purpose::ListWatched(watch) => Purpose::VoidWatch(watch),
                kept @ (Purpose::Leave(_)
                | Purpose::LeaveBarrier(_)
                | Purpose::LeaveSync(_)
                | Purpose::LeaveRead(_)
                | Purpose::LeaveCheck(_)
                | Purpose::LeavePause(_)
                | Purpose::VoidWatch(_)) => kept,
                _ => Purpose::Void,
            };
        }
    }

    fn conclude(&mut self, turn: &mut Turn) {
        if self.phase == Phase::Leaving && self.departures.is_empty() {
            self.phase = Phase::Over;
            turn.actions.push(Action::Over);
        }
    }

    fn send(&mut self, purpose: Purpose, request: Request, turn: &mut Turn) {
        let id = (0..).map(RequestId).find(|id| self.pending.iter().all(|(used, _)| used != id));
        let id = id.expect("a machine has a handful of requests under way");
        self.pending.push((id, purpose));
        turn.actions.push(Action::Send(id, request));
    }

    fn new_watch(&self) -> WatchId {
        let in_phase = match self.phase {
            Phase::Waiting { watch, .. } => Some(watch),
            Phase::Held { watch, .. } | Phase::Listing { watch, .. } => watch,
            _ => None,
        };
        let in_use = |id: &WatchId| {
            in_phase == Some(*id)
                || self.ahead.own() == Some(*id)
                || self.pending.iter().any(|(_, purpose)| {
                    matches!(
                        purpose,
                        Purpose::WatchBefore(w)
                        | Purpose::ArmOwn(w)
                        | Purpose::WatchOwn(w)
                        | Purpose::ListWatched(w)
                        | Purpose::VoidWatch(w)
                            if w == id
                    )
                })
        };
        (0..).map(WatchId).find(|id| !in_use(id)).expect("a machine has a handful of watches")
    }

    fn backoff(&mut self) -> u32 {
        backoff(&mut self.tries)
    }

    fn on(&self, rule: Rule) -> bool {
        self.config.rules.on(rule)
    }

    /// Whether this is our node and no later one of its name.
    fn is_mine(&self, me: Node, czxid: Zxid, owner: SessionId) -> bool {
        !self.on(Rule::IdentityByCzxid) || (czxid == me.czxid && owner == self.config.session)
    }
}

/// How long to wait before the next try: 10 ms, doubled for each failure in a row, a second at most.
pub(crate) fn backoff(tries: &mut u8) -> u32 {
    let wait = 10u32 << (*tries).min(6);
    *tries = tries.saturating_add(1).min(7);
    wait
}
