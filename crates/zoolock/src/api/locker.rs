//! Traits for code that works under a lock, so that it can be tested without a server.

use std::time::Duration;

use zoolock_core::FencingToken;

use crate::api::guard::Guard;
use crate::api::multi::MultiGuard;
use crate::api::owner::ReentrantGuard;
use crate::api::rwlock::WriteGuard;
use crate::api::zoolock::Zoolock;
use crate::base::error::{Error, LossReason};

/// Runs work under a lock.
///
/// Write your code for any `L: Locker`, give it a [`Zoolock`] in production and a [`LocalLocker`](crate::LocalLocker)
/// in its tests.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use zoolock::{Error, Hold, LocalLocker, Locker};
///
/// /// Stops when the lock is lost, and says whether it got to the end.
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
    /// The guard that the work gets.
    type Guard: Hold;

    /// Runs `work` under the lock `key`. Releases the lock when the work drops the guard, at its end at the latest.
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock was not acquired within `timeout`. [`Error::Invalid`] for a bad key, and for work that
    /// drops its guard before it begins. [`Error::Lost`] if the lock was lost before it was released: the work may then have
    /// overlapped with the next holder's. A locker may have other errors, too.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, releases the lock, and leaves nothing in the queue.
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

/// The common methods of guards.
pub trait Hold: Send + Sync + 'static {
    /// Returns a number that rises with every grant, for the resource to check.
    fn token(&self) -> FencingToken;

    /// Returns whether the guard surely holds the lock now. After it has returned false once, it always does.
    fn is_valid(&self) -> bool;

    /// Waits until the lock is lost. Once it is lost, resolves at once, and always with the same reason.
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
        Zoolock::with_lock(self, key, timeout, work).await
    }
}

/// Implements [`Hold`] for a guard that has the same methods.
macro_rules! hold {
    ($($guard:ty),+) => {$(
        impl Hold for $guard {
            fn token(&self) -> FencingToken {
                <$guard>::token(self)
            }

            fn is_valid(&self) -> bool {
                <$guard>::is_valid(self)
            }

            async fn lost(&self) -> LossReason {
                <$guard>::lost(self).await
            }
        }
    )+};
}

hold!(Guard, ReentrantGuard, WriteGuard, MultiGuard);

/// Returns the error for work that drops its guard too early. The closure `|_guard| async { … }` drops it when it returns, and
/// the future would run without the lock.
pub(crate) fn guard_dropped_early(path: &str) -> Error {
    Error::invalid(
        format!("lock {path}"),
        "the work dropped its guard before it began, and was not begun; move the guard into the future: \
         `|guard| async move { let _guard = guard; … }`",
    )
}
