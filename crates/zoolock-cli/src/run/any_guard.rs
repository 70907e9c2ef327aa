//! A held lock of any kind.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use zoolock::{
    Connection, Deadline, Error, Guard, LockEvent, LockEvents, LossReason, MultiGuard, MultiReadGuard,
    PermitGuard, Previous, ReadGuard, WriteGuard, Zoolock,
};

use crate::args::WantedKind;
use crate::base::reporter::Reporter;
use crate::plan::{AcquireTimeout, WantedLocks};

/// The guard of a lock of any kind.
pub(crate) enum AnyGuard {
    Exclusive(Guard),
    Shared(ReadGuard),
    Write(WriteGuard),
    Permits(PermitGuard),
    Several(MultiGuard),
    SeveralShared(MultiReadGuard),
}

/// Evaluates an expression with the guard in an `AnyGuard`, for any type of guard.
macro_rules! with_guard {
    ($holder:expr, $guard:ident => $what:expr) => {
        match $holder {
            AnyGuard::Exclusive($guard) => $what,
            AnyGuard::Shared($guard) => $what,
            AnyGuard::Write($guard) => $what,
            AnyGuard::Permits($guard) => $what,
            AnyGuard::Several($guard) => $what,
            AnyGuard::SeveralShared($guard) => $what,
        }
    };
}

/// Acquires a lock with one of three methods, which the time limit selects.
macro_rules! acquire_with {
    ($lock:expr, $reporter:expr, $limit:expr, $guard:expr, $try:ident, $deadline:ident, $wait:ident) => {{
        let lock = $lock;
        tokio::spawn(warn_of_clashes(lock.events(), Arc::clone($reporter)));
        match $limit {
            (AcquireTimeout::Try, _) => Ok(lock.$try().await?.map($guard)),
            (_, Some(until)) => Ok(Some($guard(lock.$deadline(until).await?))),
            (_, None) => Ok(Some($guard(lock.$wait().await?))),
        }
    }};
}

impl AnyGuard {
    /// Acquires the lock. Returns `None` if the lock is busy and `wanted` does not allow a wait.
    pub(crate) async fn acquire(
        zoolock: &Zoolock,
        wanted: &WantedLocks,
        until: Option<Instant>,
        reporter: &Arc<Reporter>,
    ) -> Result<Option<AnyGuard>, Error> {
        let (limit, delay) = ((wanted.patience, until), wanted.lock_delay);
        if let [name] = wanted.names.as_slice() {
            return match wanted.kind {
                WantedKind::Exclusive => {
                    let lock = zoolock.mutex(name).lock_delay(delay).tell_previous();
                    let lock = if wanted.crash_detection { lock.crash_detection() } else { lock };
                    acquire_with!(lock, reporter, limit, AnyGuard::Exclusive, try_lock, lock_deadline, lock)
                }
                WantedKind::Write => {
                    let lock = zoolock.rwlock(name).lock_delay(delay);
                    let lock = if wanted.crash_detection { lock.crash_detection() } else { lock };
                    acquire_with!(lock, reporter, limit, AnyGuard::Write, try_write, write_deadline, write)
                }
                WantedKind::Shared => {
                    let lock = zoolock.rwlock(name).lock_delay(delay);
                    acquire_with!(lock, reporter, limit, AnyGuard::Shared, try_read, read_deadline, read)
                }
                WantedKind::Permits { size, take } => {
                    let lock = zoolock.semaphore(name, size);
                    tokio::spawn(warn_of_clashes(lock.events(), Arc::clone(reporter)));
                    match limit {
                        (AcquireTimeout::Try, _) => Ok(lock.try_acquire(take).await?.map(AnyGuard::Permits)),
                        (_, Some(until)) => {
                            Ok(Some(AnyGuard::Permits(lock.acquire_deadline(take, until).await?)))
                        }
                        (_, None) => Ok(Some(AnyGuard::Permits(lock.acquire_many(take).await?))),
                    }
                }
            };
        }
        let lock = zoolock.multi(&wanted.names).lock_delay(delay);
        let lock = if wanted.crash_detection { lock.crash_detection() } else { lock };
        match wanted.kind {
            WantedKind::Shared => {
                acquire_with!(lock, reporter, limit, AnyGuard::SeveralShared, try_read, read_deadline, read)
            }
            _ => acquire_with!(lock, reporter, limit, AnyGuard::Several, try_lock, lock_deadline, lock),
        }
    }

    /// Returns the fencing token, or `None` if other clients can hold the lock at the same time.
    pub(crate) fn token(&self) -> Option<String> {
        match self {
            AnyGuard::Exclusive(guard) => Some(guard.token().to_string()),
            AnyGuard::Write(guard) => Some(guard.token().to_string()),
            AnyGuard::Several(guard) => Some(guard.token().to_string()),
            AnyGuard::Shared(_) | AnyGuard::Permits(_) | AnyGuard::SeveralShared(_) => None,
        }
    }

    /// Returns the ticket, which names this contender for `revoke` and `break`.
    pub(crate) fn ticket(&self) -> String {
        with_guard!(self, guard => guard.ticket().to_string())
    }

    pub(crate) fn acquisition_id(&self) -> String {
        with_guard!(self, guard => guard.acquisition_id())
    }

    /// Returns how the hold of the previous holder ended: `clean`, `crashed` or `unknown`.
    pub(crate) fn previous(&self) -> &'static str {
        let previous = match self {
            AnyGuard::Exclusive(guard) => guard.previous(),
            AnyGuard::Shared(guard) => guard.previous(),
            AnyGuard::Write(guard) => guard.previous(),
            AnyGuard::Several(guard) => guard.previous(),
            AnyGuard::SeveralShared(guard) => guard.previous(),
            AnyGuard::Permits(_) => Previous::Unknown,
        };
        match previous {
            Previous::Clean => "clean",
            Previous::Crashed => "crashed",
            _ => "unknown",
        }
    }

    /// Returns the paths of the lock directories.
    pub(crate) fn paths(&self) -> Vec<&str> {
        with_guard!(self, guard => guard.paths())
    }

    pub(crate) fn node_path(&self) -> String {
        with_guard!(self, guard => guard.node_path())
    }

    pub(crate) fn session_id(&self) -> i64 {
        with_guard!(self, guard => guard.session_id())
    }

    pub(crate) fn is_valid(&self) -> bool {
        with_guard!(self, guard => guard.is_valid())
    }

    pub(crate) fn valid_until(&self) -> Deadline {
        with_guard!(self, guard => guard.valid_until())
    }

    pub(crate) fn loss(&self) -> Option<LossReason> {
        with_guard!(self, guard => guard.loss())
    }

    pub(crate) async fn lost(&self) -> LossReason {
        with_guard!(self, guard => guard.lost().await)
    }

    pub(crate) async fn revoked(&self) {
        with_guard!(self, guard => guard.revoked().await)
    }

    pub(crate) async fn revoked_by_now(&self) -> bool {
        with_guard!(self, guard => guard.revoked_by_now().await)
    }

    pub(crate) fn connection(&self) -> watch::Receiver<Connection> {
        with_guard!(self, guard => guard.connection())
    }

    pub(crate) async fn release(self) -> Result<(), Error> {
        with_guard!(self, guard => guard.release().await)
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
