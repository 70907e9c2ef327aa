//! Support for lock tests: sessions, queues, and checks for leftovers.

pub mod leftovers;

use std::time::Duration;

use tokio::task::JoinHandle;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use zoolock::{Builder, Error, Guard, Mutex, Zoolock};

use crate::{Place, Proxy, ServerOptions};

/// Makes this process print its log, filtered by `RUST_LOG`, for example `zoolock=debug`. Without it, prints nothing.
fn print_log() {
    let Ok(Ok(filter)) = std::env::var("RUST_LOG").map(|text| text.parse::<Targets>()) else { return };
    let log = tracing_subscriber::fmt::layer().with_test_writer();
    let _ = tracing_subscriber::registry().with(log).with(filter).try_init();
}

/// Returns client settings for a server with [`ServerOptions::default`].
pub fn settings() -> Builder {
    print_log();
    Zoolock::builder().tick_time(ServerOptions::default().tick).session_timeout(Duration::from_secs(10))
}

/// Returns [`settings`] with a session timeout of 2 s, for tests that wait until a session expires.
pub fn short_session_settings() -> Builder {
    settings().session_timeout(Duration::from_secs(2))
}

/// Opens a session with [`settings`] on the server of this test.
pub async fn connect(place: &Place) -> Zoolock {
    settings().connect(&place.connect_string()).await.expect("connected")
}

/// Opens a session with [`settings`] through a proxy in front of the server of this test.
pub async fn connect_through(place: &Place, proxy: &Proxy) -> Zoolock {
    settings().connect(&place.connect_string_through(&proxy.addr())).await.expect("connected")
}

/// Returns the path of a lock directory, with the chroot of this test.
pub fn directory(place: &Place, name: &str) -> String {
    format!("{}/locks/{name}", place.chroot())
}

/// Returns `ZOOLOCK_SEED` or a random seed, and prints it.
pub fn seed() -> u64 {
    let seed = match std::env::var("ZOOLOCK_SEED") {
        Ok(seed) => seed.parse().expect("ZOOLOCK_SEED is a number"),
        Err(_) => std::time::UNIX_EPOCH.elapsed().expect("the clock is after 1970").as_nanos() as u64,
    };
    println!("ZOOLOCK_SEED={seed}");
    seed
}

/// Acquires a lock that is free, and releases it.
pub async fn lock_and_release(mutex: &Mutex) {
    let guard = mutex.lock().await.expect("lock acquired");
    guard.release().await.expect("release succeeds");
}

/// Spawns a task that acquires the lock.
pub fn lock_in_background(mutex: &Mutex) -> JoinHandle<Result<Guard, Error>> {
    let mutex = mutex.clone();
    tokio::spawn(async move { mutex.lock().await })
}

/// Waits until the task has acquired its lock, and returns the guard.
pub async fn await_guard<G>(waiting: JoinHandle<Result<G, Error>>) -> G {
    waiting.await.expect("task does not panic").expect("lock granted")
}

/// Waits until the lock has at least `count` contenders.
pub async fn until_queued(zl: &Zoolock, name: &str, count: usize) {
    let reached = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let seen = zl.admin().snapshot(name).await.expect("snapshot read");
            if seen.waiters.len() + seen.beside.len() + usize::from(seen.holder.is_some()) >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    reached.await.unwrap_or_else(|_| panic!("{count} contenders were never queued at {name}"));
}

/// Queues `count` waiters, one after the other, at a lock that is held.
pub async fn queue_waiters(zl: &Zoolock, name: &str, count: usize) -> Vec<JoinHandle<Guard>> {
    let mut waiting = Vec::new();
    for number in 1..=count {
        let mutex = zl.mutex(name);
        waiting.push(tokio::spawn(async move { mutex.lock().await.expect("lock granted") }));
        until_queued(zl, name, 1 + number).await;
    }
    waiting
}

/// Waits until the client has at most `tasks` background tasks.
pub async fn until_quiet(zl: &Zoolock, tasks: usize) {
    let reached = tokio::time::timeout(Duration::from_secs(15), async {
        while zl.background_tasks() > tasks {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    if reached.await.is_err() {
        panic!("{} background tasks are left, {tasks} were there before", zl.background_tasks());
    }
}
