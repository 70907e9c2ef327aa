//! The mutex.

use std::time::{Duration, Instant};

use super::guard::{Guard, ReentrantGuard};
use super::thread::{ThreadGuard, this_thread};
use super::wait;
use crate::error::Error;
use crate::owner::Owner;
use crate::snapshot::Snapshot;

/// A lock that one holder has at a time, across processes and hosts. Fair: first come, first served.
///
/// See [`zoolock::Mutex`](crate::Mutex), which it is but for the waiting.
#[derive(Clone)]
pub struct Mutex {
    inner: crate::Mutex,
}

impl Mutex {
    pub(super) fn new(inner: crate::Mutex) -> Mutex {
        Mutex { inner }
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        self.inner.name()
    }

    /// The directory of the lock; the name as it was given where that is no good.
    pub fn path(&self) -> String {
        self.inner.path()
    }

    /// Blocks until the lock is ours.
    ///
    /// Not reentrant: a second `lock()` waits for the first guard like anybody else's, on the same thread for ever.
    ///
    /// # Errors
    /// As [`zoolock::Mutex::lock`](crate::Mutex::lock).
    pub fn lock(&self) -> Result<Guard, Error> {
        wait(self.inner.lock()).map(Guard::new)
    }

    /// Takes the lock if it is free, and says `None` if it is not. Blocks for a round trip.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub fn try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(wait(self.inner.try_lock())?.map(Guard::new))
    }

    /// Blocks until the lock is ours, at most for `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock`].
    pub fn lock_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        wait(self.inner.lock_timeout(timeout)).map(Guard::new)
    }

    /// Blocks until the lock is ours, at most until `deadline`.
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock`].
    pub fn lock_deadline(&self, deadline: Instant) -> Result<Guard, Error> {
        wait(self.inner.lock_deadline(deadline)).map(Guard::new)
    }

    /// Who holds the lock, and who waits for it.
    ///
    /// # Errors
    /// As [`Mutex::lock`].
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        wait(self.inner.snapshot())
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
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock_reentrant`].
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
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock_as`].
    pub fn lock_as_timeout(&self, owner: &Owner, timeout: Duration) -> Result<ReentrantGuard, Error> {
        wait(self.inner.lock_as_timeout(owner, timeout)).map(ReentrantGuard::new)
    }

    /// Blocks until the lock is `owner`'s, at most until `deadline`.
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock_as`].
    pub fn lock_as_deadline(&self, owner: &Owner, deadline: Instant) -> Result<ReentrantGuard, Error> {
        wait(self.inner.lock_as_deadline(owner, deadline)).map(ReentrantGuard::new)
    }
}

impl std::fmt::Debug for Mutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}
