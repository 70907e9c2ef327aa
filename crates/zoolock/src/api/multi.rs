//! Several locks at once.

use std::time::Duration;

use zoolock_core::Kind;

use crate::api::guard::{fenced, guard};
use crate::api::handle::{crash_options, exclusive, handle};
use crate::api::zoolock::Zoolock;
use crate::base::clock::deadline_after;
use crate::base::error::Error;
use crate::lock::acquire::{Lock, WaitLimit};

handle! {
    /// Several locks that are acquired together. Callers may name them in any order, and never wait for
    /// each other in a cycle. The reason is that one transaction queues for all locks. So a contender
    /// that is ahead of another one in one queue is ahead in every queue that contains both.
    ///
    /// Multi-locks and single locks also never wait for each other in a cycle, as long as no caller
    /// acquires a lock while it holds another one.
    ///
    /// ```no_run
    /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// let guard = zl.multi(["accounts/7", "accounts/42"]).lock().await?;
    /// # drop(guard); Ok(()) }
    /// ```
    MultiLock
}

exclusive!(MultiLock, MultiGuard);
crash_options!(MultiLock);

guard! {
    /// A guard that holds every lock of a [`MultiLock`]. If one lock is lost, all count as lost.
    MultiGuard
}

fenced!(MultiGuard);

guard! {
    /// A guard that holds every lock of a [`MultiLock`] for reading. If one lock is lost, all count as lost.
    MultiReadGuard
}

impl MultiLock {
    /// Acquires all locks for reading. Waits without a time limit. Errors and cancel safety: see
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<MultiReadGuard, Error> {
        self.lock.acquire(Kind::Read, WaitLimit::ForEver).await.map(MultiReadGuard::expect_granted)
    }

    /// Acquires all locks for reading if they are free. Returns `None` if one is busy. Errors and cancel safety: see
    /// [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_read(&self) -> Result<Option<MultiReadGuard>, Error> {
        Ok(self.lock.acquire(Kind::Read, WaitLimit::Try).await?.map(MultiReadGuard::new))
    }

    /// Acquires all locks for reading. Waits for `timeout` at most. Errors and cancel safety: see
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn read_timeout(&self, timeout: Duration) -> Result<MultiReadGuard, Error> {
        self.lock.lock_until(Kind::Read, deadline_after(timeout)).await.map(MultiReadGuard::new)
    }

    /// Returns the names that were passed to [`Zoolock::multi`].
    pub fn names(&self) -> &[String] {
        &self.lock.names
    }
}

impl Zoolock {
    /// Returns a multi-lock of the locks with these names. A repeated name counts once. Sends nothing. If a name is
    /// bad, the first request, such as `lock()`, fails.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        let names = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        MultiLock { lock: Lock::new(self.context().clone(), names) }
    }
}
