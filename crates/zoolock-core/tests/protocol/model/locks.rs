//! The model: the steps that can follow a state, and the properties that no state may violate.

use stateright::{Expectation, Model, Property};
use zoolock_core::Record;
use zoolock_core::Zxid;
use zoolock_core::acquisition::Request;
use zoolock_core::record::{HolderState, Size};

use super::bugs::Bug;
use super::ghost::Violation;
use super::holds::{holding, is_clear, too_many_hold};
use super::plan::Plan;
use super::scenario::{Budget, Scenario};
use super::server::Handling;
use super::shared::Shared;
use super::tree::{Name, Op};
use super::world::{Client, Stage, Timer, World};

/// The model of one scenario.
#[derive(Clone, Debug)]
pub(crate) struct Locks(pub(crate) Scenario);

/// One step. The first number is the client, or the directory that an operator changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The server carries out the client's next request.
    Process(u8),
    /// The client receives the next reply or event.
    Deliver(u8),
    /// A timer of the client fires.
    Wake(u8, u8),
    /// The client's follower applies one transaction.
    Apply(u8),
    /// The caller takes the grant.
    Claim(u8),
    /// The holder releases.
    Release(u8),
    /// The writer becomes a reader.
    Downgrade(u8),
    /// The client's session deletes its strays.
    DeleteStrays(u8),
    RenewLease(u8),
    Expire(u8),
    // The following steps are faults. The scenario's budget limits each of them, except `Late`.
    Panic(u8),
    Cancel(u8),
    TimeOut(u8),
    Disconnect(u8),
    /// A server owns the client's session again. The second number is that of the writes that the leader refused before.
    Retake(u8, u8),
    /// A write that was sent before a disconnect arrives at the leader after the disconnect.
    Late(u8),
    /// The server refuses the client's next request and does not pass it on.
    Throttle(u8),
    /// The server denies the client's next create and does not pass it on.
    Deny(u8),
    Lag(u8),
    LoseLease(u8),
    NextSession(u8),
    Crash(u8),
    /// The server gives a create a negative sequence number. ZooKeeper does this after the last
    /// sequence number, to a create that it prepares while another create is under way.
    Negative(u8),
    /// A client reads a retired directory again, though nothing has changed.
    Poll(u8, u8),
    RemoveAll(u8),
    Break(u8, Name),
    Reap(u8),
    Copy(u8),
    Scribble(u8),
    Resize(u8, u32),
    Revoke(u8, Name),
    /// The caller never polls its future again.
    Forget(u8),
}

/// The pause between two reads of a retired directory, in milliseconds. Timers of this duration
/// belong to such reads. The budget limits reads that find no change, since there could be any
/// number of them.
const POLL: u32 = 50;

pub(crate) const EXCLUSION: &str = "a granted lock was free, and conflicting locks are not held together";
pub(crate) const ORDER: &str = "locks are granted in the order of the queue";
pub(crate) const TOKENS: &str = "tokens rise in each directory";
pub(crate) const OWN_ONLY: &str = "no contender deletes the znode of another";
pub(crate) const CLEAN: &str = "clean is reported only of a holder that released";
pub(crate) const CRASHED: &str = "crashed is reported only of a holder that did not release, and always then";
pub(crate) const TAKEN_BACK: &str = "a contender that gives up overwrites only a record that it wrote";
pub(crate) const RECORD: &str = "foreign data in the record stays there";
pub(crate) const TOLD: &str = "a successor is told that its predecessor released";
pub(crate) const DOWNGRADE: &str = "no writer comes between a writer and the reader that it becomes";
pub(crate) const UPGRADE: &str = "one of several readers that upgrade becomes a writer";
pub(crate) const ENDS: &str = "every client is told how its acquisition ended, once";
pub(crate) const ASKED: &str = "a holder is told once that it should release";
pub(crate) const PROGRESS: &str = "no client waits forever";
pub(crate) const PROMPT: &str = "no client waits for a lock that is free";
pub(crate) const NOTHING_LEFT: &str = "an acquisition leaves no znode behind";
/// States that a search must reach. A search that does not reach them fails, so a search that stops
/// too early cannot pass. Only scenarios with several directories have `HELD`.
const HELD: &str = "a client holds several locks";
const ALL_OVER: &str = "all clients are done";

impl Model for Locks {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if let Some(step) = (0..world.clients.len()).find_map(|i| self.find_invisible_step(world, i)) {
            steps.push(step);
            return;
        }
        self.add_usual_steps(world, steps);
        self.add_faults(world, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        self.carry_out(&mut next, step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Locks>> {
        let mut properties = vec![
            Property::always(EXCLUSION, |model: &Locks, w: &World| {
                !w.has(Violation::NeverFirst) && !too_many_hold(w, &model.0)
            }),
            Property::always(ORDER, |_, w: &World| !w.has(Violation::OutOfTurn)),
            Property::always(TOKENS, |_, w: &World| !w.has(Violation::TokenFell)),
            Property::always(OWN_ONLY, |_, w: &World| !w.has(Violation::DeletedAnothers)),
            Property::always(CLEAN, |_, w: &World| !w.has(Violation::FalseClean)),
            Property::always(CRASHED, |_, w: &World| {
                !w.has(Violation::FalseCrash) && !w.has(Violation::UntoldCrash)
            }),
            Property::always(TAKEN_BACK, |_, w: &World| !w.has(Violation::WroteOverAnothers)),
            Property::always(RECORD, |_, w: &World| !w.has(Violation::WroteOver)),
            Property::always(TOLD, |_, w: &World| !w.has(Violation::Untold)),
            Property::always(DOWNGRADE, |_, w: &World| !w.has(Violation::WriterBetween)),
            Property::always(UPGRADE, |model: &Locks, w: &World| !model.none_upgraded(w)),
            Property::always(ENDS, |_, w: &World| !w.has(Violation::FalseEnd)),
            Property::always(ASKED, |_, w: &World| !w.has(Violation::FalseRevoke)),
            Property::always(PROGRESS, |model: &Locks, w: &World| !model.is_stuck(w)),
            Property::always(PROMPT, |model: &Locks, w: &World| !model.is_forgotten(w)),
            Property::always(NOTHING_LEFT, |model: &Locks, w: &World| !model.something_left(w)),
            Property::sometimes(ALL_OVER, |_, w: &World| !w.clients.iter().any(|client| client.is_running())),
        ];
        if self.0.directories.len() > 1 {
            properties.push(Property::sometimes(HELD, |model: &Locks, w: &World| model.several_are_held(w)));
        }
        properties
    }
}

/// Returns whether the client's next request is a create outside a transaction. The connected
/// server can refuse such a create without the leader, but it passes every transaction to the
/// leader.
fn is_create(client: &Client) -> bool {
    client.requests.first().is_some_and(|sent| sent.request == Request::Join && sent.release.is_none())
}

/// Returns whether the lock is granted, and the caller has not taken the grant.
fn awaits_claim(client: &Client) -> bool {
    client.ghost.granted && !client.ghost.claimed
}

/// Returns whether this timer polls a retired directory that still has contenders.
fn is_vain(world: &World, client: &Client, timer: &Timer) -> bool {
    timer.duration == POLL && !client.view(&world.leader).children(timer.at).is_empty()
}

impl Locks {
    /// Returns the name of a property that this state violates, if there is one.
    pub(crate) fn violated_property(&self, world: &World) -> Option<&'static str> {
        let must = |property: &Property<Locks>| property.expectation == Expectation::Always;
        let broken = |property: &Property<Locks>| !(property.condition)(self, world);
        self.properties().into_iter().filter(must).find(broken).map(|property| property.name)
    }

    /// Returns whether a finished acquisition still has a znode, while its session exists. A session that looks for strays
    /// may have one for a while: the step `DeleteStrays` follows.
    fn something_left(&self, world: &World) -> bool {
        (0..world.leader.0.len()).flat_map(|at| world.leader.children(at)).any(|child| {
            let client = &world.clients[child.owner as usize];
            let is_left = client.session && (client.stage == Stage::Done || child.round < client.round);
            is_left && !self.deletes_strays(client)
        })
    }

    /// Returns a step of this client that no other client sees and that no fault can disturb, if
    /// there is one. The search takes such a step first, and takes no other step instead: all other
    /// orders of these steps lead to the same states.
    fn find_invisible_step(&self, world: &World, i: usize) -> Option<Step> {
        let (client, budget) = (&world.clients[i], &world.budget);
        let ghost = &client.ghost;
        let cancellable = budget.cancels > 0 && !ghost.claimed && !ghost.gave_up;
        let touchable = cancellable
            || awaits_claim(client)
            || budget.disconnects + budget.retakes + budget.lapses + budget.crashes > 0
            || !client.lease;
        if touchable || !client.is_running() {
            return None;
        }
        if !client.inbox.is_empty() {
            return Some(Step::Deliver(i as u8));
        }
        let timer = client.timers.iter().position(|timer| timer.duration != POLL)?;
        Some(Step::Wake(i as u8, timer as u8))
    }

    /// Adds the steps that are no faults.
    pub(crate) fn add_usual_steps(&self, world: &World, steps: &mut Vec<Step>) {
        for (i, client) in (0u8..).zip(&world.clients) {
            let at = usize::from(i);
            if client.follower.is_some() {
                steps.push(Step::Apply(i));
            }
            if self.is_next(world, at) && self.may_arrive(world, at) {
                steps.push(Step::Process(i));
            }
            if self.deletes_strays(client)
                && client.stage != Stage::Crashed
                && !world.strays(at, &self.0).is_empty()
            {
                steps.push(Step::DeleteStrays(i));
            }
            if client.session && client.stage == Stage::Crashed {
                steps.push(Step::Expire(i));
            }
            if !client.lease && self.has_session_of_use(world, at) {
                steps.extend([Step::RenewLease(i), Step::Expire(i)]);
            }
            if !client.is_running() {
                continue;
            }
            if !client.inbox.is_empty() {
                steps.push(Step::Deliver(i));
            }
            for (timer, what) in (0u8..).zip(&client.timers) {
                if !is_vain(world, client, what) {
                    steps.push(Step::Wake(i, timer));
                }
            }
            if awaits_claim(client) && !client.ghost.forgotten {
                steps.push(Step::Claim(i));
            }
            let holds = client.ghost.claimed && !client.ghost.released;
            if holds && !self.is_upgrading(world, at) && self.inner_is_done(world, at) {
                steps.push(Step::Release(i));
                if self.0.plans[at] == Plan::WriteThenRead && !client.ghost.downgrading {
                    steps.push(Step::Downgrade(i));
                }
            }
        }
    }

    /// Returns whether the client's session looks for strays, and belongs to this client.
    fn deletes_strays(&self, client: &Client) -> bool {
        client.session && client.retaken && !self.0.has(Bug::KeepsStrays)
    }

    /// Returns whether this client's session exists and belongs to the client itself, and an
    /// acquisition runs on the session. A fault of a session is a step of the client to which the
    /// session belongs.
    fn has_session_of_use(&self, world: &World, i: usize) -> bool {
        let runs = |mate: usize| world.clients[mate].is_running();
        world.clients[i].session && self.0.session(i) == i && self.0.same_session(i).any(runs)
    }

    /// Returns whether the caller waits for an upgrade of this reader. The caller does not release
    /// the reader meanwhile.
    fn is_upgrading(&self, world: &World, i: usize) -> bool {
        self.0.upgrade_of(i).is_some_and(|j| {
            let upgrade = &world.clients[j];
            upgrade.is_running() && !upgrade.ghost.claimed && !upgrade.ghost.gave_up
        })
    }

    /// Returns whether the locks inside this client's lock have been acquired and released.
    fn inner_is_done(&self, world: &World, i: usize) -> bool {
        let inner = |plan: &Plan| *plan == Plan::Inside(i as u8);
        let done = |client: &Shared<Client>| client.arrived && !client.is_running();
        self.0.plans.iter().zip(&world.clients).all(|(plan, client)| !inner(plan) || done(client))
    }

    /// Returns whether the next request of the session is from this client.
    fn is_next(&self, world: &World, i: usize) -> bool {
        let next = |client: &Client| client.requests.first().map(|sent| sent.order);
        let mates = self.0.same_session(i).filter_map(|mate| next(&world.clients[mate]));
        next(&world.clients[i]).is_some_and(|order| mates.min() == Some(order))
    }

    /// Returns whether the search lets the server carry out the client's request now. Clients that
    /// differ only in their indices queue in the order of their indices, because any other order
    /// only swaps these clients.
    fn may_arrive(&self, world: &World, i: usize) -> bool {
        if self.0.tries || self.0.plans[i].is_upgrade() {
            return true;
        }
        let before = (0..i).rev().find(|&j| self.0.are_alike(i, j)).map(|before| &world.clients[before]);
        before.is_none_or(|before| before.arrived || !before.is_running() || before.round > 0)
    }

    /// Returns whether all clients are done without a fault, and no reader that tried to upgrade became a writer.
    fn none_upgraded(&self, world: &World) -> bool {
        let began = |(plan, client): (&Plan, &Shared<Client>)| plan.is_upgrade() && client.round > 0;
        let wanted = self.0.plans.iter().zip(&world.clients).any(began);
        let over = !world.clients.iter().any(|client| client.is_running());
        // With other contenders in the queue, all upgrades may be blocked. Then all of them fail, which is no violation.
        let among_two = self.0.plans.len() <= 4 && self.0.rounds == 1 && !self.0.ends();
        let upgrades = |i: usize| self.0.plans[i].is_upgrade() || self.0.upgrade_of(i).is_some();
        let among_themselves = among_two && (0..self.0.plans.len()).all(upgrades);
        wanted
            && over
            && among_themselves
            && world.history.upgrades == 0
            && self.0.budget == Budget::default()
            && !self.0.tries
    }

    /// Returns whether a client holds more than one lock, at once or one inside another.
    fn several_are_held(&self, world: &World) -> bool {
        let several = |i: usize| self.0.wants[i].len() > 1 || self.0.plans[i].outer().is_some();
        (0..world.clients.len()).any(|i| several(i) && holding(world, i, &self.0).is_some())
    }

    /// Adds the faults that the budget allows.
    pub(crate) fn add_faults(&self, world: &World, steps: &mut Vec<Step>) {
        let budget = &world.budget;
        for (i, client) in (0u8..).zip(&world.clients) {
            let (at, ghost) = (usize::from(i), &client.ghost);
            let next = |client: &Client| client.late.first().map(|sent| sent.order);
            let mates = self.0.same_session(at).filter_map(|mate| next(&world.clients[mate]));
            if next(client).is_some() && mates.min() == next(client) {
                steps.push(Step::Late(i));
            }
            if budget.negatives > 0 && self.is_next(world, at) && self.is_past_the_end(world, at) {
                steps.push(Step::Negative(i));
            }
            // A fault of the session strikes all clients on it.
            if self.has_session_of_use(world, at) {
                let something_to_lose = |j: usize| {
                    let client = &world.clients[j];
                    !client.requests.is_empty() || !client.inbox.is_empty() || !client.watches.is_empty()
                };
                if budget.disconnects > 0 && self.0.same_session(at).any(something_to_lose) {
                    steps.push(Step::Disconnect(i));
                }
                if budget.retakes > 0
                    && self.0.same_session(at).any(|mate| !world.clients[mate].refused.is_empty())
                {
                    steps.extend((0..=client.refused.len() as u8).map(|lost| Step::Retake(i, lost)));
                }
                if budget.lapses > 0 && self.0.has(Bug::GoesOnInTheNextSession) {
                    let joining = client.machine().is_some_and(|machine| machine.node(0).is_none());
                    if joining && something_to_lose(at) {
                        steps.push(Step::NextSession(i));
                    }
                } else if budget.lapses > 0 && client.lease {
                    steps.push(Step::LoseLease(i));
                }
                if budget.crashes > 0 {
                    steps.push(Step::Crash(i));
                }
            }
            if !client.is_running() || !client.session {
                continue;
            }
            if budget.panics > 0 && ghost.claimed && !ghost.released && !self.is_upgrading(world, at) {
                steps.push(Step::Panic(i));
            }
            if budget.cancels > 0 && !ghost.claimed && !ghost.gave_up {
                steps.push(Step::Cancel(i));
                // A deadline limits only the waiting.
                steps.extend((!ghost.granted).then_some(Step::TimeOut(i)));
            }
            if budget.forgets > 0 && awaits_claim(client) && !ghost.forgotten {
                steps.push(Step::Forget(i));
            }
            if budget.throttles > 0 && self.is_next(world, at) {
                steps.push(Step::Throttle(i));
            }
            if budget.denials > 0 && self.is_next(world, at) && is_create(client) {
                steps.push(Step::Deny(i));
            }
            if budget.lags > 0 && client.follower.is_none() {
                steps.push(Step::Lag(i));
            }
            for (timer, what) in (0u8..).zip(&client.timers) {
                if budget.polls > 0 && is_vain(world, client, what) {
                    steps.push(Step::Poll(i, timer));
                }
            }
        }
        (0..world.leader.0.len()).for_each(|at| self.add_operator_changes(world, at, steps));
    }

    /// Adds the changes to a directory that the budget allows to operators and to other software.
    fn add_operator_changes(&self, world: &World, index: usize, steps: &mut Vec<Step>) {
        let (budget, at) = (&world.budget, index as u8);
        let Some(directory) = &world.leader.0[index] else {
            if budget.copies > 0 && world.history.last_record != Record::Empty {
                steps.push(Step::Copy(at));
            }
            return;
        };
        let children = directory.children.iter();
        if budget.removals > 0 && !directory.children.is_empty() {
            steps.push(Step::RemoveAll(at));
        }
        if budget.breaks > 0 {
            steps.extend(children.clone().map(|child| Step::Break(at, child.name)));
        }
        if budget.reaps > 0 && directory.child_count() == 0 {
            steps.push(Step::Reap(at));
        }
        if budget.scribbles > 0 {
            steps.push(Step::Scribble(at));
        }
        if let Some(size) = world.leader.size(index).filter(|_| budget.resizes > 0) {
            let least = self.0.plans.iter().map(|plan| match plan {
                Plan::Permits { take, .. } => *take,
                _ => 0,
            });
            steps.push(Step::Resize(at, size + 1));
            // The size must not fall below the permits that one client takes, because that client
            // would then wait for ever.
            let smaller = Some(size - 1).filter(|&size| least.max() <= Some(size));
            steps.extend(smaller.map(|size| Step::Resize(at, size)));
        }
        if budget.revokes > 0 {
            steps.extend(children.filter(|child| !child.revoked).map(|child| Step::Revoke(at, child.name)));
        }
    }

    fn is_past_the_end(&self, world: &World, i: usize) -> bool {
        let at = self.0.wants[i][0];
        let counter = world.leader.0[at].as_ref().map_or(0, |directory| directory.counter);
        let join = Request::Join;
        counter >= self.0.last && world.clients[i].requests.first().is_some_and(|sent| sent.request == join)
    }

    pub(crate) fn carry_out(&self, world: &mut World, step: Step) {
        let scenario = &self.0;
        self.spend(&mut world.budget, step);
        match step {
            Step::Process(i) => world.process(i as usize, Handling::Usual, scenario),
            Step::Negative(i) => world.process(i as usize, Handling::Negative, scenario),
            Step::Throttle(i) => world.process(i as usize, Handling::Throttled, scenario),
            Step::Deny(i) => world.process(i as usize, Handling::Denied, scenario),
            Step::Deliver(i) => world.deliver(i as usize, scenario),
            Step::Wake(i, timer) | Step::Poll(i, timer) => world.wake(i as usize, timer as usize, scenario),
            Step::Apply(i) => world.apply_at_follower(i as usize),
            Step::Claim(i) => world.claim(i as usize, scenario),
            Step::Forget(i) => world.clients[i as usize].ghost.forgotten = true,
            Step::Release(i) => world.release(i as usize, HolderState::Released, scenario),
            Step::Panic(i) => world.release(i as usize, HolderState::Panicked, scenario),
            Step::Downgrade(i) => world.downgrade(i as usize, scenario),
            Step::RenewLease(i) => world.renew_lease(i as usize, scenario),
            Step::Expire(i) => world.expire(i as usize, scenario),
            Step::Retake(i, lost) => world.retake(i as usize, lost as usize, scenario),
            Step::DeleteStrays(i) => world.delete_strays(i as usize, scenario),
            Step::Late(i) => world.arrive_late(i as usize, scenario),
            Step::Cancel(i) => world.give_up(i as usize, false, scenario),
            Step::TimeOut(i) => world.give_up(i as usize, true, scenario),
            Step::Disconnect(i) => {
                scenario.same_session(i as usize).for_each(|mate| world.disconnect(mate, scenario));
            }
            Step::Lag(i) => world.make_follower_lag(i as usize),
            Step::LoseLease(i) => world.lose_lease(i as usize, scenario),
            Step::NextSession(i) => world.next_session(i as usize, scenario),
            Step::Crash(i) => world.crash(i as usize, scenario),
            Step::RemoveAll(at) => world.remove_all(at as usize, scenario),
            Step::Reap(at) => world.remove_directory(at as usize, None, scenario),
            Step::Copy(at) => world.copy_directory(at as usize, scenario),
            Step::Revoke(at, name) => {
                world.on_asked(at as usize, name);
                world.commit(vec![(at as usize, Op::Revoke(name))], None, scenario);
            }
            Step::Break(at, name) => world.commit(vec![(at as usize, Op::Delete(name))], None, scenario),
            Step::Scribble(at) => {
                world.commit(vec![(at as usize, Op::Write(Record::Foreign))], None, scenario);
            }
            Step::Resize(at, permits) => {
                let at = at as usize;
                let directory = Zxid(world.leader.created(at).expect("semaphore directory exists"));
                let record = Record::Semaphore(Size { directory, permits });
                world.commit(vec![(at, Op::Write(record)), (at, Op::TouchChildren)], None, scenario);
            }
        }
    }

    /// Takes a fault from the budget.
    fn spend(&self, budget: &mut Budget, step: Step) {
        let fault = match step {
            Step::Panic(_) => &mut budget.panics,
            Step::Cancel(_) | Step::TimeOut(_) => &mut budget.cancels,
            Step::Disconnect(_) => &mut budget.disconnects,
            Step::Retake(..) => &mut budget.retakes,
            Step::Throttle(_) => &mut budget.throttles,
            Step::Deny(_) => &mut budget.denials,
            Step::Lag(_) => &mut budget.lags,
            Step::LoseLease(_) | Step::NextSession(_) => &mut budget.lapses,
            Step::Crash(_) => &mut budget.crashes,
            Step::Negative(_) => &mut budget.negatives,
            Step::Poll(..) => &mut budget.polls,
            Step::RemoveAll(_) => &mut budget.removals,
            Step::Break(..) => &mut budget.breaks,
            Step::Reap(_) => &mut budget.reaps,
            Step::Copy(_) => &mut budget.copies,
            Step::Scribble(_) => &mut budget.scribbles,
            Step::Resize(..) => &mut budget.resizes,
            Step::Revoke(..) => &mut budget.revokes,
            Step::Forget(_) => &mut budget.forgets,
            _ => return,
        };
        *fault -= 1;
    }

    /// Returns whether nothing can happen without a fault, every holder has released, and an
    /// acquisition still runs.
    fn is_stuck(&self, world: &World) -> bool {
        let mut steps = Vec::new();
        self.add_usual_steps(world, &mut steps);
        steps.is_empty() && world.clients.iter().any(|client| client.is_running())
    }

    /// Returns whether a client waits though no conflicting znode is before its own, and nothing
    /// can happen without a fault until a holder releases or downgrades.
    fn is_forgotten(&self, world: &World) -> bool {
        let mut steps = Vec::new();
        self.add_usual_steps(world, &mut steps);
        let quiet = steps.iter().all(|step| matches!(step, Step::Release(_) | Step::Downgrade(_)));
        quiet
            && world.clients.iter().enumerate().any(|(i, client)| {
                let (tree, ghost) = (&world.leader, &client.ghost);
                let waits = client.is_running() && !ghost.granted && !ghost.gave_up;
                let clear = |czxid| {
                    self.0.wants[i].iter().all(|&at| {
                        let child = tree.created_by(at, czxid);
                        child.is_some_and(|child| is_clear(tree, at, child, ghost.reader, self.0.plans[i]))
                    })
                };
                waits && ghost.traces.iter().any(|trace| clear(trace.czxid))
            })
    }
}
