//! What can happen next, and what must never be.

use stateright::{Expectation, Model, Property};
use zoolock_core::contender::Request;
use zoolock_core::record::{Left, Size};
use zoolock_core::{Record, Zxid};

use crate::bugs::Bug;
use crate::ghost::Foul;
use crate::plan::Plan;
use crate::scenario::{Budget, Scenario};
use crate::shared::Shared;
use crate::tenure::{End, holding, is_clear, too_many_hold};
use crate::tree::{Name, Op};
use crate::world::{Client, Stage, World};

/// The machine in a world where things go wrong.
#[derive(Clone, Debug)]
pub(crate) struct Lock(pub(crate) Scenario);

/// One thing that happens. Numbers are clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// The server carries out the client's next request.
    Process(u8),
    /// The client hears the next reply or event.
    Deliver(u8),
    /// A pause of the client ends.
    Wake(u8, u8),
    /// The client's follower applies one transaction.
    Apply(u8),
    /// The holder lets go.
    Release(u8),
    /// The writer goes on as a reader.
    Downgrade(u8),
    RenewLease(u8),
    Expire(u8),
    // What follows is bad luck, within the budget.
    Panic(u8),
    Cancel(u8),
    TimeOut(u8),
    Disconnect(u8),
    /// A write from before a disconnect arrives after all.
    Late(u8),
    Lag(u8),
    LoseLease(u8),
    NextSession(u8),
    Crash(u8),
    /// Process a create as one that is prepared behind another, past the end of the numbers.
    Negative(u8),
    /// A retired directory is looked at though nothing has changed.
    Poll(u8, u8),
    RemoveAll,
    Break(Name),
    Reap,
    Copy,
    Scribble,
    Resize(u32),
}

/// The pause between two looks at a retired directory. Any number of looks that find it as it was are one look.
const POLL: u32 = 50;

pub(crate) const EXCLUSION: &str =
    "whoever is granted the lock had nobody in its way, and none hold it who exclude each other";
pub(crate) const ORDER: &str = "the lock is granted in the order of the queue";
pub(crate) const TOKENS: &str = "tokens rise";
pub(crate) const OWN_ONLY: &str = "no contender deletes another's node";
pub(crate) const CLEAN: &str = "clean is said only of a holder that released";
pub(crate) const CRASHED: &str =
    "crashed is said only of a holder that went without releasing, and then it is said";
pub(crate) const TAKEN_BACK: &str = "whoever gives up takes back only what it wrote";
pub(crate) const RECORD: &str = "what others write into the record stays there";
pub(crate) const TOLD: &str = "whoever is next knows that the one before it released the lock";
pub(crate) const DOWNGRADE: &str = "no writer comes between a writer and the reader that it becomes";
pub(crate) const UPGRADE: &str = "of those that read and want to write one does";
pub(crate) const ENDS: &str = "every contender is told its end, once, and as it was";
pub(crate) const PROGRESS: &str = "nobody waits for ever";
pub(crate) const PROMPT: &str = "nobody waits for a lock that is free";
pub(crate) const NOTHING_LEFT: &str = "nothing is left behind";
/// What a search has to reach, or it has searched nothing.
pub(crate) const HANDED_ON: &str = "a lock that was released is held again";
pub(crate) const ALL_OVER: &str = "everybody is done";

impl Model for Lock {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.0)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if let Some(step) = (0..world.clients.len()).find_map(|i| self.unseen(world, i)) {
            steps.push(step);
            return;
        }
        self.usual(world, steps);
        self.unlucky(world, steps);
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        self.take(&mut next, step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Lock>> {
        vec![
            Property::always(EXCLUSION, |_, w: &World| !w.committed(Foul::NeverFirst) && !too_many_hold(w)),
            Property::always(ORDER, |_, w: &World| !w.committed(Foul::OutOfTurn)),
            Property::always(TOKENS, |_, w: &World| !w.committed(Foul::TokenFell)),
            Property::always(OWN_ONLY, |_, w: &World| !w.committed(Foul::DeletedAnothers)),
            Property::always(CLEAN, |_, w: &World| !w.committed(Foul::FalseClean)),
            Property::always(CRASHED, |_, w: &World| {
                !w.committed(Foul::FalseCrash) && !w.committed(Foul::UntoldCrash)
            }),
            Property::always(TAKEN_BACK, |_, w: &World| !w.committed(Foul::WroteOverAnothers)),
            Property::always(RECORD, |_, w: &World| !w.committed(Foul::WroteOver)),
            Property::always(TOLD, |_, w: &World| !w.committed(Foul::Untold)),
            Property::always(DOWNGRADE, |_, w: &World| !w.committed(Foul::SomebodyBetween)),
            Property::always(UPGRADE, |model: &Lock, w: &World| !model.nobody_upgraded(w)),
            Property::always(ENDS, |_, w: &World| !w.committed(Foul::FalseEnd)),
            Property::always(PROGRESS, |model: &Lock, w: &World| !model.is_stuck(w)),
            Property::always(PROMPT, |model: &Lock, w: &World| !model.is_forgotten(w)),
            Property::always(NOTHING_LEFT, |_, w: &World| !something_left(w)),
            Property::sometimes(HANDED_ON, |_, w: &World| {
                let held = w.clients.iter().any(|client| holding(w, client).is_some());
                held && w.tenures.iter().any(|tenure| tenure.end == End::Clean)
            }),
            Property::sometimes(ALL_OVER, |_, w: &World| !w.clients.iter().any(|client| client.is_running())),
        ]
    }
}

/// A node of an acquisition that is over, while its session lives.
fn something_left(world: &World) -> bool {
    world.leader.children().iter().any(|child| {
        let client = &world.clients[child.owner as usize];
        client.session && (client.stage == Stage::Done || child.round < client.round)
    })
}

impl Lock {
    /// The property that this state violates.
    pub(crate) fn broken(&self, world: &World) -> Option<&'static str> {
        let must = |property: &Property<Lock>| property.expectation == Expectation::Always;
        let broken = |property: &Property<Lock>| !(property.condition)(self, world);
        self.properties().into_iter().filter(must).find(broken).map(|property| property.name)
    }

    /// A step of one client that nobody else can see, that nothing can come between, and that only makes what
    /// follows possible earlier: no other order of it has to be searched.
    fn unseen(&self, world: &World, i: usize) -> Option<Step> {
        let (client, budget) = (&world.clients[i], &world.budget);
        let ghost = &client.ghost;
        let cancellable = budget.cancels > 0 && !ghost.granted && !ghost.gave_up;
        let touchable =
            cancellable || budget.disconnects + budget.lapses + budget.crashes > 0 || !client.lease;
        if touchable || !client.is_running() {
            return None;
        }
        if !client.inbox.is_empty() {
            return Some(Step::Deliver(i as u8));
        }
        let at = client.sleeps.iter().position(|&(_, duration)| duration != POLL)?;
        Some(Step::Wake(i as u8, at as u8))
    }

    /// What happens if nothing goes wrong.
    pub(crate) fn usual(&self, world: &World, steps: &mut Vec<Step>) {
        for (i, client) in (0u8..).zip(&world.clients) {
            if client.follower.is_some() {
                steps.push(Step::Apply(i));
            }
            if self.is_next(world, i as usize) && self.may_arrive(world, i as usize) {
                steps.push(Step::Process(i));
            }
            if client.session && !client.is_running() && client.stage == Stage::Crashed {
                steps.push(Step::Expire(i));
            }
            if !client.is_running() {
                continue;
            }
            if !client.inbox.is_empty() {
                steps.push(Step::Deliver(i));
            }
            for (at, &(_, duration)) in (0u8..).zip(&client.sleeps) {
                if duration != POLL || client.view(&world.leader).children().is_empty() {
                    steps.push(Step::Wake(i, at));
                }
            }
            if client.ghost.granted && !client.ghost.released && !self.is_upgrading(world, i as usize) {
                steps.push(Step::Release(i));
                if self.0.clients[i as usize] == Plan::WriteThenRead && !client.ghost.downgrading {
                    steps.push(Step::Downgrade(i));
                }
            }
            // A lease is the session's.
            if client.session && !client.lease && self.0.session(i as usize) == i as usize {
                steps.extend([Step::RenewLease(i), Step::Expire(i)]);
            }
        }
    }

    /// The caller waits to become a writer, so it does not let go.
    fn is_upgrading(&self, world: &World, i: usize) -> bool {
        self.0.upgrade_of(i).is_some_and(|j| {
            let upgrade = &world.clients[j];
            upgrade.is_running() && !upgrade.ghost.granted && !upgrade.ghost.gave_up
        })
    }

    /// Whether a request of this client is the next one of its session.
    fn is_next(&self, world: &World, i: usize) -> bool {
        let next = |client: &Client| client.requests.first().map(|sent| sent.order);
        let mates = self.0.mates(i).filter_map(|mate| next(&world.clients[mate]));
        next(&world.clients[i]).is_some_and(|order| mates.min() == Some(order))
    }

    /// Clients that differ in nothing but their number come in its order.
    fn may_arrive(&self, world: &World, i: usize) -> bool {
        if self.0.tries || self.0.clients[i].is_upgrade() {
            return true;
        }
        let before = (0..i).rev().find(|&j| self.0.are_alike(i, j)).map(|before| &world.clients[before]);
        before.is_none_or(|before| before.arrived || !before.is_running() || before.round > 0)
    }

    /// Nothing went wrong, everybody is done, and nobody who wanted it has become a writer.
    fn nobody_upgraded(&self, world: &World) -> bool {
        let began = |(plan, client): (&Plan, &Shared<Client>)| plan.is_upgrade() && client.round > 0;
        let wanted = self.0.clients.iter().zip(&world.clients).any(began);
        let over = !world.clients.iter().any(|client| client.is_running());
        // Others in the queue may be in the way of all of them, and then all are told.
        let among_two = self.0.clients.len() <= 4 && self.0.rounds == 1 && self.0.last == 99;
        let all = |i: usize| self.0.clients[i].is_upgrade() || self.0.upgrade_of(i).is_some();
        let among_themselves = among_two && (0..self.0.clients.len()).all(all);
        wanted
            && over
            && among_themselves
            && world.upgraded == 0
            && self.0.budget == Budget::NONE
            && !self.0.tries
    }

    pub(crate) fn unlucky(&self, world: &World, steps: &mut Vec<Step>) {
        let budget = &world.budget;
        for (i, client) in (0u8..).zip(&world.clients) {
            let ghost = &client.ghost;
            let next = |client: &Client| client.late.first().map(|sent| sent.order);
            let mates = self.0.mates(i as usize).filter_map(|mate| next(&world.clients[mate]));
            if next(client).is_some() && mates.min() == next(client) {
                steps.push(Step::Late(i));
            }
            if budget.negatives > 0
                && self.is_next(world, i as usize)
                && self.is_past_the_end(world, i as usize)
            {
                steps.push(Step::Negative(i));
            }
            if !client.is_running() || !client.session {
                continue;
            }
            if budget.panics > 0 && ghost.granted && !ghost.released && !self.is_upgrading(world, i as usize)
            {
                steps.push(Step::Panic(i));
            }
            if budget.cancels > 0 && !ghost.granted && !ghost.gave_up {
                steps.extend([Step::Cancel(i), Step::TimeOut(i)]);
            }
            if budget.lags > 0 && client.follower.is_none() {
                steps.push(Step::Lag(i));
            }
            // What happens to the session happens to all on it.
            if self.0.session(i as usize) == i as usize {
                let something_to_lose = |j: usize| {
                    let client = &world.clients[j];
                    !client.requests.is_empty() || !client.inbox.is_empty() || !client.watches.is_empty()
                };
                if budget.disconnects > 0 && self.0.mates(i as usize).any(something_to_lose) {
                    steps.push(Step::Disconnect(i));
                }
                if budget.lapses > 0 && self.0.has(Bug::GoesOnInTheNextSession) {
                    let joining = client.machine().is_some_and(|machine| machine.node().is_none());
                    if joining && something_to_lose(i as usize) {
                        steps.push(Step::NextSession(i));
                    }
                } else if budget.lapses > 0 && client.lease {
                    steps.push(Step::LoseLease(i));
                }
                if budget.crashes > 0 {
                    steps.push(Step::Crash(i));
                }
            }
            for (at, &(_, duration)) in (0u8..).zip(&client.sleeps) {
                if budget.polls > 0 && duration == POLL && !client.view(&world.leader).children().is_empty() {
                    steps.push(Step::Poll(i, at));
                }
            }
        }
        self.meddling(world, steps);
    }

    /// What operators and other software do to the directory.
    fn meddling(&self, world: &World, steps: &mut Vec<Step>) {
        let budget = &world.budget;
        let Some(directory) = &world.leader.0 else {
            if budget.copies > 0 && world.backup != Record::Empty {
                steps.push(Step::Copy);
            }
            return;
        };
        if budget.removals > 0 && !directory.children.is_empty() {
            steps.push(Step::RemoveAll);
        }
        if budget.breaks > 0 {
            steps.extend(directory.children.iter().map(|child| Step::Break(child.name)));
        }
        if budget.reaps > 0 && directory.children.is_empty() {
            steps.push(Step::Reap);
        }
        if budget.scribbles > 0 {
            steps.push(Step::Scribble);
        }
        if let Some(size) = world.leader.size().filter(|_| budget.resizes > 0) {
            let least = self.0.clients.iter().map(|plan| match plan {
                Plan::Permits { take, .. } => *take,
                _ => 0,
            });
            steps.push(Step::Resize(size + 1));
            // A weight that never fits again waits until its deadline.
            steps.extend(Some(size - 1).filter(|&size| least.max() <= Some(size)).map(Step::Resize));
        }
    }

    fn is_past_the_end(&self, world: &World, i: usize) -> bool {
        let counter = world.leader.0.as_ref().map_or(0, |directory| directory.counter);
        let join = Request::Join;
        counter >= self.0.last && world.clients[i].requests.first().is_some_and(|sent| sent.request == join)
    }

    pub(crate) fn take(&self, world: &mut World, step: Step) {
        let scenario = &self.0;
        match step {
            Step::Process(i) => world.process(i as usize, false, scenario),
            Step::Deliver(i) => world.deliver(i as usize, scenario),
            Step::Wake(i, at) => world.wake(i as usize, at as usize, scenario),
            Step::Apply(i) => world.apply(i as usize),
            Step::Release(i) => world.release(i as usize, Left::Released, scenario),
            Step::Downgrade(i) => world.downgrade(i as usize, scenario),
            Step::RenewLease(i) => world.renew_lease(i as usize, scenario),
            Step::Expire(i) => world.expire(i as usize, scenario),
            Step::Late(i) => world.arrive_late(i as usize, scenario),
            Step::Panic(i) => {
                world.budget.panics -= 1;
                world.release(i as usize, Left::Panicked, scenario);
            }
            Step::Cancel(i) => {
                world.budget.cancels -= 1;
                world.give_up(i as usize, false, scenario);
            }
            Step::TimeOut(i) => {
                world.budget.cancels -= 1;
                world.give_up(i as usize, true, scenario);
            }
            Step::Disconnect(i) => {
                world.budget.disconnects -= 1;
                for mate in scenario.mates(i as usize) {
                    world.disconnect(mate, scenario);
                }
            }
            Step::Lag(i) => {
                world.budget.lags -= 1;
                world.lag(i as usize);
            }
            Step::LoseLease(i) => {
                world.budget.lapses -= 1;
                world.lose_lease(i as usize, scenario);
            }
            Step::NextSession(i) => {
                world.budget.lapses -= 1;
                world.next_session(i as usize, scenario);
            }
            Step::Crash(i) => {
                world.budget.crashes -= 1;
                world.crash(i as usize, scenario);
            }
            Step::Negative(i) => {
                world.budget.negatives -= 1;
                world.process(i as usize, true, scenario);
            }
            Step::Poll(i, at) => {
                world.budget.polls -= 1;
                world.wake(i as usize, at as usize, scenario);
            }
            Step::RemoveAll => {
                world.budget.removals -= 1;
                while let Some(child) = world.leader.children().first() {
                    let name = child.name;
                    world.commit(vec![Op::Delete(name)], None, scenario);
                }
                world.remove_directory(None, scenario);
            }
            Step::Break(name) => {
                world.budget.breaks -= 1;
                world.commit(vec![Op::Delete(name)], None, scenario);
            }
            Step::Reap => {
                world.budget.reaps -= 1;
                world.remove_directory(None, scenario);
            }
            Step::Copy => {
                world.budget.copies -= 1;
                world.commit(vec![Op::Make(world.backup)], None, scenario);
            }
            Step::Scribble => {
                world.budget.scribbles -= 1;
                world.commit(vec![Op::Write(Record::Foreign)], None, scenario);
            }
            Step::Resize(permits) => {
                world.budget.resizes -= 1;
                let directory = Zxid(world.leader.created().expect("it has a size"));
                let record = Record::Semaphore(Size { directory, permits });
                world.commit(vec![Op::Write(record), Op::Ring], None, scenario);
            }
        }
    }

    /// Everything that can happen without bad luck has happened, every holder has let go, and somebody still waits.
    fn is_stuck(&self, world: &World) -> bool {
        let mut steps = Vec::new();
        self.usual(world, &mut steps);
        steps.is_empty() && world.clients.iter().any(|client| client.is_running())
    }

    /// Nothing can happen until a holder lets go, and somebody waits that nobody stands in the way of.
    fn is_forgotten(&self, world: &World) -> bool {
        let mut steps = Vec::new();
        self.usual(world, &mut steps);
        let quiet = steps.iter().all(|step| matches!(step, Step::Release(_) | Step::Downgrade(_)));
        quiet
            && world.clients.iter().zip(&self.0.clients).any(|(client, plan)| {
                let (tree, ghost) = (&world.leader, &client.ghost);
                let waits = client.is_running() && !ghost.granted && !ghost.gave_up;
                let clear = |czxid| {
                    let child = tree.children().iter().find(|child| child.czxid == czxid);
                    child.is_some_and(|child| is_clear(tree, child, ghost.from, *plan))
                };
                waits && ghost.traces.iter().any(|trace| clear(trace.czxid))
            })
    }
}
