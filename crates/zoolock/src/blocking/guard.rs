//! What a holder holds.

use super::wait;
use crate::error::Error;

/// Defines a blocking guard around an async one that has the usual methods, `when_lost` among them. What only some
/// kinds have (a token, a downgrade) is written by hand beside it.
macro_rules! blocking_guard {
    ($(#[$attribute:meta])* $name:ident of $inner:ty) => {
        $(#[$attribute])*
        #[must_use = "the lock is released when the guard is dropped"]
        pub struct $name {
            // First: whoever lets go is not told afterwards that the lock is lost.
            callbacks: $crate::blocking::loss::Callbacks,
            inner: $inner,
        }

        impl $name {
            pub(in $crate::blocking) fn new(inner: $inner) -> $name {
                $name { callbacks: Default::default(), inner }
            }

            /// Until when the lock may be believed to be ours. Moves on with each renewal; reads no clock and sends
            /// nothing. Once the lock is lost it has passed.
            pub fn valid_until(&self) -> $crate::Deadline {
                self.inner.valid_until()
            }

            /// Whether the lock may be believed to be ours now. Reads the clock and sends nothing. Once it said no,
            /// it always says no.
            pub fn is_valid(&self) -> bool {
                self.inner.is_valid()
            }

            /// Blocks until the lock is lost: for ever, if it never is. Returns at once, and always the same, if it
            /// has been.
            pub fn lost(&self) -> $crate::LossReason {
                $crate::blocking::wait(self.inner.lost())
            }

            /// Blocks until the lock is lost, at most for `timeout`; `None` if it was not.
            pub fn lost_timeout(&self, timeout: std::time::Duration) -> Option<$crate::LossReason> {
                $crate::blocking::loss::within(timeout, self.inner.lost())
            }

            /// Why the lock was lost, if that is known already. Waits for nothing.
            pub fn loss(&self) -> Option<$crate::LossReason> {
                self.inner.loss()
            }

            /// Calls `callback` when the lock is lost, at once if it has been, and never if the guard goes first.
            ///
            /// It runs on a thread of its own, so it may block. It may still be running when the guard is gone.
            pub fn on_lost(&self, callback: impl FnOnce($crate::LossReason) + Send + 'static) {
                let tell = $crate::blocking::loss::on_its_own_thread(callback);
                self.callbacks.keep(self.inner.when_lost(tell));
            }

            /// Blocks until somebody asks us to let go, at most for `timeout`; says whether somebody did.
            pub fn revoked_timeout(&self, timeout: std::time::Duration) -> bool {
                $crate::blocking::loss::in_time(timeout, self.inner.revoked())
            }

            /// Whether somebody has asked us to let go.
            pub fn is_revoked(&self) -> bool {
                self.inner.is_revoked()
            }

            /// Whether somebody has asked us to let go by now, if only while we stood in the queue. Asks the service, if
            /// that is not known yet, and blocks until it answers; false if the lock is lost.
            pub fn revoked_by_now(&self) -> bool {
                $crate::blocking::wait(self.inner.revoked_by_now())
            }

            /// What names this holder to whoever wants to revoke or break the lock. No fence.
            pub fn ticket(&self) -> $crate::Ticket {
                self.inner.ticket()
            }

            /// Returns the identifier of the acquisition, which no other one has ([`Entry::id`](crate::Entry::id)).
            pub fn acquisition_id(&self) -> String {
                self.inner.acquisition_id()
            }

            /// The check that a caller puts into its own ZooKeeper transaction.
            pub fn check(&self) -> $crate::Check {
                self.inner.check()
            }

            /// The node that holds the lock; the first one of a multi-lock.
            pub fn node_path(&self) -> String {
                self.inner.node_path()
            }

            /// What the session is doing now: for a word to the user, not for deciding anything.
            pub fn connection(&self) -> $crate::Connection {
                *self.inner.connection().borrow()
            }

            /// Releases the lock and blocks until the service has confirmed it. Dropping the guard releases it in
            /// the background.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::release`].")]
            pub fn release(self) -> Result<(), $crate::Error> {
                let $name { callbacks, inner } = self;
                drop(callbacks);
                $crate::blocking::wait(inner.release())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.inner.fmt(f)
            }
        }
    };
}

/// What only some kinds have.
macro_rules! blocking_guard_has {
    ($name:ident: path) => {
        impl $name {
            /// The directory of the lock.
            pub fn path(&self) -> &str {
                self.inner.path()
            }
        }
    };
    ($name:ident: paths) => {
        impl $name {
            /// The directories of the locks, each once.
            pub fn paths(&self) -> Vec<&str> {
                self.inner.paths()
            }
        }
    };
    ($name:ident: previous) => {
        impl $name {
            /// How the last one that held the lock alone left.
            pub fn previous(&self) -> $crate::Previous {
                self.inner.previous()
            }
        }
    };
    ($name:ident: token) => {
        impl $name {
            /// A number that rises with every grant, for the resource to check.
            pub fn token(&self) -> $crate::FencingToken {
                self.inner.token()
            }
        }
    };
    ($name:ident: $($what:ident),+) => {
        $(blocking_guard_has!($name: $what);)+
    };
}

blocking_guard! {
    /// Proof that the lock is ours, and the knowledge of how long it may be believed; see
    /// [how loss is noticed](super#how-loss-is-noticed).
    ///
    /// It may go to another thread. Dropping it releases the lock in the background, as dropping a
    /// [`zoolock::Guard`](crate::Guard) does.
    Guard of crate::Guard
}

blocking_guard_has!(Guard: path, previous, token);

impl Guard {
    /// Takes over a guard of the async API.
    pub fn from_async(guard: crate::Guard) -> Guard {
        Guard::new(guard)
    }

    /// Hands the guard to the async API. What was given to [`Guard::on_lost`] is not called any more.
    pub fn into_async(self) -> crate::Guard {
        self.inner
    }

    pub(super) fn departure(&self) -> crate::held::Departure {
        self.inner.departure()
    }
}

blocking_guard! {
    /// Proof that the lock is its owner's. It is released with the owner's last guard, whichever that is; see
    /// [`zoolock::ReentrantGuard`](crate::ReentrantGuard).
    ReentrantGuard of crate::ReentrantGuard
}

blocking_guard_has!(ReentrantGuard: path, previous, token);

impl ReentrantGuard {
    /// How many guards the owner has on this lock now, this one included.
    pub fn depth(&self) -> u32 {
        self.inner.depth()
    }
}

/// Waits for the end of a guard that may still be somebody's.
pub(super) fn wait_if_begun(departure: crate::held::Departure) -> Result<(), Error> {
    if departure.has_begun() { wait(departure.wait()) } else { Ok(()) }
}
