//! Several locks at once: one transaction creates all their znodes, another one deletes them.
//!
//! One zxid orders all queues in the same way, so a waiter waits only for older contenders. There is no
//! cycle in any order of the names. Each lock has a [`Contender`] that waits in its queue.
//!
//! A grant says that at one moment all our znodes existed and each was the head of its queue. That moment is
//! the create if no queue has changed since. Otherwise all znodes are read again after each was found to be
//! the head. The deletion of a znode after that is reported as a loss, by the watch on it.
//!
//! The upper byte of a request's or watch's id is the index of its lock. It tells the driver which directory
//! is meant.

use crate::contender::{
    Action, Config, Contender, Departed, Event, Failure, Grant, Loss, Mode, Node, POLLS_BEFORE_JOINING_AGAIN,
    Previous, RETIRE_POLL, Reason, Reply, Request, RequestId, SessionEnd, WatchId, backoff,
};
use crate::ids::Zxid;
use crate::record::Left;
use crate::rules::Rule;

/// Maximum number of locks in one multi-lock.
pub const MOST_PLACES: usize = 128;

/// The first id, within a lock's range, that belongs to the multi-lock itself.
const OWN: u16 = 128;

/// Returns the index of the directory that a request is for.
pub fn place(id: RequestId) -> usize {
    usize::from(id.0 >> 8)
}

/// One acquisition of several locks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Multi {
    config: Config,
    parts: Vec<Part>,
    phase: Phase,
    wanted: bool,
    /// Set if a create with a lost reply may have succeeded.
    create_in_doubt: bool,
    refusal: Option<Failure>,
    /// The znodes of the last create, while others are searched for.
    created: Vec<Node>,
    pending: Vec<(RequestId, Purpose)>,
    /// Set if a contender has waited since the create.
    waited: bool,
    /// Set if an answer of the current flight was lost.
    unsure: bool,
    offline: bool,
    tries: u8,
    revoked: bool,
    lost: Option<Loss>,
    /// The outcome of the releases so far.
    departed: Option<Departed>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Part {
    contender: Contender,
    grant: Option<Grant>,
    /// Our znodes that a search has found.
    found: Vec<Node>,
    released: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    New,
    Joining,
    MakingDirectories,
    Pausing(After),
    Searching,
    /// The contenders wait, or hold.
    Queued,
    AwaitingLease,
    Verifying,
    /// Recording the beginning in all directories.
    Beginning,
    Held,
    Retiring {
        place: usize,
        directory: Option<Zxid>,
        polls: u8,
    },
    Releasing(Left),
    /// Releasing each lock by itself.
    ReleasingSeparately,
    Leaving,
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum After {
    Join,
    Search,
    Verify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Purpose {
    Join,
    Make,
    Pause,
    Search(usize),
    Verify(usize),
    Begin,
    Release,
    RetirePause,
    RetireRead,
    RetireDelete,
    Void,
}

struct StepContext {
    actions: Vec<Action>,
    lease_valid: bool,
}

impl Multi {
    /// Returns an acquisition of `places` locks that has not started.
    pub fn new(config: Config, places: usize) -> Multi {
        let part = || Part {
            // All znodes are read again before the grant.
            contender: Contender::new_part(Config { looks_ahead: false, ..config.clone() }),
            grant: None,
            found: Vec::new(),
            released: false,
        };
        Multi {
            parts: (0..places.min(MOST_PLACES)).map(|_| part()).collect(),
            config,
            phase: Phase::New,
            wanted: true,
            create_in_doubt: false,
            refusal: None,
            created: Vec::new(),
            pending: Vec::new(),
            waited: false,
            unsure: false,
            offline: false,
            tries: 0,
            revoked: false,
            lost: None,
            departed: None,
        }
    }

    /// Handles one event and returns the actions. `lease_valid`: whether the session's lease is valid *now*.
    pub fn step(&mut self, event: Event, lease_valid: bool) -> Vec<Action> {
        let mut context = StepContext { actions: Vec::new(), lease_valid };
        match event {
            Event::Start if self.phase == Phase::New => self.join(&mut context),
            Event::Start => {}
            Event::Answer(id, outcome) if id.0 & 0xff >= OWN => self.answer(id, outcome, &mut context),
            Event::Answer(id, outcome) => {
                self.step_part(place(id), Event::Answer(RequestId(id.0 & 0xff), outcome), &mut context);
            }
            Event::Fired { watch, deleted } => {
                let inner = WatchId(watch.0 & 0xff);
                self.step_part(
                    usize::from(watch.0 >> 8),
                    Event::Fired { watch: inner, deleted },
                    &mut context,
                );
            }
            Event::Disconnected | Event::Reconnected => {
                self.offline = event == Event::Disconnected;
                self.step_all(&event, &mut context);
            }
            Event::LeaseRenewed if self.phase == Phase::AwaitingLease => self.verify(&mut context),
            Event::LeaseRenewed => {}
            // Before the grant the caller does not rely on the lease.
            Event::LeaseLost if self.phase == Phase::Held => self.step_all(&event, &mut context),
            Event::LeaseLost => {}
            Event::SessionOver(end) => self.session_over(end, &mut context),
            Event::TimedOut => self.abandon(Some(Reason::TimedOut), &mut context),
            Event::Cancel => self.abandon(None, &mut context),
            Event::Release(left) => self.release(left, &mut context),
            // Only a single writer can become a reader.
            Event::Downgrade => {}
        }
        self.conclude(&mut context);
        context.actions
    }

    /// Returns the znodes that hold the locks, while all are held and not lost; in the order of the locks.
    pub fn holding(&self) -> Option<Vec<Node>> {
        let held = self.phase == Phase::Held && self.lost.is_none();
        held.then(|| self.parts.iter().filter_map(|part| part.contender.node()).collect())
    }

    /// Returns the znode of one lock, if there is one.
    pub fn node(&self, place: usize) -> Option<Node> {
        self.parts.get(place)?.contender.node()
    }

    /// Returns whether it holds and watches all its own znodes.
    pub fn watches_own(&self) -> bool {
        self.phase == Phase::Held && self.parts.iter().all(|part| part.contender.watches_own())
    }

    /// Returns whether it waits in one of the queues, with a watch that is set.
    pub fn is_waiting(&self) -> bool {
        self.phase == Phase::Queued && self.parts.iter().any(|part| part.contender.is_waiting())
    }

    /// Returns whether it is the head of a queue, and waits after a holder that may have crashed.
    pub fn is_delaying(&self) -> bool {
        self.phase == Phase::Queued && self.parts.iter().any(|part| part.contender.is_delaying())
    }

    /// Returns whether only clean-up is left.
    pub fn is_leaving(&self) -> bool {
        !self.wanted
            || matches!(
                self.phase,
                Phase::Releasing(_) | Phase::ReleasingSeparately | Phase::Leaving | Phase::Over
            )
    }

    /// Returns whether there is nothing left to do.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    // ---- the contenders ----

    fn step_part(&mut self, place: usize, event: Event, context: &mut StepContext) {
        // The lease is checked once, when all locks are held.
        let Some(part) = self.parts.get_mut(place) else { return };
        let actions = part.contender.step(event, true);
        self.run(place, actions, context);
    }

    fn step_all(&mut self, event: &Event, context: &mut StepContext) {
        for place in 0..self.parts.len() {
            self.step_part(place, event.clone(), context);
        }
    }

    fn each(&mut self, context: &mut StepContext, call: impl Fn(usize, &mut Contender) -> Vec<Action>) {
        for place in 0..self.parts.len() {
            let actions = call(place, &mut self.parts[place].contender);
            self.run(place, actions, context);
        }
    }

    /// Runs the actions of one contender.
    fn run(&mut self, place: usize, actions: Vec<Action>, context: &mut StepContext) {
        let upper = (place as u16) << 8;
        for action in actions {
            match action {
                Action::Send(id, mut request) => {
                    if let Request::Watch { watch, .. } | Request::WatchChildren(watch) = &mut request {
                        watch.0 |= upper;
                    }
                    self.waited |= self.phase == Phase::Queued && self.parts[place].grant.is_none();
                    context.actions.push(Action::Send(RequestId(upper | id.0), request));
                }
                Action::Unwatch(watch) => context.actions.push(Action::Unwatch(WatchId(upper | watch.0))),
                Action::Granted(grant) => self.parts[place].grant = Some(grant),
                Action::Failed(reason) => self.fail(reason, context),
                Action::Lost(loss) => self.part_lost(loss, context),
                Action::Released(departed) => {
                    self.parts[place].released = true;
                    self.departed = Some(worse(self.departed, departed));
                }
                // Before the grant the caller is not told. A caller that releases does not need it.
                Action::Revoked => {
                    let again = std::mem::replace(&mut self.revoked, true);
                    if !again && self.phase == Phase::Held {
                        context.actions.push(Action::Revoked);
                    }
                }
                Action::Downgraded(_) | Action::Previous(_) | Action::Over => {}
            }
        }
    }

    fn part_lost(&mut self, loss: Loss, context: &mut StepContext) {
        match self.phase {
            Phase::Held if self.lost.is_none() => {
                self.lost = Some(loss);
                context.actions.push(Action::Lost(loss));
            }
            Phase::Queued
            | Phase::AwaitingLease
            | Phase::Verifying
            | Phase::Pausing(After::Verify)
            | Phase::Beginning => self.fail(Reason::Broken, context),
            _ => {}
        }
    }

    // ---- create ----

    fn join(&mut self, context: &mut StepContext) {
        self.phase = Phase::Joining;
        self.send(0, Purpose::Join, Request::JoinAll, context);
        if !self.create_in_doubt {
            self.each(context, |_, part| part.send_first_look());
        }
    }

    fn joined(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        if outcome.is_err() {
            self.parts.iter_mut().for_each(|part| part.contender.create_failed());
        }
        match outcome {
            Ok(Reply::AllJoined(nodes)) if nodes.len() != self.parts.len() => {
                self.fail(Reason::Refused(Failure::Unknown), context);
            }
            Ok(Reply::AllJoined(nodes)) if self.create_in_doubt => {
                // The barrier: no earlier create of ours can still arrive.
                self.created = nodes;
                self.search(context);
            }
            Ok(Reply::AllJoined(nodes)) => self.arrive(&nodes, context),
            Ok(_) | Err(Failure::Unknown) => {
                self.create_in_doubt = true;
                self.pause(After::Join, context);
            }
            // One directory is missing. Znodes of earlier creates in the others must be found.
            Err(Failure::NoNode) if self.create_in_doubt => self.search(context),
            Err(Failure::NoNode) => self.make_directories_or_leave(context),
            Err(Failure::Throttled) => self.pause(After::Join, context),
            Err(Failure::NodeExistsAt(place)) if !self.create_in_doubt && self.may_retire(place) => {
                self.retire_or_leave(place, context);
            }
            Err(failure) if self.create_in_doubt => {
                self.refusal = Some(failure);
                self.search(context);
            }
            Err(failure) => self.fail(Reason::Refused(failure), context),
        }
    }

    fn arrive(&mut self, nodes: &[Node], context: &mut StepContext) {
        let ending = self.parts.iter().zip(nodes).position(|(part, node)| part.contender.must_leave(*node));
        if !self.wanted || ending.is_some() {
            self.parts.iter_mut().for_each(|part| part.contender.create_failed());
            self.each(context, |place, part| part.discard(nodes[place]));
            return match ending {
                Some(place) => self.retire_or_leave(place, context),
                None => self.leave(context),
            };
        }
        self.phase = Phase::Queued;
        self.each(context, |place, part| part.create_succeeded(nodes[place]));
        self.waited = false;
    }

    fn make_directories_or_leave(&mut self, context: &mut StepContext) {
        if !self.wanted {
            return self.leave(context);
        }
        self.phase = Phase::MakingDirectories;
        self.unsure = false;
        for place in 0..self.parts.len() {
            self.send(place, Purpose::Make, Request::MakeDirectory, context);
        }
    }

    fn made_directory(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        if self.phase != Phase::MakingDirectories {
            return;
        }
        match outcome {
            Ok(_) | Err(Failure::NodeExists) => {}
            Err(Failure::Unknown | Failure::Throttled | Failure::NoNode) => self.unsure = true,
            Err(failure) => return self.fail(Reason::Refused(failure), context),
        }
        if self.pending.iter().any(|(_, purpose)| *purpose == Purpose::Make) {
            return;
        }
        if self.unsure { self.pause(After::Join, context) } else { self.join(context) }
    }

    // ---- after a lost reply ----

    fn search(&mut self, context: &mut StepContext) {
        self.phase = Phase::Searching;
        self.unsure = false;
        for place in 0..self.parts.len() {
            self.parts[place].found.clear();
            self.send(place, Purpose::Search(place), Request::FindMine, context);
        }
    }

    fn searched(&mut self, place: usize, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        if self.phase != Phase::Searching {
            return;
        }
        match outcome {
            Ok(Reply::Mine(mut nodes)) => {
                let part = &mut self.parts[place];
                nodes.retain(|node| !part.contender.is_departing(*node));
                part.found = nodes;
            }
            Err(Failure::NoNode) => {}
            // The server does not let us search. We can act only on the znodes that we know.
            Err(Failure::Refused(_)) => self.parts[place].found.extend(self.created.get(place)),
            _ => self.unsure = true,
        }
        if self.pending.iter().any(|(_, purpose)| matches!(purpose, Purpose::Search(_))) {
            return;
        }
        if self.unsure { self.pause(After::Search, context) } else { self.keep_oldest(context) }
    }

    /// Keeps the oldest complete set of znodes, and deletes the others.
    fn keep_oldest(&mut self, context: &mut StepContext) {
        let refusal = self.refusal.take();
        self.create_in_doubt = false;
        self.created.clear();
        let mut candidates: Vec<Zxid> = match self.parts.first() {
            Some(part) if self.wanted => part.found.iter().map(|node| node.czxid).collect(),
            _ => Vec::new(),
        };
        candidates.sort_unstable();
        let complete = |czxid: &Zxid| {
            self.parts.iter().all(|part| {
                let node = part.found.iter().find(|node| node.czxid == *czxid);
                node.is_some_and(|node| !part.contender.must_leave(*node))
            })
        };
        let keep = candidates.into_iter().find(complete);
        let mut kept = Vec::new();
        for place in 0..self.parts.len() {
            for node in std::mem::take(&mut self.parts[place].found) {
                if Some(node.czxid) == keep {
                    kept.push(node);
                } else {
                    let actions = self.parts[place].contender.discard(node);
                    self.run(place, actions, context);
                }
            }
        }
        match refusal {
            _ if keep.is_some() => {
                self.phase = Phase::Queued;
                self.each(context, |place, part| part.resume_with(kept[place]));
                self.waited = true;
            }
            _ if !self.wanted => self.leave(context),
            Some(Failure::NodeExistsAt(place)) if self.may_retire(place) => self.retire(place, context),
            Some(failure) => self.fail(Reason::Refused(failure), context),
            None => self.make_directories_or_leave(context),
        }
    }

    // ---- grant ----

    /// Checks that all znodes still exist, after all locks were found to be held.
    fn verify(&mut self, context: &mut StepContext) {
        self.phase = Phase::Verifying;
        self.unsure = false;
        for place in 0..self.parts.len() {
            let Some(node) = self.node(place) else { return self.fail(Reason::Broken, context) };
            self.send(place, Purpose::Verify(place), Request::Exists(node), context);
        }
    }

    fn verified(&mut self, place: usize, outcome: &Result<Reply, Failure>, context: &mut StepContext) {
        if self.phase != Phase::Verifying {
            return;
        }
        let mine = match (outcome, self.node(place)) {
            (Ok(Reply::Node { czxid, owner, .. }), Some(me)) => {
                self.parts[place].contender.is_mine(me, *czxid, *owner)
            }
            (Err(Failure::NoNode), _) | (_, None) => false,
            _ => {
                self.unsure = true;
                true
            }
        };
        if !mine {
            // The watch on it may not have been set yet. The znode with its name now is not ours to delete.
            let actions = self.parts[place].contender.finish();
            self.run(place, actions, context);
            return self.fail(Reason::Broken, context);
        }
        if self.pending.iter().any(|(_, purpose)| matches!(purpose, Purpose::Verify(_))) {
            return;
        }
        if self.unsure { self.pause(After::Verify, context) } else { self.grant(context) }
    }

    fn grant(&mut self, context: &mut StepContext) {
        if !context.lease_valid {
            self.phase = Phase::AwaitingLease;
            return;
        }
        let parts = self.parts.iter_mut().enumerate();
        let beginnings: Vec<_> =
            parts.filter_map(|(place, part)| part.contender.record_beginning(place)).collect();
        if !beginnings.is_empty() {
            self.phase = Phase::Beginning;
            return self.send(0, Purpose::Begin, Request::HoldAll(beginnings), context);
        }
        let grants: Vec<Grant> = self.parts.iter().filter_map(|part| part.grant).collect();
        let Some(first) = grants.first() else { return };
        let any_previous = |what| grants.iter().any(|grant| grant.previous == what);
        let previous = match () {
            () if any_previous(Previous::Crashed) => Previous::Crashed,
            () if any_previous(Previous::Unknown) => Previous::Unknown,
            () => Previous::Clean,
        };
        self.phase = Phase::Held;
        context.actions.push(Action::Granted(Grant { node: first.node, previous }));
        if self.revoked {
            context.actions.push(Action::Revoked);
        }
    }

    fn begun(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Err(failure) = outcome else {
            self.parts.iter_mut().for_each(|part| part.contender.beginning_recorded());
            return self.grant(context);
        };
        // Another client wrote meanwhile, one of our znodes is deleted, or the reply is lost.
        self.phase = Phase::Queued;
        self.waited = true;
        for place in 0..self.parts.len() {
            let (again, actions) = self.parts[place].contender.begin_again(failure);
            if again {
                self.parts[place].grant = None;
            }
            self.run(place, actions, context);
        }
        if !failure.is_transient() {
            self.fail(Reason::Refused(failure), context);
        }
    }

    // ---- release ----

    fn release(&mut self, left: Left, context: &mut StepContext) {
        if self.phase != Phase::Held {
            return;
        }
        let partings: Option<Vec<_>> = self.parts.iter().map(|part| part.contender.parting(left)).collect();
        match partings {
            // Without a connection the request would arrive late. Then each contender checks before it
            // deletes.
            Some(partings) if self.lost.is_none() && !self.offline => {
                self.phase = Phase::Releasing(left);
                self.send(0, Purpose::Release, Request::ReleaseAll(partings), context);
            }
            _ => self.release_separately(left, context),
        }
    }

    /// Releases each lock by itself, so that a missing znode does not block the other releases.
    fn release_separately(&mut self, left: Left, context: &mut StepContext) {
        self.phase = Phase::ReleasingSeparately;
        // A caller that has lost one lock did not finish cleanly under the others.
        let left = if self.lost.is_some() && left == Left::Released { Left::Broken } else { left };
        self.step_all(&Event::Release(left), context);
    }

    fn released(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Releasing(left) = self.phase else { return };
        match outcome {
            Ok(_) => {
                context.actions.push(Action::Released(Departed::Clean));
                self.leave(context);
            }
            Err(failure) if !self.config.rules.on(Rule::ReleaseTheRest) && failure != Failure::Unknown => {
                context.actions.push(Action::Released(Departed::Refused(failure)));
                self.leave(context);
            }
            Err(Failure::Unknown) => {
                self.phase = Phase::ReleasingSeparately;
                self.each(context, |_, part| part.release_again(left));
            }
            Err(_) => {
                self.phase = Phase::ReleasingSeparately;
                self.each(context, |_, part| part.release_alone(left));
            }
        }
    }

    // ---- the end ----

    fn abandon(&mut self, reason: Option<Reason>, context: &mut StepContext) {
        match self.phase {
            // A deadline limits only the waiting.
            Phase::Held if reason.is_none() => {
                // It was granted, but the caller never saw it.
                self.each(context, |_, part| part.withdraw(false));
                return self.leave(context);
            }
            Phase::Held | Phase::Releasing(_) | Phase::ReleasingSeparately | Phase::Leaving | Phase::Over => {
                return;
            }
            _ => {}
        }
        if self.wanted {
            self.wanted = false;
            context.actions.extend(reason.map(Action::Failed));
            self.stop_waiting(context);
        }
    }

    fn fail(&mut self, reason: Reason, context: &mut StepContext) {
        if self.wanted {
            self.wanted = false;
            context.actions.push(Action::Failed(reason));
            self.stop_waiting(context);
        }
    }

    fn stop_waiting(&mut self, context: &mut StepContext) {
        let answers_bring_nodes = self.pending.iter().any(|(_, purpose)| *purpose == Purpose::Join)
            || matches!(self.phase, Phase::Searching | Phase::Pausing(After::Search))
            || (self.create_in_doubt
                && matches!(self.phase, Phase::Pausing(After::Join) | Phase::MakingDirectories));
        if !answers_bring_nodes {
            let waited = self.waited && self.config.mode == Mode::Wait;
            self.each(context, |_, part| part.withdraw(waited));
            self.leave(context);
        }
    }

    /// Ends the contenders. Deletes in progress continue.
    fn leave(&mut self, context: &mut StepContext) {
        for (_, purpose) in &mut self.pending {
            *purpose = Purpose::Void;
        }
        self.phase = Phase::Leaving;
        self.each(context, |_, part| if part.is_leaving() { Vec::new() } else { part.finish() });
    }

    fn session_over(&mut self, end: SessionEnd, context: &mut StepContext) {
        let loss = Loss::SessionOver(end);
        self.pending.clear();
        match self.phase {
            Phase::Over => return,
            Phase::Held => {
                if self.lost.is_none() {
                    self.lost = Some(loss);
                    context.actions.push(Action::Lost(loss));
                }
                // The release is still to come.
                self.each(context, |_, part| {
                    part.step(Event::SessionOver(end), true);
                    Vec::new()
                });
                return;
            }
            Phase::Releasing(_) => context.actions.push(Action::Released(Departed::Lost(loss))),
            Phase::ReleasingSeparately => {
                let departed = worse(self.departed, Departed::Lost(self.lost.unwrap_or(loss)));
                context.actions.push(Action::Released(departed));
            }
            Phase::Leaving => {}
            _ if self.wanted => context.actions.push(Action::Failed(Reason::SessionOver(end))),
            _ => {}
        }
        self.wanted = false;
        self.phase = Phase::Over;
        context.actions.push(Action::Over);
    }

    fn conclude(&mut self, context: &mut StepContext) {
        if self.phase == Phase::Queued && self.parts.iter().all(|part| part.grant.is_some()) {
            // Between two reads of the first flight a reader may become the head, when another lock's queue
            // has changed.
            let untouched = self.parts.iter().all(|part| part.contender.is_untouched());
            if (self.waited || !untouched) && self.config.rules.on(Rule::VerifyAll) {
                self.verify(context);
            } else {
                self.grant(context);
            }
        }
        if self.phase == Phase::ReleasingSeparately && self.parts.iter().all(|part| part.released) {
            let departed = self.departed.unwrap_or(Departed::Clean);
            context.actions.push(Action::Released(match self.lost {
                Some(loss) => Departed::Lost(loss),
                None => departed,
            }));
            self.phase = Phase::Leaving;
        }
        if self.phase == Phase::Leaving && self.parts.iter().all(|part| part.contender.is_over()) {
            self.phase = Phase::Over;
            context.actions.push(Action::Over);
        }
    }

    // ---- the end of the numbers ----

    fn may_retire(&self, place: usize) -> bool {
        place < self.parts.len() && self.config.rules.on(Rule::RetireNearTheEnd)
    }

    fn retire_or_leave(&mut self, place: usize, context: &mut StepContext) {
        if self.wanted { self.retire(place, context) } else { self.leave(context) }
    }

    fn retire(&mut self, place: usize, context: &mut StepContext) {
        self.phase = Phase::Retiring { place, directory: None, polls: 0 };
        self.send(place, Purpose::RetireRead, Request::ReadDirectory, context);
    }

    fn retire_look(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Retiring { place, directory, polls } = self.phase else { return };
        match outcome {
            Ok(Reply::Directory(seen)) => {
                let retired = directory.unwrap_or(seen.czxid);
                self.phase =
                    Phase::Retiring { place, directory: Some(retired), polls: polls.saturating_add(1) };
                if retired != seen.czxid || polls >= POLLS_BEFORE_JOINING_AGAIN {
                    self.join(context);
                } else if seen.children == 0 {
                    self.send(place, Purpose::RetireDelete, Request::DeleteDirectory, context);
                } else if self.config.mode == Mode::Try {
                    self.fail(Reason::Busy, context);
                } else {
                    self.send(place, Purpose::RetirePause, Request::Sleep(RETIRE_POLL), context);
                }
            }
            Err(Failure::NoNode) => self.join(context),
            Err(failure @ Failure::Refused(_)) => self.fail(Reason::Refused(failure), context),
            _ => self.retire_again(context),
        }
    }

    fn retire_deleted(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        match outcome {
            _ if !matches!(self.phase, Phase::Retiring { .. }) => {}
            Ok(_) | Err(Failure::NoNode) => self.join(context),
            Err(failure @ Failure::Refused(_)) => self.fail(Reason::Refused(failure), context),
            Err(_) => self.retire_again(context),
        }
    }

    fn retire_again(&mut self, context: &mut StepContext) {
        let Phase::Retiring { place, .. } = self.phase else { return };
        let wait = self.backoff();
        self.send(place, Purpose::RetirePause, Request::Sleep(wait), context);
    }

    // ---- requests ----

    fn answer(&mut self, id: RequestId, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Some(at) = self.pending.iter().position(|&(pending, _)| pending == id) else { return };
        let (_, purpose) = self.pending.remove(at);
        if outcome.is_ok() && !matches!(purpose, Purpose::Pause | Purpose::RetirePause) {
            self.tries = 0;
        }
        match purpose {
            Purpose::Join => self.joined(outcome, context),
            Purpose::Make => self.made_directory(outcome, context),
            Purpose::Pause => match self.phase {
                Phase::Pausing(After::Join) if self.wanted || self.create_in_doubt => self.join(context),
                Phase::Pausing(After::Join) => self.leave(context),
                Phase::Pausing(After::Search) => self.search(context),
                Phase::Pausing(After::Verify) => self.verify(context),
                _ => {}
            },
            Purpose::Search(place) => self.searched(place, outcome, context),
            Purpose::Verify(place) => self.verified(place, &outcome, context),
            Purpose::Begin => self.begun(outcome, context),
            Purpose::Release => self.released(outcome, context),
            Purpose::RetirePause => {
                if let Phase::Retiring { place, .. } = self.phase {
                    self.send(place, Purpose::RetireRead, Request::ReadDirectory, context);
                }
            }
            Purpose::RetireRead => self.retire_look(outcome, context),
            Purpose::RetireDelete => self.retire_deleted(outcome, context),
            Purpose::Void => {}
        }
    }

    fn send(&mut self, place: usize, purpose: Purpose, request: Request, context: &mut StepContext) {
        let upper = (place as u16) << 8;
        let free = |id: &RequestId| self.pending.iter().all(|(used, _)| used != id);
        let id = (OWN..=0xff).map(|id| RequestId(upper | id)).find(free);
        let id = id.expect("a machine has few pending requests per lock");
        self.pending.push((id, purpose));
        context.actions.push(Action::Send(id, request));
    }

    fn pause(&mut self, after: After, context: &mut StepContext) {
        self.phase = Phase::Pausing(after);
        let wait = self.backoff();
        self.send(0, Purpose::Pause, Request::Sleep(wait), context);
    }

    fn backoff(&mut self) -> u32 {
        backoff(&mut self.tries)
    }
}

fn worse(so_far: Option<Departed>, now: Departed) -> Departed {
    match (so_far, now) {
        (Some(Departed::Lost(loss)), _) | (_, Departed::Lost(loss)) => Departed::Lost(loss),
        (Some(refused @ Departed::Refused(_)), _) => refused,
        _ => now,
    }
}

#[cfg(test)]
mod tests;
