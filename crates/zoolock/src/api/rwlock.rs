//! The read/write lock.

use std::time::Duration;

use zoolock_core::Kind;

use crate::api::guard::{fenced, guard, lend, of_one_lock};
use crate::api::handle::{crash_options, handle, named};
use crate::api::zoolock::Zoolock;
use crate::base::clock::{self, deadline_after};
use crate::base::error::{Error, LossReason};
use crate::base::options::Options;
use crate::lock::acquire::{Lock, WaitLimit};
use crate::lock::held::Held;

handle! {
    /// A lock with many readers or one writer, across processes and hosts. It is fair in both directions: a
    /// reader waits for earlier writers, and a writer for earlier readers.
    ///
    /// It shares its queue with the [`Mutex`](crate::Mutex) of the same name. The contenders of the mutex count as writers.
    ///
    /// ```no_run
    /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// let config = zl.rwlock("config");
    /// let read = config.read().await?;          // beside other readers
    /// drop(read);
    /// let write = config.write().await?;        // alone
    /// let read = write.downgrade().await?;      // no writer gets in between
    /// # drop(read); Ok(()) }
    /// ```
    RwLock
}

crash_options!(RwLock);
named!(RwLock);

guard! {
    /// A guard that holds a [`RwLock`] for reading. Other readers may hold the lock at the same time. The guard has no
    /// fencing token, since concurrent readers have no order.
    ReadGuard
}

guard! {
    /// A guard that holds a [`RwLock`] for writing, alone.
    WriteGuard
}

guard! {
    /// A guard that holds a [`RwLock`] for reading. [`ReadGuard`]s may exist at the same time, but no other upgradable
    /// reader.
    UpgradableReadGuard
}

of_one_lock!(ReadGuard, WriteGuard, UpgradableReadGuard);
fenced!(WriteGuard);

/// Methods that acquire the lock.
impl RwLock {
    /// Acquires the lock for reading. Waits without a time limit. Errors and cancel safety: see
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        self.lock.acquire(Kind::Read, WaitLimit::ForEver).await.map(ReadGuard::expect_granted)
    }

    /// Acquires the lock for reading if it is free. Returns `None` if it is busy. Errors and cancel safety: see
    /// [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        Ok(self.lock.acquire(Kind::Read, WaitLimit::Try).await?.map(ReadGuard::new))
    }

    /// Acquires the lock for reading. Waits for `timeout` at most. Errors and cancel safety: see
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn read_timeout(&self, timeout: Duration) -> Result<ReadGuard, Error> {
        self.lock.lock_until(Kind::Read, deadline_after(timeout)).await.map(ReadGuard::new)
    }

    /// Acquires the lock for writing. Waits without a time limit. Errors and cancel safety: see [`Mutex::lock`](crate::Mutex::lock).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        self.lock.acquire(Kind::Write, WaitLimit::ForEver).await.map(WriteGuard::expect_granted)
    }

    /// Acquires the lock for writing if it is free. Returns `None` if it is busy. Errors and cancel safety: see
    /// [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.lock.acquire(Kind::Write, WaitLimit::Try).await?.map(WriteGuard::new))
    }

    /// Acquires the lock for writing. Waits for `timeout` at most. Errors and cancel safety: see
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn write_timeout(&self, timeout: Duration) -> Result<WriteGuard, Error> {
        self.lock.lock_until(Kind::Write, deadline_after(timeout)).await.map(WriteGuard::new)
    }

    /// Acquires the lock for reading, lends the guard to `work`, and releases the lock; see
    /// [`Mutex::with_lock`](crate::Mutex::with_lock).
    pub async fn with_read<T>(
        &self,
        timeout: Duration,
        work: impl AsyncFnOnce(&ReadGuard) -> T,
    ) -> Result<T, Error> {
        lend(self.read_timeout(timeout).await?, work).await
    }

    /// Acquires the lock for writing, lends the guard to `work`, and releases the lock; see
    /// [`Mutex::with_lock`](crate::Mutex::with_lock).
    pub async fn with_write<T>(
        &self,
        timeout: Duration,
        work: impl AsyncFnOnce(&WriteGuard) -> T,
    ) -> Result<T, Error> {
        lend(self.write_timeout(timeout).await?, work).await
    }

    /// Acquires the lock for upgradable reading. Waits without a time limit. Errors and cancel safety: see
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub async fn upgradable_read(&self) -> Result<UpgradableReadGuard, Error> {
        self.lock.acquire(Kind::Upgradable, WaitLimit::ForEver).await.map(UpgradableReadGuard::expect_granted)
    }

    /// Acquires the lock for upgradable reading if it is free. Returns `None` if it is busy. Errors and cancel
    /// safety: see [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_upgradable_read(&self) -> Result<Option<UpgradableReadGuard>, Error> {
        Ok(self.lock.acquire(Kind::Upgradable, WaitLimit::Try).await?.map(UpgradableReadGuard::new))
    }

    /// Acquires the lock for upgradable reading. Waits for `timeout` at most. Errors and cancel safety: see
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    pub async fn upgradable_read_timeout(&self, timeout: Duration) -> Result<UpgradableReadGuard, Error> {
        self.lock.lock_until(Kind::Upgradable, deadline_after(timeout)).await.map(UpgradableReadGuard::new)
    }
}

/// The error of a failed upgrade, with the guard of the reader. The lock stays held for reading as long as this value lives,
/// also inside an `anyhow::Error`. Converting it into an [`Error`] with `?` releases the lock.
#[derive(Debug, thiserror::Error)]
#[error("not upgraded: {error}")]
pub struct NotUpgraded {
    /// The guard of the reader. It still holds the lock, unless `error` is [`Error::Lost`].
    pub guard: UpgradableReadGuard,
    /// The reason.
    #[source]
    pub error: Error,
}

impl From<NotUpgraded> for Error {
    /// Returns the error, and drops the guard, which releases the lock.
    fn from(lost: NotUpgraded) -> Error {
        lost.error
    }
}

impl WriteGuard {
    /// Turns the writer into a reader with the same queue position. No writer can get the lock in between. Readers that
    /// wait directly behind this writer get the lock at once. A writer that was an upgradable reader before still
    /// excludes other upgradable readers. The [leases](crate::Lease) of the writer end, and the reader has new ones.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub async fn downgrade(mut self) -> Result<ReadGuard, Error> {
        self.held.downgrade().await?;
        Ok(ReadGuard::new(self.held))
    }
}

impl UpgradableReadGuard {
    /// Turns the reader into a writer after the other readers have released the lock.
    ///
    /// New readers wait until the writer has released the lock, as they wait for every queued
    /// writer. The writer has the fencing token of the reader's znode, since no other writer can
    /// get the lock in between.
    ///
    /// # Errors
    /// The returned [`NotUpgraded`] contains the guard. This guard still holds the lock for
    /// reading, unless the error is [`Error::Lost`]. The error is [`Error::Conflict`] if readers are queued behind a writer
    /// that waits for this reader; else as [`RwLock::write`].
    ///
    /// # Cancel safety
    /// Dropping the future gives up the upgrade, and also releases the reader's lock.
    pub async fn upgrade(self) -> Result<WriteGuard, NotUpgraded> {
        self.upgrade_within(WaitLimit::ForEver).await
    }

    /// Turns the reader into a writer if there is no other reader. Does not wait for other readers.
    ///
    /// # Errors
    /// The returned [`NotUpgraded`] contains the guard, as for [`Self::upgrade`]. The error is
    /// [`Error::Timeout`] if there is another reader; else as [`Self::upgrade`].
    ///
    /// # Cancel safety
    /// As [`Self::upgrade`].
    pub async fn try_upgrade(self) -> Result<WriteGuard, NotUpgraded> {
        self.upgrade_within(WaitLimit::Try).await
    }

    /// Turns the reader into a writer if the other readers release the lock within `timeout`.
    ///
    /// # Errors
    /// The returned [`NotUpgraded`] contains the guard, as for [`Self::upgrade`]. The error is
    /// [`Error::Timeout`] if another reader still holds the lock at the end of the wait; else as
    /// [`Self::upgrade`].
    ///
    /// # Cancel safety
    /// As [`Self::upgrade`].
    pub async fn upgrade_timeout(self, timeout: Duration) -> Result<WriteGuard, NotUpgraded> {
        self.upgrade_within(WaitLimit::timeout(timeout)).await
    }

    async fn upgrade_within(mut self, wait_limit: WaitLimit) -> Result<WriteGuard, NotUpgraded> {
        match add_writer(&mut self.held, wait_limit).await {
            Ok(()) => Ok(WriteGuard::new(self.held)),
            Err(error) => Err(NotUpgraded { guard: self, error }),
        }
    }
}

/// Acquires the lock for writing on the session of a reader, and adds this write acquisition to the reader's guard.
async fn add_writer(held: &mut Held, wait_limit: WaitLimit) -> Result<(), Error> {
    held.context().process().check_not_forked()?;
    let Some(from) = held.node() else {
        return Err(lost(held, held.loss().unwrap_or(LossReason::Broken)));
    };
    let kind = Kind::Upgrade { from };
    let began = clock::monotonic();
    let mut lock = Lock::new(held.context().clone(), vec![held.path().to_owned()]);
    // The listeners have got the events of the reader's acquisition. Of the writer's acquisition,
    // they get only loss and revocation.
    lock.options =
        Options { listeners: held.options().listeners.only_loss_and_revocation(), ..held.options().clone() };
    let outcome = tokio::select! {
        biased;
        reason = held.lost() => Err(lost(held, reason)),
        outcome = lock.acquire_for_upgrade(held.acquisition(), kind, wait_limit) => outcome,
    };
    let writer = outcome?.ok_or_else(|| lock.timed_out(kind, began))?;
    held.upgrade_with(writer);
    held.loss().map_or(Ok(()), |reason| Err(lost(held, reason)))
}

fn lost(held: &Held, reason: LossReason) -> Error {
    Error::Lost { path: held.path().to_owned(), reason }
}

impl Zoolock {
    /// Returns a read/write lock by name. The name is relative to the [root](crate::Builder::root), or absolute if it
    /// starts with `/`. Sends nothing. If the name is bad, the first request, such as `read()`, fails.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock { lock: Lock::new(self.context().clone(), vec![name.as_ref().to_owned()]) }
    }
}
