//! The optional metric label with the lock name. `metrics.rs` tests metrics without it.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use zoolock::Zoolock;
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{AnyServer, ServerKind, ServerOptions};

#[tokio::test(flavor = "multi_thread")]
async fn metrics_can_be_labelled_by_lock() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().expect("no other recorder is installed");
    let server =
        AnyServer::start(ServerKind::Embedded, ServerOptions::default()).await.expect("server starts");
    let settings = Zoolock::builder().tick_time(ServerOptions::default().tick);
    let settings = settings.session_timeout(Duration::from_secs(6)).metrics_by_lock();
    let zl = settings.connect(&format!("{}/chroot", server.addr())).await.expect("session starts");

    // A snapshot resets the values in the recorder, so the values of all snapshots are added up here.
    let mut holding = BTreeMap::<String, f64>::new();
    let mut look = || {
        for (key, _, _, value) in snapshotter.snapshot().into_vec() {
            let (_, key) = key.into_parts();
            let lock = key.labels().find(|label| label.key() == "lock").map(|label| label.value().to_owned());
            let of_locks = key.labels().any(|label| label.key() == "kind");
            assert_eq!(lock.is_some(), of_locks, "{key}");
            if let (DebugValue::Gauge(change), "zoolock_holding", Some(lock)) = (value, key.name(), lock) {
                *holding.entry(lock).or_default() += change.into_inner();
            }
        }
        holding.clone()
    };
    let guard = zl.mutex("x").lock().await.expect("lock acquired");
    let both = zl.multi(["/a", "b"]).lock().await.expect("lock acquired");
    let expected = |count| [("/a, /locks/b".to_owned(), count), ("/locks/x".to_owned(), count)].into();
    // Metrics reach the recorder some time after their cause.
    let seen = finish_in_time(async {
        while look() != expected(1.0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    seen.await;
    guard.release().await.expect("release succeeds");
    both.release().await.expect("release succeeds");
    zl.close().await;
    assert_eq!(look(), expected(0.0));
}
