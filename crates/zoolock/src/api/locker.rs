//! Traits for code that works under a lock, so that it can be tested without a server.

use std::time::Duration;

use zoolock_core::FencingToken;

use crate::api::mutex::Guard;
use crate::api::owner::ReentrantGuard;
use crate::api::zoolock::Zoolock;
use crate::base::error::{Error, LossReason};
use crate::lock::held::Held;

/// A source of locks that runs work under a lock.
///
/// A program that needs no such tests calls [`Zoolock::with_lock`](crate::Zoolock::with_lock), which lends the guard and
/// drops the work when the lock is lost. A trait cannot say that the future of such a closure is `Send`, so here the work
/// gets the guard itself, and is not dropped.
///
/// Write your code for any `L: Locker`. Give it a [`Zoolock`] in production and a [`LocalLocker`](crate::LocalLocker)
/// in its tests.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use zoolock::{Error, ExclusiveGuard, LocalLocker, Locker};
///
/// /// Stops when the lock is lost. Returns whether the copy was completed.
/// async fn back_up<L: Locker>(locker: &L) -> Result<bool, Error> {
///     locker
///         .with_lock("nightly", Duration::from_secs(10), |guard| async move {
///             tokio::select! {
///                 () = copy(guard.token().to_string()) => true,
///                 _reason = guard.lost() => false,
///             }
///         })
///         .await
/// }
/// # async fn copy(_token: String) {}
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// assert!(back_up(&LocalLocker::new()).await?);
/// # Ok(()) }
/// ```
pub trait Locker: Send + Sync {
    /// The guard that is passed to the work.
    type Guard: ExclusiveGuard;

    /// Acquires the lock `key` and passes the guard to `work`. The lock is released when the guard is dropped, normally
    /// at the end of `work`. If `work` returns the guard, the caller keeps the lock.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock was not acquired within `timeout`. [`Error::Invalid`] for a
    /// bad key, and if the closure drops the guard instead of moving it into its future.
    /// [`Error::Lost`] if the lock was lost before it was released: the work may then have
    /// overlapped with the work of the next holder. An implementation may return other errors, too.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and releases the lock or gives up the queue position.
    fn with_lock<T, F, Fut>(
        &self,
        key: &str,
        timeout: Duration,
        work: F,
    ) -> impl Future<Output = Result<T, Error>> + Send
    where
        T: Send,
        F: FnOnce(Self::Guard) -> Fut + Send,
        Fut: Future<Output = T> + Send;
}

/// A guard that holds a lock exclusively. The trait has the methods that all such guards have.
pub trait ExclusiveGuard: Send + Sync + 'static {
    /// Returns the fencing token. It is higher than the tokens of all earlier grants. The protected
    /// resource refuses requests with an older token.
    fn token(&self) -> FencingToken;

    /// Returns whether the holder may rely on the lock now. Once it has returned false, it always returns false.
    fn is_valid(&self) -> bool;

    /// Waits until the lock is lost, and returns the reason. After the loss, resolves at once, and always to the same
    /// reason.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    fn lost(&self) -> impl Future<Output = LossReason> + Send;
}

impl Locker for Zoolock {
    type Guard = Guard;

    async fn with_lock<T, F, Fut>(&self, key: &str, timeout: Duration, work: F) -> Result<T, Error>
    where
        T: Send,
        F: FnOnce(Guard) -> Fut + Send,
        Fut: Future<Output = T> + Send,
    {
        let guard = self.mutex(key).lock_timeout(timeout).await?;
        let pending_release = guard.pending_release();
        let work = work(guard);
        if pending_release.has_begun() {
            return Err(guard_dropped_early(pending_release.path()));
        }
        let value = work.await;
        // If the work returned the guard with its value, the guard belongs to the caller.
        if pending_release.has_begun() {
            pending_release.wait().await?;
        }
        Ok(value)
    }
}

impl ExclusiveGuard for ReentrantGuard {
    fn token(&self) -> FencingToken {
        ReentrantGuard::token(self)
    }

    fn is_valid(&self) -> bool {
        Held::is_valid(self)
    }

    async fn lost(&self) -> LossReason {
        Held::lost(self).await
    }
}

/// Returns the error for a closure that drops its guard too early. The closure
/// `|_guard| async { … }` drops the guard when it returns, and its future would run without the
/// lock.
pub(crate) fn guard_dropped_early(path: &str) -> Error {
    Error::invalid(
        format!("lock {path}"),
        "the work dropped its guard before it began, and was not begun; move the guard into the future: \
         `|guard| async move { let _guard = guard; … }`",
    )
}
