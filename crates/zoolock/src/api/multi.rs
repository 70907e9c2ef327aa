//! Several locks at once.

use zoolock_core::Kind;

use crate::api::acquire_methods::acquire;
use crate::api::guard::{exclusive_guard, guard, guard_previous};
use crate::api::zoolock::Zoolock;
use crate::base::options::{crash_settings, settings};
use crate::lock::acquire::Lock;

/// Several locks that are taken together, in one transaction. Callers may name them in any order and never wait for
/// each other in a cycle. One transaction gives a position in all queues at once, so a waiter waits only for
/// contenders that came earlier in every queue.
///
/// This holds for multi-locks and single locks beside each other, as long as no caller takes a second lock while it
/// holds a first.
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// let guard = zl.multi(["accounts/7", "accounts/42"]).lock().await?;
/// # drop(guard); Ok(()) }
/// ```
#[derive(Clone)]
pub struct MultiLock {
    pub(crate) lock: Lock,
}

acquire!(MultiLock, MultiGuard, Kind::Mutex, "every lock", lock, try_lock, lock_timeout, lock_deadline);
acquire!(
    MultiLock,
    MultiReadGuard,
    Kind::Read,
    "every lock for reading",
    read,
    try_read,
    read_timeout,
    read_deadline
);
settings!(MultiLock);
crash_settings!(MultiLock);

guard! {
    /// A guard that holds every lock. If one is lost, all count as lost.
    MultiGuard
}
exclusive_guard!(MultiGuard);
guard_previous!(MultiGuard);

guard! {
    /// A guard that holds every lock for reading. If one is lost, all count as lost.
    MultiReadGuard
}
guard_previous!(MultiReadGuard);

impl MultiGuard {
    /// Returns the paths of the lock directories, each once.
    pub fn paths(&self) -> Vec<&str> {
        self.held.paths()
    }
}

impl MultiReadGuard {
    /// Returns the paths of the lock directories, each once.
    pub fn paths(&self) -> Vec<&str> {
        self.held.paths()
    }
}

impl MultiLock {
    /// Returns the names that it was made with.
    pub fn names(&self) -> &[String] {
        &self.lock.names
    }
}

impl std::fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MultiLock").field("names", &self.names()).finish_non_exhaustive()
    }
}

impl Zoolock {
    /// Returns a lock of several mutexes, by their names. A repeated name counts once. Nothing is sent; the first
    /// call that would use a bad name reports it.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        let names = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        MultiLock { lock: Lock::new(self.context().clone(), names) }
    }
}
