//! Locks on several names at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;
use zoolock::{Error, LossReason, Zoolock};
use zoolock_tests::{Proxy, on_both_servers, tree};

use zoolock_tests::locks::{connect, connect_through, directory, lock_and_release, until_queued};

const SOON: Duration = Duration::from_secs(20);

on_both_servers!(multi_lock_is_all_or_nothing, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let both = zl.multi(["a", "b", "a"]).lock().await.expect("lock acquired");
    assert_eq!(both.paths(), ["/locks/a", "/locks/b"], "a repeated name counts once");
    for name in ["a", "b"] {
        assert!(other.mutex(name).try_lock().await.expect("attempt succeeds").is_none());
    }
    assert!(other.multi(["c", "b"]).try_lock().await.expect("attempt succeeds").is_none());
    assert!(
        other.mutex("c").try_lock().await.expect("attempt succeeds").is_some(),
        "a failed try holds none of the locks"
    );
    let token = both.token();
    both.release().await.expect("release succeeds");
    let again = other.multi(["b", "a"]).lock().await.expect("lock acquired");
    assert!(again.token() > token);
    drop(again);
    let error = zl.multi(Vec::<String>::new()).lock().await.expect_err("no names given");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let error = zl.multi((0..200).map(|n| format!("n{n}"))).lock().await.expect_err("too many names");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    for name in ["a", "b", "c"] {
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});

on_both_servers!(breaking_one_lock_loses_all, |place| async move {
    let zl = connect(&place).await;
    let guard = zl.multi(["x", "y", "z"]).lock().await.expect("lock acquired");
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    operator
        .delete(&format!("{}/lock-0000000000", directory(&place, "y")), None)
        .await
        .expect("znode exists");
    assert_eq!(timeout(SOON, guard.lost()).await.expect("loss reported in time"), LossReason::Broken);
    assert!(!guard.is_valid());
    let error = guard.release().await.expect_err("lock is lost");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    for name in ["x", "y", "z"] {
        assert!(timeout(SOON, zl.mutex(name).lock()).await.expect("lock acquired").is_ok());
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});

on_both_servers!(timed_out_multi_lock_leaves_all_queues, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let held = other.mutex("q").lock().await.expect("lock acquired");
    let error =
        zl.multi(["p", "q"]).lock_timeout(Duration::from_millis(200)).await.expect_err("one lock is held");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(timeout(SOON, other.mutex("p").lock()).await.expect("lock acquired").is_ok());
    let waiting = tokio::spawn({
        let zl = zl.clone();
        async move { zl.multi(["p", "q"]).lock().await }
    });
    until_queued(&zl, "q", 2).await;
    waiting.abort();
    held.release().await.expect("release succeeds");
    for name in ["p", "q"] {
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});

/// Returns a pseudo-random number less than `below` (SplitMix64).
fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % below
}

/// Returns three of five lock numbers in random order.
fn three_of_five(seed: &mut u64) -> Vec<usize> {
    let mut all: Vec<usize> = (0..5).collect();
    (0..3).map(|_| all.swap_remove(random(seed, all.len() as u64) as usize)).collect()
}

fn rounds() -> usize {
    if zoolock_tests::skip::is_long() { 10_000 } else { 640 }
}

const TASKS: usize = 16;
/// Operation code of a transaction.
const MULTI: i32 = 14;

on_both_servers!(tasks_with_overlapping_sets_never_deadlock, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let clients: Vec<Zoolock> = vec![
        connect_through(&place, &proxy).await,
        connect_through(&place, &proxy).await,
        connect_through(&place, &proxy).await,
        connect_through(&place, &proxy).await,
    ];
    // The lock directories are created before the requests are counted.
    for lock in 0..5 {
        lock_and_release(&clients[0].mutex(format!("of/{lock}"))).await;
    }
    let inside: Arc<Vec<AtomicUsize>> = Arc::new((0..5).map(|_| AtomicUsize::new(0)).collect());
    let before = proxy.counts();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (zl, inside) = (clients[task % 4].clone(), inside.clone());
        tasks.spawn(async move {
            let mut seed = task as u64;
            for round in 0..rounds() / TASKS {
                let set = three_of_five(&mut seed);
                let lock = zl.multi(set.iter().map(|lock| format!("of/{lock}")));
                let guard = timeout(Duration::from_secs(60), lock.lock()).await;
                let guard =
                    guard.unwrap_or_else(|_| panic!("task {task} is stuck in round {round} with {set:?}"));
                let guard = guard.expect("lock granted");
                for lock in &set {
                    assert_eq!(inside[*lock].fetch_add(1, Ordering::SeqCst), 0, "two tasks hold {lock}");
                }
                tokio::task::yield_now().await;
                for lock in &set {
                    inside[*lock].fetch_sub(1, Ordering::SeqCst);
                }
                guard.release().await.expect("release succeeds");
            }
        });
    }
    tasks.join_all().await;
    // For each hold, one transaction acquires the three locks, and one releases them.
    let turns = rounds() / TASKS * TASKS;
    assert_eq!(proxy.counts().since(&before).requests(MULTI), 2 * turns as u64, "{turns} turns");
    for lock in 0..5 {
        tree::assert_no_contenders(&place.addr(), &directory(&place, &format!("of/{lock}"))).await;
    }
});

on_both_servers!(acquiring_locks_one_by_one_deadlocks, |place| async move {
    let clients =
        [connect(&place).await, connect(&place).await, connect(&place).await, connect(&place).await];
    let done = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (zl, done) = (clients[task % 4].clone(), done.clone());
        tasks.spawn(async move {
            let mut seed = task as u64;
            loop {
                let mut guards = Vec::new();
                for lock in three_of_five(&mut seed) {
                    guards.push(zl.mutex(format!("stuck/{lock}")).lock().await.expect("lock granted"));
                    tokio::task::yield_now().await;
                }
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    // The tasks are deadlocked once none of them has acquired its three locks for two seconds.
    let mut seen = usize::MAX;
    let stuck = timeout(Duration::from_secs(60), async {
        while done.load(Ordering::SeqCst) != seen {
            seen = done.load(Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    });
    stuck.await.expect("acquiring one by one deadlocks; otherwise the comparison proves nothing");
    println!("one after another: stuck after {seen} of ten thousand");
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
});
