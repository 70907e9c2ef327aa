//! An acquisition of one lock, or of several locks at once, as a state machine: from the create of its znodes to the
//! last clean-up.
//!
//! The machine takes events ([`Event`]) and returns actions ([`Action`]). The driver is the code that runs the machine.
//! It sends the requests *in the order given, on one session*. It reports every answer exactly once, as
//! [`RequestFailure::Unknown`] if the connection was lost before the answer came. A caller that does not wait any more
//! sends [`Event::Cancel`] and may drop its handle. The driver continues until [`Action::Finished`]: then the
//! acquisition has no znode left on the server, or its session has ended.
//!
//! # Two levels
//!
//! An acquisition has one position in the queue of each of its locks. [`Machine`] has the phases that concern all
//! positions: create the znodes, grant, release, clean up. A `Position` has the progress in one queue: read it, wait in
//! it, become its head. The code of a position gets a `Here`, the parts of the machine that it may use. It returns a
//! `Then`, which `Machine::apply` carries out. So only the machine fails, holds, or marks the reads of all positions as
//! old.
//!
//! ```text
//!         znodes created         each position first     lease, verify, begin
//! joining ─────────────▶ queued ────────────────▶ settling ───────────────────▶ held
//!    ▲                     │                         │                           │
//!    └── search, retire    └──── cancel, time out, fail, release, session over ──┴──▶ leaving
//!
//! a position while the acquisition is queued:
//!   reading ─▶ watching ─▶ waiting ──deleted──▶ reading ──marker or list──▶ first [or delaying ─▶ reading]
//!      ▲          │           │ reconnect, change ─▶ watching
//!      └──missing─┘           └─[look-ahead: proven]─▶ held at once
//! ```
//!
//! The protocol and its proof are in `docs/design/protocol.md`; the bugs that its rules prevent are in
//! [`crate::rules`]. In these files "we" and "our" mean this acquisition.
//!
//! # Files
//!
//! `messages.rs` has the events, requests, answers and actions, and `round_trip.rs` the requests that are sent
//! together. `join.rs` creates the znodes. `position.rs`, `read.rs` and `wait.rs` are one position. `settle.rs` leads
//! from the head of the queue to the grant, `hold.rs` from the grant to the release, and `cleanup.rs` deletes the
//! znodes. `claim.rs` gives a grant back that the caller does not take. `conditions.rs` has the safety rules.
//!
//! Each other file has one feature, which a plain lock does not need: `several.rs` several locks at once, `crash.rs`
//! the detection of crashes, `ahead.rs` look-ahead, `permits.rs` semaphores, `downgrade.rs` writers that become
//! readers, and `retire.rs` directories whose numbers run out.

mod ahead;
mod claim;
mod cleanup;
mod conditions;
mod crash;
mod downgrade;
mod hold;
mod join;
mod messages;
mod permits;
mod position;
mod read;
mod retire;
mod round_trip;
mod settle;
mod several;
mod wait;

#[cfg(test)]
mod tests;

use crate::ids::{ContenderId, Sequence, SessionId, Zxid};
pub use crate::names::{Kind, Node};
use crate::names::{Names, Prefix};
use crate::queue::Claim;
use crate::record::{HolderState, Marker, Record};
use crate::rules::{Rule, Rules};

pub use messages::{
    Action, Directory, Event, Grant, HoldOp, Loss, NodeFlags, Previous, Reason, Refusal, ReleaseOp,
    ReleaseOutcome, Reply, Request, RequestFailure, RequestId, SessionEnd, WatchId,
};
pub use round_trip::lock_index;

use ahead::LookAhead;
use cleanup::{Cleanup, CleanupPurpose};
use crash::Undo;
use position::{Here, Leftover, Position, PositionState, Then};
use read::Watches;
use round_trip::{
    Answer, Answers, Children, NodeRead, PositionPurpose, Purpose, RequestKind, RoundTrip, RoundTrips,
    backoff,
};
use several::{Positions, ReleaseMode};

/// Maximum number of locks in one acquisition.
pub const MAX_LOCKS: usize = 128;

/// The settings of one acquisition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// The session that sends all requests.
    pub session: SessionId,
    /// The UUID of this acquisition.
    pub id: ContenderId,
    /// The naming scheme of the acquisition's znodes.
    pub names: Names,
    /// Kind of lock.
    pub kind: Kind,
    /// The behaviour if the lock is not free.
    pub mode: Mode,
    /// Set to write a `held` marker into the data of the lock directory before the grant, so that the next holder
    /// detects a crash.
    pub tracks_crashes: bool,
    /// Time to wait before the grant, in milliseconds, unless the previous holder is known to have released.
    pub delay: u32,
    /// Time from the grant to the watch on our own znode, in milliseconds; zero for at once. With several locks, the
    /// time counts from when the znode becomes the head of its queue.
    pub watch_own_after: u32,
    /// Time within which the caller must take the grant ([`Event::Claimed`]), in milliseconds; zero for no limit. It
    /// counts from the end of a pause of `watch_own_after`, or from the grant if there is no such pause. After it, the
    /// grant is given back ([`Action::Unclaimed`]).
    pub claim_timeout: u32,
    /// Set to use look-ahead, which grants the lock a round trip earlier. Then the record, which says how the previous
    /// holder left, is read after the grant. Ignored for several locks.
    pub looks_ahead: bool,
    /// The first sequence number at which a directory is retired; [`Sequence::RETIRE_FROM`] except in tests. Contenders
    /// leave a retired directory, and it is deleted when it is empty.
    pub retire_from: Sequence,
    /// The rules in force; [`Rules::all`] except in tests.
    pub rules: Rules,
}

impl Config {
    /// Returns the prefix of the acquisition's znode names.
    ///
    /// # Panics
    /// If the naming scheme has no names for this kind of lock. Callers check with [`Prefix::of`] first.
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
            _ => Claim::Lock,
        }
    }
}

/// The behaviour if the lock is not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Wait in the queue.
    Wait,
    /// Take the lock if it is free, otherwise fail.
    Try,
}

/// The state machine of one acquisition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    config: Config,
    phase: Phase,
    positions: Positions,
    /// Znodes that must be deleted.
    cleanups: Vec<Cleanup>,
    trips: RoundTrips,
    /// Set while the caller waits for the lock or holds it.
    wanted: bool,
    /// Set once the caller has taken the grant.
    claimed: bool,
    /// Set if a create with a lost reply may have succeeded.
    create_in_doubt: bool,
    /// The refusal of a create, kept until the search for our znodes ends. Or the refusal to create a directory, kept
    /// until every directory has an answer.
    refusal: Option<RequestFailure>,
    /// Set if the current round trip to all directories must be repeated, for example because an answer was lost.
    unsure: bool,
    /// Set if there is no connection. Requests then wait for a connection, and the queue may change before they arrive.
    offline: bool,
    /// Number of failures in a row.
    tries: u8,
    /// Set if a position has waited, or read its queue again, since the create.
    waited: bool,
    /// Set if another client asks the holder to release the lock.
    revoked: bool,
    /// Set if the lease has ended while the lock was held: our znodes may still exist and keep others out.
    is_doubtful: bool,
    lost: Option<Loss>,
    /// The worst outcome of the releases so far.
    released: Option<ReleaseOutcome>,
    /// Number of releases whose outcome is not known.
    unreported: usize,
}

/// The next step after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum AfterPause {
    Join,
    Search,
    Verify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    New,
    /// Waiting for the answer to the create.
    Joining,
    MakingDirectories,
    Pausing(AfterPause),
    /// Searching for our znodes after a create with an unknown outcome.
    Searching,
    /// Waiting for a directory to become empty. Then it is deleted, because its sequence numbers run out. `directory`:
    /// the transaction that created it, once that is known. `polls`: number of reads so far.
    Retiring {
        index: usize,
        directory: Option<Zxid>,
        polls: u8,
    },
    /// Each position reads its queue, or waits in it.
    Queued,
    /// Head of all queues, but without a valid lease.
    AwaitingLease,
    /// Head of all queues: reading all our znodes again.
    Verifying,
    /// Head of all queues: writing the `held` markers.
    Beginning,
    /// Granted. A lost lock stays in this phase until the holder releases.
    Held,
    /// Granted, and a downgrade is under way. The value is the release that the holder has asked for meanwhile.
    Downgrading(Option<HolderState>),
    /// Releasing several locks in one transaction.
    Releasing(HolderState),
    /// Only clean-up is left.
    Leaving,
    Finished,
}

/// The state of one step: the actions so far, and the validity of the lease.
struct Step<'a> {
    actions: &'a mut Vec<Action>,
    lease_valid: bool,
}

impl Machine {
    /// Returns an acquisition of one lock, or of `locks` at once, that has not started.
    pub fn new(config: Config, locks: usize) -> Machine {
        Machine {
            // With several locks, one deletion does not grant all of them.
            config: Config { looks_ahead: config.looks_ahead && locks <= 1, ..config },
            phase: Phase::New,
            positions: Positions::new(locks.min(MAX_LOCKS)),
            // Room for the fast path, so that its steps allocate nothing.
            cleanups: Vec::with_capacity(1),
            trips: RoundTrips::new(),
            wanted: true,
            claimed: false,
            create_in_doubt: false,
            refusal: None,
            unsure: false,
            offline: false,
            tries: 0,
            waited: false,
            revoked: false,
            is_doubtful: false,
            lost: None,
            released: None,
            unreported: 0,
        }
    }

    /// Handles one event, and appends the resulting actions to `actions`. `lease_valid`: whether the session's lease is
    /// valid *now*.
    pub fn step(&mut self, event: Event, lease_valid: bool, actions: &mut Vec<Action>) {
        let mut step = Step { actions, lease_valid };
        match event {
            Event::Start if self.phase == Phase::New => self.join(&mut step),
            Event::Start => {}
            Event::Answer(id, outcome) => self.handle_answer(id, outcome, &mut step),
            Event::Fired { watch, deleted } => self.handle_watch_event(watch, deleted, &mut step),
            Event::Disconnected => {
                self.offline = true;
                self.end_look_ahead(&mut step);
            }
            Event::Reconnected => self.set_watches_again(&mut step),
            Event::LeaseRenewed => self.handle_lease_renewal(&mut step),
            Event::LeaseLost => self.lease_lost(&mut step),
            Event::SessionOver(end) => self.session_over(end, &mut step),
            Event::TimedOut => self.abandon(Some(Reason::TimedOut), &mut step),
            Event::Cancel => self.abandon(None, &mut step),
            Event::Claimed => self.claim(&mut step),
            Event::Release(state) => self.release(state, &mut step),
            Event::Downgrade => self.downgrade(&mut step),
        }
        self.grant_or_finish(&mut step);
    }

    /// Returns our znode for the first lock, while all locks are held and none is lost.
    pub fn held_node(&self) -> Option<Node> {
        match self.phase {
            Phase::Held | Phase::Downgrading(_) if self.lost.is_none() => self.positions[0].node,
            _ => None,
        }
    }

    /// Returns our znode for the lock with this index, if its create is known to have succeeded.
    pub fn node(&self, lock_index: usize) -> Option<Node> {
        let known = self.positions.get(lock_index).and_then(|position| position.node);
        known.or_else(|| self.trips.created_node(lock_index))
    }

    /// Returns whether an answer may still tell us of another znode of ours for the lock with this index.
    pub fn may_learn_of_node(&self, lock_index: usize) -> bool {
        let is_unsure = self.create_in_doubt || self.trips.may_find_nodes();
        self.is_downgrading() || (is_unsure && self.node(lock_index).is_none())
    }

    /// Returns the name of the contender for which we wait in the first queue, if there is one. It is the predecessor;
    /// during look-ahead it can be the second predecessor.
    pub fn waiting_for(&self) -> Option<&str> {
        match &self.positions[0].state {
            PositionState::Watching { before } | PositionState::Waiting { before: Some(before), .. } => {
                Some(before)
            }
            _ => None,
        }
    }

    /// Returns whether we wait in a queue, with a watch set on a predecessor or on the children.
    pub fn is_waiting(&self) -> bool {
        let waits = |position: &Position| matches!(position.state, PositionState::Waiting { .. });
        self.phase == Phase::Queued && self.positions.iter().any(waits)
    }

    /// Returns whether we need the lease: we hold the lock, or the next event of the queues may grant it. True from the
    /// start, until we know that another contender waits ahead of us.
    pub fn needs_lease(&self) -> bool {
        let is_far = self.phase == Phase::Queued && self.positions.iter().any(|position| position.is_far);
        !is_far && !self.is_leaving() && self.lost.is_none()
    }

    /// Returns whether we hold the lock and watch all our znodes. Then the machine gets an event for every write to
    /// them.
    pub fn watches_own(&self) -> bool {
        self.phase == Phase::Held && self.positions.iter().all(|position| position.own_watch.is_some())
    }

    /// Returns whether the caller no longer wants the lock, so that only clean-up is left.
    pub fn is_leaving(&self) -> bool {
        !self.wanted || matches!(self.phase, Phase::Releasing(_) | Phase::Leaving | Phase::Finished)
    }

    /// Returns whether the acquisition has ended, and no clean-up is left.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Finished
    }

    // ---- the two levels ----

    /// Runs the code of one position, and then carries out its result.
    fn at(&mut self, index: usize, step: &mut Step, run: impl FnOnce(&mut Position, &mut Here) -> Then) {
        let mut here = Here {
            index,
            config: &self.config,
            trips: &mut self.trips,
            tries: &mut self.tries,
            waited: &mut self.waited,
            revoked: &mut self.revoked,
            offline: self.offline,
            is_held: self.phase == Phase::Held,
            time_passes: false,
            step,
        };
        let then = run(&mut self.positions[index], &mut here);
        if here.time_passes {
            self.mark_reads_stale();
        }
        self.apply(index, then, step);
    }

    /// Runs the code of each position, one after the other.
    fn at_each(&mut self, step: &mut Step, run: impl Fn(&mut Position, &mut Here) -> Then) {
        for index in 0..self.positions.len() {
            self.at(index, step, &run);
        }
    }

    /// Carries out the result of one position's code.
    fn apply(&mut self, index: usize, then: Then, step: &mut Step) {
        match then {
            Then::Nothing => {}
            Then::First if self.is_of_several() => self.continue_at_head(index, step),
            // Grants at the end of the step, in `grant_or_finish`.
            Then::First => {}
            Then::HeldAhead(grant) => self.hold_ahead(index, grant, step),
            Then::Fail(reason) => self.fail(reason, step),
            Then::Removed => match self.phase {
                Phase::Held => self.lose(Loss::Broken, step),
                Phase::Releasing(_) => {}
                _ => self.fail(Reason::Broken, step),
            },
            Then::Withdraw(leftover) => {
                self.fail(Reason::Broken, step);
                self.clean_up_leftover(index, leftover, step);
            }
            Then::Delete(leftover) => self.clean_up_leftover(index, leftover, step),
        }
    }

    /// Marks the last reads of our own znodes as old, because time passes before the next step.
    fn mark_reads_stale(&mut self) {
        self.positions.iter_mut().for_each(|position| position.is_fresh = false);
    }

    // ---- the end ----

    fn session_over(&mut self, end: SessionEnd, step: &mut Step) {
        self.trips.clear();
        self.cleanups.clear();
        self.create_in_doubt = false;
        for position in self.positions.iter_mut() {
            (position.node, position.own_watch, position.ahead) = (None, None, LookAhead::Off);
        }
        let loss = Loss::SessionOver(end);
        match self.phase {
            Phase::Finished => {}
            Phase::Held => self.lose(loss, step),
            Phase::Downgrading(_) => {
                self.lose(loss, step);
                self.end_downgrade(step);
            }
            _ => {
                if self.unreported > 0 || matches!(self.phase, Phase::Releasing(_)) {
                    self.unreported = 1;
                    self.report_release(ReleaseOutcome::Lost(loss), step);
                }
                if self.wanted {
                    self.wanted = false;
                    step.actions.push(Action::Failed(Reason::SessionOver(end)));
                }
                self.phase = Phase::Leaving;
            }
        }
    }

    /// Gives up. `reason`: set if the caller's deadline has passed; `None` if the caller dropped its future or guard.
    fn abandon(&mut self, reason: Option<Reason>, step: &mut Step) {
        match self.phase {
            // A deadline limits only the waiting.
            Phase::Held | Phase::Downgrading(_) if reason.is_some() => return,
            Phase::Held if self.lost.is_none() => return self.undo_unseen_grant(step),
            Phase::Held | Phase::Downgrading(_) => return self.release(HolderState::Released, step),
            _ => {}
        }
        if self.wanted {
            self.wanted = false;
            step.actions.extend(reason.map(Action::Failed));
            self.stop_waiting(step);
        }
    }

    /// Ends the acquisition with a reason, and deletes our znodes.
    fn fail(&mut self, reason: Reason, step: &mut Step) {
        if self.wanted {
            self.wanted = false;
            step.actions.push(Action::Failed(reason));
        }
        self.stop_waiting(step);
    }

    /// Starts the clean-up, in any phase. If a create or a search is pending, the clean-up starts after its answer,
    /// which may report znodes of ours.
    fn stop_waiting(&mut self, step: &mut Step) {
        match self.phase {
            // The handler of the pending answer checks `wanted`, and then deletes our znodes.
            Phase::Joining | Phase::Searching | Phase::Pausing(AfterPause::Search) => return,
            Phase::Pausing(AfterPause::Join) | Phase::MakingDirectories if self.create_in_doubt => return,
            _ => {}
        }
        self.at_each(step, Position::leave);
        self.end_all_but_cleanups(step);
    }

    /// Ends everything but the clean-ups.
    fn end_all_but_cleanups(&mut self, step: &mut Step) {
        self.trips.void_all(step);
        for position in self.positions.iter_mut() {
            position.clear();
        }
        self.phase = Phase::Leaving;
    }

    fn grant_or_finish(&mut self, step: &mut Step) {
        if self.phase == Phase::Queued && self.positions.iter().all(Position::is_first) {
            if self.must_verify() { self.verify(step) } else { self.grant(step) }
        }
        self.limit_claim(step);
        if self.phase == Phase::Leaving && self.cleanups.is_empty() {
            self.phase = Phase::Finished;
            step.actions.push(Action::Finished);
        }
    }
}
