//! The semaphore.

use std::time::{Duration, Instant};

use super::block_on;
use super::guard::PermitGuard;
use super::handle::Blocking;
use crate::base::error::Error;

/// A semaphore: a limited number of permits, shared across processes and hosts. The blocking form of
/// [`zoolock::Semaphore`](crate::Semaphore).
pub type Semaphore = Blocking<crate::Semaphore>;

impl Semaphore {
    /// Acquires one permit. Blocks without a time limit. Fails as
    /// [`zoolock::Semaphore::acquire`](crate::Semaphore::acquire) does.
    pub fn acquire(&self) -> Result<PermitGuard, Error> {
        block_on(self.inner.acquire()).map(PermitGuard::from_async)
    }

    /// Acquires this number of permits, all or none. Blocks without a time limit. Fails as
    /// [`zoolock::Semaphore::acquire_many`](crate::Semaphore::acquire_many) does.
    pub fn acquire_many(&self, permits: u32) -> Result<PermitGuard, Error> {
        block_on(self.inner.acquire_many(permits)).map(PermitGuard::from_async)
    }

    /// Acquires this number of permits if they are free and no contender waits. Returns `None` otherwise. Blocks for
    /// a round trip. Fails as [`zoolock::Semaphore::try_acquire`](crate::Semaphore::try_acquire) does.
    pub fn try_acquire(&self, permits: u32) -> Result<Option<PermitGuard>, Error> {
        Ok(block_on(self.inner.try_acquire(permits))?.map(PermitGuard::from_async))
    }

    /// Acquires this number of permits, all or none. Blocks for `timeout` at most. Fails as
    /// [`zoolock::Semaphore::acquire_timeout`](crate::Semaphore::acquire_timeout) does.
    pub fn acquire_timeout(&self, permits: u32, timeout: Duration) -> Result<PermitGuard, Error> {
        block_on(self.inner.acquire_timeout(permits, timeout)).map(PermitGuard::from_async)
    }

    /// Acquires this number of permits, all or none. Blocks until `deadline` at most. Fails as
    /// [`zoolock::Semaphore::acquire_deadline`](crate::Semaphore::acquire_deadline) does.
    pub fn acquire_deadline(&self, permits: u32, deadline: Instant) -> Result<PermitGuard, Error> {
        block_on(self.inner.acquire_deadline(permits, deadline)).map(PermitGuard::from_async)
    }

    /// Changes the number of permits for all clients. Fails as
    /// [`zoolock::Semaphore::resize`](crate::Semaphore::resize) does.
    pub fn resize(&mut self, permits: u32) -> Result<(), Error> {
        block_on(self.inner.resize(permits))
    }
}

impl super::Zoolock {
    /// Returns a semaphore by name, with this number of permits. The name is relative to the root, or absolute if it
    /// starts with `/`.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Blocking { inner: self.inner.semaphore(name, permits) }
    }
}
