//! The read/write lock.

use std::time::Duration;

use zoolock_core::Kind;

use crate::acquire::{Lock, Patience};
use crate::acquire_methods::{acquire, operate};
use crate::clock;
use crate::error::{Error, LossReason};
use crate::guard::{exclusive_guard, guard, guard_after_another, guard_of_one};
use crate::held::Held;
use crate::options::{Options, crash_settings, settings};
use crate::zoolock::Zoolock;

/// A lock that many read, or one writes, across processes and hosts. Fair both ways: whoever comes later waits for
/// whoever came before and wants the other thing.
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

acquire!(
    RwLock,
    ReadGuard,
    Kind::Read,
    "the lock, for reading,",
    read,
    try_read,
    read_timeout,
    read_deadline
);
acquire!(
    RwLock,
    WriteGuard,
    Kind::Write,
    "the lock, for writing,",
    write,
    try_write,
    write_timeout,
    write_deadline
);
acquire!(
    RwLock,
    UpgradableReadGuard,
    Kind::Upgradable,
    "the lock, for reading and perhaps writing later,",
    upgradable_read,
    try_upgradable_read,
    upgradable_read_timeout,
    upgradable_read_deadline
);
operate!(RwLock);
settings!(RwLock);
crash_settings!(RwLock);

guard! {
    /// We read, perhaps beside others. It has no fencing token: nothing orders readers.
    ReadGuard
}
guard_of_one!(ReadGuard);
guard_after_another!(ReadGuard);

guard! {
    /// We write, alone.
    WriteGuard
}
guard_of_one!(WriteGuard);
guard_after_another!(WriteGuard);
exclusive_guard!(WriteGuard);

guard! {
    /// We read, perhaps beside readers, but beside nobody else who may want to write.
    UpgradableReadGuard
}
guard_of_one!(UpgradableReadGuard);
guard_after_another!(UpgradableReadGuard);

/// A reader that could not become a writer, and reads on.
#[derive(Debug, thiserror::Error)]
#[error("not upgraded: {error}")]
pub struct NotUpgraded<G: std::fmt::Debug> {
    /// The reader.
    pub guard: G,
    /// Why.
    #[source]
    pub error: Error,
}

impl<G: std::fmt::Debug> From<NotUpgraded<G>> for Error {
    /// Lets the reader go.
    fn from(lost: NotUpgraded<G>) -> Error {
        lost.error
    }
}

impl WriteGuard {
    /// Goes on as a reader in the same place: no writer gets in between, and waiting readers may read at once. One that
    /// was an upgradable reader before still keeps other upgradable readers out.
    ///
    /// # Errors
    /// [`Error::Lost`] where the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    pub async fn downgrade(mut self) -> Result<ReadGuard, Error> {
        self.held.downgrade().await?;
        Ok(ReadGuard::new(self.held))
    }
}

/// Gives a reader the ways to become a writer.
macro_rules! upgrade {
    ($guard:ident, $who:literal) => {
        impl $guard {
            #[doc = $who]
            ///
            /// New readers wait until it has written; writers that stand in the queue do so anyway. The token of the
            /// writer is that of the reader: nobody wrote in between.
            ///
            /// # Errors
            /// With the guard, which reads on but for [`Error::Lost`]: [`Error::Conflict`] where another reader goes
            /// first, or where readers stand behind a writer that waits for us; else as [`RwLock::write`].
            ///
            /// # Cancel safety
            /// Dropping the future releases the lock, the reader's too.
            pub async fn upgrade(self) -> Result<WriteGuard, NotUpgraded<$guard>> {
                upgrade(self.held, Patience::ForEver).await.map_err(NotUpgraded::<$guard>::of)
            }

            /// Becomes a writer if no other reader is there.
            ///
            /// # Errors
            /// With the guard, which reads on: [`Error::Timeout`] where another reader is there; else as
            /// [`Self::upgrade`].
            ///
            /// # Cancel safety
            /// As [`Self::upgrade`].
            pub async fn try_upgrade(self) -> Result<WriteGuard, NotUpgraded<$guard>> {
                upgrade(self.held, Patience::Try).await.map_err(NotUpgraded::<$guard>::of)
            }

            /// Becomes a writer, if the other readers leave in time.
            ///
            /// # Errors
            /// With the guard, which reads on: [`Error::Timeout`]; else as [`Self::upgrade`].
            ///
            /// # Cancel safety
            /// As [`Self::upgrade`].
            pub async fn upgrade_timeout(self, timeout: Duration) -> Result<WriteGuard, NotUpgraded<$guard>> {
                upgrade(self.held, Patience::timeout(timeout)).await.map_err(NotUpgraded::<$guard>::of)
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
    "Becomes a writer when the readers that came later have left. Where there is an older reader, or an upgradable one, it
    is told so at once: that one may want the same, and both would wait for ever. Use
    [`RwLock::upgradable_read`] where it must not fail for that reason."
);
upgrade!(
    UpgradableReadGuard,
    "Becomes a writer when the other readers have left. It goes before any plain reader that wants the same."
);

async fn upgrade(mut held: Held, patience: Patience) -> Result<WriteGuard, (Held, Error)> {
    let Some(from) = held.node() else {
        let reason = held.loss().unwrap_or(LossReason::Broken);
        let path = held.path().to_owned();
        return Err((held, Error::Lost { path, reason }));
    };
    let began = clock::monotonic();
    let mut lock = Lock::new(held.zoolock().clone(), vec![held.path().to_owned()]);
    // It is one holder to those who listen.
    lock.options = Options { listeners: held.options().listeners.quietly(), ..held.options().clone() };
    let outcome = tokio::select! {
        biased;
        reason = held.lost() => Err(Error::Lost { path: held.path().to_owned(), reason }),
        outcome = lock.acquire_beside(held.acquisition(), Kind::Upgrade { from }, patience) => outcome,
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
            let path = held.path().to_owned();
            Err((held, Error::Timeout { path, waited: clock::monotonic() - began }))
        }
        Err(error) => Err((held, error)),
    }
}

impl Zoolock {
    /// A read/write lock by name: relative to the root, or absolute where it starts with `/`. Nothing is sent; a bad
    /// name is reported by the first call that would use it.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(Lock::new(self.clone(), vec![name.as_ref().to_owned()]))
    }
}
