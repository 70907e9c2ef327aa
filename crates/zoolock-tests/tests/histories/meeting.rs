//! Those who fit in together all get in, though nobody leaves.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zoolock_tests::{Random, on_both_arms, tree};

use crate::common::{connect, directory, until_queued};
use crate::seed;

const SIZE: u32 = 6;
const ROUNDS: usize = 8;
/// Longer than it takes to hear of one's turn.
const SOON: Duration = Duration::from_secs(30);

on_both_arms!(those_who_fit_in_together_meet_there, |place| async move {
    let seed = seed();
    println!("ZOOLOCK_SEED={seed}");
    let mut random = Random::new(seed);
    let clients = [connect(&place).await, connect(&place).await];
    for _ in 0..ROUNDS {
        let held = clients[0].semaphore("meeting", SIZE).acquire_many(SIZE).await.expect("free");
        let mut weights = Vec::new();
        let mut left = SIZE;
        while left > 0 {
            let weight = 1 + random.below(left.min(3).into()) as u32;
            weights.push(weight);
            left -= weight;
        }
        let all = Arc::new(Barrier::new(weights.len()));
        let mut inside = JoinSet::new();
        for weight in &weights {
            let semaphore = clients[random.below(2) as usize].semaphore("meeting", SIZE);
            let (weight, all) = (*weight, all.clone());
            inside.spawn(async move {
                let guard = semaphore.acquire_many(weight).await.expect("granted");
                all.wait().await;
                guard.release().await.expect("ours");
            });
        }
        until_queued(&clients[0], "meeting", 1 + weights.len()).await;
        held.release().await.expect("ours");
        while let Some(left) = timeout(SOON, inside.join_next()).await.unwrap_or_else(|_| {
            panic!("{weights:?} of {SIZE} do not meet within {SOON:?}; ZOOLOCK_SEED={seed}")
        }) {
            left.expect("no task fails");
        }
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, "meeting")).await;
});
