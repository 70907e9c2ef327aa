//! Reentrant locks: an owner that holds a lock can acquire it again without waiting for itself.

mod guard;
mod shared_acquire;

use std::sync::Arc;
use std::time::Duration;

use zoolock_core::Kind;

pub use self::guard::ReentrantGuard;
use self::shared_acquire::OwnedLocks;
use crate::api::mutex::Mutex;
use crate::base::clock;
use crate::base::error::Error;
use crate::base::owner_id::{OwnerMode, random_name};

/// An owner of locks. An owner can acquire the same lock several times. It is a value that you pass
/// on, not a task or a thread.
///
/// Tasks move between threads, and several tasks may do one job. So only you can say which calls belong together. Make
/// an owner where a job begins, and pass it to all parts of the job. A clone is the same owner. The first
/// [`Mutex::lock_as`] of an owner acquires the lock, and further ones return at once. The lock is released with the
/// last [`ReentrantGuard`].
///
/// Tasks that share an owner do not exclude each other: if another task has a clone, both may hold the lock at once.
///
/// Observers see which contenders belong to one owner ([`Entry::owner`](crate::admin::Entry::owner)), and so which owner waits
/// for which. Acquire all locks of a job as its owner, even a lock that the job acquires only once.
///
/// An owner recognizes a lock by its client and its path. On two clients that are not clones of one
/// [`Zoolock`](crate::Zoolock), the same owner waits for itself.
///
/// # Examples
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// use zoolock::{Error, Owner, Zoolock};
///
/// async fn rotate(zl: &Zoolock, owner: &Owner) -> Result<(), Error> {
///     let guard = zl.mutex("keys").lock_as(owner).await?;
///     publish(zl, owner).await?; // acquires the same lock, and does not wait
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
    /// The default limit on the number of guards that an owner may have on one lock at a time.
    pub const LIMIT: u32 = u16::MAX as u32;

    /// Makes an owner that is different from all others.
    pub fn new() -> Owner {
        Owner::with_limit(Owner::LIMIT)
    }

    /// Makes an owner that may have at most `limit` guards on one lock at a time. The limit detects endless recursion.
    pub fn with_limit(limit: u32) -> Owner {
        Owner { locks: Arc::new(OwnedLocks::new(limit, OwnerMode::Owner(random_name().into()))) }
    }

    /// Returns the owner of the calling thread, for locks that are reentrant by thread, as in Java: a function that acquires
    /// a lock can be called by a function that already holds it. While the thread ends, its owner may be
    /// gone already, and acquisitions fail with [`Error::Invalid`].
    ///
    /// For programs without async: the tasks of one thread of a runtime would not exclude each other, and a task that moves
    /// to another thread would be another owner. A guard that moves to another thread still belongs to this owner.
    ///
    /// ```no_run
    /// # fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// use zoolock::{Owner, Wait};
    /// let outer = zl.mutex("keys").lock_as(&Owner::current_thread()).wait()?;
    /// let inner = zl.mutex("keys").lock_as(&Owner::current_thread()).wait()?;
    /// assert_eq!(inner.depth(), 2);
    /// # drop((inner, outer)); Ok(()) }
    /// ```
    pub fn current_thread() -> Owner {
        thread_local! {
            static OWNER: Owner = Owner::of_a_thread(Owner::LIMIT);
        }
        // A new owner would not know the locks that the thread holds, and would wait for itself. So it may hold none.
        OWNER.try_with(Owner::clone).unwrap_or_else(|_| Owner::of_a_thread(0))
    }

    fn of_a_thread(limit: u32) -> Owner {
        Owner { locks: Arc::new(OwnedLocks::new(limit, OwnerMode::Caller)) }
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
    /// Acquires the lock for `owner`. Waits without a time limit. Returns at once if the owner already holds the lock.
    ///
    /// Calls of the same owner that wait at the same time share one queue position and are granted together. A call that is
    /// polled after the others have released the lock queues anew.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the queue position, unless another call of the same owner shares it.
    ///
    /// # Errors
    /// [`Error::Lost`] if the owner has lost the lock: until its last guard is dropped, the owner cannot acquire the
    /// lock again. [`Error::Invalid`] if the owner has as many guards on the lock as its limit allows. Else as
    /// [`Mutex::lock`].
    pub async fn lock_as(&self, owner: &Owner) -> Result<ReentrantGuard, Error> {
        let guard = owner.locks.acquire_or_reenter(self, false).await?;
        Ok(guard.expect("a call that waits never returns a busy lock"))
    }

    /// Acquires the lock for `owner` if it is free, or if the owner already holds it. Returns `None` if the lock is
    /// busy, and also while another call of the same owner waits for it.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// As [`Mutex::lock_as`].
    pub async fn try_lock_as(&self, owner: &Owner) -> Result<Option<ReentrantGuard>, Error> {
        owner.locks.acquire_or_reenter(self, true).await
    }

    /// Acquires the lock for `owner`. Waits for `timeout` at most.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Mutex::lock_as`].
    pub async fn lock_as_timeout(&self, owner: &Owner, timeout: Duration) -> Result<ReentrantGuard, Error> {
        self.context().process().check_not_forked()?;
        let began = clock::monotonic();
        let timed_out = || self.lock.timed_out(Kind::Mutex, began);
        if timeout.is_zero() {
            return self.try_lock_as(owner).await?.ok_or_else(timed_out);
        }
        // Each call has its own alarm, because a call with a later deadline may share the queue position.
        let alarm = self.context().alarm(clock::deadline_after(timeout));
        tokio::select! {
            biased;
            entered = self.lock_as(owner) => return entered,
            () = alarm => {}
        }
        if !self.context().server_answers().await {
            return Err(self.lock.no_answer());
        }
        Err(timed_out())
    }
}
