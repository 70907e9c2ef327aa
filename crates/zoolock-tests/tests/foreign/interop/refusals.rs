//! Whom we do not join.

use std::time::Duration;

use zookeeper_client::{Acls, CreateMode};
use zoolock::{Builder, Error, Naming, Zoolock};
use zoolock_tests::{Place, ServerOptions, on_both_arms, tree};

use crate::interop::make::Make;
use crate::interop::queue::{LOCK, available, hold, prepare, role};

const BOUND: Duration = Duration::from_secs(60);

async fn with_lock(place: &Place) {
    prepare(place).await;
    let client = tree::connect(&place.connect_string()).await.expect("a session");
    client.create(LOCK, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.expect("new");
}

fn settings() -> Builder {
    Zoolock::builder().tick_time(ServerOptions::default().tick).session_timeout(Duration::from_secs(10))
}

/// What our mutex is told.
async fn told(place: &Place, settings: Builder) -> String {
    let zl = settings.connect(&place.connect_string()).await.expect("a session");
    let outcome = zl.mutex(LOCK).lock_timeout(BOUND).await;
    let said = match outcome {
        Err(Error::Neighbour { path, message }) => format!("{path}: {message}"),
        Err(error) => panic!("another error: {error}"),
        Ok(guard) => panic!("two hold, we as {}", guard.node_path()),
    };
    zl.close().await;
    said
}

on_both_arms!(whoever_would_not_see_us_is_named_with_the_naming_to_use, |place| async move {
    if !available(&[role(Make::Kazoo, "lock", 1)], "whoever_would_not_see_us_is_named", &place) {
        return;
    }
    with_lock(&place).await;
    let kazoo = hold(&place, Make::Kazoo, "lock").await;
    for naming in [Naming::Native, Naming::Curator, Naming::WriteLock] {
        let said = told(&place, settings().naming(naming)).await;
        assert!(said.contains("a lock of kazoo (number 0000000000)"), "{naming}: {said}");
        assert!(said.contains("use the naming kazoo"), "{naming}: {said}");
    }
    // As it says: it waits its turn.
    let zl = settings().naming(Naming::Kazoo).connect(&place.connect_string()).await.expect("a session");
    assert!(zl.mutex(LOCK).try_lock().await.expect("it may join").is_none());
    drop(kazoo);
    zl.mutex(LOCK).lock_timeout(BOUND).await.expect("its session is over").release().await.expect("ours");
    zl.close().await;
    tree::assert_no_ephemerals(&place.connect_string(), "/").await;
});

on_both_arms!(two_that_do_not_see_each_other_are_not_joined, |place| async move {
    let roles = [role(Make::Kazoo, "lock", 1), role(Make::Java, "curator-mutex", 1)];
    if !available(&roles, "two_that_do_not_see_each_other_are_not_joined", &place) {
        return;
    }
    with_lock(&place).await;
    // Both hold: that is what we keep out of.
    let _kazoo = hold(&place, Make::Kazoo, "lock").await;
    let _curator = hold(&place, Make::Java, "curator-mutex").await;
    for naming in [Naming::Native, Naming::Curator, Naming::Kazoo, Naming::WriteLock] {
        let said = told(&place, settings().naming(naming)).await;
        assert!(said.contains("do not see each other"), "{naming}: {said}");
        assert!(said.contains("a lock of kazoo") && said.contains("a mutex of Curator"), "{naming}: {said}");
    }
    let said = told(&place, settings().kazoo_pattern()).await;
    assert!(said.contains("do not see each other"), "{said}");
});
