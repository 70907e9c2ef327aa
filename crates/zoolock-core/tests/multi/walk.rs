//! Long random walks, where a search would never end.

use crate::locks::{Locks, Step};
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

/// Two to four clients, two or three directories, up to three acquisitions each, and plenty of bad luck, of which each
/// walk leaves some kinds out.
fn scenario(seed: u64, rng: &mut Rng) -> Scenario {
    let directories = 2 + rng.below(2);
    let wants: Vec<Vec<usize>> = (0..2 + rng.below(3))
        .map(|_| {
            let mut all: Vec<usize> = (0..directories).collect();
            let some = if rng.below(4) == 0 { 1 } else { 2 + rng.below(directories - 1) };
            (0..some).map(|_| all.remove(rng.below(all.len()))).collect()
        })
        .collect();
    let rw = rng.below(2) == 0;
    let readers = wants.iter().map(|_| rw && rng.below(2) == 0).collect();
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
        scribbles: some(2),
        revokes: some(3),
        polls: some(100),
    };
    let retiring = rng.below(3) == 0;
    Scenario {
        name: format!("seed {seed}"),
        inside: vec![None; wants.len()],
        wants,
        readers,
        rounds: 1 + rng.below(3) as u8,
        tries: rng.below(4) == 0,
        tracks: rng.below(3) == 0,
        watches_late: rng.below(2) == 0,
        told_offline: rng.below(2) == 0,
        // With fewer numbers than four need to come twice they would go round for ever.
        retire_from: if retiring { 8 } else { 90 },
        directories: (0..directories)
            .map(|_| if rng.below(4) == 0 { None } else { Some(rng.below(6) as i32) })
            .collect(),
        ..Scenario::new(&[], budget)
    }
}

/// Walks until nothing can happen any more. Returns the number of steps.
pub(crate) fn walk(seed: u64) -> usize {
    let mut rng = Rng(seed);
    let locks = Locks(scenario(seed, &mut rng));
    let mut world = World::new(&locks.0);
    let mut taken: Vec<Step> = Vec::new();
    let (mut usual, mut unlucky) = (Vec::new(), Vec::new());
    loop {
        usual.clear();
        unlucky.clear();
        locks.usual(&world, &mut usual);
        locks.unlucky(&world, &mut unlucky);
        let steps =
            if usual.is_empty() || (!unlucky.is_empty() && rng.below(8) == 0) { &unlucky } else { &usual };
        if steps.is_empty() {
            return taken.len();
        }
        let step = steps[rng.below(steps.len())];
        taken.push(step);
        locks.take(&mut world, step);
        if let Some(property) = locks.broken(&world) {
            panic!(
                "walk with seed {seed} violates `{property}` after {} steps:\n{taken:?}\n{:#?}",
                taken.len(),
                locks.0
            );
        }
        assert!(taken.len() < 100_000, "walk with seed {seed} does not end");
    }
}
