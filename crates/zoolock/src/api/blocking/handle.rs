//! The clients and the handles of the blocking API.

use std::ops::Deref;
use std::time::{Duration, Instant};

use super::block_on;
use super::guard::BlockingGuard;
use crate::admin::snapshot::{Entry, Snapshot};
use crate::api::handle::Handle;
use crate::api::mode::{Fenced, HasPrevious, HasReaders, OneLock};
use crate::base::error::Error;
use crate::base::naming::Naming;
use crate::base::ticket::Ticket;

/// A wrapper around a client or a handle of the async API. Its methods block.
///
/// Programs use its aliases, such as [`Zoolock`](super::Zoolock) and [`Mutex`](super::Mutex). It dereferences to the
/// wrapped client or handle, and so has the methods of that type that do not wait, such as [`path`](crate::Mutex::path)
/// and [`listen`](crate::Mutex::listen).
#[derive(Clone)]
pub struct Blocking<T> {
    pub(super) inner: T,
}

impl<T> Blocking<T> {
    /// Wraps a client or a handle of the async API. The result uses the same sessions.
    pub fn from_async(inner: T) -> Blocking<T> {
        Blocking { inner }
    }

    /// Returns the wrapped client or handle of the async API.
    pub fn as_async(&self) -> &T {
        &self.inner
    }

    /// Converts the wrapper into the wrapped client or handle of the async API.
    pub fn into_async(self) -> T {
        self.inner
    }
}

impl<M: Fenced> Blocking<Handle<M>> {
    /// Acquires the lock, or all locks of a multi-lock. Blocks without a time limit. Fails as
    /// [`zoolock::Mutex::lock`](crate::Mutex::lock) does.
    pub fn lock(&self) -> Result<BlockingGuard<crate::Guard<M>>, Error> {
        block_on(self.inner.lock()).map(BlockingGuard::from_async)
    }

    /// Acquires the lock if it is free. Returns `None` if it is busy. Blocks for a round trip. Fails as
    /// [`zoolock::Mutex::try_lock`](crate::Mutex::try_lock) does.
    pub fn try_lock(&self) -> Result<Option<BlockingGuard<crate::Guard<M>>>, Error> {
        Ok(block_on(self.inner.try_lock())?.map(BlockingGuard::from_async))
    }

    /// Acquires the lock. Blocks for `timeout` at most. Fails as
    /// [`zoolock::Mutex::lock_timeout`](crate::Mutex::lock_timeout) does.
    pub fn lock_timeout(&self, timeout: Duration) -> Result<BlockingGuard<crate::Guard<M>>, Error> {
        block_on(self.inner.lock_timeout(timeout)).map(BlockingGuard::from_async)
    }

    /// Acquires the lock. Blocks until `deadline` at most. Errors: see [`Self::lock_timeout`].
    pub fn lock_deadline(&self, deadline: Instant) -> Result<BlockingGuard<crate::Guard<M>>, Error> {
        block_on(self.inner.lock_deadline(deadline)).map(BlockingGuard::from_async)
    }
}

/// Methods that acquire a lock for reading. They fail as the async methods of the same names do.
impl<M: HasReaders> Blocking<Handle<M>> {
    /// Acquires the lock for reading, or all locks of a multi-lock. Blocks without a time limit.
    pub fn read(&self) -> Result<BlockingGuard<crate::Guard<M::Reader>>, Error> {
        block_on(self.inner.read()).map(BlockingGuard::from_async)
    }

    /// Acquires the lock for reading if it is free. Returns `None` if it is busy. Blocks for a round trip.
    pub fn try_read(&self) -> Result<Option<BlockingGuard<crate::Guard<M::Reader>>>, Error> {
        Ok(block_on(self.inner.try_read())?.map(BlockingGuard::from_async))
    }

    /// Acquires the lock for reading. Blocks for `timeout` at most.
    pub fn read_timeout(&self, timeout: Duration) -> Result<BlockingGuard<crate::Guard<M::Reader>>, Error> {
        block_on(self.inner.read_timeout(timeout)).map(BlockingGuard::from_async)
    }

    /// Acquires the lock for reading. Blocks until `deadline` at most.
    pub fn read_deadline(&self, deadline: Instant) -> Result<BlockingGuard<crate::Guard<M::Reader>>, Error> {
        block_on(self.inner.read_deadline(deadline)).map(BlockingGuard::from_async)
    }
}

impl<M: OneLock> Blocking<Handle<M>> {
    /// Returns the holders and the waiters of the lock. Fails as [`zoolock::Mutex::snapshot`](crate::Mutex::snapshot)
    /// does.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        block_on(self.inner.snapshot())
    }

    /// Asks a holder to release the lock. A waiter keeps its queue position, and gets the request
    /// after its grant. Fails as [`zoolock::Mutex::revoke`](crate::Mutex::revoke) does.
    pub fn revoke(&self, ticket: impl Into<Ticket>) -> Result<(), Error> {
        block_on(self.inner.revoke(ticket))
    }

    /// Deletes the znode of the contender with this ticket. The contender then loses its lock or
    /// its queue position. Returns that contender. Fails as
    /// [`zoolock::Mutex::break_lock`](crate::Mutex::break_lock) does.
    pub fn break_lock(&self, ticket: impl Into<Ticket>) -> Result<Entry, Error> {
        block_on(self.inner.break_lock(ticket))
    }
}

impl<M> Blocking<Handle<M>> {
    /// Sets the naming scheme; see [`zoolock::Mutex::naming`](crate::Mutex::naming).
    pub fn naming(self, naming: Naming) -> Self {
        Blocking { inner: self.inner.naming(naming) }
    }

    /// Declares that kazoo's clients wait for znodes with native names; see
    /// [`zoolock::Mutex::kazoo_pattern`](crate::Mutex::kazoo_pattern).
    pub fn kazoo_pattern(self) -> Self {
        Blocking { inner: self.inner.kazoo_pattern() }
    }
}

impl<M: HasPrevious> Blocking<Handle<M>> {
    /// Lets the next holder learn of a crash; see [`zoolock::Mutex::crash_detection`](crate::Mutex::crash_detection).
    pub fn crash_detection(self) -> Self {
        Blocking { inner: self.inner.crash_detection() }
    }

    /// Sets a delay before each grant, unless the last holder is known to have left cleanly; see
    /// [`zoolock::Mutex::lock_delay`](crate::Mutex::lock_delay).
    pub fn lock_delay(self, delay: Duration) -> Self {
        Blocking { inner: self.inner.lock_delay(delay) }
    }

    /// Makes each acquisition read, before its grant, how the last holder left; see
    /// [`zoolock::Mutex::tell_previous`](crate::Mutex::tell_previous).
    pub fn tell_previous(self) -> Self {
        Blocking { inner: self.inner.tell_previous() }
    }
}

impl<T> Deref for Blocking<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Blocking<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}
