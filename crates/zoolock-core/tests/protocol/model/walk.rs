//! Random walks: longer than a search, with more clients and more faults.

use std::ops::Range;
use std::time::Instant;

use zoolock_core::Record;
use zoolock_core::names::Naming;

use super::locks::{Locks, Step};
use super::plan::Plan;
use super::scenario::{Budget, Scenario};
use super::world::World;
use crate::long;

/// A random number generator: SplitMix64.
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

    /// Returns zero half of the time, otherwise a random number from zero to `most`.
    fn zero_or_up_to(&mut self, most: usize) -> u8 {
        if self.below(2) == 0 { 0 } else { self.below(most + 1) as u8 }
    }
}

/// Returns a scenario of four or more clients in one directory, with any plans, three acquisitions each, and many faults.
/// Each walk leaves some kinds of faults out.
fn in_one_directory(seed: u64, rng: &mut Rng) -> Scenario {
    let budget = Budget {
        cancels: rng.zero_or_up_to(6),
        disconnects: rng.zero_or_up_to(8),
        retakes: 0,
        throttles: rng.zero_or_up_to(4),
        denials: rng.zero_or_up_to(3),
        lags: rng.zero_or_up_to(8),
        lapses: rng.zero_or_up_to(3),
        crashes: rng.zero_or_up_to(2),
        panics: rng.zero_or_up_to(3),
        removals: rng.zero_or_up_to(3),
        breaks: rng.zero_or_up_to(4),
        reaps: rng.zero_or_up_to(4),
        copies: rng.zero_or_up_to(2),
        scribbles: rng.zero_or_up_to(2),
        negatives: rng.zero_or_up_to(3),
        polls: rng.zero_or_up_to(100),
        resizes: rng.zero_or_up_to(2),
        revokes: 0,
        forgets: rng.zero_or_up_to(3),
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
        directories: vec![directory],
        ..Scenario::mutexes(4)
    };
    let walk = if rng.below(3) == 0 { Scenario { retire_from: 6, last: 9, ..walk } } else { walk };
    let walk = Scenario { merges: rng.below(2) == 0, ..walk };
    let plans = plans(rng);
    let namings = namings(&plans, rng);
    Scenario {
        name: format!("seed {seed}"),
        wants: vec![vec![0]; plans.len()],
        plans,
        namings,
        budget,
        ..walk
    }
}

/// Returns the naming of each client. Half of the walks have native names only. The others also
/// have the names of other client libraries. Contenders with names of different libraries do not
/// always see each other's znodes.
fn namings(plans: &[Plan], rng: &mut Rng) -> Vec<Naming> {
    let one = match rng.below(8) {
        0 => Naming::Curator,
        1 => Naming::Kazoo,
        2 => Naming::WriteLock,
        3 => return plans.iter().map(|plan| naming_for_plan(*plan, random_naming(rng))).collect(),
        _ => return Vec::new(),
    };
    plans.iter().map(|plan| naming_for_plan(*plan, one)).collect()
}

fn random_naming(rng: &mut Rng) -> Naming {
    [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock][rng.below(4)]
}

/// Returns the naming, or the native one if the naming has no names for the kind of the plan.
fn naming_for_plan(plan: Plan, naming: Naming) -> Naming {
    let has = match plan {
        Plan::Mutex | Plan::Next(_) => true,
        Plan::Upgradable | Plan::Permits { .. } => false,
        _ => naming != Naming::WriteLock,
    };
    if has { naming } else { Naming::Native }
}

fn plans(rng: &mut Rng) -> Vec<Plan> {
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
    let mut plans: Vec<Plan> = (0..4)
        .map(|_| match all {
            _ if permits_of_all && rng.below(2) == 0 => permits(rng),
            0 => Plan::Mutex,
            1 => permits(rng),
            _ => lock(rng),
        })
        .collect();
    for i in 0..4 {
        let reads = matches!(plans[i], Plan::Read | Plan::Upgradable | Plan::WriteThenRead);
        if reads && rng.below(3) == 0 {
            plans.push(Plan::Upgrade(i as u8));
        } else if rng.below(6) == 0 {
            plans.push(Plan::Next(i as u8));
        }
    }
    plans
}

/// Returns a scenario of two to four clients, two or three directories, up to three acquisitions each, and many faults.
fn in_several_directories(seed: u64, rng: &mut Rng) -> Scenario {
    let directories = 2 + rng.below(2);
    let wants: Vec<Vec<usize>> = (0..2 + rng.below(3))
        .map(|_| {
            let mut all: Vec<usize> = (0..directories).collect();
            let some = if rng.below(4) == 0 { 1 } else { 2 + rng.below(directories - 1) };
            (0..some).map(|_| all.remove(rng.below(all.len()))).collect()
        })
        .collect();
    let readers = rng.below(2) == 0;
    let plan = |rng: &mut Rng| if readers && rng.below(2) == 0 { Plan::Read } else { Plan::Mutex };
    let plans = wants.iter().map(|_| plan(rng)).collect();
    let budget = Budget {
        cancels: rng.zero_or_up_to(6),
        disconnects: rng.zero_or_up_to(8),
        throttles: rng.zero_or_up_to(4),
        lags: rng.zero_or_up_to(8),
        lapses: rng.zero_or_up_to(3),
        crashes: rng.zero_or_up_to(2),
        panics: rng.zero_or_up_to(3),
        removals: rng.zero_or_up_to(3),
        breaks: rng.zero_or_up_to(4),
        reaps: rng.zero_or_up_to(4),
        scribbles: rng.zero_or_up_to(2),
        revokes: rng.zero_or_up_to(3),
        polls: rng.zero_or_up_to(100),
        forgets: rng.zero_or_up_to(3),
        ..Budget::default()
    };
    // Four clients need eight numbers for two rounds. With fewer, the directory would be retired again and again.
    let retire_from = if rng.below(3) == 0 { 8 } else { Scenario::RETIRE_FROM };
    let directory = |rng: &mut Rng| (rng.below(4) != 0).then(|| (Record::Empty, rng.below(6) as i32));
    Scenario {
        name: format!("seed {seed}"),
        plans,
        wants,
        budget,
        rounds: 1 + rng.below(3) as u8,
        tries: rng.below(4) == 0,
        tracks: rng.below(3) == 0,
        watches_late: rng.below(2) == 0,
        reports_disconnects: rng.below(2) == 0,
        retire_from,
        directories: (0..directories).map(|_| directory(rng)).collect(),
        ..Scenario::over(&[])
    }
}

/// Describes the request or the message that a step handles. Returns an empty text for other steps.
fn describe_step(world: &World, step: Step) -> String {
    match step {
        Step::Process(i) => format!("{:?}", world.clients[usize::from(i)].requests.first()),
        Step::Deliver(i) => format!("{:?}", world.clients[usize::from(i)].inbox.first()),
        _ => String::new(),
    }
}

/// Takes random steps until nothing can happen any more. Returns the number of steps.
///
/// # Panics
/// If a state violates a property.
fn walk(seed: u64, scenario: fn(u64, &mut Rng) -> Scenario, shown: bool) -> usize {
    let mut rng = Rng(seed);
    let locks = Locks(scenario(seed, &mut rng));
    let mut world = World::new(&locks.0);
    let mut taken: Vec<Step> = Vec::new();
    let (mut usual, mut unlucky) = (Vec::new(), Vec::new());
    loop {
        usual.clear();
        unlucky.clear();
        locks.add_usual_steps(&world, &mut usual);
        locks.add_faults(&world, &mut unlucky);
        let steps =
            if usual.is_empty() || (!unlucky.is_empty() && rng.below(8) == 0) { &unlucky } else { &usual };
        if steps.is_empty() {
            return taken.len();
        }
        let step = steps[rng.below(steps.len())];
        taken.push(step);
        if shown {
            println!("{} {step:?} {}", taken.len(), describe_step(&world, step));
        }
        locks.carry_out(&mut world, step);
        if shown {
            println!("    {:?}\n    {:?}", world.leader.0, world.history);
        }
        if let Some(property) = locks.violated_property(&world) {
            panic!(
                "walk with seed {seed} violates `{property}` after {} steps:\n{taken:?}\n{:#?}",
                taken.len(),
                locks.0
            );
        }
        assert!(taken.len() < 100_000, "walk with seed {seed} does not end");
    }
}

fn walk_all(scenario: fn(u64, &mut Rng) -> Scenario) {
    let usual = if long() { 0..3_000_000 } else { 0..60_000 };
    let asked = std::env::var("ZOOLOCK_SEED").ok();
    let seeds =
        asked.map_or(usual, |asked| seeds(&asked).expect("ZOOLOCK_SEED is a number, or two with .. between"));
    let shown = seeds.end == seeds.start + 1;
    let begun = Instant::now();
    let steps: usize = seeds.clone().map(|seed| walk(seed, scenario, shown)).sum();
    println!("random walks: seeds {seeds:?}, {steps} steps, {:.1?}", begun.elapsed());
}

fn seeds(asked: &str) -> Option<Range<u64>> {
    let (first, end) = match asked.split_once("..") {
        Some((first, end)) => (first.parse().ok()?, end.parse().ok()?),
        None => (asked.parse().ok()?, asked.parse::<u64>().ok()? + 1),
    };
    Some(first..end)
}

#[test]
fn random_walks_in_one_directory_find_nothing() {
    walk_all(in_one_directory);
}

#[test]
fn random_walks_in_several_directories_find_nothing() {
    walk_all(in_several_directories);
}
