//! Acquires a lock of the kind that the command line names.

use std::sync::Arc;
use std::time::Instant;

use zoolock::{AnyGuard, Error, LockEvent, LockEvents, Zoolock};

use crate::args::WantedKind;
use crate::base::reporter::Reporter;
use crate::run::flags::WantedLocks;

/// Acquires a lock with one of three methods, which the time limit selects.
macro_rules! acquire_with {
    ($lock:expr, $try:ident, $timeout:ident, $wait:ident, ($($permits:expr),*), $limit:expr) => {{
        let lock = $lock;
        let (try_once, limit, reporter) = $limit;
        tokio::spawn(warn_of_clashes(lock.events(), Arc::clone(reporter)));
        Ok(match (try_once, limit) {
            (true, _) => lock.$try($($permits),*).await?.map(AnyGuard::from),
            (_, Some(limit)) => Some(lock.$timeout($($permits,)* limit).await?.into()),
            (_, None) => Some(lock.$wait($($permits),*).await?.into()),
        })
    }};
}

/// Returns the handle with the options of the command line.
macro_rules! set_options {
    ($lock:expr, $wanted:expr) => {{
        let lock = $lock.lock_delay($wanted.lock_delay);
        if $wanted.crash_detection { lock.crash_detection() } else { lock }
    }};
}

/// Acquires the lock. Returns `None` if the lock is busy and `wanted` does not allow a wait.
pub(crate) async fn acquire_wanted(
    zoolock: &Zoolock,
    wanted: &WantedLocks,
    until: Option<Instant>,
    reporter: &Arc<Reporter>,
) -> Result<Option<AnyGuard>, Error> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let limit = (wanted.try_once, left, reporter);
    let [name] = wanted.names.as_slice() else {
        let lock = set_options!(zoolock.multi(&wanted.names), wanted);
        return match wanted.kind {
            WantedKind::Shared => acquire_with!(lock, try_read, read_timeout, read, (), limit),
            _ => acquire_with!(lock, try_lock, lock_timeout, lock, (), limit),
        };
    };
    let rwlock = || set_options!(zoolock.rwlock(name), wanted);
    match wanted.kind {
        WantedKind::Exclusive => {
            let lock = set_options!(zoolock.mutex(name), wanted).tell_previous();
            acquire_with!(lock, try_lock, lock_timeout, lock, (), limit)
        }
        WantedKind::Write => acquire_with!(rwlock(), try_write, write_timeout, write, (), limit),
        WantedKind::Shared => acquire_with!(rwlock(), try_read, read_timeout, read, (), limit),
        WantedKind::Permits { size, take } => {
            let lock = zoolock.semaphore(name, size);
            acquire_with!(lock, try_acquire, acquire_timeout, acquire, (take), limit)
        }
    }
}

/// Warns about contenders of other client libraries that ignore the znode of this contender.
async fn warn_of_clashes(mut events: LockEvents, reporter: Arc<Reporter>) {
    while let Some(event) = events.next().await {
        if let LockEvent::ForeignContender(_, what) = event {
            // Printed as an error and not as a note, because --quiet hides notes.
            reporter.error(format_args!("lock {what}; two may hold the lock now"));
        }
    }
}
