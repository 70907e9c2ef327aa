//! Helpers for tests. Only the library can create a snapshot, so the first one is real and the others are copies.

use std::sync::OnceLock;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use zoolock::{Entry, Snapshot, Zoolock};

/// Returns the least processor time of this thread that `work` takes in `rounds` rounds. Other load on the machine does not
/// count.
pub(crate) fn least_cpu_time(rounds: usize, mut work: impl FnMut()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it begins at nothing");
    let round = |_| {
        let begun = now();
        work();
        now() - begun
    };
    (0..rounds).map(round).min().expect("a round or more")
}

/// Returns a snapshot of a held lock without waiters.
fn real_snapshot() -> &'static Snapshot {
    static REAL: OnceLock<Snapshot> = OnceLock::new();
    // On a thread of its own, because the test may run in a runtime.
    let take = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let zoolock = Zoolock::embedded().await.expect("a server in this process");
            let guard = zoolock.mutex("x").lock().await.expect("it is free");
            let seen = zoolock.mutex("x").snapshot().await.expect("a snapshot");
            guard.release().await.expect("it is ours");
            zoolock.close().await;
            seen
        })
    };
    REAL.get_or_init(|| std::thread::spawn(take).join().expect("a snapshot"))
}

/// Returns a contender of zoolock.
pub(crate) fn entry(node: &str, token: &str) -> Entry {
    let mut entry = real_snapshot().holder.clone().expect("it was held");
    (entry.node, entry.token) = (node.to_owned(), Some(token.to_owned()));
    (entry.host, entry.pid) = (Some("host".to_owned()), Some(7));
    (entry.program, entry.note, entry.since_ms) = (None, None, Some(1_000));
    entry
}

pub(crate) fn lock(path: &str, holder: Option<Entry>, waiters: Vec<Entry>) -> Snapshot {
    let mut lock = real_snapshot().clone();
    (lock.path, lock.holder, lock.previous) = (path.to_owned(), holder, "unknown");
    (lock.waiting, lock.waiters) = (waiters.len(), waiters);
    lock
}
