//! The read/write lock.

use std::time::{Duration, Instant};

use super::block_on;
use super::guard::{BlockingGuard, ReadGuard, UpgradableReadGuard, WriteGuard};
use super::handle::Blocking;
use crate::api::mode::CanUpgrade;
use crate::api::rwlock::NotUpgraded;
use crate::base::error::Error;

/// A lock with many readers or one writer, across processes and hosts: the blocking form of
/// [`zoolock::RwLock`](crate::RwLock).
pub type RwLock = Blocking<crate::RwLock>;

/// Methods that acquire the lock for writing or for upgradable reading. They fail as the async
/// methods of the same names do.
impl RwLock {
    /// Acquires the lock for writing. Blocks without a time limit.
    pub fn write(&self) -> Result<WriteGuard, Error> {
        block_on(self.inner.write()).map(BlockingGuard::from_async)
    }

    /// Acquires the lock for writing if it is free. Returns `None` if it is busy. Blocks for a round trip.
    pub fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(block_on(self.inner.try_write())?.map(BlockingGuard::from_async))
    }

    /// Acquires the lock for writing. Blocks for `timeout` at most.
    pub fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard, Error> {
        block_on(self.inner.write_timeout(timeout)).map(BlockingGuard::from_async)
    }

    /// Acquires the lock for writing. Blocks until `deadline` at most.
    pub fn write_deadline(&self, deadline: Instant) -> Result<WriteGuard, Error> {
        block_on(self.inner.write_deadline(deadline)).map(BlockingGuard::from_async)
    }

    /// Acquires the lock for upgradable reading. Blocks without a time limit.
    pub fn upgradable_read(&self) -> Result<UpgradableReadGuard, Error> {
        block_on(self.inner.upgradable_read()).map(BlockingGuard::from_async)
    }

    /// Acquires the lock for upgradable reading if it is free. Returns `None` if it is busy. Blocks for a round trip.
    pub fn try_upgradable_read(&self) -> Result<Option<UpgradableReadGuard>, Error> {
        Ok(block_on(self.inner.try_upgradable_read())?.map(BlockingGuard::from_async))
    }

    /// Acquires the lock for upgradable reading. Blocks for `timeout` at most.
    pub fn upgradable_read_timeout(&self, timeout: Duration) -> Result<UpgradableReadGuard, Error> {
        block_on(self.inner.upgradable_read_timeout(timeout)).map(BlockingGuard::from_async)
    }

    /// Acquires the lock for upgradable reading. Blocks until `deadline` at most.
    pub fn upgradable_read_deadline(&self, deadline: Instant) -> Result<UpgradableReadGuard, Error> {
        block_on(self.inner.upgradable_read_deadline(deadline)).map(BlockingGuard::from_async)
    }
}

impl WriteGuard {
    /// Turns the writer into a reader with the same queue position. Drops the callbacks of this guard. Fails as
    /// [`zoolock::WriteGuard::downgrade`](crate::WriteGuard::downgrade) does.
    pub fn downgrade(self) -> Result<ReadGuard, Error> {
        block_on(self.inner.downgrade()).map(BlockingGuard::from_async)
    }
}

/// Methods that turn a reader into a writer. After a failure, the error contains the guard of the reader.
#[allow(clippy::result_large_err, reason = "the guard comes back with the error")]
impl<M: CanUpgrade> BlockingGuard<crate::Guard<M>> {
    /// Turns the reader into a writer after the other readers have released the lock. Drops the callbacks of this
    /// guard. Fails as [`zoolock::ReadGuard::upgrade`](crate::ReadGuard::upgrade) does.
    pub fn upgrade(self) -> Result<WriteGuard, NotUpgraded<Self>> {
        Self::upgraded(block_on(self.inner.upgrade()))
    }

    /// Turns the reader into a writer if there is no other reader. Drops the callbacks of this guard. Fails as
    /// [`zoolock::ReadGuard::try_upgrade`](crate::ReadGuard::try_upgrade) does.
    pub fn try_upgrade(self) -> Result<WriteGuard, NotUpgraded<Self>> {
        Self::upgraded(block_on(self.inner.try_upgrade()))
    }

    /// Turns the reader into a writer if the other readers release the lock within `timeout`. Drops the callbacks of
    /// this guard. Fails as [`zoolock::ReadGuard::upgrade_timeout`](crate::ReadGuard::upgrade_timeout) does.
    pub fn upgrade_timeout(self, timeout: Duration) -> Result<WriteGuard, NotUpgraded<Self>> {
        Self::upgraded(block_on(self.inner.upgrade_timeout(timeout)))
    }

    fn upgraded(
        outcome: Result<crate::WriteGuard, NotUpgraded<crate::Guard<M>>>,
    ) -> Result<WriteGuard, NotUpgraded<Self>> {
        match outcome {
            Ok(writer) => Ok(BlockingGuard::from_async(writer)),
            Err(NotUpgraded { guard, error }) => Err(NotUpgraded { guard: Self::from_async(guard), error }),
        }
    }
}

impl super::Zoolock {
    /// Returns a read/write lock by name. The name is relative to the root, or absolute if it starts with `/`.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        Blocking { inner: self.inner.rwlock(name) }
    }
}
