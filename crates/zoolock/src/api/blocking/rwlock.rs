//! The read/write lock.

use std::time::Duration;

use super::wait;
use crate::api::rwlock::NotUpgraded;
use crate::base::error::Error;

/// A lock with many readers or one writer, across processes and hosts: the blocking form of
/// [`zoolock::RwLock`](crate::RwLock).
#[derive(Clone)]
pub struct RwLock {
    inner: crate::RwLock,
}

blocking_settings!(RwLock of crate::RwLock);
blocking_crash_settings!(RwLock of crate::RwLock);
blocking_operate!(RwLock of crate::RwLock);
blocking_acquire!(
    RwLock of crate::RwLock, ReadGuard, "the lock for reading", read, try_read, read_timeout, read_deadline
);
blocking_acquire!(
    RwLock of crate::RwLock, WriteGuard, "the lock for writing", write, try_write, write_timeout, write_deadline
);
blocking_acquire!(
    RwLock of crate::RwLock, UpgradableReadGuard, "the lock for upgradable reading",
    upgradable_read, try_upgradable_read, upgradable_read_timeout, upgradable_read_deadline
);

blocking_guard! {
    /// A guard that holds the lock for reading, perhaps with other readers. It has no fencing token: readers have no order.
    ReadGuard of crate::ReadGuard
}
blocking_guard_has!(ReadGuard: path, previous);

blocking_guard! {
    /// A guard that holds the lock for writing, alone.
    WriteGuard of crate::WriteGuard
}
blocking_guard_has!(WriteGuard: path, previous, token);

blocking_guard! {
    /// A guard that holds the lock for reading, perhaps with plain readers, but with no other upgradable reader.
    UpgradableReadGuard of crate::UpgradableReadGuard
}
blocking_guard_has!(UpgradableReadGuard: path, previous);

impl WriteGuard {
    /// Becomes a reader with the same queue position. Drops the callbacks of this guard.
    ///
    /// # Errors
    /// As [`zoolock::WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    pub fn downgrade(self) -> Result<ReadGuard, Error> {
        wait(self.inner.downgrade()).map(ReadGuard::new)
    }
}

/// Implements the upgrade methods of a reader.
macro_rules! blocking_upgrade {
    ($guard:ident of $inner:ty) => {
        #[expect(clippy::result_large_err, reason = "the guard comes back with the error")]
        impl $guard {
            /// Becomes a writer when the other readers have released the lock. Drops the callbacks of this guard.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::upgrade`]; the guard comes back with the error.")]
            pub fn upgrade(self) -> Result<WriteGuard, NotUpgraded<$guard>> {
                Self::upgraded(wait(self.inner.upgrade()))
            }

            /// Becomes a writer if there is no other reader.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::try_upgrade`]; the guard comes back with the error.")]
            pub fn try_upgrade(self) -> Result<WriteGuard, NotUpgraded<$guard>> {
                Self::upgraded(wait(self.inner.try_upgrade()))
            }

            /// Becomes a writer if the other readers release the lock within `timeout`.
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
    /// Returns a read/write lock by name. The name is relative to the root, or absolute if it starts with `/`.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.as_async().rwlock(name))
    }
}
