//! Waits that have a limit: of a call on a slow server, and of the last drop of a client.

use std::time::{Duration, Instant};

use zoolock::{Guard, Zoolock};
use zoolock_tests::locks::{connect_through, lock_in_background, settings};
use zoolock_tests::{Proxy, on_both_servers, opcode, tree};

on_both_servers!(slow_server_does_not_prolong_a_short_wait, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let patient = settings().session_timeout(Duration::from_secs(60)).answer_timeout(Duration::from_secs(6));
    let zl = patient.connect(&place.connect_string_through(&proxy.addr())).await.expect("session starts");
    // Each answer takes 5.4 s, less than the answer timeout. A new directory and the record of the hold need several
    // answers, one after the other.
    proxy.delay(Duration::from_millis(2700));
    let began = Instant::now();
    let late = zl.mutex("a/b/c/d/e/f").crash_detection().lock_timeout(Duration::ZERO).await;
    let took = began.elapsed();
    // The answer timeout, and time for a slow machine.
    assert!(took < Duration::from_secs(10), "{took:?}: {:?}", late.err());
});

// Otherwise a caller whose limit is too short for all missing parents would never get the lock.
on_both_servers!(missing_parents_are_made_after_the_wait_has_ended, |place| async move {
    let proxy = Proxy::start(&place.addr()).await.expect("proxy starts");
    let zl = connect_through(&place, &proxy).await;
    proxy.delay(Duration::from_millis(20));
    let waiting = lock_in_background(&zl.mutex("a/b/c/d/e/f"));
    proxy.until("a create", |stats| stats.total.replies(opcode::CREATE_CONTAINER) >= 1).await;
    waiting.abort();
    let observer = tree::connect(&place.addr()).await.expect("session starts");
    let path = format!("{}/locks/a/b/c/d/e/f", place.chroot());
    while observer.list_children(&path).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
});

/// Maximum time for which the last drop waits.
const MAX_DROP_TIME: Duration = Duration::from_millis(250);

/// Drops a guard and the last handle of its client while the network is slow, and returns what is left of the lock.
async fn contenders_after_drop(server: &str, drop_all: impl AsyncFn(Zoolock, Guard)) -> Vec<String> {
    let proxy = Proxy::start(server).await.expect("proxy starts");
    let observer = tree::connect(server).await.expect("session starts");
    loop {
        proxy.delay(Duration::ZERO);
        let zl = settings().connect(&proxy.addr()).await.expect("session starts");
        let guard = zl.mutex("x").lock().await.expect("lock granted");
        proxy.delay(Duration::from_millis(20));
        let began = Instant::now();
        drop_all(zl, guard).await;
        // On a machine that is too busy, the wait may end without the release.
        if began.elapsed() < MAX_DROP_TIME {
            return observer.list_children("/locks/x").await.expect("the directory can be listed");
        }
    }
}

on_both_servers!(private last_drop_waits_for_the_release, |place| async move {
    let server = place.addr();
    let left = contenders_after_drop(&server, async |zl, guard| {
        drop(guard);
        drop(zl);
    });
    assert_eq!(left.await, Vec::<String>::new());
    // The guard may be the last handle.
    let left = contenders_after_drop(&server, async |zl, guard| {
        drop(zl);
        drop(guard);
    });
    assert_eq!(left.await, Vec::<String>::new());
    // The guard may be dropped on a thread without a runtime.
    let left = contenders_after_drop(&server, async |zl, guard| {
        let dropped = std::thread::spawn(move || drop((guard, zl)));
        tokio::task::spawn_blocking(|| dropped.join()).await.expect("no panic").expect("no panic");
    });
    assert_eq!(left.await, Vec::<String>::new());
});
