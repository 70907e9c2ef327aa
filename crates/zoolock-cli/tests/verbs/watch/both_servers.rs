//! `zoolock watch` on both servers.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zookeeper_client::{Acls, CreateMode};
use zoolock::{Guard, Zoolock};
use zoolock_tests::{Place, ZoolockBinary, on_both_arms, tree};

const BOUND: Duration = Duration::from_secs(30);

/// A `watch` and its lines.
struct Watch {
    _child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
}

impl Watch {
    /// Starts it, and waits until it looks.
    async fn start(binary: &ZoolockBinary, place: &Place, name: &str) -> Watch {
        let mut child = binary.spawn(["--connect", &place.connect_string(), "watch", name, "--json"]);
        let stdout = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let stderr = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let mut watch = Watch { _child: child, stdout, stderr };
        let says = watch.says().await;
        assert!(says.contains("watching"), "{says}");
        watch
    }

    /// The next line on standard error.
    async fn says(&mut self) -> String {
        let line = timeout(BOUND, self.stderr.next_line()).await.expect("in time");
        line.expect("text").expect("it goes on")
    }

    async fn event(&mut self, word: &str) -> Value {
        let line = timeout(BOUND, self.stdout.next_line()).await.expect("in time");
        let line = line.expect("text").expect("it goes on");
        let event: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(event["event"], word, "{line}");
        event
    }
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

on_both_arms!(what_happens_to_a_lock_of_each_kind_is_told, |place| async move {
    let binary = ZoolockBinary::find().expect("the command has been built");
    let zl = Zoolock::connect(&place.connect_string()).await.expect("a session");

    let mut watch = Watch::start(&binary, &place, "mutex").await;
    let guard = zl.mutex("mutex").lock().await.expect("free");
    assert_eq!(watch.event("granted").await["contender"]["token"], guard.ticket().to_string());
    let mut waiting = queue(&zl, "mutex", 2).await;
    for place in [1, 2] {
        assert_eq!(watch.event("queued").await["place"], place);
    }
    waiting.pop().expect("two wait").abort();
    watch.event("left").await;
    guard.release().await.expect("ours");
    watch.event("released").await;
    watch.event("granted").await;
    let guard = waiting.pop().expect("one waits").await.expect("no panic");
    zl.mutex("mutex").break_lock(guard.ticket()).await.expect("it is there");
    watch.event("broken").await;
    drop(watch);

    // Two hold at once, and nobody writes how readers go.
    let mut watch = Watch::start(&binary, &place, "rw").await;
    let first = zl.rwlock("rw").read().await.expect("free");
    watch.event("granted").await;
    let second = zl.rwlock("rw").read().await.expect("shared");
    assert_eq!(watch.event("granted").await["contender"]["role"], "shared");
    drop(first);
    watch.event("gone").await;
    drop(second);
    watch.event("gone").await;
    drop(watch);

    let mut watch = Watch::start(&binary, &place, "slots").await;
    let permits = zl.semaphore("slots", 3).acquire_many(2).await.expect("free");
    assert_eq!(watch.event("granted").await["contender"]["weight"], 2);
    drop(permits);
    watch.event("gone").await;
    zl.close().await;
});

on_both_arms!(who_does_not_see_each_other_is_no_event_and_said_all_the_same, |place| async move {
    let binary = ZoolockBinary::find().expect("the command has been built");
    let zl = Zoolock::connect(&place.connect_string()).await.expect("a session");
    let mut watch = Watch::start(&binary, &place, "x").await;
    let _guard = zl.mutex("x").lock().await.expect("free");
    watch.event("granted").await;
    let stranger = tree::connect(&place.addr()).await.expect("a session");
    // kazoo's name: it looks for such ones only.
    let path = format!("{}/locks/x/5f2b8c9a3d4e4f6a8b7c6d5e4f3a2b1c__lock__", place.chroot());
    let lines = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    stranger.create(&path, b"", &lines).await.expect("made");
    watch.event("queued").await;
    let says = watch.says().await;
    assert!(says.contains("/x: ") && says.contains("kazoo"), "{says}");
    zl.close().await;
});
