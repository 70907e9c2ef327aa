//! The mutex.

use std::time::{Duration, Instant};

use super::guard::{Guard, ReentrantGuard};
use super::thread::{ThreadGuard, this_thread};
use super::wait;
use crate::api::owner::Owner;
use crate::base::error::Error;

/// A lock with one holder at a time, across processes and hosts. Fair: first come, first served.
///
/// The blocking form of [`zoolock::Mutex`](crate::Mutex). A second [`lock`](Mutex::lock) waits until the first guard
/// is released, so for ever on the same thread. [`lock_reentrant`](Mutex::lock_reentrant) does not.
#[derive(Clone)]
pub struct Mutex {
    inner: crate::Mutex,
}

blocking_settings!(Mutex of crate::Mutex);
blocking_crash_settings!(Mutex of crate::Mutex);
blocking_operate!(Mutex of crate::Mutex);
blocking_acquire!(
    Mutex of crate::Mutex, Guard, "the lock", lock, try_lock, lock_timeout, lock_deadline
);

/// The settings for one queue position of the whole process.
impl Mutex {
    /// Sets the batching limits; see [`zoolock::Mutex::batching`](crate::Mutex::batching).
    pub fn batching(self, max_passes: u32, max_hold: Duration) -> Self {
        Mutex { inner: self.inner.batching(max_passes, max_hold) }
    }

    /// Sets for how long an unused lock is kept; see [`zoolock::Mutex::linger`](crate::Mutex::linger).
    pub fn linger(self, keep: Duration) -> Self {
        Mutex { inner: self.inner.linger(keep) }
    }
}

/// The methods that are reentrant by thread.
impl Mutex {
    /// Blocks until this thread holds the lock. Returns at once if it holds it already.
    ///
    /// # Errors
    /// As [`zoolock::Mutex::lock_as`](crate::Mutex::lock_as): if this thread has lost the lock, it fails until the
    /// thread's last guard is dropped.
    pub fn lock_reentrant(&self) -> Result<ThreadGuard, Error> {
        self.lock_as(&this_thread()?).map(ThreadGuard::new)
    }

    /// Acquires the lock if it is free, or if this thread holds it already. Returns `None` if it is busy.
    ///
    /// # Errors
    /// As [`Mutex::lock_reentrant`].
    pub fn try_lock_reentrant(&self) -> Result<Option<ThreadGuard>, Error> {
        Ok(self.try_lock_as(&this_thread()?)?.map(ThreadGuard::new))
    }

    /// Blocks until this thread holds the lock, at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_reentrant`].
    pub fn lock_reentrant_timeout(&self, timeout: Duration) -> Result<ThreadGuard, Error> {
        self.lock_as_timeout(&this_thread()?, timeout).map(ThreadGuard::new)
    }
}

/// The methods that are reentrant by an explicit owner.
impl Mutex {
    /// Blocks until `owner` holds the lock. Returns at once if it holds it already.
    ///
    /// # Errors
    /// As [`zoolock::Mutex::lock_as`](crate::Mutex::lock_as).
    pub fn lock_as(&self, owner: &Owner) -> Result<ReentrantGuard, Error> {
        wait(self.inner.lock_as(owner)).map(ReentrantGuard::new)
    }

    /// Acquires the lock for `owner` if it is free, or if the owner holds it already. Returns `None` if it is busy.
    ///
    /// # Errors
    /// As [`Mutex::lock_as`].
    pub fn try_lock_as(&self, owner: &Owner) -> Result<Option<ReentrantGuard>, Error> {
        Ok(wait(self.inner.try_lock_as(owner))?.map(ReentrantGuard::new))
    }

    /// Blocks until `owner` holds the lock, at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub fn lock_as_timeout(&self, owner: &Owner, timeout: Duration) -> Result<ReentrantGuard, Error> {
        wait(self.inner.lock_as_timeout(owner, timeout)).map(ReentrantGuard::new)
    }

    /// Blocks until `owner` holds the lock, at most until `deadline`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub fn lock_as_deadline(&self, owner: &Owner, deadline: Instant) -> Result<ReentrantGuard, Error> {
        wait(self.inner.lock_as_deadline(owner, deadline)).map(ReentrantGuard::new)
    }
}
