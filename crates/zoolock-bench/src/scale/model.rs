//! Ensembles and their clients, as a simulation by events: what the curve of a real server is fitted to, and what is
//! asked how a million clients would fare.
//!
//! All writes of an ensemble pass one place, one after the other, and then wait for a sync; whatever has come together
//! while the last sync went on shares the next. That is how ZooKeeper's leader works, and `zoolock serve`. A lock costs two
//! writes; a waiter is granted when its predecessor's release is told to it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// What an ensemble takes for a write. Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// On the way there and back, for whoever asks; nobody else waits for it.
    pub(crate) way: f64,
    /// A sync, for all that wait for it together.
    pub(crate) sync: f64,
    /// Of the one place that all writes pass.
    pub(crate) write: f64,
}

/// What the clients do.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) clients: usize,
    /// Between the end of one turn and the wish for the next, on average (exponential). Seconds.
    pub(crate) think: f64,
    /// How long a lock is held, on average (exponential). Seconds.
    pub(crate) hold: f64,
    /// How many clients share a lock.
    pub(crate) sharers: usize,
    /// Which ensemble has each lock; there are as many locks as it is long.
    pub(crate) homes: Vec<u32>,
    /// What the first of them does and what the last one does: seconds that are not counted, and seconds that are.
    pub(crate) warm_up: f64,
    pub(crate) counted: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Turns a second, of all together.
    pub(crate) rate: f64,
    /// From the wish to the grant, of those that were granted while it was counted. Seconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) most: f64,
    /// How busy the place that all writes pass was, in the busiest ensemble: 0 to 1.
    pub(crate) busiest: f64,
}

/// Runs it.
pub(crate) fn run(cost: Cost, load: &Load, seed: u64) -> Outcome {
    Simulation::new(cost, load, seed).run()
}

type Nanos = u64;

fn nanos(seconds: f64) -> Nanos {
    // Whoever asks for a time that is negative or no number gets none.
    (seconds * 1e9) as Nanos
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client wants its lock: its request arrives.
    Acquire(u32),
    /// A holder lets go: its request arrives.
    Release(u32),
    /// A write has passed; it waits for a sync now. Which client's, and whether that releases.
    Passed(u32, bool),
    /// An ensemble has synced.
    Synced(u32),
}

struct Simulation<'a> {
    cost: Cost,
    load: &'a Load,
    rng: Rng,
    now: Nanos,
    /// With a number, so that what happens at the same time happens in one order.
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    pushed: u64,
    ensembles: Vec<Ensemble>,
    locks: Vec<VecDeque<u32>>,
    wanted: Vec<Nanos>,
    waits: Vec<Nanos>,
}

#[derive(Default)]
struct Ensemble {
    /// Until when the place is taken that all writes pass.
    taken: Nanos,
    /// What it was taken while it counted.
    busy: Nanos,
    waiting: Vec<(u32, bool)>,
    syncing: Vec<(u32, bool)>,
}

impl<'a> Simulation<'a> {
    fn new(cost: Cost, load: &'a Load, seed: u64) -> Self {
        let ensembles = load.homes.iter().max().map_or(0, |last| *last as usize + 1);
        let mut simulation = Self {
            cost,
            load,
            rng: Rng::with_seed(seed),
            now: 0,
            events: BinaryHeap::with_capacity(load.clients + 16),
            pushed: 0,
            ensembles: (0..ensembles).map(|_| Ensemble::default()).collect(),
            locks: vec![VecDeque::new(); load.homes.len()],
            wanted: vec![0; load.clients],
            waits: Vec::new(),
        };
        for client in 0..load.clients {
            let client = u32::try_from(client).expect("no more clients than 32 bits count");
            simulation.think(client, 0);
        }
        simulation
    }

    fn run(mut self) -> Outcome {
        let end = nanos(self.load.warm_up + self.load.counted);
        while let Some(Reverse((at, _, event))) = self.events.pop() {
            if at >= end {
                break;
            }
            self.now = at;
            match event {
                Event::Acquire(client) => {
                    // It was wanted when the request left.
                    self.wanted[client as usize] = at.saturating_sub(nanos(self.cost.way / 2.0));
                    self.pass(client, false);
                }
                Event::Release(client) => self.pass(client, true),
                Event::Passed(client, releases) => {
                    let home = self.home(client);
                    self.ensembles[home].waiting.push((client, releases));
                    self.sync(home);
                }
                Event::Synced(ensemble) => self.synced(ensemble as usize),
            }
        }
        self.outcome()
    }

    fn outcome(mut self) -> Outcome {
        self.waits.sort_unstable();
        let at = |share: f64| {
            let at = (self.waits.len() as f64 * share).ceil() as usize;
            self.waits.get(at.saturating_sub(1)).map_or(f64::NAN, |wait| *wait as f64 / 1e9)
        };
        let busiest = self.ensembles.iter().map(|it| it.busy).max().unwrap_or(0);
        Outcome {
            rate: self.waits.len() as f64 / self.load.counted,
            p50: at(0.5),
            p99: at(0.99),
            most: at(1.0),
            busiest: (busiest as f64 / 1e9 / self.load.counted).min(1.0),
        }
    }

    fn at(&mut self, at: Nanos, event: Event) {
        self.pushed += 1;
        self.events.push(Reverse((at, self.pushed, event)));
    }

    /// The client thinks from `from` on, and then wants its lock.
    fn think(&mut self, client: u32, from: Nanos) {
        let thought = self.some(self.load.think);
        self.at(from + thought + nanos(self.cost.way / 2.0), Event::Acquire(client));
    }

    fn some(&mut self, mean: f64) -> Nanos {
        // Never the logarithm of nothing.
        nanos(-mean * (1.0 - self.rng.f64()).ln())
    }

    fn lock(&self, client: u32) -> usize {
        client as usize / self.load.sharers % self.locks.len()
    }

    fn home(&self, client: u32) -> usize {
        self.load.homes[self.lock(client)] as usize
    }

    fn pass(&mut self, client: u32, releases: bool) {
        let (counts, write) = (self.counts(), nanos(self.cost.write));
        let home = self.home(client);
        let ensemble = &mut self.ensembles[home];
        ensemble.taken = ensemble.taken.max(self.now) + write;
        if counts {
            ensemble.busy += write;
        }
        let passed = ensemble.taken;
        self.at(passed, Event::Passed(client, releases));
    }

    fn sync(&mut self, home: usize) {
        let ensemble = &mut self.ensembles[home];
        if ensemble.syncing.is_empty() && !ensemble.waiting.is_empty() {
            std::mem::swap(&mut ensemble.syncing, &mut ensemble.waiting);
            let synced = self.now + nanos(self.cost.sync);
            self.at(synced, Event::Synced(u32::try_from(home).expect("it was one")));
        }
    }

    fn synced(&mut self, home: usize) {
        let mut done = std::mem::take(&mut self.ensembles[home].syncing);
        for (client, releases) in done.drain(..) {
            if releases { self.released(client) } else { self.queued(client) }
        }
        // Empty, and with room for the next.
        self.ensembles[home].syncing = done;
        self.sync(home);
    }

    fn queued(&mut self, client: u32) {
        let lock = self.lock(client);
        self.locks[lock].push_back(client);
        if self.locks[lock].len() == 1 {
            self.granted(client);
        }
    }

    fn released(&mut self, client: u32) {
        let lock = self.lock(client);
        self.locks[lock].pop_front();
        self.think(client, self.told());
        if let Some(next) = self.locks[lock].front().copied() {
            self.granted(next);
        }
    }

    fn granted(&mut self, client: u32) {
        let granted = self.told();
        if self.counts() {
            self.waits.push(granted - self.wanted[client as usize]);
        }
        let held = self.some(self.load.hold);
        self.at(granted + held + nanos(self.cost.way / 2.0), Event::Release(client));
    }

    /// When a client knows what is so now.
    fn told(&self) -> Nanos {
        self.now + nanos(self.cost.way / 2.0)
    }

    fn counts(&self) -> bool {
        self.now >= nanos(self.load.warm_up)
    }
}

#[cfg(test)]
mod tests {
    use super::{Cost, Load, run};

    const COST: Cost = Cost { way: 200e-6, sync: 100e-6, write: 50e-6 };

    fn busy(clients: usize) -> Load {
        let homes = vec![0; clients];
        Load { clients, think: 0.0, hold: 0.0, sharers: 1, homes, warm_up: 0.5, counted: 2.0 }
    }

    /// Within so much of each other.
    fn near(found: f64, expected: f64, share: f64) {
        assert!((found / expected - 1.0).abs() < share, "{found} is not near {expected}");
    }

    #[test]
    fn who_is_alone_takes_what_the_parts_take_together() {
        let alone = run(COST, &busy(1), 1);
        near(alone.rate, 1.0 / 700e-6, 0.01);
        near(alone.p50, 350e-6, 0.01);
        near(alone.most, 350e-6, 0.01);
    }

    #[test]
    fn many_are_held_up_by_the_one_place_that_all_writes_pass() {
        let many = run(COST, &busy(500), 1);
        near(many.rate, 1.0 / 100e-6, 0.01);
        near(many.busiest, 1.0, 0.01);
        // Little's law: all of them are under way, half of their requests are to acquire.
        near(many.p50, 500.0 / many.rate / 2.0, 0.05);
    }

    #[test]
    fn the_holders_of_one_lock_follow_one_another() {
        let mut load = busy(100);
        load.sharers = 100;
        load.homes = vec![0];
        load.hold = 10e-3;
        // A turn is the hold, and a release that is told to the next: a write, a sync, and the way.
        near(run(COST, &load, 1).rate, 1.0 / (10e-3 + 350e-6), 0.1);
    }

    #[test]
    fn clients_that_rest_ask_as_often_as_they_say() {
        let mut load = busy(1_000);
        load.think = 1.0;
        (load.warm_up, load.counted) = (5.0, 20.0);
        near(run(COST, &load, 1).rate, 1_000.0, 0.05);
    }

    #[test]
    fn twice_the_ensembles_do_twice_the_work() {
        let mut load = busy(1_000);
        load.homes = (0..1_000).map(|lock| lock % 2).collect();
        near(run(COST, &load, 1).rate, 2.0 / 100e-6, 0.02);
    }

    #[test]
    fn the_same_seed_does_the_same() {
        let mut load = busy(50);
        load.think = 1e-3;
        assert_eq!(run(COST, &load, 7), run(COST, &load, 7));
        assert_ne!(run(COST, &load, 7), run(COST, &load, 8));
    }
}
