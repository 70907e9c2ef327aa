//! `zoolock doctor` reports deadlocks, and holders that were asked to release.

use zoolock::{Owner, Zoolock};
use zoolock_tests::locks::until_queued;
use zoolock_tests::{on_both_servers, tree};

use super::diagnosis::{examine, examine_with};
use crate::common::Sandbox;

on_both_servers!(deadlock_is_an_error_with_the_command_that_ends_it, |zookeeper| async move {
    let address = zookeeper.connect_string();
    let zl = Zoolock::connect(&address).await.expect("session created");
    let owners = [Owner::new(), Owner::new()];
    let first = zl.mutex("first").lock_as(&owners[0]).await.expect("lock granted");
    let second = zl.mutex("second").lock_as(&owners[1]).await.expect("lock granted");
    assert_eq!(examine(&address).level("deadlock"), Some("ok"));
    let waits = ["second", "first"].into_iter().zip(owners.clone()).map(|(name, owner)| {
        let mutex = zl.mutex(name);
        tokio::spawn(async move { mutex.lock_as(&owner).await.map(drop) })
    });
    let waits: Vec<_> = waits.collect();
    until_queued(&zl, "first", 2).await;
    until_queued(&zl, "second", 2).await;
    let diagnosis = examine_with(&address, &[]);
    assert_eq!((diagnosis.code, diagnosis.level("deadlock")), (2, Some("error")), "{diagnosis:?}");
    let messages = diagnosis.messages("deadlock");
    assert!(
        messages.starts_with("deadlock of 2 owners: ") && messages.contains("first → second"),
        "{messages}"
    );
    // The remedy names the request first, and then the command that breaks the lock.
    let remedy = diagnosis.remedies("deadlock");
    let (ask, cut) = remedy.split_once("; if it is not released: zoolock ").expect("two commands");
    assert!(ask.starts_with("ask for the lock: zoolock revoke "), "{remedy}");
    let args: Vec<&str> = cut.split(' ').collect();
    assert_eq!((args[0], args[2]), ("break", "--token"), "{remedy}");
    let broken = Sandbox::new().output(&args);
    assert_eq!(broken.code, 0, "{broken:?}");
    let diagnosis = examine(&address);
    assert_ne!(diagnosis.level("deadlock"), Some("error"), "{diagnosis:?}");
    drop((first, second));
    for wait in waits {
        let _ = wait.await.expect("task does not panic");
    }
    zl.close().await;
});

on_both_servers!(cycle_of_sessions_may_be_a_deadlock, |zookeeper| async move {
    // Contenders of kazoo show only their session.
    let address = zookeeper.connect_string();
    let clients =
        [tree::connect(&address).await.expect("session"), tree::connect(&address).await.expect("session")];
    let mode = zookeeper_client::CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
    let contender =
        zookeeper_client::CreateMode::EphemeralSequential.with_acls(zookeeper_client::Acls::anyone_all());
    for path in ["/locks", "/locks/a", "/locks/b"] {
        clients[0].create(path, b"", &mode).await.expect("znode created");
    }
    let prefix = "3f2504e04f8911d39a0c0305e82c3301__lock__";
    for (client, lock) in [(0, "a"), (1, "b"), (1, "a"), (0, "b")] {
        let path = format!("/locks/{lock}/{prefix}");
        clients[client].create(&path, b"", &contender).await.expect("znode created");
    }
    let diagnosis = examine_with(&address, &[]);
    assert_eq!((diagnosis.code, diagnosis.level("deadlock")), (1, Some("warning")), "{diagnosis:?}");
    assert!(diagnosis.messages("deadlock").starts_with("possible deadlock of 2 owners: "), "{diagnosis:?}");
});

on_both_servers!(holder_that_was_asked_to_release_is_noted, |zookeeper| async move {
    let address = zookeeper.connect_string();
    let zl = Zoolock::connect(&address).await.expect("session created");
    let mutex = zl.mutex("busy");
    let guard = mutex.lock().await.expect("lock granted");
    assert_eq!(examine(&address).level("revoked"), None);
    zl.admin().revoke("busy", guard.token()).await.expect("the holder is asked");
    let diagnosis = examine(&address);
    assert_eq!(diagnosis.level("revoked"), Some("note"), "{diagnosis:?}");
    assert!(diagnosis.messages("revoked").ends_with("still hold: busy"), "{diagnosis:?}");
    guard.release().await.expect("release succeeds");
    zl.close().await;
});
