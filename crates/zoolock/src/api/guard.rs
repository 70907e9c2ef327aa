//! The guards of one kind of lock each.
//!
//! Each guard is a type of its own, so that its page lists exactly what it can do. A guard owns a [`Held`](crate::Held),
//! and dereferences to it for the methods that the guards of all kinds have. These macros define the other common methods
//! once: `guard!` those of every guard, `of_one_lock!` the path, and `fenced!` the token.

use std::ops::Deref;
use std::pin::pin;

use crate::api::any_guard::AnyGuard;
use crate::base::error::Error;
use crate::lock::held::Held;

/// Lends the guard to `work`, and then releases the lock. If the lock is lost, drops the work.
pub(super) async fn lend<G, T>(guard: G, work: impl AsyncFnOnce(&G) -> T) -> Result<T, Error>
where
    G: Deref<Target = Held> + Into<AnyGuard>,
{
    let outcome = {
        let mut lost = pin!(guard.lost());
        // Ends with this block, before the release.
        let mut work = pin!(work(&guard));
        tokio::select! {
            biased;
            reason = &mut lost => Err(reason),
            value = &mut work => Ok(value),
        }
    };
    let guard: AnyGuard = guard.into();
    match outcome {
        Ok(value) => guard.release().await.map(|()| value),
        Err(reason) => Err(Error::Lost { path: guard.paths().join(", "), reason }),
    }
}

/// Defines the type of a guard.
macro_rules! guard {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        #[must_use = "the lock is released when the guard is dropped"]
        pub struct $name {
            pub(super) held: $crate::lock::held::Held,
        }

        impl $name {
            pub(super) fn new(held: $crate::lock::held::Held) -> $name {
                $name { held }
            }

            /// Returns the guard of an acquisition that waited without a deadline.
            pub(super) fn expect_granted(held: Option<$crate::lock::held::Held>) -> $name {
                $name::new(held.expect("a wait without a deadline ends with the lock or an error"))
            }

            /// Releases the lock and waits until the server has confirmed the release. In an outage, waits until the lease or
            /// the session ends, at most.
            ///
            /// # Errors
            /// [`Error::Lost`](crate::Error::Lost) if the lock was lost before; [`Error::Denied`](crate::Error::Denied) if
            /// the server refuses to delete the znode. The deletion is then repeated in the background until the session
            /// ends.
            ///
            /// # Cancel safety
            /// Dropping the future releases the lock in the background.
            pub async fn release(self) -> Result<(), $crate::Error> {
                self.held.release().await
            }
        }

        impl std::ops::Deref for $name {
            type Target = $crate::lock::held::Held;

            fn deref(&self) -> &$crate::lock::held::Held {
                &self.held
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("path", &self.held.paths())
                    .field("ticket", &self.held.ticket())
                    .finish_non_exhaustive()
            }
        }

        impl From<$name> for $crate::AnyGuard {
            fn from(guard: $name) -> $crate::AnyGuard {
                $crate::AnyGuard::of(guard.held)
            }
        }
    };
}

/// Defines the path of a guard of one lock.
macro_rules! of_one_lock {
    ($($name:ident),*) => {
        $(impl $name {
            /// Returns the path of the lock directory.
            pub fn path(&self) -> &str {
                self.held.path()
            }
        })*
    };
}

/// Defines the token of a guard whose holder is exclusive.
macro_rules! fenced {
    ($name:ident) => {
        impl $name {
            /// Returns the fencing token. It is higher than the tokens of all earlier grants. Pass the token to the
            /// protected resource, which refuses requests with an older token.
            pub fn token(&self) -> $crate::FencingToken {
                self.held.token()
            }
        }

        impl $crate::ExclusiveGuard for $name {
            fn token(&self) -> $crate::FencingToken {
                self.held.token()
            }

            fn is_valid(&self) -> bool {
                self.held.is_valid()
            }

            async fn lost(&self) -> $crate::LossReason {
                self.held.lost().await
            }
        }
    };
}

pub(super) use {fenced, guard, of_one_lock};
