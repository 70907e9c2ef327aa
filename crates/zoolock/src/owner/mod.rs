//! Reentrant locking: whoever asks again as the same owner does not wait for itself.

mod guard;
mod question;

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock_core::Kind;

pub use self::guard::ReentrantGuard;
use self::question::Locks;
use crate::asker::{AskAs, drawn};
use crate::clock;
use crate::error::Error;
use crate::mutex::Mutex;
use crate::zoolock::Zoolock;

/// Whoever may take the same lock several times: a value that you pass on, no task and no thread.
///
/// Tasks move between threads, and one job may be done by several tasks, so nothing but you can say which calls belong
/// together. Make an owner where a job begins and hand it (or a clone, which is the same owner) to everything that is
/// part of the job. The first [`Mutex::lock_as`] of an owner acquires the lock, further ones return at once, and the
/// lock is released with the last [`ReentrantGuard`].
///
/// Those who share an owner do not exclude each other: a clone in another task means that both may be inside.
///
/// Whoever looks from outside sees what belongs to one owner ([`Entry::owner`](crate::Entry::owner)), and so who waits
/// for whom: take all locks of a job as its owner, also those that it takes only once.
///
/// Locks are told apart by client and full path. The same owner on two [`Zoolock`]s waits for itself.
///
/// # Examples
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// use zoolock::{Error, Owner, Zoolock};
///
/// async fn rotate(zl: &Zoolock, owner: &Owner) -> Result<(), Error> {
///     let guard = zl.mutex("keys").lock_as(owner).await?;
///     publish(zl, owner).await?; // takes the same lock, and does not wait for us
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
    locks: Arc<Locks>,
}

impl Owner {
    /// How often an owner may hold the same lock at a time unless said otherwise.
    pub const LIMIT: u32 = u16::MAX as u32;

    /// Makes an owner that is different from all others.
    pub fn new() -> Owner {
        Owner::with_limit(Owner::LIMIT)
    }

    /// Makes an owner that may hold the same lock at most `limit` times at a time, so that a recursion without an end
    /// is found out.
    pub fn with_limit(limit: u32) -> Owner {
        Owner { locks: Arc::new(Locks::new(limit, AskAs::Owner(drawn().into()))) }
    }

    /// Makes an owner that is the thread which asks.
    pub(crate) fn of_thread() -> Owner {
        Owner { locks: Arc::new(Locks::new(Owner::LIMIT, AskAs::Caller)) }
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
    /// Waits until the lock is `owner`'s, not at all where it is already.
    ///
    /// Calls of the same owner that wait at the same time share one place in the queue and are granted together.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, unless another call of the same owner waits on it.
    ///
    /// # Errors
    /// [`Error::Lost`] where the owner has lost the lock, until its last guard is gone: what was lost is not entered
    /// again. [`Error::Invalid`] where it holds the lock as often as it may. Else as [`Mutex::lock`].
    pub async fn lock_as(&self, owner: &Owner) -> Result<ReentrantGuard, Error> {
        let guard = owner.locks.enter(self, false).await?;
        Ok(guard.expect("only those who try are told that it is busy"))
    }

    /// Takes the lock for `owner` if it is free or already its own, and says `None` if it is not: also while the same
    /// owner waits for it elsewhere.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// As [`Mutex::lock_as`].
    pub async fn try_lock_as(&self, owner: &Owner) -> Result<Option<ReentrantGuard>, Error> {
        owner.locks.enter(self, true).await
    }

    /// Waits until the lock is `owner`'s, at most for `timeout`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub async fn lock_as_timeout(&self, owner: &Owner, timeout: Duration) -> Result<ReentrantGuard, Error> {
        self.lock_as_deadline(owner, Zoolock::deadline_after(timeout)).await
    }

    /// Waits until the lock is `owner`'s, at most until `deadline`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub async fn lock_as_deadline(&self, owner: &Owner, deadline: Instant) -> Result<ReentrantGuard, Error> {
        self.zoolock().process().check()?;
        let began = clock::monotonic();
        let timeout = || self.lock.timed_out(Kind::Mutex, began);
        if deadline <= began {
            return self.try_lock_as(owner).await?.ok_or_else(timeout);
        }
        // Each call has its own alarm, because a more patient one may share the queue position.
        let alarm = self.zoolock().alarm(deadline);
        tokio::select! {
            biased;
            entered = self.lock_as(owner) => return entered,
            () = alarm => {}
        }
        if !self.zoolock().is_answered().await {
            return Err(self.lock.no_answer());
        }
        Err(timeout())
    }
}
