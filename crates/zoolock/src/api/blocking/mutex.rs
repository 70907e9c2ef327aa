//! The mutex.

use std::time::{Duration, Instant};

use super::block_on;
use super::guard::ReentrantGuard;
use super::handle::Blocking;
use super::shared_hold::SharedHold;
use super::thread::{ThreadGuard, this_thread};
use crate::api::owner::Owner;
use crate::base::error::Error;

/// A lock with one holder at a time, across processes and hosts. Fair: first come, first served.
///
/// The blocking form of [`zoolock::Mutex`](crate::Mutex). It is not reentrant: a second [`lock`](Mutex::lock) waits
/// until the first guard is released, and on the same thread it waits for ever. Use
/// [`lock_reentrant`](Mutex::lock_reentrant) to acquire the lock again.
pub type Mutex = Blocking<crate::Mutex>;

impl Mutex {
    /// Returns a handle whose threads share one hold of the lock; see
    /// [`zoolock::Mutex::shared_hold`](crate::Mutex::shared_hold).
    pub fn shared_hold(self, limit: Duration) -> SharedHold {
        Blocking { inner: self.inner.shared_hold(limit) }
    }
}

/// Methods for reentrant locks with the calling thread as the owner.
impl Mutex {
    /// Acquires the lock for this thread. Blocks without a time limit. Returns at once if this thread already holds the
    /// lock.
    ///
    /// # Errors
    /// As [`zoolock::Mutex::lock_as`](crate::Mutex::lock_as): if this thread has lost the lock,
    /// each call fails until the thread's last guard is dropped.
    pub fn lock_reentrant(&self) -> Result<ThreadGuard, Error> {
        self.lock_as(&this_thread()?).map(ThreadGuard::new)
    }

    /// Acquires the lock for this thread if it is free, or if this thread already holds it. Returns `None` if it is
    /// busy. Fails as [`Mutex::lock_reentrant`] does.
    pub fn try_lock_reentrant(&self) -> Result<Option<ThreadGuard>, Error> {
        Ok(self.try_lock_as(&this_thread()?)?.map(ThreadGuard::new))
    }

    /// Acquires the lock for this thread. Blocks for `timeout` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_reentrant`].
    pub fn lock_reentrant_timeout(&self, timeout: Duration) -> Result<ThreadGuard, Error> {
        self.lock_as_timeout(&this_thread()?, timeout).map(ThreadGuard::new)
    }
}

/// Methods for reentrant locks with an explicit owner.
impl Mutex {
    /// Acquires the lock for `owner`. Blocks without a time limit. Returns at once if the owner already holds the lock.
    /// Fails as [`zoolock::Mutex::lock_as`](crate::Mutex::lock_as) does.
    pub fn lock_as(&self, owner: &Owner) -> Result<ReentrantGuard, Error> {
        block_on(self.inner.lock_as(owner)).map(ReentrantGuard::from_async)
    }

    /// Acquires the lock for `owner` if it is free, or if the owner holds it already. Returns `None` if it is busy.
    /// Fails as [`Mutex::lock_as`] does.
    pub fn try_lock_as(&self, owner: &Owner) -> Result<Option<ReentrantGuard>, Error> {
        Ok(block_on(self.inner.try_lock_as(owner))?.map(ReentrantGuard::from_async))
    }

    /// Acquires the lock for `owner`. Blocks for `timeout` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub fn lock_as_timeout(&self, owner: &Owner, timeout: Duration) -> Result<ReentrantGuard, Error> {
        block_on(self.inner.lock_as_timeout(owner, timeout)).map(ReentrantGuard::from_async)
    }

    /// Acquires the lock for `owner`. Blocks until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub fn lock_as_deadline(&self, owner: &Owner, deadline: Instant) -> Result<ReentrantGuard, Error> {
        block_on(self.inner.lock_as_deadline(owner, deadline)).map(ReentrantGuard::from_async)
    }
}
