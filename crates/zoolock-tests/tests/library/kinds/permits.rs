//! Test bodies for the guarantees of semaphores in every layout, used by `semaphore.rs` and `layouts.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use zoolock::{Error, Semaphore};

/// Time limit for acquiring a permit.
const BOUND: Duration = Duration::from_secs(60);

/// Two tasks that each take two permits of two. Curator's own client acquires permits one by one and deadlocks here.
pub(crate) async fn two_want_two(semaphores: [Semaphore; 2], rounds: u32) {
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for semaphore in semaphores {
        let inside = inside.clone();
        tasks.spawn(async move {
            for _ in 0..rounds {
                let guard =
                    timeout(BOUND, semaphore.acquire_many(2)).await.expect("stuck").expect("lock granted");
                assert_eq!(inside.fetch_add(2, Ordering::SeqCst), 0);
                inside.fetch_sub(2, Ordering::SeqCst);
                guard.release().await.expect("release succeeds");
            }
        });
    }
    all_done(tasks).await;
}

/// Runs `crowd` tasks that take different numbers of permits, distributed over the semaphores.
pub(crate) async fn a_crowd_is_served(semaphores: &[Semaphore], crowd: u32, rounds: u32) {
    let inside = Arc::new(AtomicI64::new(0));
    let mut tasks = JoinSet::new();
    for (task, semaphore) in (0..crowd).zip(semaphores.iter().cycle().cloned()) {
        let (size, inside) = (semaphore.permits(), inside.clone());
        tasks.spawn(async move {
            for round in 0..rounds {
                let take = 1 + (task + round) % size;
                if (task + round) % 4 == 0 {
                    // Some acquisitions are cancelled at a random moment. Successors must not wait for stale znodes.
                    let patience = Duration::from_millis(u64::from((task * 3 + round) % 9));
                    match semaphore.acquire_timeout(take, patience).await {
                        Ok(guard) => drop(guard),
                        Err(Error::Timeout { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    continue;
                }
                let guard = timeout(BOUND, semaphore.acquire_many(take)).await;
                let guard = guard.unwrap_or_else(|_| panic!("task {task} waits for {take} for ever"));
                let guard = guard.expect("lock granted");
                let now = inside.fetch_add(take.into(), Ordering::SeqCst) + i64::from(take);
                assert!(now <= size.into(), "{now} of {size} are out");
                tokio::task::yield_now().await;
                inside.fetch_sub(take.into(), Ordering::SeqCst);
                guard.release().await.expect("release succeeds");
            }
        });
    }
    all_done(tasks).await;
}

async fn all_done(mut tasks: JoinSet<()>) {
    while let Some(done) = tasks.join_next().await {
        done.expect("task does not panic");
    }
}
