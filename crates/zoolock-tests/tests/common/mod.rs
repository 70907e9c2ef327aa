//! What the lock tests share.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::time::Duration;

use tokio::task::JoinHandle;
use zoolock::{Builder, Guard, Zoolock};
use zoolock_tests::{Place, Proxy, ServerOptions};

/// The tick of [`brisk`] servers.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// A server on which sessions of a second or two can be had, so that expiry need not be waited for long.
pub(crate) fn brisk() -> ServerOptions {
    ServerOptions { tick: TICK, ..Default::default() }
}

/// Shows what happens inside where RUST_LOG asks for it.
fn trace() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}

/// Settings for the servers of [`ServerOptions::default`].
pub(crate) fn settings() -> Builder {
    trace();
    Zoolock::builder().tick_time(ServerOptions::default().tick).session_timeout(Duration::from_secs(10))
}

/// Settings for [`brisk`] servers: sessions of two seconds.
pub(crate) fn brisk_settings() -> Builder {
    trace();
    Zoolock::builder().tick_time(TICK).session_timeout(Duration::from_secs(2))
}

pub(crate) async fn connect(place: &Place) -> Zoolock {
    settings().connect(&place.connect_string()).await.expect("a session")
}

pub(crate) async fn connect_through(place: &Place, proxy: &Proxy) -> Zoolock {
    settings().connect(&place.through(&proxy.addr())).await.expect("a session")
}

/// The directory of a lock as the server knows it.
pub(crate) fn directory(place: &Place, name: &str) -> String {
    format!("{}/locks/{name}", place.chroot())
}

/// Waits until `count` contenders stand at the lock.
pub(crate) async fn until_queued(zl: &Zoolock, name: &str, count: usize) {
    let mutex = zl.mutex(name);
    let looked = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let seen = mutex.snapshot().await.expect("a snapshot");
            if seen.waiters.len() + seen.beside.len() + usize::from(seen.holder.is_some()) >= count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    looked.await.unwrap_or_else(|_| panic!("{count} contenders never stood at {name}"));
}

/// So many who wait for the lock that somebody holds, one after the other.
pub(crate) async fn queue(zl: &Zoolock, name: &str, count: usize) -> Vec<JoinHandle<Guard>> {
    let mut waiting = Vec::new();
    for number in 1..=count {
        let mutex = zl.mutex(name);
        waiting.push(tokio::spawn(async move { mutex.lock().await.expect("its turn") }));
        until_queued(zl, name, 1 + number).await;
    }
    waiting
}

/// Waits until the background is as quiet as it was.
pub(crate) async fn until_quiet(zl: &Zoolock, tasks: usize) {
    let looked = tokio::time::timeout(Duration::from_secs(15), async {
        while zl.background_tasks() > tasks {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    if looked.await.is_err() {
        panic!("{} background tasks are left, {tasks} were there before", zl.background_tasks());
    }
}
