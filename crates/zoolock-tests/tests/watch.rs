//! `zoolock watch` on both servers.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use zoolock::{Guard, Zoolock};
use zoolock_tests::{ZoolockBinary, on_both_arms};

const BOUND: Duration = Duration::from_secs(30);

/// A `watch` and its lines.
struct Watch {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watch {
    /// Starts it, and waits until it looks.
    async fn start(binary: &ZoolockBinary, address: &str, name: &str) -> Watch {
        let mut child = binary.spawn(["--connect", address, "watch", name, "--json"]);
        let mut stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        stderr.read_line(&mut String::new()).await.expect("it says what it watches");
        tokio::spawn(async move {
            while stderr.read_line(&mut String::new()).await.is_ok_and(|read| read > 0) {}
        });
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Watch { _child: child, lines }
    }

    async fn event(&mut self, word: &str) -> Value {
        let line = tokio::time::timeout(BOUND, self.lines.next_line()).await.expect("in time");
        let line = line.expect("text").expect("it goes on");
        let event: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(event["event"], word, "{line}");
        event
    }
}

async fn connect(address: &str) -> Zoolock {
    Zoolock::builder().connect(address).await.expect("a session")
}

/// So many who wait for the lock, one after the other.
async fn queue(zl: &Zoolock, name: &str, count: usize) -> Vec<tokio::task::JoinHandle<Guard>> {
    let mut waiting = Vec::new();
    for number in 1..=count {
        let mutex = zl.mutex(name);
        waiting.push(tokio::spawn(async move { mutex.lock().await.expect("its turn") }));
        while zl.mutex(name).glances(0).look().await.expect("a look").lock.waiting < number {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    waiting
}

on_both_arms!(what_happens_to_a_lock_of_each_kind_is_told, |place| async move {
    let (binary, address) =
        (ZoolockBinary::find().expect("the command has been built"), place.connect_string());
    let zl = connect(&address).await;

    let mut watch = Watch::start(&binary, &address, "mutex").await;
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
    let mut watch = Watch::start(&binary, &address, "rw").await;
    let first = zl.rwlock("rw").read().await.expect("free");
    watch.event("granted").await;
    let second = zl.rwlock("rw").read().await.expect("shared");
    assert_eq!(watch.event("granted").await["contender"]["role"], "shared");
    drop(first);
    watch.event("gone").await;
    drop(second);
    watch.event("gone").await;
    drop(watch);

    let mut watch = Watch::start(&binary, &address, "slots").await;
    let permits = zl.semaphore("slots", 3).acquire_many(2).await.expect("free");
    assert_eq!(watch.event("granted").await["contender"]["weight"], 2);
    drop(permits);
    watch.event("gone").await;
    zl.close().await;
});
