//! What can happen next, and what must never be.

use stateright::{Expectation, Model, Property};
use zoolock_core::Record;
use zoolock_core::contender::Node;
use zoolock_core::names::Prefix;
use zoolock_core::record::Left;

use crate::ghost::Foul;
use crate::scenario::Scenario;
use crate::shared::Shared;
use crate::tree::{Called, Op};
use crate::world::{Client, Sleep, Stage, World};

/// Clients that want several locks at once, in a world where things go wrong.
#[derive(Clone, Debug)]
pub(crate) struct Locks(pub(crate) Scenario);

/// One thing that happens. The first number is a client, or a directory where somebody meddles with one.
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
    /// A retired directory is looked at though nothing has changed.
    Poll(u8, u8),
    RemoveAll(usize),
    Break(usize, Called),
    Revoke(usize, Called),
    Reap(usize),
    Scribble(usize),
}

/// The pause between two looks at a retired directory. Any number of looks that find it as it was are one look.
const POLL: u32 = 50;

pub(crate) const EXCLUSION: &str = "no lock is held by two";
pub(crate) const ALL_FIRST: &str = "whoever is granted had all its nodes, each the first, at one moment";
pub(crate) const TOKENS: &str = "tokens rise in each directory";
pub(crate) const OWN_ONLY: &str = "no contender deletes another's node";
pub(crate) const CLEAN: &str = "clean is said only of holders that released";
pub(crate) const ENDS: &str = "everybody is told its end, once, and as it was";
pub(crate) const ASKED: &str = "a holder that is asked to let go hears of it once";
pub(crate) const PROGRESS: &str = "nobody waits for ever";
pub(crate) const NOTHING_LEFT: &str = "nothing is left behind";
/// What a search has to reach, or it has searched nothing.
pub(crate) const HELD: &str = "somebody holds several";
pub(crate) const ALL_OVER: &str = "everybody is done";

impl Model for Locks {
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

    fn properties(&self) -> Vec<Property<Locks>> {
        vec![
            Property::always(EXCLUSION, |_, w: &World| !two_hold_one(w)),
            Property::always(ALL_FIRST, |_, w: &World| !w.committed(Foul::NeverFirst)),
            Property::always(TOKENS, |_, w: &World| !w.committed(Foul::TokenFell)),
            Property::always(OWN_ONLY, |_, w: &World| !w.committed(Foul::DeletedAnothers)),
            Property::always(CLEAN, |_, w: &World| !w.committed(Foul::FalseClean)),
            Property::always(ENDS, |_, w: &World| !w.committed(Foul::FalseEnd)),
            Property::always(ASKED, |_, w: &World| !w.committed(Foul::FalseRevoke)),
            Property::always(PROGRESS, |model: &Locks, w: &World| !model.is_stuck(w)),
            Property::always(NOTHING_LEFT, |_, w: &World| !something_left(w)),
            Property::sometimes(HELD, |model: &Locks, w: &World| {
                let inner = |i: usize| model.0.inside[i].is_some();
                let several = |(i, nodes): (usize, Vec<Node>)| nodes.len() > 1 || inner(i);
                let holding =
                    |(i, client): (usize, &Shared<Client>)| client.holding().map(|nodes| (i, nodes));
                w.clients.iter().enumerate().filter_map(holding).any(several)
            }),
            Property::sometimes(ALL_OVER, |_, w: &World| !w.clients.iter().any(|client| client.is_running())),
        ]
    }
}

/// Two believe that they hold the same lock, not both as readers, with nodes and a session to show for it.
fn two_hold_one(world: &World) -> bool {
    let mut held: Vec<(usize, bool)> = Vec::new();
    for client in world.clients.iter().filter(|client| client.session) {
        let Some(node) = client.holding().and_then(|nodes| nodes.first().copied()) else { continue };
        // The nodes of one create have one czxid.
        let ours = client.ghost.traces.iter().filter(|trace| trace.czxid == node.czxid.0);
        let there = ours.filter(|trace| world.leader.holds(trace.directory, trace.czxid));
        held.extend(there.map(|trace| (trace.directory, trace.called.0 == Prefix::Read)));
    }
    held.sort_unstable();
    held.windows(2).any(|pair| pair[0].0 == pair[1].0 && !(pair[0].1 && pair[1].1))
}

/// A node of an acquisition that is over, while its session lives.
fn something_left(world: &World) -> bool {
    (0..world.leader.0.len()).flat_map(|at| world.leader.children(at)).any(|child| {
        let client = &world.clients[child.owner as usize];
        client.session && (client.stage == Stage::Done || child.round < client.round)
    })
}

impl Locks {
    /// The property that this state violates.
    pub(crate) fn broken(&self, world: &World) -> Option<&'static str> {
        let must = |property: &Property<Locks>| property.expectation == Expectation::Always;
        let broken = |property: &Property<Locks>| !(property.condition)(self, world);
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
        let at = client.sleeps.iter().position(|sleep| sleep.duration != POLL)?;
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
            if client.session && client.stage == Stage::Crashed {
                steps.push(Step::Expire(i));
            }
            if !client.is_running() {
                continue;
            }
            if !client.inbox.is_empty() {
                steps.push(Step::Deliver(i));
            }
            for (at, sleep) in (0u8..).zip(&client.sleeps) {
                if !is_vain(world, i as usize, sleep) {
                    steps.push(Step::Wake(i, at));
                }
            }
            let inner = self.0.inner(i as usize).all(|j| {
                let inner = &world.clients[j];
                inner.arrived && !inner.is_running()
            });
            if client.ghost.granted && !client.ghost.released && inner {
                steps.push(Step::Release(i));
            }
            if client.session && !client.lease {
                steps.extend([Step::RenewLease(i), Step::Expire(i)]);
            }
        }
    }

    /// Clients that want the same in the same order differ in nothing but their number, so they come in its order.
    fn may_arrive(&self, world: &World, i: usize) -> bool {
        let Some(before) = i.checked_sub(1) else { return true };
        let wants = |i: usize| (&self.0.wants[i], self.0.readers[i]);
        let alike = wants(before) == wants(i) && !self.0.tries;
        let before = &world.clients[before];
        !alike || before.arrived || !before.is_running() || before.round > 0
    }

    pub(crate) fn unlucky(&self, world: &World, steps: &mut Vec<Step>) {
        let budget = &world.budget;
        for (i, client) in (0u8..).zip(&world.clients) {
            let ghost = &client.ghost;
            if !client.late.is_empty() {
                steps.push(Step::Late(i));
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
            for (at, sleep) in (0u8..).zip(&client.sleeps) {
                if budget.polls > 0 && is_vain(world, i as usize, sleep) {
                    steps.push(Step::Poll(i, at));
                }
            }
        }
        for at in 0..world.leader.0.len() {
            self.meddling(world, at, steps);
        }
    }

    /// What operators and other software do to a directory.
    fn meddling(&self, world: &World, at: usize, steps: &mut Vec<Step>) {
        let budget = &world.budget;
        let Some(directory) = &world.leader.0[at] else { return };
        if budget.removals > 0 && !directory.children.is_empty() {
            steps.push(Step::RemoveAll(at));
        }
        for child in &directory.children {
            if budget.breaks > 0 {
                steps.push(Step::Break(at, child.called));
            }
            if budget.revokes > 0 && !child.revoked {
                steps.push(Step::Revoke(at, child.called));
            }
        }
        if budget.reaps > 0 && directory.children.is_empty() {
            steps.push(Step::Reap(at));
        }
        if budget.scribbles > 0 {
            steps.push(Step::Scribble(at));
        }
    }

    pub(crate) fn take(&self, world: &mut World, step: Step) {
        let scenario = &self.0;
        let budget = &mut world.budget;
        match step {
            Step::Process(i) => world.process(i as usize, scenario),
            Step::Deliver(i) => world.deliver(i as usize, scenario),
            Step::Wake(i, at) => world.wake(i as usize, at as usize, scenario),
            Step::Apply(i) => world.apply(i as usize),
            Step::Release(i) => world.release(i as usize, Left::Released, scenario),
            Step::RenewLease(i) => world.renew_lease(i as usize, scenario),
            Step::Expire(i) => world.expire(i as usize, scenario),
            Step::Late(i) => world.arrive_late(i as usize, scenario),
            Step::Panic(i) => {
                budget.panics -= 1;
                world.release(i as usize, Left::Panicked, scenario);
            }
            Step::Cancel(i) => {
                budget.cancels -= 1;
                world.give_up(i as usize, false, scenario);
            }
            Step::TimeOut(i) => {
                budget.cancels -= 1;
                world.give_up(i as usize, true, scenario);
            }
            Step::Disconnect(i) => {
                budget.disconnects -= 1;
                world.disconnect(i as usize, scenario);
            }
            Step::Lag(i) => {
                budget.lags -= 1;
                world.lag(i as usize);
            }
            Step::LoseLease(i) => {
                budget.lapses -= 1;
                world.lose_lease(i as usize, scenario);
            }
            Step::Crash(i) => {
                budget.crashes -= 1;
                world.crash(i as usize);
            }
            Step::Poll(i, at) => {
                budget.polls -= 1;
                world.wake(i as usize, at as usize, scenario);
            }
            Step::RemoveAll(at) => {
                budget.removals -= 1;
                while let Some(child) = world.leader.children(at).first() {
                    let called = child.called;
                    world.commit(vec![(at, Op::Delete(called))], None, scenario);
                }
                world.commit(vec![(at, Op::Remove)], None, scenario);
            }
            Step::Break(at, called) => {
                budget.breaks -= 1;
                world.commit(vec![(at, Op::Delete(called))], None, scenario);
            }
            Step::Revoke(at, called) => {
                budget.revokes -= 1;
                world.commit(vec![(at, Op::Revoke(called))], None, scenario);
            }
            Step::Reap(at) => {
                budget.reaps -= 1;
                world.commit(vec![(at, Op::Remove)], None, scenario);
            }
            Step::Scribble(at) => {
                budget.scribbles -= 1;
                world.commit(vec![(at, Op::Write(Record::Foreign))], None, scenario);
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

/// A pause after which a retired directory would be found as it was.
fn is_vain(world: &World, i: usize, sleep: &Sleep) -> bool {
    let view = world.clients[i].view(&world.leader);
    sleep.duration == POLL && !view.children(sleep.directory).is_empty()
}
