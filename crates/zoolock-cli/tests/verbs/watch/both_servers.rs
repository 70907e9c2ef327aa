//! `zoolock watch` on both servers.

use std::time::Duration;

use tokio::task::JoinHandle;
use zookeeper_client::{Acls, CreateMode};
use zoolock::{Guard, Zoolock};
use zoolock_tests::{Place, on_both_arms, tree};

use crate::common::Sandbox;
use crate::common::watching::Watch;

fn watch(sandbox: &Sandbox, place: &Place, name: &str) -> Watch {
    Watch::start(sandbox, &["--connect", &place.connect_string(), name, "--json"])
}

/// Starts `count` waiters for a held lock, one after the other.
async fn queue(zl: &Zoolock, name: &str, count: usize) -> Vec<JoinHandle<Guard>> {
    let mut waiting = Vec::new();
    for number in 1..=count {
        let mutex = zl.mutex(name);
        waiting.push(tokio::spawn(async move { mutex.lock().await.expect("lock granted") }));
        let queued = async || zl.mutex(name).snapshot().await.expect("a snapshot").waiters.len();
        while queued().await < number {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    waiting
}

on_both_arms!(every_kind_of_lock_emits_its_events, |place| async move {
    let sandbox = Sandbox::new();
    let zl = Zoolock::connect(&place.connect_string()).await.expect("a session");

    let seen = watch(&sandbox, &place, "mutex");
    let guard = zl.mutex("mutex").lock().await.expect("free");
    assert_eq!(seen.event("granted")["contender"]["token"], guard.ticket().to_string());
    let mut waiting = queue(&zl, "mutex", 2).await;
    for place in [1, 2] {
        assert_eq!(seen.event("queued")["place"], place);
    }
    waiting.pop().expect("two wait").abort();
    seen.event("left");
    guard.release().await.expect("ours");
    seen.event("released");
    seen.event("granted");
    let guard = waiting.pop().expect("one waits").await.expect("no panic");
    zl.mutex("mutex").break_lock(guard.ticket()).await.expect("it is there");
    seen.event("broken");
    drop(seen);

    // Two hold at once, and nobody writes how readers go.
    let seen = watch(&sandbox, &place, "rw");
    let first = zl.rwlock("rw").read().await.expect("free");
    seen.event("granted");
    let second = zl.rwlock("rw").read().await.expect("shared");
    assert_eq!(seen.event("granted")["contender"]["role"], "shared");
    drop(first);
    seen.event("gone");
    drop(second);
    seen.event("gone");
    drop(seen);

    let seen = watch(&sandbox, &place, "slots");
    let permits = zl.semaphore("slots", 3).acquire_many(2).await.expect("free");
    assert_eq!(seen.event("granted")["contender"]["weight"], 2);
    drop(permits);
    seen.event("gone");
    zl.close().await;
});

on_both_arms!(mixed_naming_schemes_warn_on_stderr, |place| async move {
    let sandbox = Sandbox::new();
    let zl = Zoolock::connect(&place.connect_string()).await.expect("a session");
    let seen = watch(&sandbox, &place, "x");
    let _guard = zl.mutex("x").lock().await.expect("free");
    seen.event("granted");
    let stranger = tree::connect(&place.addr()).await.expect("a session");
    // kazoo's name: it looks for such ones only.
    let path = format!("{}/locks/x/5f2b8c9a3d4e4f6a8b7c6d5e4f3a2b1c__lock__", place.chroot());
    let lines = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    stranger.create(&path, b"", &lines).await.expect("made");
    seen.event("queued");
    let says = seen.said();
    assert!(says.contains("/x: ") && says.contains("kazoo"), "{says}");
    zl.close().await;
});
