//! `zoolock watch` on `zoolock serve` and on Apache ZooKeeper.

use std::time::Duration;

use tokio::task::JoinHandle;
use zookeeper_client::{Acls, CreateMode};
use zoolock::{Guard, Zoolock};
use zoolock_tests::{Place, on_both_servers, tree};

use crate::common::Sandbox;
use crate::common::watching::Watch;

fn start_watch(sandbox: &Sandbox, zookeeper: &Place, name: &str) -> Watch {
    Watch::start(sandbox, &["--connect", &zookeeper.connect_string(), name, "--json"])
}

/// Starts `count` waiters for a held lock, one after the other.
async fn queue(zl: &Zoolock, name: &str, count: usize) -> Vec<JoinHandle<Guard>> {
    let mut waiting = Vec::new();
    for number in 1..=count {
        let mutex = zl.mutex(name);
        waiting.push(tokio::spawn(async move { mutex.lock().await.expect("lock granted") }));
        let waiters = async || zl.admin().snapshot(name).await.expect("snapshot read").waiters.len();
        while waiters().await < number {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    waiting
}

on_both_servers!(every_kind_of_lock_emits_its_events, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl = Zoolock::connect(&zookeeper.connect_string()).await.expect("session created");

    let watch = start_watch(&sandbox, &zookeeper, "mutex");
    let guard = zl.mutex("mutex").lock().await.expect("lock granted");
    assert_eq!(watch.event("granted")["contender"]["token"], guard.ticket().to_string());
    let mut waiting = queue(&zl, "mutex", 2).await;
    for position in [1, 2] {
        assert_eq!(watch.event("queued")["place"], position);
    }
    waiting.pop().expect("two wait").abort();
    watch.event("left");
    guard.release().await.expect("release succeeds");
    watch.event("released");
    watch.event("granted");
    let guard = waiting.pop().expect("one waits").await.expect("task does not panic");
    zl.admin().break_lock("mutex", guard.ticket()).await.expect("break succeeds");
    watch.event("broken");
    drop(watch);

    // Two readers hold the lock at once. Readers leave no release marker, so the event is `gone`.
    let watch = start_watch(&sandbox, &zookeeper, "rw");
    let first = zl.rwlock("rw").read().await.expect("lock granted");
    watch.event("granted");
    let second = zl.rwlock("rw").read().await.expect("lock granted");
    assert_eq!(watch.event("granted")["contender"]["role"], "shared");
    drop(first);
    watch.event("gone");
    drop(second);
    watch.event("gone");
    drop(watch);

    let watch = start_watch(&sandbox, &zookeeper, "slots");
    let permits = zl.semaphore("slots", 3).acquire(2).await.expect("permits granted");
    assert_eq!(watch.event("granted")["contender"]["weight"], 2);
    drop(permits);
    watch.event("gone");
    zl.close().await;
});

on_both_servers!(mixed_naming_schemes_warn_on_stderr, |zookeeper| async move {
    let sandbox = Sandbox::new();
    let zl = Zoolock::connect(&zookeeper.connect_string()).await.expect("session created");
    let watch = start_watch(&sandbox, &zookeeper, "x");
    let _guard = zl.mutex("x").lock().await.expect("lock granted");
    watch.event("granted");
    let foreign = tree::connect(&zookeeper.addr()).await.expect("session created");
    // A znode name in kazoo's format. kazoo ignores znodes with other names.
    let path = format!("{}/locks/x/5f2b8c9a3d4e4f6a8b7c6d5e4f3a2b1c__lock__", zookeeper.chroot());
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    foreign.create(&path, b"", &options).await.expect("znode created");
    watch.event("queued");
    let warning = watch.stderr_line();
    assert!(warning.contains("/x: ") && warning.contains("kazoo"), "{warning}");
    zl.close().await;
});
