//! One acquisition as a state machine: from the create of its znode to the last clean-up.
//!
//! The machine takes events ([`Event`]) and returns actions ([`Action`]). The driver sends the requests *in
//! the order given, on one session*. It reports every answer exactly once, as [`Failure::Unknown`] if the
//! connection was lost before the answer came. A caller that does not wait any more sends [`Event::Cancel`]
//! and may drop its handle. The driver continues until [`Action::Over`]: then the acquisition has no znode
//! left on the server, or its session has ended.
//!
//! The protocol and its proof are in `docs/design/protocol.md`; the bugs that its rules prevent are in [`crate::rules`]. In these
//! files "we" and "our" mean this acquisition.
//!
//! * `ahead.rs`: look-ahead: prove that the predecessor is the head of the queue, so that its deletion
//!   grants.
//! * `messages.rs`: events, requests, answers, actions.
//! * `join.rs`: create the znode, find it after a lost reply, retire a directory whose numbers run out.
//! * `wait.rs`: read the queue, wait, and be granted.
//! * `grant.rs`: from the head of the queue to the grant: how the last holder left, the delay after a crash,
//!   the marker of a holder that begins.
//! * `part.rs`: one contender of a multi-lock.
//! * `permits.rs`: semaphores.
//! * `hold.rs`: hold, detect a loss, become a reader, release.
//! * `leave.rs`: delete our own znodes, and verify the deletion.

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
pub use crate::names::{Kind, Node};
use crate::names::{Names, Prefix};
use crate::queue::Claim;
use crate::record::{Left, Marker, Record};
use crate::rules::{Rule, Rules};

pub use messages::{
    Action, Beginning, Departed, Directory, Event, Failure, Grant, Loss, Parting, Previous, Reason, Refusal,
    Reply, Request, RequestId, Says, SessionEnd, WatchId,
};

use ahead::LookAhead;
use grant::Undo;
use join::After;
pub(crate) use join::{POLLS_BEFORE_JOINING_AGAIN, RETIRE_POLL};
use leave::Departure;

/// The settings of one acquisition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// The session that sends all requests.
    pub session: SessionId,
    /// The UUID of this acquisition.
    pub id: ContenderId,
    /// The naming scheme of its znodes.
    pub names: Names,
    /// Kind of lock.
    pub kind: Kind,
    /// The behaviour if the lock is not free.
    pub mode: Mode,
    /// Set to write a marker at the beginning, so that the next holder detects a crash.
    pub tracks_crashes: bool,
    /// Time to wait, in milliseconds, if the last holder did not leave cleanly.
    pub delay: u32,
    /// Time from the grant to the watch on our own znode, in milliseconds; zero for at once.
    pub watch_own_after: u32,
    /// Set to use look-ahead, which grants the lock a round trip earlier. Then the record of the previous
    /// holder is read after the grant.
    pub looks_ahead: bool,
    /// The first sequence number at which a directory is retired; [`Sequence::RETIRE_FROM`] except in tests.
    pub retire_from: Sequence,
    /// The rules in force; [`Rules::all`] except in tests.
    pub rules: Rules,
}

impl Config {
    /// Returns the prefix of its znode's name.
    ///
    /// # Panics
    /// If the naming scheme has no such kind. Callers check with [`Prefix::of`] first.
    pub fn prefix(&self) -> Prefix {
        Prefix::of(self.names.naming, self.kind, self.id, self.session)
            .expect("the naming scheme has this kind")
    }
}

impl Kind {
    fn claim(self, size: u32) -> Claim {
        match self {
            Kind::Permits { .. } => Claim::Permits { size },
            Kind::Upgrade { from } => Claim::Upgrade { prefix: from.prefix, sequence: from.sequence },
            Kind::Mutex | Kind::Write | Kind::Read | Kind::Upgradable => Claim::Lock,
        }
    }
}

/// The behaviour if the lock is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Wait in the queue.
    Wait,
    /// Take the lock if it is free, otherwise leave.
    Try,
}

/// The state machine of one acquisition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Contender {
    config: Config,
    phase: Phase,
    /// Set while the caller waits for the lock or holds it.
    wanted: bool,
    /// Set if a create with a lost reply may have succeeded.
    create_in_doubt: bool,
    /// The refusal of the last create, reported after the search.
    refusal: Option<Failure>,
    /// Znodes known to be ours while others are searched for.
    found: Vec<Node>,
    /// Znodes that must be deleted.
    departures: Vec<Departure>,
    /// Pending requests.
    pending: Vec<(RequestId, Purpose)>,
    /// Set if there is no connection. Requests wait for one, and may arrive when the queue has changed.
    offline: bool,
    /// Set if our znode has not been read since the last wait. It may be deleted, and its name another contender's.
    unread: bool,
    /// Number of failures in a row.
    tries: u8,
    /// The directory as last read, for rules that the model breaks.
    last_directory: Option<Directory>,
    /// Sequence number of a reader's predecessor, if that is exclusive: its marker grants every reader
    /// directly behind it.
    exclusive_predecessor: Option<Sequence>,
    /// The way in which the previous holder left. Kept because our marker may have overwritten that record.
    previous: Option<Previous>,
    /// The state to restore if we give up. Set when our beginning may have been written.
    undo: Option<Undo>,
    /// Set if the reply that tells whether the marker was written is lost.
    perhaps_marked: bool,
    /// Set for a lock of a multi-lock: its beginning is recorded together with the others.
    begins_with_others: bool,
    /// The state to restore, while our beginning is not recorded yet, or not confirmed.
    unrecorded_undo: Option<Undo>,
    /// Set if the delay after a crash has passed.
    delayed: bool,
    /// Set if the holder was told that it should release the lock.
    revoked: bool,
    ahead: LookAhead,
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
    /// Waiting for the create.
    Joining,
    MakingDirectory,
    Pausing(After),
    /// Searching for our znodes after an unknown outcome.
    Searching,
    /// Waiting for the reads that were sent with the create.
    FirstLook {
        me: Node,
        children: Option<Children>,
    },
    /// Reading the directory, then our own znode.
    Looking {
        me: Node,
        directory: Option<Directory>,
    },
    /// Pausing, so that the waiters do not all list at the same time.
    Spreading {
        me: Node,
    },
    /// Listing the directory, then reading it, then our own znode.
    Listing {
        me: Node,
        children: Option<Children>,
        directory: Option<Directory>,
        /// Set together with the listing.
        watch: Option<WatchId>,
    },
    /// Writing the size of the semaphore.
    WritingSize {
        me: Node,
    },
    /// Setting a watch on the predecessor.
    Watching {
        me: Node,
        before: String,
    },
    /// Waiting for the deletion of the predecessor, or for any change of the children.
    Waiting {
        me: Node,
        before: Option<String>,
        watch: WatchId,
    },
    /// Head of the queue, but without a valid lease.
    AwaitingLease {
        me: Node,
    },
    /// Head of the queue, after a holder that did not leave cleanly.
    Delaying {
        me: Node,
    },
    /// Head of the queue, writing the marker of our beginning.
    Marking {
        me: Node,
        directory: Directory,
        previous: Previous,
    },
    /// Granted.
    Held {
        me: Node,
        directory: Option<Directory>,
        watch: Option<WatchId>,
    },
    /// Granted; a writer, or already a reader.
    Downgrading {
        me: Node,
        directory: Option<Directory>,
        /// The reader's znode, if it was created; perhaps in a later directory of the same name.
        reader: Option<Node>,
        lost: Option<Loss>,
        /// The release that the holder asked for meanwhile.
        left: Option<Left>,
    },
    /// Reported as lost because the lease ended. The znode may still exist and keep others out.
    Doubtful {
        me: Node,
    },
    /// Reported as lost, and no znode of ours exists.
    Lost(Loss),
    /// Waiting for a directory to become empty, so that it can be replaced.
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
    Barrier,
    Search,
    LookDirectory,
    LookOwn,
    Spread,
    ListChildren,
    ListWatched(WatchId),
    ListDirectory,
    ListOwn,
    WriteSize,
    WatchBefore(WatchId),
    ArmRecord,
    ArmOwn(WatchId),
    PauseRecord,
    ReadRecord,
    CheckOwn,
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
    /// The answer is ignored.
    Void,
    /// The answer is ignored, and the watch that it may set is removed.
    VoidWatch(WatchId),
}

/// The state of one step: the actions so far, and the validity of the lease.
struct StepContext {
    actions: Vec<Action>,
    lease_valid: bool,
}

impl Contender {
    /// Returns a contender that has not started.
    pub fn new(config: Config) -> Contender {
        Contender {
            config,
            phase: Phase::New,
            wanted: true,
            create_in_doubt: false,
            refusal: None,
            found: Vec::new(),
            departures: Vec::new(),
            pending: Vec::new(),
            offline: false,
            unread: false,
            tries: 0,
            last_directory: None,
            exclusive_predecessor: None,
            previous: None,
            undo: None,
            perhaps_marked: false,
            begins_with_others: false,
            unrecorded_undo: None,
            delayed: false,
            revoked: false,
            ahead: LookAhead::Off,
            permits: permits::State::default(),
        }
    }

    /// Handles one event and returns the actions. `lease_valid`: whether the session's lease is valid *now*.
    pub fn step(&mut self, event: Event, lease_valid: bool) -> Vec<Action> {
        let mut context = StepContext { actions: Vec::new(), lease_valid };
        match event {
            Event::Start => self.start(&mut context),
            Event::Answer(id, outcome) => self.answer(id, outcome, &mut context),
            Event::Fired { watch, deleted } => self.fired(watch, deleted, &mut context),
            Event::Disconnected => {
                self.offline = true;
                self.interrupted(&mut context);
            }
            Event::Reconnected => self.reconnected(&mut context),
            Event::LeaseRenewed => self.lease_renewed(&mut context),
            Event::LeaseLost => self.lease_lost(&mut context),
            Event::SessionOver(end) => self.session_over(end, &mut context),
            Event::TimedOut => self.abandon(Some(Reason::TimedOut), &mut context),
            Event::Cancel => self.abandon(None, &mut context),
            Event::Release(left) => self.release(left, &mut context),
            Event::Downgrade => self.downgrade(&mut context),
        }
        self.conclude(&mut context);
        context.actions
    }

    /// Returns the znode that holds the lock, while it is held and not lost.
    pub fn holding(&self) -> Option<Node> {
        match self.phase {
            Phase::Held { me, .. } | Phase::Downgrading { me, lost: None, .. } => Some(me),
            _ => None,
        }
    }

    /// Returns the znode that is queued or holds the lock, if there is one.
    pub fn node(&self) -> Option<Node> {
        match self.phase {
            Phase::FirstLook { me, .. }
            | Phase::Looking { me, .. }
            | Phase::Spreading { me }
            | Phase::Listing { me, .. }
            | Phase::WritingSize { me }
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

    /// Returns the child that is waited for, if one is known.
    pub fn waiting_for(&self) -> Option<&str> {
        match &self.phase {
            Phase::Watching { before, .. } | Phase::Waiting { before: Some(before), .. } => Some(before),
            _ => None,
        }
    }

    /// Returns whether it waits for the predecessor or for any change of the queue, with a watch that is set.
    pub fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    /// Returns whether it is the head of the queue, and waits after a holder that may have crashed.
    pub fn is_delaying(&self) -> bool {
        matches!(self.phase, Phase::Delaying { .. })
    }

    /// Returns whether it holds and watches its own znode. Then every write to that znode is reported.
    pub fn watches_own(&self) -> bool {
        matches!(self.phase, Phase::Held { watch: Some(_), .. })
    }

    /// Returns whether only clean-up is left.
    pub fn is_leaving(&self) -> bool {
        !self.wanted || matches!(self.phase, Phase::Leaving | Phase::Over)
    }

    /// Returns whether there is nothing left to do.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    fn answer(&mut self, id: RequestId, outcome: Result<Reply, Failure>, context: &mut StepContext) {
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
            Purpose::Join => self.joined(outcome, context),
            Purpose::FirstChildren => self.first_children(outcome),
            Purpose::FirstDirectory => self.first_directory(outcome, context),
            Purpose::MakeDirectory => self.made_directory(outcome, context),
            Purpose::Pause => self.paused(context),
            Purpose::Barrier => self.passed_barrier(outcome, context),
            Purpose::Search => self.searched(outcome, context),
            Purpose::LookDirectory => self.looked_at_directory(outcome, context),
            Purpose::LookOwn => self.looked_at_own(outcome, context),
            Purpose::Spread => self.spread(context),
            Purpose::ListChildren | Purpose::ListWatched(_) => self.listed(outcome, context),
            Purpose::ListDirectory => self.listed_directory(outcome, context),
            Purpose::ListOwn => self.listed_own(outcome, context),
            Purpose::WriteSize => self.size_written(outcome, context),
            Purpose::Delay => self.delay_ended(context),
            Purpose::Mark => self.marked(outcome, context),
            Purpose::SayGranted => self.said_granted(outcome, context),
            Purpose::Downgrade => self.downgraded(outcome, context),
            Purpose::PauseDowngrade => self.downgrade_again(context),
            Purpose::DowngradeSync => self.downgrade_synced(outcome, context),
            Purpose::DowngradeCheck => self.downgrade_checked(outcome, context),
            Purpose::DowngradeDirectory => self.downgraded_in(&outcome, context),
            Purpose::WatchBefore(watch) => self.watched_before(watch, outcome, context),
            Purpose::ArmRecord => self.armed_record(outcome, context),
            Purpose::ArmOwn(_) => self.armed_own(&outcome, context),
            Purpose::PauseRecord => self.read_record(context),
            Purpose::ReadRecord => self.record_read(&outcome, context),
            Purpose::CheckOwn => self.checked_own(&outcome, context),
            Purpose::WatchOwn(watch) => self.watched_own(watch, outcome, context),
            Purpose::PauseOwn => self.paused_own(context),
            Purpose::RetirePause => self.retire_read(context),
            Purpose::RetireRead => self.retire_look(outcome, context),
            Purpose::RetireDelete => self.retire_deleted(outcome, context),
            Purpose::Leave(czxid) => self.left(czxid, outcome, context),
            Purpose::LeaveBarrier(czxid) => self.left_barrier(czxid, outcome, context),
            Purpose::LeaveSync(czxid) => self.left_synced(czxid, outcome, context),
            Purpose::LeaveRead(czxid) => self.left_read(czxid, outcome, context),
            Purpose::LeaveCheck(czxid) => self.left_checked(czxid, outcome, context),
            Purpose::LeavePause(czxid) => self.check_departure(czxid, context),
            Purpose::Void => {}
            Purpose::VoidWatch(watch) => {
                if outcome.is_ok() {
                    context.actions.push(Action::Unwatch(watch));
                }
            }
        }
    }

    fn session_over(&mut self, end: SessionEnd, context: &mut StepContext) {
        self.pending.clear();
        self.ahead = LookAhead::Off;
        let reporting = self.departures.iter().any(|d| d.report);
        self.departures.clear();
        self.create_in_doubt = false;
        let loss = Loss::SessionOver(end);
        match self.phase {
            Phase::Over => {}
            Phase::Held { .. } => {
                context.actions.push(Action::Lost(loss));
                self.phase = Phase::Lost(loss);
            }
            Phase::Downgrading { lost, left, .. } => {
                if lost.is_none() {
                    context.actions.push(Action::Lost(loss));
                }
                self.phase = Phase::Lost(lost.unwrap_or(loss));
                if let Some(left) = left {
                    self.release(left, context);
                }
            }
            // The loss has been reported already, and the release is still to come.
            Phase::Doubtful { .. } => self.phase = Phase::Lost(Loss::Unreachable),
            Phase::Lost(_) => {}
            _ => {
                if reporting {
                    context.actions.push(Action::Released(Departed::Lost(loss)));
                }
                if self.wanted {
                    self.wanted = false;
                    context.actions.push(Action::Failed(Reason::SessionOver(end)));
                }
                self.phase = Phase::Leaving;
            }
        }
    }

    /// Gives up: by deadline, by a dropped future, or by a dropped guard.
    fn abandon(&mut self, reason: Option<Reason>, context: &mut StepContext) {
        match self.phase {
            // A deadline limits only the waiting.
            _ if reason.is_some() && self.has_been_granted() => return,
            // The record may contain our beginning.
            Phase::Held { .. } if self.unrecorded_undo.is_some() && self.undo.is_some() => {}
            Phase::Held { me, directory, .. } => {
                return self.take_back(me, directory.map(|directory| directory.version), context);
            }
            Phase::Downgrading { .. } | Phase::Doubtful { .. } | Phase::Lost(_) => {
                return self.release(Left::Released, context);
            }
            Phase::Leaving | Phase::Over => return,
            _ => {}
        }
        if !self.wanted {
            return;
        }
        self.wanted = false;
        if let Some(reason) = reason {
            context.actions.push(Action::Failed(reason));
        }
        self.stop_waiting(context);
    }

    fn has_been_granted(&self) -> bool {
        matches!(
            self.phase,
            Phase::Held { .. } | Phase::Downgrading { .. } | Phase::Doubtful { .. } | Phase::Lost(_)
        )
    }

    /// Undoes a grant that the caller never saw. The caller has not worked under the lock, so the record must
    /// not say that the last holder released it.
    fn take_back(&mut self, me: Node, version: Option<i32>, context: &mut StepContext) {
        self.void_pending();
        self.wanted = false;
        self.phase = Phase::Leaving;
        let marker = self.undo.take().map(|undo| (undo.marker, version));
        if self.unread && self.on(Rule::ReadAfterWait) {
            self.depart_after_wait(me, marker, context);
        } else {
            self.depart(me, marker, false, context);
        }
    }

    /// Ends the acquisition with a reason, and deletes our znodes.
    fn fail(&mut self, reason: Reason, context: &mut StepContext) {
        if self.wanted {
            self.wanted = false;
            context.actions.push(Action::Failed(reason));
        }
        self.stop_waiting(context);
    }

    /// Starts the clean-up from any phase, without forgetting a znode that may be ours.
    fn stop_waiting(&mut self, context: &mut StepContext) {
        // A contender that has just queued knows its znode from the reply to its create.
        let just_came =
            matches!(self.ahead, LookAhead::Arming { proof: ahead::HeadProof::OnlyTwoChildren, .. })
                && matches!(self.phase, Phase::Watching { .. });
        let after_long = self.forget_ahead(context) && !just_came;
        match &self.phase {
            // A pending answer may report a znode of ours; the handlers check `wanted`.
            Phase::Joining | Phase::Searching | Phase::Pausing(After::Search) => return,
            Phase::Pausing(After::Join) | Phase::MakingDirectory if self.create_in_doubt => return,
            Phase::Waiting { watch, .. } | Phase::Listing { watch: Some(watch), children: Some(_), .. } => {
                context.actions.push(Action::Unwatch(*watch));
            }
            _ => {}
        }
        let Some(me) = self.node() else {
            self.void_pending();
            self.phase = Phase::Leaving;
            return;
        };
        // Most contenders do not watch their own znode while they wait. During a long wait it may have been
        // deleted, and its name may be another contender's.
        let long_unseen = after_long
            || self.unread
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
            self.depart(me, self.forged_marker(me), false, context);
        } else if let Some(undo) = self.undo.take() {
            // The record may contain our beginning, which must not be taken for a crash.
            self.depart_undone(me, undo, context);
        } else if long_unseen && self.on(Rule::ReadAfterWait) {
            self.depart_if_there(me, context);
        } else {
            self.depart(me, None, false, context);
        }
    }

    /// Returns the marker that a contender which gives up must not write. The model uses it to break a rule.
    fn forged_marker(&self, me: Node) -> Option<(Marker, Option<i32>)> {
        let directory = self.last_directory?;
        let (left, sequence) = (Left::Released, me.sequence);
        Some((Marker { directory: directory.czxid, left, sequence, tracked: false }, None))
    }

    /// Ignores all pending answers except those of deletes.
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

    fn conclude(&mut self, context: &mut StepContext) {
        if self.phase == Phase::Leaving && self.departures.is_empty() {
            self.phase = Phase::Over;
            context.actions.push(Action::Over);
        }
    }

    fn send(&mut self, purpose: Purpose, request: Request, context: &mut StepContext) {
        let id = (0..).map(RequestId).find(|id| self.pending.iter().all(|(used, _)| used != id));
        let id = id.expect("a machine has few pending requests");
        self.pending.push((id, purpose));
        context.actions.push(Action::Send(id, request));
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
        (0..).map(WatchId).find(|id| !in_use(id)).expect("a machine has few watches")
    }

    fn backoff(&mut self) -> u32 {
        backoff(&mut self.tries)
    }

    fn on(&self, rule: Rule) -> bool {
        self.config.rules.on(rule)
    }

    /// Returns whether this is our znode, and not a later one of the same name.
    pub(crate) fn is_mine(&self, me: Node, czxid: Zxid, owner: SessionId) -> bool {
        !self.on(Rule::IdentityByCzxid) || (czxid == me.czxid && owner == self.config.session)
    }
}

/// Returns the wait before the next try: 10 ms, doubled for each failure in a row, at most 640 ms.
pub(crate) fn backoff(tries: &mut u8) -> u32 {
    let wait = 10u32 << (*tries).min(6);
    *tries = tries.saturating_add(1).min(7);
    wait
}
