//! The read/write lock.

use std::time::Duration;

use zoolock_core::Kind;

use crate::api::acquire_methods::{acquire, operate};
use crate::api::guard::{exclusive_guard, guard, guard_path, guard_previous};
use crate::api::zoolock::Zoolock;
use crate::base::clock;
use crate::base::error::{Error, LossReason};
use crate::base::options::{Options, crash_settings, settings};
use crate::lock::acquire::{Lock, WaitLimit};
use crate::lock::held::Held;

/// A lock with many readers or one writer, across processes and hosts. It is fair in both directions: a
/// reader waits for earlier writers, and a writer for earlier readers.
///
/// It shares its queue with the [`Mutex`](crate::Mutex) of the same name, which counts as a writer.
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
#[derive(Clone)]
pub struct RwLock {
    pub(crate) lock: Lock,
}

impl RwLock {
    pub(crate) fn new(lock: Lock) -> RwLock {
        RwLock { lock }
    }
}

acquire!(RwLock, ReadGuard, Kind::Read, "the lock for reading", read, try_read, read_timeout, read_deadline);
acquire!(
    RwLock,
    WriteGuard,
    Kind::Write,
    "the lock for writing",
    write,
    try_write,
    write_timeout,
    write_deadline
);
acquire!(
    RwLock,
    UpgradableReadGuard,
    Kind::Upgradable,
    "the lock for upgradable reading",
    upgradable_read,
    try_upgradable_read,
    upgradable_read_timeout,
    upgradable_read_deadline
);
operate!(RwLock);
settings!(RwLock);
crash_settings!(RwLock);

guard! {
    /// A guard that holds the lock for reading, perhaps with other readers. It has no fencing token, since readers have no order.
    ReadGuard
}
guard_path!(ReadGuard);
guard_previous!(ReadGuard);

guard! {
    /// A guard that holds the lock for writing, alone.
    WriteGuard
}
guard_path!(WriteGuard);
guard_previous!(WriteGuard);
exclusive_guard!(WriteGuard);

guard! {
    /// A guard that holds the lock for reading, perhaps with plain readers, but with no other upgradable reader.
    UpgradableReadGuard
}
guard_path!(UpgradableReadGuard);
guard_previous!(UpgradableReadGuard);

/// A failed upgrade. The guard is still a reader.
#[derive(Debug, thiserror::Error)]
#[error("not upgraded: {error}")]
pub struct NotUpgraded<G: std::fmt::Debug> {
    /// The guard of the reader.
    pub guard: G,
    /// The reason.
    #[source]
    pub error: Error,
}

impl<G: std::fmt::Debug> From<NotUpgraded<G>> for Error {
    /// Releases the reader.
    fn from(lost: NotUpgraded<G>) -> Error {
        lost.error
    }
}

impl WriteGuard {
    /// Becomes a reader with the same queue position: no writer can get the lock in between, and waiting
    /// readers may read at once. A writer that was an upgradable reader before still keeps other upgradable
    /// readers out.
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

/// Implements the upgrade methods of a reader.
macro_rules! upgrade {
    ($guard:ident, $who:literal) => {
        impl $guard {
            #[doc = $who]
            ///
            /// New readers wait until it has written, as they wait for every queued writer. The writer has
            /// the token of the reader: there was no writer in between.
            ///
            /// # Errors
            /// With the guard, which is still a reader except after [`Error::Lost`]: [`Error::Conflict`] if another reader
            /// goes first, or if readers are queued behind a writer that waits for this reader; else as [`RwLock::write`].
            ///
            /// # Cancel safety
            /// Dropping the future releases the lock, including the reader's.
            pub async fn upgrade(self) -> Result<WriteGuard, NotUpgraded<$guard>> {
                upgrade(self.held, WaitLimit::ForEver).await.map_err(NotUpgraded::<$guard>::of)
            }

            /// Becomes a writer if there is no other reader.
            ///
            /// # Errors
            /// With the guard, which is still a reader: [`Error::Timeout`] if there is another reader; else
            /// as [`Self::upgrade`].
            ///
            /// # Cancel safety
            /// As [`Self::upgrade`].
            pub async fn try_upgrade(self) -> Result<WriteGuard, NotUpgraded<$guard>> {
                upgrade(self.held, WaitLimit::Try).await.map_err(NotUpgraded::<$guard>::of)
            }

            /// Becomes a writer if the other readers leave within `timeout`.
            ///
            /// # Errors
            /// With the guard, which is still a reader: [`Error::Timeout`]; else as [`Self::upgrade`].
            ///
            /// # Cancel safety
            /// As [`Self::upgrade`].
            pub async fn upgrade_timeout(self, timeout: Duration) -> Result<WriteGuard, NotUpgraded<$guard>> {
                upgrade(self.held, WaitLimit::timeout(timeout)).await.map_err(NotUpgraded::<$guard>::of)
            }
        }

        impl NotUpgraded<$guard> {
            fn of((held, error): (Held, Error)) -> NotUpgraded<$guard> {
                NotUpgraded { guard: $guard::new(held), error }
            }
        }
    };
}

upgrade!(
    ReadGuard,
    "Becomes a writer when all newer readers have released the lock. Fails at once if there is an older reader or
    an upgradable one: that reader may upgrade, too, and both would wait for ever. Use
    [`RwLock::upgradable_read`] to avoid this failure."
);
upgrade!(
    UpgradableReadGuard,
    "Becomes a writer when the other readers have released the lock. It goes before plain readers that upgrade."
);

async fn upgrade(mut held: Held, wait_limit: WaitLimit) -> Result<WriteGuard, (Held, Error)> {
    if let Err(error) = held.context().process().check() {
        return Err((held, error));
    }
    let Some(from) = held.node() else {
        let reason = held.loss().unwrap_or(LossReason::Broken);
        let path = held.path().to_owned();
        return Err((held, Error::Lost { path, reason }));
    };
    let began = clock::monotonic();
    let mut lock = Lock::new(held.context().clone(), vec![held.path().to_owned()]);
    // The listeners see one holder.
    lock.options =
        Options { listeners: held.options().listeners.only_loss_and_revocation(), ..held.options().clone() };
    let outcome = tokio::select! {
        biased;
        reason = held.lost() => Err(Error::Lost { path: held.path().to_owned(), reason }),
        outcome = lock.acquire_for_upgrade(held.acquisition(), Kind::Upgrade { from }, wait_limit) => outcome,
    };
    match outcome {
        Ok(Some(writer)) => {
            held.upgrade_with(writer);
            match held.loss() {
                None => Ok(WriteGuard::new(held)),
                Some(reason) => {
                    let path = held.path().to_owned();
                    Err((held, Error::Lost { path, reason }))
                }
            }
        }
        Ok(None) => {
            let error = lock.timed_out(Kind::Upgrade { from }, began);
            Err((held, error))
        }
        Err(error) => Err((held, error)),
    }
}

impl Zoolock {
    /// Returns a read/write lock by name. The name is relative to the root, or absolute if it starts with
    /// `/`. Nothing is sent; the first call that would use a bad name reports it.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(Lock::new(self.context().clone(), vec![name.as_ref().to_owned()]))
    }
}
