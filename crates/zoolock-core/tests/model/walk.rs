//! Long random walks, where a search would never end.

use zoolock_core::Record;
use zoolock_core::names::Naming;

use crate::lock::{Lock, Step};
use crate::plan::Plan;
use crate::scenario::{Budget, Scenario};
use crate::world::World;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Four clients of any kinds, three acquisitions each, and plenty of bad luck, of which each walk leaves some kinds out.
fn scenario(seed: u64, rng: &mut Rng) -> Scenario {
    let mut some = |most: usize| if rng.below(2) == 0 { 0 } else { rng.below(most + 1) as u8 };
    let budget = Budget {
        cancels: some(6),
        disconnects: some(8),
        lags: some(8),
        lapses: some(3),
        crashes: some(2),
        panics: some(3),
        removals: some(3),
        breaks: some(4),
        reaps: some(4),
        copies: some(2),
        scribbles: some(2),
        negatives: some(3),
        polls: some(100),
        resizes: some(2),
    };
    let directory = if rng.below(4) == 0 { None } else { Some((Record::Empty, rng.below(9) as i32)) };
    let walk = Scenario {
        rounds: 3,
        tries: rng.below(4) == 0,
        tracks: rng.below(3) == 0,
        watches_late: rng.below(2) == 0,
        looks_ahead: rng.below(2) == 0,
        one_tracks: rng.below(6) == 0,
        one_reads: rng.below(4) == 0,
        delay: u32::from(rng.below(8) == 0),
        directory,
        ..Scenario::new(&format!("seed {seed}"), 4, budget)
    };
    let walk = if rng.below(3) == 0 { Scenario { retire_from: 6, last: 9, ..walk } } else { walk };
    let clients = clients(rng);
    let namings = namings(&clients, rng);
    Scenario { clients, namings, ..walk }
}

/// Half of the walks in our own names only, the others in those of families that see each other, or do not.
fn namings(clients: &[Plan], rng: &mut Rng) -> Vec<Naming> {
    let one = match rng.below(8) {
        0 => Naming::Curator,
        1 => Naming::Kazoo,
        2 => Naming::WriteLock,
        3 => return clients.iter().map(|plan| fitting(*plan, any(rng))).collect(),
        _ => return Vec::new(),
    };
    clients.iter().map(|plan| fitting(*plan, one)).collect()
}

fn any(rng: &mut Rng) -> Naming {
    [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock][rng.below(4)]
}

/// The naming, or ours where it has no such kind.
fn fitting(plan: Plan, naming: Naming) -> Naming {
    let has = match plan {
        Plan::Mutex => true,
        Plan::Upgradable | Plan::Permits { .. } => false,
        _ => naming != Naming::WriteLock,
    };
    if has { naming } else { Naming::Native }
}

fn clients(rng: &mut Rng) -> Vec<Plan> {
    let size = 1 + rng.below(3) as u32;
    let permits = |rng: &mut Rng| Plan::Permits { take: 1 + rng.below(size as usize) as u32, size };
    let lock = |rng: &mut Rng| match rng.below(7) {
        0 => Plan::Mutex,
        1 => Plan::Write,
        2 => Plan::WriteThenRead,
        3 | 4 => Plan::Upgradable,
        _ => Plan::Read,
    };
    let (all, permits_of_all) = (rng.below(4), rng.below(16) == 0);
    let mut clients: Vec<Plan> = (0..4)
        .map(|_| match all {
            _ if permits_of_all && rng.below(2) == 0 => permits(rng),
            0 => Plan::Mutex,
            1 => permits(rng),
            _ => lock(rng),
        })
        .collect();
    for i in 0..4 {
        let reads = matches!(clients[i], Plan::Read | Plan::Upgradable | Plan::WriteThenRead);
        if reads && rng.below(3) == 0 {
            clients.push(Plan::Upgrade(i as u8));
        }
    }
    clients
}

/// What a step is about to carry out or to deliver.
fn about(world: &World, step: Step) -> String {
    match step {
        Step::Process(i) => format!("{:?}", world.clients[usize::from(i)].requests.first()),
        Step::Deliver(i) => format!("{:?}", world.clients[usize::from(i)].inbox.first()),
        _ => String::new(),
    }
}

/// Walks until nothing can happen any more, and shows each step if it is asked to. Returns the number of steps.
pub(crate) fn walk(seed: u64, shown: bool) -> usize {
    let mut rng = Rng(seed);
    let lock = Lock(scenario(seed, &mut rng));
    let mut world = World::new(&lock.0);
    let mut taken: Vec<Step> = Vec::new();
    let (mut usual, mut unlucky) = (Vec::new(), Vec::new());
    loop {
        usual.clear();
        unlucky.clear();
        lock.usual(&world, &mut usual);
        lock.unlucky(&world, &mut unlucky);
        let steps =
            if usual.is_empty() || (!unlucky.is_empty() && rng.below(8) == 0) { &unlucky } else { &usual };
        if steps.is_empty() {
            return taken.len();
        }
        let step = steps[rng.below(steps.len())];
        taken.push(step);
        if shown {
            println!("{} {step:?} {}", taken.len(), about(&world, step));
        }
        lock.take(&mut world, step);
        if shown {
            println!("    {:?}\n    alone: {:?}", world.leader.0, world.tenures);
        }
        if let Some(property) = lock.broken(&world) {
            panic!(
                "walk with seed {seed} violates `{property}` after {} steps:\n{taken:?}\n{:#?}",
                taken.len(),
                lock.0
            );
        }
        assert!(taken.len() < 100_000, "walk with seed {seed} does not end");
    }
}
