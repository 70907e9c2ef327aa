//! A handle of a mutex whose threads share one hold of the lock.

use std::time::{Duration, Instant};

use super::block_on;
use super::guard::{BlockingGuard, Guard};
use super::handle::Blocking;
use crate::base::error::Error;

/// A handle of a [`Mutex`](super::Mutex) whose threads share one hold of the lock. The blocking form of
/// [`zoolock::SharedHold`](crate::SharedHold).
pub type SharedHold = Blocking<crate::SharedHold>;

/// The methods fail as the async methods of the same names do.
impl SharedHold {
    /// Acquires the lock. Blocks without a time limit.
    pub fn lock(&self) -> Result<Guard, Error> {
        block_on(self.inner.lock()).map(BlockingGuard::from_async)
    }

    /// Acquires the lock if it is free, or if this client keeps it and no thread holds it. Returns `None` if it is
    /// busy.
    pub fn try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(block_on(self.inner.try_lock())?.map(BlockingGuard::from_async))
    }

    /// Acquires the lock. Blocks for `timeout` at most.
    pub fn lock_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        block_on(self.inner.lock_timeout(timeout)).map(BlockingGuard::from_async)
    }

    /// Acquires the lock. Blocks until `deadline` at most.
    pub fn lock_deadline(&self, deadline: Instant) -> Result<Guard, Error> {
        block_on(self.inner.lock_deadline(deadline)).map(BlockingGuard::from_async)
    }
}
