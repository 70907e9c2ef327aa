//! Long random walks, where a search would never end.

use zoolock_core::Record;

use crate::mutex::{Mutex, Step};
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

/// Four clients, three acquisitions each, and plenty of bad luck, of which each walk leaves some kinds out.
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
    };
    let directory = if rng.below(4) == 0 { None } else { Some((Record::Empty, rng.below(9) as i32)) };
    let walk = Scenario {
        rounds: 3,
        tries: rng.below(4) == 0,
        directory,
        ..Scenario::new(&format!("seed {seed}"), 4, budget)
    };
    if rng.below(3) == 0 { Scenario { retire_from: 6, last: 9, ..walk } } else { walk }
}

/// Walks until nothing can happen any more. Returns the number of steps.
pub(crate) fn walk(seed: u64) -> usize {
    let mut rng = Rng(seed);
    let mutex = Mutex(scenario(seed, &mut rng));
    let mut world = World::new(&mutex.0);
    let mut taken: Vec<Step> = Vec::new();
    let (mut usual, mut unlucky) = (Vec::new(), Vec::new());
    loop {
        usual.clear();
        unlucky.clear();
        mutex.usual(&world, &mut usual);
        mutex.unlucky(&world, &mut unlucky);
        let steps =
            if usual.is_empty() || (!unlucky.is_empty() && rng.below(8) == 0) { &unlucky } else { &usual };
        if steps.is_empty() {
            return taken.len();
        }
        let step = steps[rng.below(steps.len())];
        taken.push(step);
        mutex.take(&mut world, step);
        if let Some(property) = mutex.broken(&world) {
            panic!(
                "walk with seed {seed} violates `{property}` after {} steps:\n{taken:?}\n{:#?}",
                taken.len(),
                mutex.0
            );
        }
        assert!(taken.len() < 100_000, "walk with seed {seed} does not end");
    }
}
