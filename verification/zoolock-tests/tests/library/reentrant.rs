//! Reentrant locks, on both servers.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use zoolock::admin::PreviousEnd;
use zoolock::{Error, FencingToken, LossReason, Owner, Previous, Zoolock};
use zoolock_tests::locks::leftovers::{assert_none, idle_background_tasks};
use zoolock_tests::locks::{
    await_guard, connect, directory, lock_and_release, lock_in_background, seed, until_queued,
};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{on_both_servers, tree};

/// Polls a future once, with a waker that does nothing.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Asserts that the owner keeps no state of released locks.
fn assert_forgotten(owner: &Owner) {
    assert_eq!(format!("{owner:?}"), "Owner { limit: 65535, locks: 0, .. }");
}

async fn waiters(zl: &Zoolock, name: &str) -> usize {
    zl.admin().snapshot(name).await.expect("snapshot succeeds").waiters.len()
}

on_both_servers!(last_guard_of_an_owner_releases, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("deep");
    lock_and_release(&mutex).await;
    let tasks = idle_background_tasks(&zl).await;
    let owner = Owner::new();
    let first = finish_in_time(mutex.lock_as(&owner)).await.expect("lock acquired");
    // The owner holds the lock, so each of these calls succeeds at once: with the absolute path and
    // a clone of the owner, without time left, and as a try.
    let second =
        finish_in_time(zl.mutex("/locks/deep").lock_as(&owner.clone())).await.expect("lock acquired");
    let third = finish_in_time(mutex.lock_as_timeout(&owner, Duration::ZERO)).await.expect("lock acquired");
    let fourth =
        finish_in_time(mutex.try_lock_as(&owner)).await.expect("attempt succeeds").expect("lock acquired");
    assert_eq!([first.depth(), second.depth(), third.depth(), fourth.depth()], [4; 4]);
    assert!([second.token(), third.token(), fourth.token()].iter().all(|token| *token == first.token()));
    assert_eq!(second.path(), "/locks/deep");
    assert_eq!(second.previous(), Previous::Clean);
    assert_eq!(second.node_path(), first.node_path());
    assert!(fourth.is_valid() && fourth.valid_until().remaining() > Duration::from_secs(5));
    assert_eq!(fourth.loss(), None);
    tree::assert_contenders(&place.addr(), &directory(&place, "deep"), 1).await;

    // The guards are dropped in any order. No other owner acquires the lock until all of them are dropped.
    let stranger = Owner::new();
    drop(first);
    fourth.release().await.expect("release succeeds");
    third.release().await.expect("release succeeds");
    assert_eq!(second.depth(), 1);
    assert!(second.is_valid());
    assert!(mutex.try_lock_as(&stranger).await.expect("attempt succeeds").is_none());
    assert!(other.mutex("deep").try_lock().await.expect("attempt succeeds").is_none());
    let token = second.token();
    second.release().await.expect("release succeeds");
    let next = other.mutex("deep").try_lock().await.expect("attempt succeeds").expect("lock acquired");
    assert!(next.token() > token);
    let error = mutex.lock_as_timeout(&owner, Duration::from_millis(100)).await.expect_err("lock is held");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    next.release().await.expect("release succeeds");
    let again = finish_in_time(mutex.lock_as(&owner)).await.expect("lock acquired");
    assert!(again.token() > token, "acquired anew");
    drop(again);
    assert_none(&place, &zl, tasks, "deep").await;
    assert_forgotten(&owner);
    assert_forgotten(&stranger);
});

on_both_servers!(calls_of_one_owner_share_a_queue_position, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("shared");
    lock_and_release(&mutex).await;
    let tasks = idle_background_tasks(&zl).await;
    let owner = Owner::new();
    let held = other.mutex("shared").lock().await.expect("lock acquired");
    let mut starter = Box::pin(mutex.lock_as(&owner));
    assert!(poll_once(starter.as_mut()).is_pending());
    until_queued(&other, "shared", 2).await;
    let mut follower = Box::pin(mutex.lock_as(&owner));
    let mut idler = Box::pin(mutex.lock_as(&owner));
    assert!(poll_once(follower.as_mut()).is_pending() && poll_once(idler.as_mut()).is_pending());
    // The owner is queued but does not hold the lock, so a try fails.
    assert!(finish_in_time(mutex.try_lock_as(&owner)).await.expect("attempt succeeds").is_none());
    // The timeout of one call does not end the other calls.
    let began = Instant::now();
    let error = mutex.lock_as_timeout(&owner, Duration::from_millis(200)).await.expect_err("lock is held");
    assert!(matches!(&error, Error::Timeout { path, .. } if path == "/locks/shared"), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(200));
    drop(starter);
    assert_eq!(waiters(&other, "shared").await, 1, "all calls share one queue position and keep it");

    held.release().await.expect("release succeeds");
    let guard = finish_in_time(follower).await.expect("lock granted");
    assert_eq!(guard.depth(), 1);
    let token = guard.token();
    guard.release().await.expect("release succeeds");
    // The idle call has not been polled since the grant, so it does not keep the lock.
    let theirs = other.mutex("shared").try_lock().await.expect("attempt succeeds").expect("lock acquired");
    drop(theirs);
    let guard = finish_in_time(idler).await.expect("lock granted");
    assert!(guard.token() > token && guard.depth() == 1);
    guard.release().await.expect("release succeeds");
    assert_none(&place, &zl, tasks, "shared").await;
    assert_forgotten(&owner);
});

on_both_servers!(last_cancelled_call_leaves_the_queue, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("left");
    lock_and_release(&mutex).await;
    let tasks = idle_background_tasks(&zl).await;
    let owner = Owner::new();
    let directory = directory(&place, "left");
    let held = other.mutex("left").lock().await.expect("lock acquired");
    let mut one = Box::pin(mutex.lock_as(&owner));
    let mut two = Box::pin(mutex.lock_as(&owner));
    assert!(poll_once(one.as_mut()).is_pending() && poll_once(two.as_mut()).is_pending());
    until_queued(&other, "left", 2).await;
    drop(one);
    assert_eq!(waiters(&other, "left").await, 1);
    drop(two);
    tree::assert_contenders(&place.addr(), &directory, 1).await;
    // The next call is granted the lock, and is dropped before its result is read.
    let mut late = Box::pin(mutex.lock_as(&owner));
    assert!(poll_once(late.as_mut()).is_pending());
    until_queued(&other, "left", 2).await;
    held.release().await.expect("release succeeds");
    drop(late);
    assert_none(&place, &zl, tasks, "left").await;
    assert_forgotten(&owner);
});

on_both_servers!(failed_try_does_not_end_other_calls, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("tried");
    let owner = Owner::new();
    let held = other.mutex("tried").lock().await.expect("lock acquired");
    let mut tries = Box::pin(mutex.try_lock_as(&owner));
    assert!(poll_once(tries.as_mut()).is_pending());
    let mut waits = Box::pin(mutex.lock_as(&owner));
    // A call that is polled late does not delay the other calls.
    let mut idles = Box::pin(mutex.lock_as(&owner));
    assert!(poll_once(waits.as_mut()).is_pending() && poll_once(idles.as_mut()).is_pending());
    let waiting = tokio::join!(tries, async {
        // The waiting call creates a znode of its own once the try has failed.
        tokio::select! {
            early = &mut waits => panic!("lock is held, but: {early:?}"),
            () = until_queued(&other, "tried", 2) => {}
        }
    });
    assert!(waiting.0.expect("read succeeds").is_none());
    held.release().await.expect("release succeeds");
    let (waited, idled) = finish_in_time(async { tokio::join!(waits, idles) }).await;
    let (waited, idled) = (waited.expect("lock granted"), idled.expect("lock granted"));
    assert_eq!(waited.token(), idled.token());
    drop(waited);
    idled.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "tried")).await;
});

on_both_servers!(an_owner_at_its_limit_is_refused, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("limited");
    let owner = Owner::with_limit(2);
    let (one, two) = (
        mutex.lock_as(&owner).await.expect("lock acquired"),
        mutex.lock_as(&owner).await.expect("lock acquired"),
    );
    let error = mutex.lock_as(&owner).await.expect_err("limit of two is reached");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("lock /locks/limited") && text.contains("2 times"), "{text}");
    assert!(matches!(mutex.try_lock_as(&owner).await, Err(Error::Invalid { .. })));
    assert_eq!(one.depth(), 2, "a refused call does not change the depth");
    zl.mutex("another")
        .lock_as(&owner)
        .await
        .expect("the limit is per lock")
        .release()
        .await
        .expect("release succeeds");
    two.release().await.expect("release succeeds");
    mutex.lock_as(&owner).await.expect("lock acquired").release().await.expect("release succeeds");
    one.release().await.expect("release succeeds");
    let none = Owner::with_limit(0);
    assert!(matches!(mutex.lock_as(&none).await, Err(Error::Invalid { .. })));
    assert!(matches!(zl.mutex("a//b").lock_as(&owner).await, Err(Error::Invalid { .. })));
    tree::assert_no_contenders(&place.addr(), &directory(&place, "limited")).await;
});

on_both_servers!(owner_may_have_65535_guards, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("many");
    let owner = Owner::new();
    let mut guards = Vec::new();
    for _ in 0..Owner::LIMIT {
        guards.push(mutex.lock_as(&owner).await.expect("guard is within the limit"));
    }
    assert_eq!(guards[0].depth(), 65_535);
    let error = mutex.lock_as(&owner).await.expect_err("guard exceeds the limit").to_string();
    assert!(error.contains("65535"), "{error}");
    drop(guards);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "many")).await;
});

on_both_servers!(lost_lock_is_reacquired_only_after_all_drops, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("doomed");
    lock_and_release(&mutex).await;
    let tasks = idle_background_tasks(&zl).await;
    let owner = Owner::new();
    let (one, two) = (
        mutex.lock_as(&owner).await.expect("lock acquired"),
        mutex.lock_as(&owner).await.expect("lock acquired"),
    );
    let token = one.token();
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    operator.delete(&format!("{}{}", place.chroot(), one.node_path()), None).await.expect("znode exists");
    assert_eq!(finish_in_time(one.lost()).await, LossReason::Broken);
    assert_eq!(finish_in_time(two.lost()).await, LossReason::Broken);
    assert!(!two.is_valid() && two.loss() == Some(LossReason::Broken) && two.valid_until().has_passed());
    // Another task holds the lock now. The owner must not re-enter as if it still held the lock.
    let other_guard = finish_in_time(mutex.lock()).await.expect("lock acquired");
    for _ in 0..2 {
        let error = finish_in_time(mutex.lock_as(&owner)).await.expect_err("lock is lost");
        assert!(
            matches!(&error, Error::Lost { path, reason: LossReason::Broken, .. } if path == "/locks/doomed")
        );
        assert!(matches!(finish_in_time(mutex.try_lock_as(&owner)).await, Err(Error::Lost { .. })));
    }
    assert_eq!(one.depth(), 2, "a refused call does not change the depth");
    assert!(matches!(one.release().await, Err(Error::Lost { .. })), "an inner guard reports the loss too");
    assert!(matches!(finish_in_time(mutex.lock_as(&owner)).await, Err(Error::Lost { .. })));
    assert!(matches!(two.release().await, Err(Error::Lost { .. })));
    assert!(
        mutex.try_lock_as(&owner).await.expect("attempt succeeds").is_none(),
        "another task holds the lock"
    );
    other_guard.release().await.expect("release succeeds");
    let anew = finish_in_time(mutex.lock_as(&owner)).await.expect("lock acquired");
    assert!(anew.is_valid() && anew.token() > token && anew.depth() == 1);
    anew.release().await.expect("release succeeds");
    assert_none(&place, &zl, tasks, "doomed").await;
    assert_forgotten(&owner);
});

on_both_servers!(panic_under_any_guard_is_recorded, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("rough");
    let owner = Owner::new();
    for release in [false, true] {
        let outer = mutex.lock_as(&owner).await.expect("lock acquired");
        let inner = mutex.lock_as(&owner).await.expect("lock acquired");
        let job = tokio::spawn(async move {
            let _inner = inner;
            panic!("on purpose");
        });
        assert!(job.await.expect_err("the task panics").is_panic());
        assert!(outer.is_valid(), "the owner still holds the lock");
        if release {
            outer.release().await.expect("release succeeds")
        } else {
            drop(outer)
        }
        let next = mutex.lock().await.expect("lock acquired");
        assert_eq!(
            zl.admin().snapshot("rough").await.expect("snapshot succeeds").previous,
            PreviousEnd::Panicked
        );
        next.release().await.expect("release succeeds");
        assert_eq!(
            zl.admin().snapshot("rough").await.expect("snapshot succeeds").previous,
            PreviousEnd::Clean
        );
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, "rough")).await;
});

on_both_servers!(owner_is_specific_to_its_client, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let owner = Owner::new();
    let guard = zl.mutex("a").lock_as(&owner).await.expect("lock acquired");
    zl.clone()
        .mutex("a")
        .lock_as(&owner)
        .await
        .expect("a clone of the client is the same owner")
        .release()
        .await
        .expect("release succeeds");
    assert!(other.mutex("a").try_lock_as(&owner).await.expect("attempt succeeds").is_none());
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "a")).await;
});

on_both_servers!(owners_with_many_tasks_exclude_each_other, |place| async move {
    let seed = seed();
    let (zl, other) = (connect(&place).await, connect(&place).await);
    lock_and_release(&zl.mutex("crowd")).await;
    let tasks = [idle_background_tasks(&zl).await, idle_background_tasks(&other).await];
    let owners: Vec<Owner> = std::iter::repeat_with(Owner::new).take(4).collect();
    let steps = Arc::new(Steps::default());
    let mut crowd = tokio::task::JoinSet::new();
    for (number, owner) in (0..).zip(&owners) {
        for task in 0..6 {
            let mutex = if number % 2 == 0 { zl.mutex("crowd") } else { other.mutex("crowd") };
            let (owner, steps) = (owner.clone(), steps.clone());
            let mut random = fastrand::Rng::with_seed(seed ^ (number * 6 + task));
            crowd.spawn(async move {
                let mut entered = 0;
                for _ in 0..15 {
                    let patience = Duration::from_micros(random.u64(..40_000));
                    let guard = match random.u64(..5) {
                        // The acquisition is cancelled at a random moment.
                        0 => tokio::time::timeout(patience, mutex.lock_as(&owner)).await.ok(),
                        1 => Some(mutex.lock_as_timeout(&owner, patience).await),
                        2 => mutex.try_lock_as(&owner).await.transpose(),
                        _ => Some(finish_in_time(mutex.lock_as(&owner)).await),
                    };
                    let guard = match guard {
                        None | Some(Err(Error::Timeout { .. })) => continue,
                        Some(outcome) => outcome.expect("no other error occurs"),
                    };
                    entered += 1;
                    steps.take(number, guard.token());
                    let again = finish_in_time(mutex.lock_as(&owner)).await.expect("lock acquired");
                    assert_eq!(again.token(), guard.token());
                    assert!(again.depth() >= 2);
                    if random.u64(..2) == 0 {
                        drop(guard)
                    } else {
                        guard.release().await.expect("release succeeds")
                    }
                    steps.take(number, again.token());
                    again.release().await.expect("release succeeds");
                }
                entered
            });
        }
    }
    let entered: u32 = crowd.join_all().await.into_iter().sum();
    assert!(entered > 50, "{entered}");
    steps.check();
    assert_none(&place, &zl, tasks[0], "crowd").await;
    assert_none(&place, &other, tasks[1], "crowd").await;
    owners.iter().for_each(assert_forgotten);
});

/// The grants in the order in which they were observed: owner and token.
#[derive(Default)]
struct Steps(Mutex<Vec<(u64, FencingToken)>>);

impl Steps {
    fn take(&self, owner: u64, token: FencingToken) {
        self.0.lock().expect("mutex is not poisoned").push((owner, token));
    }

    /// Asserts that tokens never decrease. A holder that overlaps with a later holder would record its lower token after
    /// the higher one.
    fn check(&self) {
        let steps = self.0.lock().expect("mutex is not poisoned");
        for pair in steps.windows(2) {
            let [(owner, token), (next, later)] = pair else { unreachable!("windows of two") };
            assert!(token <= later, "{next} was inside with {later} after {owner} with {token}");
            assert!(token != later || owner == next, "{owner} and {next} had the same token {token}");
        }
    }
}

/// Asserts that `outcome` is a timeout. Returns whether the error says that a guard of this client holds the lock.
fn is_held_here<T: std::fmt::Debug>(outcome: Result<T, Error>) -> bool {
    let error = outcome.expect_err("lock is held");
    let Error::Timeout { held_here, .. } = error else { panic!("{error}") };
    assert_eq!(error.to_string().contains("`lock_as`"), held_here, "{error}");
    held_here
}

on_both_servers!(timeout_names_a_guard_of_this_client, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let patience = Duration::from_millis(100);
    let mutex = zl.mutex("twice");
    let guard = mutex.lock().await.expect("lock acquired");
    assert!(is_held_here(mutex.lock_timeout(patience).await));
    assert!(is_held_here(zl.multi(["free", "twice"]).lock_timeout(patience).await));
    assert!(is_held_here(mutex.lock_as_timeout(&Owner::new(), patience).await));
    assert!(!is_held_here(other.mutex("twice").lock_timeout(patience).await));
    // The guard can also belong to another task of this client.
    let waiting = lock_in_background(&mutex);
    until_queued(&other, "twice", 2).await;
    guard.release().await.expect("release succeeds");
    let next = await_guard(waiting).await;
    assert!(is_held_here(mutex.lock_timeout(patience).await));
    next.release().await.expect("release succeeds");
    let theirs = other.mutex("twice").lock().await.expect("lock acquired");
    assert!(!is_held_here(mutex.lock_timeout(patience).await));
    drop(theirs);

    let owner = Owner::new();
    let owned = zl.mutex("owned").lock_as(&owner).await.expect("lock acquired");
    assert!(is_held_here(zl.mutex("owned").lock_timeout(patience).await));
    drop(owned);
    let shared = zl.mutex("shared").shared_hold(Duration::from_secs(60));
    let held = shared.lock().await.expect("lock acquired");
    assert!(is_held_here(shared.lock_timeout(patience).await));
    drop(held);
});

on_both_servers!(timeout_names_only_guards_that_exclude, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let patience = Duration::from_millis(100);
    let (rwlock, theirs) = (zl.rwlock("rw"), other.rwlock("rw"));
    let reader = rwlock.upgradable_read().await.expect("lock acquired");
    assert!(is_held_here(rwlock.write_timeout(patience).await));
    assert!(is_held_here(rwlock.upgradable_read_timeout(patience).await));
    // An upgrading reader does not wait for its own read lock.
    let beside = theirs.read().await.expect("lock acquired");
    let failed = reader.upgrade_timeout(patience).await.expect_err("another client reads");
    assert!(!is_held_here::<()>(Err(failed.error)));
    beside.release().await.expect("release succeeds");
    let beside = rwlock.read().await.expect("lock acquired");
    let failed = failed.guard.upgrade_timeout(patience).await.expect_err("this client reads, too");
    assert!(is_held_here::<()>(Err(failed.error)));
    drop((beside, failed.guard));

    let writer = rwlock.write().await.expect("lock acquired");
    assert!(is_held_here(rwlock.read_timeout(patience).await));
    let reader = writer.downgrade().await.expect("downgrade succeeds");
    let waiting = tokio::spawn(async move { theirs.write().await });
    until_queued(&zl, "rw", 2).await;
    assert!(!is_held_here(rwlock.read_timeout(patience).await), "another client's writer is ahead");
    drop(reader);
    drop(await_guard(waiting).await);

    let (permits, theirs) = (zl.semaphore("permits", 3), other.semaphore("permits", 3));
    let own = permits.acquire(1).await.expect("permit acquired");
    let beside = theirs.acquire(2).await.expect("permits acquired");
    assert!(!is_held_here(permits.acquire_timeout(2, patience).await));
    assert!(is_held_here(permits.acquire_timeout(3, patience).await));
    drop((own, beside));
});

on_both_servers!(task_that_waits_for_itself_is_a_deadlock, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let twice = tokio::spawn({
        let mutex = zl.mutex("itself");
        async move {
            let first = mutex.lock().await?;
            let second = mutex.lock().await;
            drop(first);
            second.map(drop)
        }
    });
    until_queued(&other, "itself", 2).await;
    let deadlocks = other.admin().deadlocks(None).await.expect("locks read");
    assert_eq!((deadlocks.len(), deadlocks[0].edges.len(), deadlocks[0].owners), (1, 1, 1));
    let cut = deadlocks[0].to_break.as_ref().expect("a holder of zoolock can be broken");
    other.admin().break_lock(&cut.lock, cut.token).await.expect("the holder exists");
    finish_in_time(twice).await.expect("task does not panic").expect("lock granted to the second call");
});
