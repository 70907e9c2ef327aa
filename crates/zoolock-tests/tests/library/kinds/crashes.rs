//! How the last holder left.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use zoolock::{Error, LockEvent, Previous, Zoolock};
use zoolock_tests::{Place, on_both_arms, tree};

use zoolock_tests::locks::{brisk_settings, connect, directory, until_queued};

const SOON: Duration = Duration::from_secs(20);

/// Takes the lock by another client, and dies with it.
async fn crash(place: &Place, name: &str, tracking: bool) {
    let doomed = connect(place).await;
    let mutex = doomed.mutex(name);
    let mutex = if tracking { mutex.crash_detection() } else { mutex };
    let guard = mutex.lock().await.expect("lock acquired");
    // The session ends without a word from the holder, as if the process were killed.
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    operator.delete(&guard_node(place, &guard), None).await.expect("znode exists");
    let _ = timeout(SOON, guard.lost()).await.expect("loss reported in time");
}

fn guard_node(place: &Place, guard: &zoolock::Guard) -> String {
    format!("{}{}", place.chroot(), guard.node_path())
}

on_both_arms!(a_crash_is_known_to_the_next_and_a_clean_release_too, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("tracked").crash_detection();
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Unknown, "nobody held it before");
    guard.release().await.expect("release succeeds");
    // Whoever only tried, and left, is none of the holders.
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean);
    assert!(zl.mutex("tracked").try_lock().await.expect("attempt succeeds").is_none());
    guard.release().await.expect("release succeeds");
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean, "those who tried in between do not matter");
    drop(guard);
    crash(&place, "tracked", true).await;
    // Also one who gives up between does not wash it away.
    let waiting = zl.mutex("tracked").lock_timeout(SOON).await.expect("lock acquired");
    assert_eq!(waiting.previous(), Previous::Crashed, "whoever did not ask is told, too");
    waiting.release().await.expect("release succeeds");
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean, "the one after the crash has left cleanly");
    drop(guard);
    // Nobody asked for it, but the lock is tracked: a crash of such a one is known, too.
    crash(&place, "tracked", false).await;
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Crashed);
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "tracked")).await;
});

on_both_arms!(without_tracking_a_crash_is_unknown, |place| async move {
    let zl = connect(&place).await;
    crash(&place, "plain", false).await;
    let guard = zl.mutex("plain").lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Unknown);
});

on_both_arms!(a_process_that_is_killed_is_a_crash, |place| async move {
    let zl = brisk_settings().connect(&place.connect_string()).await.expect("session starts");
    let proxy = zoolock_tests::Proxy::start(&place.addr()).await.expect("proxy starts");
    let doomed = brisk_settings().connect(&place.through(&proxy.addr())).await.expect("session starts");
    let guard = doomed.rwlock("killed").crash_detection().write().await.expect("lock acquired");
    let next = tokio::spawn({
        let zl = zl.clone();
        async move { zl.rwlock("killed").crash_detection().write().await }
    });
    until_queued(&zl, "killed", 2).await;
    proxy.blackhole(true);
    let next =
        timeout(SOON, next).await.expect("lock granted").expect("task does not panic").expect("lock granted");
    assert_eq!(next.previous(), Previous::Crashed);
    assert!(!guard.is_valid());
    next.release().await.expect("release succeeds");
    let reader = zl.rwlock("killed").read().await.expect("lock acquired");
    assert_eq!(reader.previous(), Previous::Clean);
});

on_both_arms!(after_a_crash_the_next_waits_and_after_a_clean_release_it_does_not, |place| async move {
    const DELAY: Duration = Duration::from_millis(1500);
    let zl = connect(&place).await;
    let mutex = zl.mutex("slow").crash_detection().lock_delay(DELAY);
    // The first one of all does not know who was before it.
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let began = Instant::now();
    for _ in 0..3 {
        mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    }
    assert!(began.elapsed() < DELAY, "{:?} for three after a clean release", began.elapsed());
    crash(&place, "slow", true).await;
    let began = Instant::now();
    let error = mutex.lock_timeout(DELAY / 3).await.expect_err("a deadline counts in the delay");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let guard = mutex.lock().await.expect("lock acquired");
    assert!(began.elapsed() >= DELAY, "after a crash it took {:?}", began.elapsed());
    assert_eq!(guard.previous(), Previous::Crashed);
    guard.release().await.expect("release succeeds");
    let began = Instant::now();
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    assert!(began.elapsed() < DELAY);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "slow")).await;
});

on_both_arms!(one_who_gives_up_while_it_begins_does_not_look_like_a_crash, |place| async move {
    let zl: Zoolock = connect(&place).await;
    let mutex = zl.mutex("brief").crash_detection();
    mutex.lock().await.expect("lock acquired").release().await.expect("release succeeds");
    let mut events = mutex.events();
    for patience in 0..40u64 {
        // Cancelled anywhere between the create and the grant.
        let _ = timeout(Duration::from_micros(patience * 100), mutex.lock()).await;
    }
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean);
    drop(guard);
    assert!(matches!(
        events.next().await,
        Some(LockEvent::Queued { .. } | LockEvent::GaveUp | LockEvent::Acquired(_) | LockEvent::Released(_))
    ));
    tree::assert_no_contenders(&place.addr(), &directory(&place, "brief")).await;
});

on_both_arms!(a_multi_lock_that_gives_up_does_not_wash_a_crash_away, |place| async move {
    let zl = connect(&place).await;
    let busy = zl.mutex("busy").lock().await.expect("lock acquired");
    for tracking in [true, false] {
        let name = if tracking { "washed" } else { "washed-too" };
        crash(&place, name, tracking).await;
        // It has one of the two for a while, and nobody works under it.
        let both = zl.multi([name, "busy"]);
        let error = both.lock_timeout(Duration::from_millis(300)).await.expect_err("one lock is held");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        let guard = zl.mutex(name).lock().await.expect("lock acquired");
        assert_eq!(guard.previous(), if tracking { Previous::Crashed } else { Previous::Unknown });
    }
    drop(busy);
});

on_both_arms!(whoever_loses_a_part_of_what_it_holds_leaves_nothing_clean, |place| async move {
    let zl = connect(&place).await;
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    // A writer whose reader is deleted.
    let lock = zl.rwlock("part").crash_detection();
    lock.write().await.expect("lock acquired").release().await.expect("release succeeds");
    let writer = lock.read().await.expect("lock acquired").upgrade().await.expect("upgrade succeeds");
    let reader = format!("{}{}", place.chroot(), writer.node_path());
    operator.delete(&reader, None).await.expect("znode exists");
    let _ = timeout(SOON, writer.lost()).await.expect("loss reported in time");
    drop(writer);
    assert_eq!(lock.write().await.expect("lock acquired").previous(), Previous::Crashed);
    // One of several locks.
    let both = zl.multi(["one", "two"]).crash_detection();
    let guard = both.lock().await.expect("lock acquired");
    operator
        .delete(&format!("{}/lock-0000000000", directory(&place, "two")), None)
        .await
        .expect("znode exists");
    let _ = timeout(SOON, guard.lost()).await.expect("loss reported in time");
    drop(guard);
    let one = zl.mutex("one").lock().await.expect("lock acquired");
    assert_ne!(one.previous(), Previous::Clean);
});
