//! The read/write lock.

use std::time::Duration;

use super::wait;
use crate::error::Error;
use crate::rwlock::NotUpgraded;

/// A lock that many read, or one writes, across processes and hosts; see [`zoolock::RwLock`](crate::RwLock), which it
/// is but for the waiting.
#[derive(Clone)]
pub struct RwLock {
    inner: crate::RwLock,
}

blocking_settings!(RwLock of crate::RwLock);
blocking_crash_settings!(RwLock of crate::RwLock);
blocking_operate!(RwLock of crate::RwLock);
blocking_acquire!(
    RwLock of crate::RwLock, ReadGuard, "the lock, for reading,", read, try_read, read_timeout, read_deadline
);
blocking_acquire!(
    RwLock of crate::RwLock, WriteGuard, "the lock, for writing,", write, try_write, write_timeout, write_deadline
);
blocking_acquire!(
    RwLock of crate::RwLock, UpgradableReadGuard, "the lock, for reading and perhaps writing later,",
    upgradable_read, try_upgradable_read, upgradable_read_timeout, upgradable_read_deadline
);

blocking_guard! {
    /// We read, perhaps beside others. It has no fencing token: nothing orders readers.
    ReadGuard of crate::ReadGuard
}
blocking_guard_has!(ReadGuard: path, previous);

blocking_guard! {
    /// We write, alone.
    WriteGuard of crate::WriteGuard
}
blocking_guard_has!(WriteGuard: path, previous, token);

blocking_guard! {
    /// We read, perhaps beside readers, but beside nobody else who may want to write.
    UpgradableReadGuard of crate::UpgradableReadGuard
}
blocking_guard_has!(UpgradableReadGuard: path, previous);

impl WriteGuard {
    /// Goes on as a reader in the same place. Callbacks of this guard are not called any more.
    ///
    /// # Errors
    /// As [`zoolock::WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    pub fn downgrade(self) -> Result<ReadGuard, Error> {
        wait(self.inner.downgrade()).map(ReadGuard::new)
    }
}

/// The ways for a reader to become a writer.
macro_rules! blocking_upgrade {
    ($guard:ident of $inner:ty) => {
        #[expect(clippy::result_large_err, reason = "the guard comes back with the error")]
        impl $guard {
            /// Becomes a writer when the other readers have left. Callbacks of this guard are not called any more.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::upgrade`]; the guard comes back with the error.")]
            pub fn upgrade(self) -> Result<WriteGuard, NotUpgraded<$guard>> {
                Self::upgraded(wait(self.inner.upgrade()))
            }

            /// Becomes a writer if no other reader is there.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::try_upgrade`]; the guard comes back with the error.")]
            pub fn try_upgrade(self) -> Result<WriteGuard, NotUpgraded<$guard>> {
                Self::upgraded(wait(self.inner.try_upgrade()))
            }

            /// Becomes a writer, if the other readers leave in time.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::upgrade_timeout`]; the guard comes back with the error.")]
            pub fn upgrade_timeout(self, timeout: Duration) -> Result<WriteGuard, NotUpgraded<$guard>> {
                Self::upgraded(wait(self.inner.upgrade_timeout(timeout)))
            }

            fn upgraded(
                outcome: Result<crate::WriteGuard, NotUpgraded<$inner>>,
            ) -> Result<WriteGuard, NotUpgraded<$guard>> {
                match outcome {
                    Ok(writer) => Ok(WriteGuard::new(writer)),
                    Err(NotUpgraded { guard, error }) => {
                        Err(NotUpgraded { guard: $guard::new(guard), error })
                    }
                }
            }
        }
    };
}

blocking_upgrade!(ReadGuard of crate::ReadGuard);
blocking_upgrade!(UpgradableReadGuard of crate::UpgradableReadGuard);

impl super::Zoolock {
    /// A read/write lock by name: relative to the root, or absolute where it starts with `/`.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.as_async().rwlock(name))
    }
}
