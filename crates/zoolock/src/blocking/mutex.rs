//! The mutex.

use std::time::{Duration, Instant};

use super::guard::{Guard, ReentrantGuard};
use super::thread::{ThreadGuard, this_thread};
use super::wait;
use crate::error::Error;
use crate::owner::Owner;

/// A lock that one holder has at a time, across processes and hosts. Fair: first come, first served.
///
/// See [`zoolock::Mutex`](crate::Mutex), which it is but for the waiting. A second [`lock`](Mutex::lock) waits for the
/// first guard like anybody else's, on the same thread for ever; [`lock_reentrant`](Mutex::lock_reentrant) does not.
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

/// One place for the whole process.
impl Mutex {
    /// As [`zoolock::Mutex::batching`](crate::Mutex::batching).
    pub fn batching(self, max_passes: u32, max_hold: Duration) -> Self {
        Mutex { inner: self.inner.batching(max_passes, max_hold) }
    }

    /// As [`zoolock::Mutex::linger`](crate::Mutex::linger).
    pub fn linger(self, keep: Duration) -> Self {
        Mutex { inner: self.inner.linger(keep) }
    }
}

/// Reentrant by thread.
impl Mutex {
    /// Blocks until the lock is this thread's, not at all where it is already.
    ///
    /// # Errors
    /// As [`zoolock::Mutex::lock_as`](crate::Mutex::lock_as): a lock that this thread has lost is not entered again
    /// until its last guard is gone.
    pub fn lock_reentrant(&self) -> Result<ThreadGuard, Error> {
        self.lock_as(&this_thread()?).map(ThreadGuard::new)
    }

    /// Takes the lock if it is free or already this thread's, and says `None` if it is not.
    ///
    /// # Errors
    /// As [`Mutex::lock_reentrant`].
    pub fn try_lock_reentrant(&self) -> Result<Option<ThreadGuard>, Error> {
        Ok(self.try_lock_as(&this_thread()?)?.map(ThreadGuard::new))
    }

    /// Blocks until the lock is this thread's, at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_reentrant`].
    pub fn lock_reentrant_timeout(&self, timeout: Duration) -> Result<ThreadGuard, Error> {
        self.lock_as_timeout(&this_thread()?, timeout).map(ThreadGuard::new)
    }
}

/// Reentrant by an owner that is passed on.
impl Mutex {
    /// Blocks until the lock is `owner`'s, not at all where it is already.
    ///
    /// # Errors
    /// As [`zoolock::Mutex::lock_as`](crate::Mutex::lock_as).
    pub fn lock_as(&self, owner: &Owner) -> Result<ReentrantGuard, Error> {
        wait(self.inner.lock_as(owner)).map(ReentrantGuard::new)
    }

    /// Takes the lock for `owner` if it is free or already its own, and says `None` if it is not.
    ///
    /// # Errors
    /// As [`Mutex::lock_as`].
    pub fn try_lock_as(&self, owner: &Owner) -> Result<Option<ReentrantGuard>, Error> {
        Ok(wait(self.inner.try_lock_as(owner))?.map(ReentrantGuard::new))
    }

    /// Blocks until the lock is `owner`'s, at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub fn lock_as_timeout(&self, owner: &Owner, timeout: Duration) -> Result<ReentrantGuard, Error> {
        wait(self.inner.lock_as_timeout(owner, timeout)).map(ReentrantGuard::new)
    }

    /// Blocks until the lock is `owner`'s, at most until `deadline`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub fn lock_as_deadline(&self, owner: &Owner, deadline: Instant) -> Result<ReentrantGuard, Error> {
        wait(self.inner.lock_as_deadline(owner, deadline)).map(ReentrantGuard::new)
    }
}
