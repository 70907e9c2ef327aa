//! Reentrant locks: an owner that holds a lock can take it again without waiting for itself.

mod guard;
mod shared_acquire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock_core::Kind;

pub use self::guard::ReentrantGuard;
use self::shared_acquire::OwnedLocks;
use crate::api::mutex::Mutex;
use crate::base::clock;
use crate::base::error::Error;
use crate::base::owner_id::{OwnerMode, random_name};

/// An owner of locks, which may take the same lock several times. It is a value that you pass on, no task and no thread.
///
/// Tasks move between threads, and several tasks may do one job. So only you can say which calls belong together.
/// Make an owner where a job begins, and pass it (or a clone, which is the same owner) to all parts of the job. The
/// first [`Mutex::lock_as`] of an owner acquires the lock, further ones return at once, and the lock is released with
/// the last [`ReentrantGuard`].
///
/// Tasks that share an owner do not exclude each other: with a clone in another task, both may hold the lock at once.
///
/// Observers see which contenders belong to one owner ([`Entry::owner`](crate::Entry::owner)), and so the waits
/// between owners. Take all locks of a job as its owner, also a lock that it takes only once.
///
/// Locks are told apart by client and full path. The same owner on two [`Zoolock`](crate::Zoolock)s waits for itself.
///
/// # Examples
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// use zoolock::{Error, Owner, Zoolock};
///
/// async fn rotate(zl: &Zoolock, owner: &Owner) -> Result<(), Error> {
///     let guard = zl.mutex("keys").lock_as(owner).await?;
///     publish(zl, owner).await?; // takes the same lock, and does not wait
///     guard.release().await
/// }
///
/// async fn publish(zl: &Zoolock, owner: &Owner) -> Result<(), Error> {
///     let _guard = zl.mutex("keys").lock_as(owner).await?;
///     Ok(())
/// }
///
/// rotate(&zl, &Owner::new()).await
/// # }
/// ```
#[derive(Clone)]
pub struct Owner {
    locks: Arc<OwnedLocks>,
}

impl Owner {
    /// The default limit on how often an owner may hold the same lock at a time.
    pub const LIMIT: u32 = u16::MAX as u32;

    /// Makes an owner that is different from all others.
    pub fn new() -> Owner {
        Owner::with_limit(Owner::LIMIT)
    }

    /// Makes an owner that may hold the same lock at most `limit` times at a time. This detects a recursion without an end.
    pub fn with_limit(limit: u32) -> Owner {
        Owner { locks: Arc::new(OwnedLocks::new(limit, OwnerMode::Owner(random_name().into()))) }
    }

    /// Makes an owner for the calling thread.
    pub(crate) fn of_thread() -> Owner {
        Owner { locks: Arc::new(OwnedLocks::new(Owner::LIMIT, OwnerMode::Caller)) }
    }
}

impl Default for Owner {
    fn default() -> Self {
        Owner::new()
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner")
            .field("limit", &self.locks.limit())
            .field("locks", &self.locks.count())
            .finish_non_exhaustive()
    }
}

impl Mutex {
    /// Waits until `owner` holds the lock. Returns at once if it holds it already.
    ///
    /// Calls of the same owner that wait at the same time share one queue position and are granted together.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the queue position, unless another call of the same owner waits there.
    ///
    /// # Errors
    /// [`Error::Lost`] if the owner has lost the lock, until its last guard is dropped: a lost lock is not entered
    /// again. [`Error::Invalid`] if it holds the lock as often as its limit allows. Else as [`Mutex::lock`].
    pub async fn lock_as(&self, owner: &Owner) -> Result<ReentrantGuard, Error> {
        let guard = owner.locks.enter(self, false).await?;
        Ok(guard.expect("only a call that does not wait finds the lock busy"))
    }

    /// Acquires the lock for `owner` if it is free, or if the owner holds it already. Returns `None` if it is busy,
    /// also while another call of the same owner waits for it.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// As [`Mutex::lock_as`].
    pub async fn try_lock_as(&self, owner: &Owner) -> Result<Option<ReentrantGuard>, Error> {
        owner.locks.enter(self, true).await
    }

    /// Waits until `owner` holds the lock, at most for `timeout`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub async fn lock_as_timeout(&self, owner: &Owner, timeout: Duration) -> Result<ReentrantGuard, Error> {
        self.lock_as_deadline(owner, crate::base::clock::deadline_after(timeout)).await
    }

    /// Waits until `owner` holds the lock, at most until `deadline`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub async fn lock_as_deadline(&self, owner: &Owner, deadline: Instant) -> Result<ReentrantGuard, Error> {
        self.context().process().check()?;
        let began = clock::monotonic();
        let timeout = || self.lock.timed_out(Kind::Mutex, began);
        if deadline <= began {
            return self.try_lock_as(owner).await?.ok_or_else(timeout);
        }
        // Each call has its own alarm, because a more patient one may share the queue position.
        let alarm = self.context().alarm(deadline);
        tokio::select! {
            biased;
            entered = self.lock_as(owner) => return entered,
            () = alarm => {}
        }
        if !self.context().server_answers().await {
            return Err(self.lock.no_answer());
        }
        Err(timeout())
    }
}
