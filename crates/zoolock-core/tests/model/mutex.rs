//! What can happen next, and what must never be.

use stateright::{Expectation, Model, Property};
use zoolock_core::Record;
use zoolock_core::contender::Request;
use zoolock_core::record::Left;

use crate::ghost::Foul;
use crate::scenario::Scenario;
use crate::tree::Op;
use crate::world::{Client, Stage, World};

/// The mutex's machine in a world where things go wrong.
#[derive(Clone, Debug)]
pub(crate) struct Mutex(pub(crate) Scenario);

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
    Crash(u8),
    /// Process a create as one that is prepared behind another, past the end of the numbers.
    Negative(u8),
    /// A retired directory is looked at though nothing has changed.
    Poll(u8, u8),
    RemoveAll,
    Break(i32),
    Reap,
    Copy,
    Scribble,
}

/// The pause between two looks at a retired directory. Any number of looks that find it as it was are one look.
const POLL: u32 = 50;

pub(crate) const EXCLUSION: &str = "whoever is granted the lock stood first, and never two hold it";
pub(crate) const ORDER: &str = "the lock is granted in the order of the queue";
pub(crate) const TOKENS: &str = "tokens rise";
pub(crate) const OWN_ONLY: &str = "no contender deletes another's node";
pub(crate) const CLEAN: &str = "clean is said only of a holder that released";
pub(crate) const ENDS: &str = "every contender is told its end, once, and as it was";
pub(crate) const PROGRESS: &str = "nobody waits for ever";
pub(crate) const NOTHING_LEFT: &str = "nothing is left behind";
/// What a search has to reach, or it has searched nothing.
pub(crate) const HANDED_ON: &str = "a lock that was released is held again";
pub(crate) const ALL_OVER: &str = "everybody is done";

impl Model for Mutex {
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

    fn properties(&self) -> Vec<Property<Mutex>> {
        vec![
            Property::always(EXCLUSION, |_, w: &World| !w.committed(Foul::NeverFirst) && holders(w) <= 1),
            Property::always(ORDER, |_, w: &World| !w.committed(Foul::OutOfTurn)),
            Property::always(TOKENS, |_, w: &World| !w.committed(Foul::TokenFell)),
            Property::always(OWN_ONLY, |_, w: &World| !w.committed(Foul::DeletedAnothers)),
            Property::always(CLEAN, |_, w: &World| !w.committed(Foul::FalseClean)),
            Property::always(ENDS, |_, w: &World| !w.committed(Foul::FalseEnd)),
            Property::always(PROGRESS, |model: &Mutex, w: &World| !model.is_stuck(w)),
            Property::always(NOTHING_LEFT, |_, w: &World| !something_left(w)),
            Property::sometimes(HANDED_ON, |_, w: &World| !w.clean.is_empty() && holders(w) == 1),
            Property::sometimes(ALL_OVER, |_, w: &World| !w.clients.iter().any(|client| client.is_running())),
        ]
    }
}

/// How many believe that they hold the lock, with a node and a session to show for it.
fn holders(world: &World) -> usize {
    let holds = |client: &&Client| {
        let node = client.machine().and_then(|machine| machine.holding());
        client.session && node.is_some_and(|node| world.leader.holds(node.czxid.0))
    };
    world.clients.iter().filter(holds).count()
}

/// A node of an acquisition that is over, while its session lives.
fn something_left(world: &World) -> bool {
    world.leader.children().iter().any(|child| {
        let client = &world.clients[child.owner as usize];
        client.session && (client.stage == Stage::Done || child.round < client.round)
    })
}

impl Mutex {
    /// The property that this state violates.
    pub(crate) fn broken(&self, world: &World) -> Option<&'static str> {
        let must = |property: &Property<Mutex>| property.expectation == Expectation::Always;
        let broken = |property: &Property<Mutex>| !(property.condition)(self, world);
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
            if !client.requests.is_empty() && self.may_arrive(world, i as usize) {
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
            if client.ghost.granted && !client.ghost.released {
                steps.push(Step::Release(i));
            }
            if client.session && !client.lease {
                steps.extend([Step::RenewLease(i), Step::Expire(i)]);
            }
        }
    }

    /// Clients differ in nothing but their number, so they come in its order.
    fn may_arrive(&self, world: &World, i: usize) -> bool {
        let before = i.checked_sub(1).map(|before| &world.clients[before]);
        self.0.tries || before.is_none_or(|before| before.arrived || !before.is_running() || before.round > 0)
    }

    pub(crate) fn unlucky(&self, world: &World, steps: &mut Vec<Step>) {
        let budget = &world.budget;
        for (i, client) in (0u8..).zip(&world.clients) {
            let ghost = &client.ghost;
            if !client.late.is_empty() {
                steps.push(Step::Late(i));
            }
            if budget.negatives > 0 && !client.requests.is_empty() && self.is_past_the_end(world, i as usize)
            {
                steps.push(Step::Negative(i));
            }
            if !client.is_running() || !client.session {
                continue;
            }
            if budget.panics > 0 && ghost.granted && !ghost.released {
                steps.push(Step::Panic(i));
            }
            if budget.cancels > 0 && !ghost.granted && !ghost.gave_up {
                steps.extend([Step::Cancel(i), Step::TimeOut(i)]);
            }
            let something_to_lose =
                !client.requests.is_empty() || !client.inbox.is_empty() || !client.watches.is_empty();
            if budget.disconnects > 0 && something_to_lose {
                steps.push(Step::Disconnect(i));
            }
            if budget.lags > 0 && client.follower.is_none() {
                steps.push(Step::Lag(i));
            }
            if budget.lapses > 0 && client.lease {
                steps.push(Step::LoseLease(i));
            }
            if budget.crashes > 0 {
                steps.push(Step::Crash(i));
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
            steps.extend(directory.children.iter().map(|child| Step::Break(child.sequence)));
        }
        if budget.reaps > 0 && directory.children.is_empty() {
            steps.push(Step::Reap);
        }
        if budget.scribbles > 0 {
            steps.push(Step::Scribble);
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
            Step::RenewLease(i) => world.renew_lease(i as usize, scenario),
            Step::Expire(i) => world.expire(i as usize),
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
                world.disconnect(i as usize, scenario);
            }
            Step::Lag(i) => {
                world.budget.lags -= 1;
                world.lag(i as usize);
            }
            Step::LoseLease(i) => {
                world.budget.lapses -= 1;
                world.lose_lease(i as usize, scenario);
            }
            Step::Crash(i) => {
                world.budget.crashes -= 1;
                world.crash(i as usize);
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
                    let sequence = child.sequence;
                    world.commit(vec![Op::Delete(sequence)], None);
                }
                world.remove_directory(None);
            }
            Step::Break(sequence) => {
                world.budget.breaks -= 1;
                world.commit(vec![Op::Delete(sequence)], None);
            }
            Step::Reap => {
                world.budget.reaps -= 1;
                world.remove_directory(None);
            }
            Step::Copy => {
                world.budget.copies -= 1;
                world.commit(vec![Op::Make(world.backup)], None);
            }
            Step::Scribble => {
                world.budget.scribbles -= 1;
                world.commit(vec![Op::Write(Record::Foreign)], None);
            }
        }
    }

    /// Everything that can happen without bad luck has happened, every holder has let go, and somebody still waits.
    fn is_stuck(&self, world: &World) -> bool {
        let mut steps = Vec::new();
        self.usual(world, &mut steps);
        steps.is_empty() && world.clients.iter().any(|client| client.is_running())
    }
}
