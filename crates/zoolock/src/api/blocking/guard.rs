//! The guards of the blocking API.

use std::ops::Deref;
use std::time::Duration;

use super::block_on;
use super::loss::{self, Callbacks};
use crate::api::any_guard::AnyGuard;
use crate::base::error::{Error, LossReason};
use crate::lock::held::Held;
use crate::session::Connection;

/// A wrapper around a guard of the async API. Its methods block.
///
/// Programs use its aliases, such as [`Guard`] and [`ReadGuard`]. A guard may move to another thread. Dropping it
/// releases the lock in the background, as dropping a [`zoolock::Guard`](crate::Guard) does.
///
/// It dereferences to the wrapped guard, and so has the methods of that guard and of [`Held`] that do not wait, such as
/// [`token`](crate::Guard::token) and [`is_valid`](Held::is_valid).
#[must_use = "the lock is released when the guard is dropped"]
pub struct BlockingGuard<G> {
    // The first field is dropped first. So no callback reports the release as a lost lock.
    callbacks: Callbacks,
    pub(super) inner: G,
}

/// A guard that holds the lock and exposes its lease deadline; see [how loss is noticed](super#how-loss-is-noticed).
pub type Guard = BlockingGuard<crate::Guard>;

/// A guard of an owner's lock. The lock is released when the owner's last guard is dropped; see
/// [`zoolock::ReentrantGuard`](crate::ReentrantGuard). It also has the method [`depth`](crate::ReentrantGuard::depth).
pub type ReentrantGuard = BlockingGuard<crate::ReentrantGuard>;

/// A guard that holds the lock for reading. Other readers may hold the lock at the same time. The
/// guard has no fencing token, since concurrent readers have no order.
pub type ReadGuard = BlockingGuard<crate::ReadGuard>;

/// A guard that holds the lock for writing, alone.
pub type WriteGuard = BlockingGuard<crate::WriteGuard>;

/// A guard that holds the lock for reading. [`ReadGuard`]s may exist at the same time, but no other
/// upgradable reader.
pub type UpgradableReadGuard = BlockingGuard<crate::UpgradableReadGuard>;

/// A guard that holds some permits of a semaphore. It has no fencing token: concurrent holders have no order.
pub type PermitGuard = BlockingGuard<crate::PermitGuard>;

/// A guard that holds every lock of a multi-lock. If one lock is lost, all count as lost.
pub type MultiGuard = BlockingGuard<crate::MultiGuard>;

/// A guard that holds every lock of a multi-lock for reading. If one lock is lost, all count as lost.
pub type MultiReadGuard = BlockingGuard<crate::MultiReadGuard>;

impl<G> BlockingGuard<G> {
    /// Wraps a guard of the async API.
    pub fn from_async(guard: G) -> BlockingGuard<G> {
        BlockingGuard { callbacks: Callbacks::default(), inner: guard }
    }

    /// Returns the wrapped guard of the async API. Drops the callbacks of [`BlockingGuard::on_lost`].
    pub fn into_async(self) -> G {
        self.inner
    }
}

impl<G: Deref<Target = Held> + Into<AnyGuard>> BlockingGuard<G> {
    /// Blocks until the lock is lost, and returns the reason. After the loss, returns at once, and always the same
    /// reason. If the lock is never lost, this blocks for ever.
    pub fn lost(&self) -> LossReason {
        block_on(self.inner.lost())
    }

    /// Blocks until the lock is lost, for `timeout` at most. Returns `None` if the lock was not lost.
    pub fn lost_timeout(&self, timeout: Duration) -> Option<LossReason> {
        loss::block_on_timeout(timeout, self.inner.lost())
    }

    /// Calls `callback` when the lock is lost, at once if it is lost already. Never calls it if the guard is
    /// dropped first.
    ///
    /// The callback runs on a thread of its own, so it may block. A callback that has started may
    /// still run after the guard was dropped.
    pub fn on_lost(&self, callback: impl FnOnce(LossReason) + Send + 'static) {
        let tell = loss::on_its_own_thread(callback);
        self.callbacks.keep(self.inner.when_lost(tell));
    }

    /// Blocks until this holder is asked to release the lock, for `timeout` at most. Returns whether it was asked.
    pub fn revoked_timeout(&self, timeout: Duration) -> bool {
        loss::block_on_timeout(timeout, self.inner.revoked()).is_some()
    }

    /// Returns whether this holder has been asked to release the lock. A request that was made
    /// while this holder was still a waiter counts, too. If this client has not read the holder's
    /// znode yet, blocks until it has read the znode or has lost the lock.
    pub fn revoked_by_now(&self) -> bool {
        block_on(self.inner.revoked_by_now())
    }

    /// Returns the state of the session's connection: for messages to the user, not for decisions.
    pub fn connection(&self) -> Connection {
        *self.inner.connection().borrow()
    }

    /// Releases the lock and blocks until the server has confirmed the release. Dropping the guard instead releases the
    /// lock in the background.
    ///
    /// # Errors
    /// As [`zoolock::Guard::release`](crate::Guard::release), or for an owner as
    /// [`zoolock::ReentrantGuard::release`](crate::ReentrantGuard::release).
    pub fn release(self) -> Result<(), Error> {
        let BlockingGuard { callbacks, inner } = self;
        drop(callbacks);
        block_on(inner.into().release())
    }
}

impl<G> Deref for BlockingGuard<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.inner
    }
}

impl<G: std::fmt::Debug> std::fmt::Debug for BlockingGuard<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}
