//! Queues that a mutex of this library refuses to join.

use std::time::Duration;

use tokio::time::timeout;
use zoolock::{Builder, Error, LockEvent, Naming};
use zoolock_tests::locks::settings;
use zoolock_tests::{Place, on_both_servers, tree};

use crate::clients::{Client, Library};
use crate::interop::contenders::{LOCK, create_lock_directory};

const BOUND: Duration = Duration::from_secs(60);

/// Returns the message of the error with which a mutex refuses to join.
async fn refusal(place: &Place, settings: Builder) -> String {
    let zl = settings.connect(&place.connect_string()).await.expect("connected");
    let outcome = zl.mutex(LOCK).lock_timeout(BOUND).await;
    let message = match outcome {
        Err(Error::ForeignContender { path, message, .. }) => format!("{path}: {message}"),
        Err(error) => panic!("another error: {error}"),
        Ok(guard) => panic!("{} and another client hold the lock", guard.node_path()),
    };
    zl.close().await;
    message
}

on_both_servers!(refusal_names_the_naming_to_use, |place| async move {
    if !Library::Kazoo.or_skip(&place) {
        return;
    }
    create_lock_directory(&place).await;
    let kazoo = Client::start(Library::Kazoo, &place).await.hold("lock", LOCK).await;
    for naming in [Naming::Native, Naming::Curator, Naming::WriteLock] {
        let message = refusal(&place, settings().naming(naming)).await;
        assert!(message.contains("a lock of kazoo (number 0000000000)"), "{naming}: {message}");
        assert!(message.contains("use the naming kazoo"), "{naming}: {message}");
    }
    // Under the naming that the message recommends, the mutex waits.
    let zl = settings().naming(Naming::Kazoo).connect(&place.connect_string()).await.expect("connected");
    assert!(zl.mutex(LOCK).try_lock().await.expect("the queue can be joined").is_none());
    kazoo.close().await.expect("the session is closed");
    let guard = zl.mutex(LOCK).lock_timeout(BOUND).await.expect("lock granted");
    guard.release().await.expect("release succeeds");
    zl.close().await;
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
});

on_both_servers!(queue_with_unseen_contenders_is_refused, |place| async move {
    if !Library::Kazoo.or_skip(&place) || !Library::Java.or_skip(&place) {
        return;
    }
    create_lock_directory(&place).await;
    // Both clients hold the lock, because neither library waits for znodes of the other library.
    let _kazoo = Client::start(Library::Kazoo, &place).await.hold("lock", LOCK).await;
    let _curator = Client::start(Library::Java, &place).await.hold("curator-mutex", LOCK).await;
    for naming in [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
        let message = refusal(&place, settings().naming(naming)).await;
        assert!(message.contains("ignore each other's znodes"), "{naming}: {message}");
        assert!(
            message.contains("a lock of kazoo") && message.contains("a mutex of Curator"),
            "{naming}: {message}"
        );
    }
    let message = refusal(&place, settings().kazoo_pattern()).await;
    assert!(message.contains("ignore each other's znodes"), "{message}");
});

on_both_servers!(queue_with_leader_latch_is_refused, |place| async move {
    if !Library::Java.or_skip(&place) {
        return;
    }
    create_lock_directory(&place).await;
    let latch = Client::start(Library::Java, &place).await.hold("curator-latch", LOCK).await;
    for naming in [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
        let message = refusal(&place, settings().naming(naming)).await;
        assert!(message.contains("a LeaderLatch of Curator (number 0000000000)"), "{naming}: {message}");
        assert!(message.ends_with("use another lock"), "{naming}: {message}");
    }
    latch.close().await.expect("the session is closed");
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
});

// A latch that joins later leads at once. Only a report is left.
on_both_servers!(leader_latch_beside_holder_is_reported, |place| async move {
    if !Library::Java.or_skip(&place) {
        return;
    }
    let zl = settings().connect(&place.connect_string()).await.expect("connected");
    let mutex = zl.mutex(LOCK);
    let mut events = mutex.events();
    let guard = mutex.lock_timeout(BOUND).await.expect("lock granted");
    let latch = Client::start(Library::Java, &place).await.hold("curator-latch", LOCK).await;
    let foreign = async {
        loop {
            match events.next().await.expect("the handle sends events") {
                LockEvent::ForeignContender(ticket, message) => return (ticket, message),
                _ => continue,
            }
        }
    };
    let (ticket, message) = timeout(BOUND, foreign).await.expect("the latch is reported");
    assert_eq!(ticket, guard.ticket());
    assert!(message.contains("a LeaderLatch of Curator"), "{message}");
    let clash = zl
        .admin()
        .snapshot(LOCK)
        .await
        .expect("the queue is readable")
        .clash
        .expect("show has a line `danger`");
    assert!(clash.contains("a LeaderLatch of Curator"), "{clash}");
    guard.release().await.expect("release succeeds");
    latch.close().await.expect("the session is closed");
    zl.close().await;
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
});
