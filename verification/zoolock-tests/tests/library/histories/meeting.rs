//! Requests whose permits fit into a semaphore together are all granted before any of them is
//! released.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zoolock_tests::{on_both_servers, tree};

use fastrand::Rng;
use zoolock_tests::locks::{connect, directory, seed, until_queued};

const SIZE: u32 = 6;
const ROUNDS: usize = 8;
/// Time limit for all grants of a round.
const SOON: Duration = Duration::from_secs(30);

on_both_servers!(requests_that_fit_together_are_all_granted, |place| async move {
    let seed = seed();
    let mut random = Rng::with_seed(seed);
    let clients = [connect(&place).await, connect(&place).await];
    for _ in 0..ROUNDS {
        let held = clients[0].semaphore("meeting", SIZE).acquire(SIZE).await.expect("permits acquired");
        let mut weights = Vec::new();
        let mut remaining = SIZE;
        while remaining > 0 {
            let weight = 1 + random.u32(..remaining.min(3));
            weights.push(weight);
            remaining -= weight;
        }
        let all = Arc::new(Barrier::new(weights.len()));
        let mut inside = JoinSet::new();
        for weight in &weights {
            let semaphore = clients[random.u64(..2) as usize].semaphore("meeting", SIZE);
            let (weight, all) = (*weight, all.clone());
            inside.spawn(async move {
                let guard = semaphore.acquire(weight).await.expect("lock granted");
                all.wait().await;
                guard.release().await.expect("release succeeds");
            });
        }
        until_queued(&clients[0], "meeting", 1 + weights.len()).await;
        held.release().await.expect("release succeeds");
        while let Some(done) = timeout(SOON, inside.join_next()).await.unwrap_or_else(|_| {
            panic!("{weights:?} of {SIZE} are not all granted within {SOON:?}; ZOOLOCK_SEED={seed}")
        }) {
            done.expect("task does not panic");
        }
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, "meeting")).await;
});
