//! The guard of a lock of any kind.

use std::ops::Deref;

use zoolock_core::FencingToken;

use crate::api::owner::ReentrantGuard;
use crate::base::error::Error;
use crate::lock::held::Held;

/// A guard of any kind, for code that decides at run time which kind of lock it acquires.
///
/// Every guard of the async API converts into it with `into()`. It has the methods of [`Held`], and [`release`](Self::release).
/// Dropping it releases the lock as dropping the converted guard does. It cannot be converted back: upgrade or downgrade
/// a guard before the conversion.
///
/// ```no_run
/// use zoolock::{AnyGuard, Error, Zoolock};
///
/// async fn open(zl: &Zoolock, for_writing: bool) -> Result<AnyGuard, Error> {
///     let lock = zl.rwlock("archive");
///     Ok(if for_writing { lock.write().await?.into() } else { lock.read().await?.into() })
/// }
///
/// # async fn example(zl: Zoolock) -> Result<(), Error> {
/// let guard = open(&zl, true).await?;
/// if let Some(token) = guard.token() {
///     println!("token {token}"); // only the writer has one
/// }
/// tokio::select! {
///     () = work() => guard.release().await?,
///     why = guard.lost() => eprintln!("stop: {why}"),
/// }
/// # Ok(()) }
/// # async fn work() {}
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct AnyGuard {
    hold: Hold,
}

/// The hold of a guard. An owner shares its hold of a lock between its guards, every other guard has a hold of its own.
enum Hold {
    Own(Held),
    OfOwner(ReentrantGuard),
}

impl AnyGuard {
    pub(super) fn of(held: Held) -> AnyGuard {
        AnyGuard { hold: Hold::Own(held) }
    }

    /// Returns the fencing token; see [`Guard::token`](crate::Guard::token). Returns `None` for a lock that others can hold
    /// at the same time:
    /// for readers, upgradable readers and permits, whose holders have no order.
    pub fn token(&self) -> Option<FencingToken> {
        self.exclusive_token()
    }

    /// Releases the lock and waits until the server has confirmed the release. For an owner, see
    /// [`ReentrantGuard::release`].
    ///
    /// # Errors
    /// As [`Guard::release`](crate::Guard::release).
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(self) -> Result<(), Error> {
        match self.hold {
            Hold::Own(held) => held.release().await,
            Hold::OfOwner(guard) => guard.release().await,
        }
    }
}

impl From<ReentrantGuard> for AnyGuard {
    fn from(guard: ReentrantGuard) -> AnyGuard {
        AnyGuard { hold: Hold::OfOwner(guard) }
    }
}

impl Deref for AnyGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        match &self.hold {
            Hold::Own(held) => held,
            Hold::OfOwner(guard) => guard,
        }
    }
}

impl std::fmt::Debug for AnyGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnyGuard")
            .field("path", &self.paths())
            .field("ticket", &self.ticket())
            .finish_non_exhaustive()
    }
}
