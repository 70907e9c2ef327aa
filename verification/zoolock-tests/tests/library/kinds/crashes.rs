//! Crash detection: the next holder learns whether the previous holder released the lock or crashed.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use zoolock::{Error, LockEvent, Previous, Zoolock};
use zoolock_tests::{Place, on_both_servers, tree};

use zoolock_tests::locks::{connect, directory, lock_and_release, short_session_settings, until_queued};

const SOON: Duration = Duration::from_secs(20);

/// Acquires the lock with another client, and ends its hold without a release, as a crash does.
async fn crash(place: &Place, name: &str, tracking: bool) {
    let doomed = connect(place).await;
    let mutex = doomed.mutex(name);
    let mutex = if tracking { mutex.crash_detection() } else { mutex };
    let guard = mutex.lock().await.expect("lock acquired");
    // The znode is deleted without a release, as if the holder's process were killed.
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    operator.delete(&guard_node(place, &guard), None).await.expect("znode exists");
    let _ = timeout(SOON, guard.lost()).await.expect("loss reported in time");
}

fn guard_node(place: &Place, guard: &zoolock::Guard) -> String {
    format!("{}{}", place.chroot(), guard.node_path())
}

on_both_servers!(next_holder_learns_of_crash_or_release, |place| async move {
    let zl = connect(&place).await;
    let mutex = zl.mutex("tracked").crash_detection();
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Unknown, "the lock had no previous holder");
    guard.release().await.expect("release succeeds");
    // A failed try while the lock is held does not count as a holder.
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean);
    assert!(zl.mutex("tracked").try_lock().await.expect("attempt succeeds").is_none());
    guard.release().await.expect("release succeeds");
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean, "failed tries in between do not count");
    drop(guard);
    crash(&place, "tracked", true).await;
    // A holder without crash detection learns of the crash too. After its clean release, the next
    // holder learns of a clean release.
    let waiting = zl.mutex("tracked").lock_timeout(SOON).await.expect("lock acquired");
    assert_eq!(waiting.previous(), Previous::Crashed, "a holder without crash detection is told too");
    waiting.release().await.expect("release succeeds");
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Clean, "the holder after the crash released cleanly");
    drop(guard);
    // Once a holder has requested crash detection, it stays enabled for the lock. So the crash of
    // any later holder is known.
    crash(&place, "tracked", false).await;
    let guard = mutex.lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Crashed);
    guard.release().await.expect("release succeeds");
    tree::assert_no_contenders(&place.addr(), &directory(&place, "tracked")).await;
});

on_both_servers!(without_tracking_a_crash_is_unknown, |place| async move {
    let zl = connect(&place).await;
    crash(&place, "plain", false).await;
    let guard = zl.mutex("plain").lock().await.expect("lock acquired");
    assert_eq!(guard.previous(), Previous::Unknown);
});

on_both_servers!(killed_process_counts_as_a_crash, |place| async move {
    let zl = short_session_settings().connect(&place.connect_string()).await.expect("session starts");
    let proxy = zoolock_tests::Proxy::start(&place.addr()).await.expect("proxy starts");
    let doomed = short_session_settings()
        .connect(&place.connect_string_through(&proxy.addr()))
        .await
        .expect("session starts");
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

on_both_servers!(lock_delay_applies_only_after_a_crash, |place| async move {
    const DELAY: Duration = Duration::from_millis(1500);
    let zl = connect(&place).await;
    let mutex = zl.mutex("slow").crash_detection().lock_delay(DELAY);
    let began = Instant::now();
    for _ in 0..4 {
        lock_and_release(&mutex).await;
    }
    assert!(began.elapsed() < DELAY, "{:?} for the first and three after a clean release", began.elapsed());
    crash(&place, "slow", true).await;
    let began = Instant::now();
    let error = mutex.lock_timeout(DELAY / 3).await.expect_err("the timeout includes the lock delay");
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    let guard = mutex.lock().await.expect("lock acquired");
    assert!(began.elapsed() >= DELAY, "after a crash it took {:?}", began.elapsed());
    assert_eq!(guard.previous(), Previous::Crashed);
    guard.release().await.expect("release succeeds");
    let began = Instant::now();
    lock_and_release(&mutex).await;
    assert!(began.elapsed() < DELAY);
    tree::assert_no_contenders(&place.addr(), &directory(&place, "slow")).await;
});

on_both_servers!(cancelled_acquire_does_not_look_like_a_crash, |place| async move {
    let zl: Zoolock = connect(&place).await;
    let mutex = zl.mutex("brief").crash_detection();
    lock_and_release(&mutex).await;
    let mut events = mutex.events();
    for patience in 0..40u64 {
        // Each acquisition is cancelled a little later than the one before.
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

on_both_servers!(timed_out_multi_lock_keeps_the_crash, |place| async move {
    let zl = connect(&place).await;
    let busy = zl.mutex("busy").lock().await.expect("lock acquired");
    for tracking in [true, false] {
        let name = if tracking { "washed" } else { "washed-too" };
        crash(&place, name, tracking).await;
        // The multi lock is first in the queue of one lock for a while, but never acquires both.
        let both = zl.multi([name, "busy"]);
        let error = both.lock_timeout(Duration::from_millis(300)).await.expect_err("one lock is held");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        let guard = zl.mutex(name).lock().await.expect("lock acquired");
        assert_eq!(guard.previous(), if tracking { Previous::Crashed } else { Previous::Unknown });
    }
    drop(busy);
});

on_both_servers!(partial_loss_leaves_no_clean_release, |place| async move {
    let zl = connect(&place).await;
    let operator = tree::connect(&place.addr()).await.expect("session starts");
    // The read znode of an upgraded writer is deleted.
    let lock = zl.rwlock("part").crash_detection();
    lock.write().await.expect("lock acquired").release().await.expect("release succeeds");
    let writer =
        lock.upgradable_read().await.expect("lock acquired").upgrade().await.expect("upgrade succeeds");
    let reader = format!("{}{}", place.chroot(), writer.node_path());
    operator.delete(&reader, None).await.expect("znode exists");
    let _ = timeout(SOON, writer.lost()).await.expect("loss reported in time");
    drop(writer);
    assert_eq!(lock.write().await.expect("lock acquired").previous(), Previous::Crashed);
    // The znode of one lock of a multi lock is deleted.
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
