//! The semaphore.

use std::time::{Duration, Instant};

use super::wait;
use crate::base::error::Error;

/// A fixed number of permits, across processes and hosts: the blocking form of
/// [`zoolock::Semaphore`](crate::Semaphore).
#[derive(Clone)]
pub struct Semaphore {
    inner: crate::Semaphore,
}

blocking_settings!(Semaphore of crate::Semaphore);
blocking_operate!(Semaphore of crate::Semaphore);

blocking_guard! {
    /// A guard that holds some permits of a semaphore. It has no fencing token: concurrent holders have no order.
    PermitGuard of crate::PermitGuard
}
blocking_guard_has!(PermitGuard: path);

impl Semaphore {
    /// Returns the size of the semaphore according to this handle.
    pub fn permits(&self) -> u32 {
        self.inner.permits()
    }

    /// Blocks until it acquires one permit.
    ///
    /// # Errors
    /// As [`zoolock::Semaphore::acquire`](crate::Semaphore::acquire).
    pub fn acquire(&self) -> Result<PermitGuard, Error> {
        wait(self.inner.acquire()).map(PermitGuard::new)
    }

    /// Blocks until it acquires this number of permits, all or none.
    ///
    /// # Errors
    /// As [`zoolock::Semaphore::acquire_many`](crate::Semaphore::acquire_many).
    pub fn acquire_many(&self, permits: u32) -> Result<PermitGuard, Error> {
        wait(self.inner.acquire_many(permits)).map(PermitGuard::new)
    }

    /// Acquires this number of permits if they are free and no contender waits. Returns `None` otherwise. Blocks for
    /// a round trip.
    ///
    /// # Errors
    /// As [`zoolock::Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    pub fn try_acquire(&self, permits: u32) -> Result<Option<PermitGuard>, Error> {
        Ok(wait(self.inner.try_acquire(permits))?.map(PermitGuard::new))
    }

    /// Blocks until it acquires this number of permits, at most for `timeout`.
    ///
    /// # Errors
    /// As [`zoolock::Semaphore::acquire_timeout`](crate::Semaphore::acquire_timeout).
    pub fn acquire_timeout(&self, permits: u32, timeout: Duration) -> Result<PermitGuard, Error> {
        wait(self.inner.acquire_timeout(permits, timeout)).map(PermitGuard::new)
    }

    /// Blocks until it acquires this number of permits, at most until `deadline`.
    ///
    /// # Errors
    /// As [`zoolock::Semaphore::acquire_deadline`](crate::Semaphore::acquire_deadline).
    pub fn acquire_deadline(&self, permits: u32, deadline: Instant) -> Result<PermitGuard, Error> {
        wait(self.inner.acquire_deadline(permits, deadline)).map(PermitGuard::new)
    }

    /// Changes the number of permits for all clients.
    ///
    /// # Errors
    /// As [`zoolock::Semaphore::resize`](crate::Semaphore::resize).
    pub fn resize(&mut self, permits: u32) -> Result<(), Error> {
        wait(self.inner.resize(permits))
    }
}

impl super::Zoolock {
    /// Returns a semaphore by name, with this number of permits. The name is relative to the root, or absolute if it
    /// starts with `/`.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        Semaphore::new(self.as_async().semaphore(name, permits))
    }
}
