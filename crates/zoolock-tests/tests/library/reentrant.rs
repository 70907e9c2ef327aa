//! Locks that their owner may take again, on both servers.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use zoolock::{Error, FencingToken, LossReason, Owner, Previous, Zoolock};
use zoolock_tests::locks::leftovers::{assert_none, settle};
use zoolock_tests::locks::{connect, directory, until_queued};
use zoolock_tests::{on_both_arms, tree};

/// Far longer than anything here takes, far shorter than for ever.
const SOON: Duration = Duration::from_secs(20);

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("finishes in time")
}

/// Polls once, and leaves nobody to be woken.
fn glance<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// An owner keeps nothing of locks that it has left.
fn assert_forgotten(owner: &Owner) {
    assert_eq!(format!("{owner:?}"), "Owner { limit: 65535, locks: 0, .. }");
}

async fn waiters(zl: &Zoolock, name: &str) -> usize {
    zl.mutex(name).snapshot().await.expect("snapshot succeeds").waiters.len()
}

on_both_arms!(an_owner_enters_again_at_once_and_its_last_guard_releases, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("deep");
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tasks = settle(&zl).await;
    let owner = Owner::new();
    let first = soon(mutex.lock_as(&owner)).await.expect("lock acquired");
    // Under another name, by a clone, with a deadline that has passed, as a mere try: it is ours already.
    let second = soon(zl.mutex("/locks/deep").lock_as(&owner.clone())).await.expect("lock acquired");
    let third = soon(mutex.lock_as_timeout(&owner, Duration::ZERO)).await.expect("lock acquired");
    let fourth = soon(mutex.try_lock_as(&owner)).await.expect("attempt succeeds").expect("ours");
    assert_eq!([first.depth(), second.depth(), third.depth(), fourth.depth()], [4; 4]);
    assert!([second.token(), third.token(), fourth.token()].iter().all(|token| *token == first.token()));
    assert_eq!(second.path(), "/locks/deep");
    assert_eq!(second.previous(), Previous::Clean);
    assert_eq!(second.node_path(), first.node_path());
    assert!(fourth.is_valid() && fourth.valid_until().remaining() > Duration::from_secs(5));
    assert_eq!(fourth.loss(), None);
    tree::assert_contenders(&place.addr(), &directory(&place, "deep"), 1).await;

    // Nobody else comes in, until the last is gone, whichever that is.
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
    let again = soon(mutex.lock_as(&owner)).await.expect("lock acquired");
    assert!(again.token() > token, "acquired anew");
    drop(again);
    assert_none(&place, &zl, tasks, "deep").await;
    assert_forgotten(&owner);
    assert_forgotten(&stranger);
});

on_both_arms!(calls_of_one_owner_share_a_place_in_the_queue_and_outlive_each_other, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("shared");
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tasks = settle(&zl).await;
    let owner = Owner::new();
    let held = other.mutex("shared").lock().await.expect("lock acquired");
    let mut starter = Box::pin(mutex.lock_as(&owner));
    assert!(glance(starter.as_mut()).is_pending());
    until_queued(&other, "shared", 2).await;
    let mut follower = Box::pin(mutex.lock_as(&owner));
    let mut idler = Box::pin(mutex.lock_as(&owner));
    assert!(glance(follower.as_mut()).is_pending() && glance(idler.as_mut()).is_pending());
    // It stands in the queue already: that is no free lock.
    assert!(soon(mutex.try_lock_as(&owner)).await.expect("attempt succeeds").is_none());
    // The time of one is not the time of the others.
    let began = Instant::now();
    let error = mutex.lock_as_timeout(&owner, Duration::from_millis(200)).await.expect_err("lock is held");
    assert!(matches!(&error, Error::Timeout { path, .. } if path == "/locks/shared"), "{error}");
    assert!(began.elapsed() >= Duration::from_millis(200));
    drop(starter);
    assert_eq!(waiters(&other, "shared").await, 1, "one place for all, and it is kept");

    held.release().await.expect("release succeeds");
    let guard = soon(follower).await.expect("lock granted");
    assert_eq!(guard.depth(), 1);
    let token = guard.token();
    guard.release().await.expect("release succeeds");
    // The idler was granted the lock with the other, and has not fetched it yet.
    assert!(other.mutex("shared").try_lock().await.expect("attempt succeeds").is_none());
    let guard = soon(idler).await.expect("granted long ago");
    assert_eq!((guard.token(), guard.depth()), (token, 1));
    guard.release().await.expect("release succeeds");
    assert_none(&place, &zl, tasks, "shared").await;
    assert_forgotten(&owner);
});

on_both_arms!(a_place_goes_with_the_last_call_that_wants_it, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("left");
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tasks = settle(&zl).await;
    let owner = Owner::new();
    let directory = directory(&place, "left");
    let held = other.mutex("left").lock().await.expect("lock acquired");
    let mut one = Box::pin(mutex.lock_as(&owner));
    let mut two = Box::pin(mutex.lock_as(&owner));
    assert!(glance(one.as_mut()).is_pending() && glance(two.as_mut()).is_pending());
    until_queued(&other, "left", 2).await;
    drop(one);
    assert_eq!(waiters(&other, "left").await, 1);
    drop(two);
    tree::assert_contenders(&place.addr(), &directory, 1).await;
    // Granted, and dropped before anybody looked.
    let mut late = Box::pin(mutex.lock_as(&owner));
    assert!(glance(late.as_mut()).is_pending());
    until_queued(&other, "left", 2).await;
    held.release().await.expect("release succeeds");
    drop(late);
    assert_none(&place, &zl, tasks, "left").await;
    assert_forgotten(&owner);
});

on_both_arms!(a_try_that_fails_is_nobody_elses_answer, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let mutex = zl.mutex("tried");
    let owner = Owner::new();
    let held = other.mutex("tried").lock().await.expect("lock acquired");
    let mut tries = Box::pin(mutex.try_lock_as(&owner));
    assert!(glance(tries.as_mut()).is_pending());
    let mut waits = Box::pin(mutex.lock_as(&owner));
    // Somebody who fetches the answer late keeps it from nobody.
    let mut idles = Box::pin(mutex.lock_as(&owner));
    assert!(glance(waits.as_mut()).is_pending() && glance(idles.as_mut()).is_pending());
    let waiting = tokio::join!(tries, async {
        // It stands in the queue itself once the try has failed.
        tokio::select! {
            early = &mut waits => panic!("held by another, and yet {early:?}"),
            () = until_queued(&other, "tried", 2) => {}
        }
    });
    assert!(waiting.0.expect("read succeeds").is_none());
    held.release().await.expect("release succeeds");
    let (waited, idled) = soon(async { tokio::join!(waits, idles) }).await;
    let (waited, idled) = (waited.expect("lock granted"), idled.expect("lock granted"));
    assert_eq!(waited.token(), idled.token());
    drop(waited);
    idled.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "tried")).await;
});

on_both_arms!(an_owner_at_its_limit_is_refused, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("limited");
    let owner = Owner::with_limit(2);
    let (one, two) = (
        mutex.lock_as(&owner).await.expect("lock acquired"),
        mutex.lock_as(&owner).await.expect("lock acquired"),
    );
    let error = mutex.lock_as(&owner).await.expect_err("twice is enough");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("lock /locks/limited") && text.contains("2 times"), "{text}");
    assert!(matches!(mutex.try_lock_as(&owner).await, Err(Error::Invalid { .. })));
    assert_eq!(one.depth(), 2, "who was refused does not count");
    zl.mutex("another")
        .lock_as(&owner)
        .await
        .expect("the limit is by lock")
        .release()
        .await
        .expect("release succeeds");
    two.release().await.expect("release succeeds");
    mutex.lock_as(&owner).await.expect("room again").release().await.expect("release succeeds");
    one.release().await.expect("release succeeds");
    let none = Owner::with_limit(0);
    assert!(matches!(mutex.lock_as(&none).await, Err(Error::Invalid { .. })));
    assert!(matches!(zl.mutex("a//b").lock_as(&owner).await, Err(Error::Invalid { .. })));
    tree::assert_no_contenders(&place.addr(), &directory(&place, "limited")).await;
});

on_both_arms!(the_most_guards_are_as_many_as_in_java, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("many");
    let owner = Owner::new();
    let mut guards = Vec::new();
    for _ in 0..Owner::LIMIT {
        guards.push(mutex.lock_as(&owner).await.expect("within the limit"));
    }
    assert_eq!(guards[0].depth(), 65_535);
    let error = mutex.lock_as(&owner).await.expect_err("one too many").to_string();
    assert!(error.contains("65535"), "{error}");
    drop(guards);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "many")).await;
});

on_both_arms!(a_lost_lock_is_not_entered_again_until_all_guards_are_gone, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("doomed");
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tasks = settle(&zl).await;
    let owner = Owner::new();
    let (one, two) = (
        mutex.lock_as(&owner).await.expect("lock acquired"),
        mutex.lock_as(&owner).await.expect("lock acquired"),
    );
    let token = one.token();
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    operator.delete(&format!("{}{}", place.chroot(), one.node_path()), None).await.expect("znode exists");
    assert_eq!(soon(one.lost()).await, LossReason::Broken);
    assert_eq!(soon(two.lost()).await, LossReason::Broken);
    assert!(!two.is_valid() && two.loss() == Some(LossReason::Broken) && two.valid_until().has_passed());
    // Somebody else has it now; who comes back as its owner must not believe that nothing happened.
    let rival = soon(mutex.lock()).await.expect("lock acquired");
    for _ in 0..2 {
        let error = soon(mutex.lock_as(&owner)).await.expect_err("lock is lost");
        assert!(
            matches!(&error, Error::Lost { path, reason: LossReason::Broken } if path == "/locks/doomed")
        );
        assert!(matches!(soon(mutex.try_lock_as(&owner)).await, Err(Error::Lost { .. })));
    }
    assert_eq!(one.depth(), 2, "who was refused does not count");
    assert!(matches!(one.release().await, Err(Error::Lost { .. })), "an inner guard says so, too");
    assert!(matches!(soon(mutex.lock_as(&owner)).await, Err(Error::Lost { .. })));
    assert!(matches!(two.release().await, Err(Error::Lost { .. })));
    assert!(mutex.try_lock_as(&owner).await.expect("attempt succeeds").is_none(), "the rival has it");
    rival.release().await.expect("release succeeds");
    let anew = soon(mutex.lock_as(&owner)).await.expect("lock acquired");
    assert!(anew.is_valid() && anew.token() > token && anew.depth() == 1);
    anew.release().await.expect("release succeeds");
    assert_none(&place, &zl, tasks, "doomed").await;
    assert_forgotten(&owner);
});

on_both_arms!(a_panic_under_any_of_the_guards_is_told_to_the_next_holder, |place| async move {
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
        assert!(job.await.expect_err("it panics").is_panic());
        assert!(outer.is_valid(), "the owner still holds it");
        if release {
            outer.release().await.expect("release succeeds")
        } else {
            drop(outer)
        }
        let next = mutex.lock().await.expect("lock acquired");
        assert_eq!(mutex.snapshot().await.expect("snapshot succeeds").previous, "panicked");
        next.release().await.expect("release succeeds");
        assert_eq!(mutex.snapshot().await.expect("snapshot succeeds").previous, "clean");
    }
    tree::assert_no_contenders(&place.addr(), &directory(&place, "rough")).await;
});

on_both_arms!(an_owner_is_another_on_another_client, |place| async move {
    let (zl, other) = (connect(&place).await, connect(&place).await);
    let owner = Owner::new();
    let guard = zl.mutex("a").lock_as(&owner).await.expect("lock acquired");
    zl.clone()
        .mutex("a")
        .lock_as(&owner)
        .await
        .expect("a clone is the same client")
        .release()
        .await
        .expect("release succeeds");
    assert!(other.mutex("a").try_lock_as(&owner).await.expect("attempt succeeds").is_none());
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "a")).await;
});

on_both_arms!(owners_with_many_tasks_have_their_turns_alone, |place| async move {
    let seed = std::env::var("ZOOLOCK_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.as_nanos() as u64));
    println!("ZOOLOCK_SEED={seed}");
    let (zl, other) = (connect(&place).await, connect(&place).await);
    zl.mutex("crowd").lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let tasks = [settle(&zl).await, settle(&other).await];
    let owners: Vec<Owner> = std::iter::repeat_with(Owner::new).take(4).collect();
    let steps = Arc::new(Steps::default());
    let mut crowd = tokio::task::JoinSet::new();
    for (number, owner) in (0..).zip(&owners) {
        for task in 0..6 {
            let mutex = if number % 2 == 0 { zl.mutex("crowd") } else { other.mutex("crowd") };
            let (owner, steps) = (owner.clone(), steps.clone());
            let mut dice = Dice(seed ^ (number * 6 + task));
            crowd.spawn(async move {
                let mut entered = 0;
                for _ in 0..15 {
                    let patience = Duration::from_micros(dice.roll(40_000));
                    let guard = match dice.roll(5) {
                        // Cancelled wherever it is.
                        0 => tokio::time::timeout(patience, mutex.lock_as(&owner)).await.ok(),
                        1 => Some(mutex.lock_as_timeout(&owner, patience).await),
                        2 => mutex.try_lock_as(&owner).await.transpose(),
                        _ => Some(soon(mutex.lock_as(&owner)).await),
                    };
                    let guard = match guard {
                        None | Some(Err(Error::Timeout { .. })) => continue,
                        Some(outcome) => outcome.expect("nothing else goes wrong"),
                    };
                    entered += 1;
                    steps.take(number, guard.token());
                    let again = soon(mutex.lock_as(&owner)).await.expect("lock acquired");
                    assert_eq!(again.token(), guard.token());
                    assert!(again.depth() >= 2);
                    if dice.roll(2) == 0 {
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

/// Who was inside, with which token, in the order in which it happened.
#[derive(Default)]
struct Steps(Mutex<Vec<(u64, FencingToken)>>);

impl Steps {
    fn take(&self, owner: u64, token: FencingToken) {
        self.0.lock().expect("nobody panics with it").push((owner, token));
    }

    /// Whoever is inside beside a later holder shows its lower token after a higher one.
    fn check(&self) {
        let steps = self.0.lock().expect("nobody panics with it");
        for pair in steps.windows(2) {
            let [(owner, token), (next, later)] = pair else { unreachable!("windows of two") };
            assert!(token <= later, "{next} was inside with {later} after {owner} with {token}");
            assert!(token != later || owner == next, "{owner} and {next} had the same token {token}");
        }
    }
}

/// A small generator of our own: the seed is all there is to a run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}
