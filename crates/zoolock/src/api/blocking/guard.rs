//! The guards of the blocking API.

use super::wait;
use crate::base::error::Error;

/// Defines a blocking guard around an async guard that has the usual methods, including `when_lost`. The methods of
/// only some kinds (a token, a downgrade) are written by hand beside it.
macro_rules! blocking_guard {
    ($(#[$attribute:meta])* $name:ident of $inner:ty) => {
        $(#[$attribute])*
        #[must_use = "the lock is released when the guard is dropped"]
        pub struct $name {
            // The first field, so it is dropped first: after a release, no callback reports a lost lock.
            callbacks: $crate::api::blocking::loss::Callbacks,
            inner: $inner,
        }

        impl $name {
            pub(in $crate::api::blocking) fn new(inner: $inner) -> $name {
                $name { callbacks: Default::default(), inner }
            }

            /// Returns the lease deadline, until which the holder may rely on the lock. Each renewal extends it.
            /// Reads no clock and sends nothing. After a loss the deadline has passed.
            pub fn valid_until(&self) -> $crate::Deadline {
                self.inner.valid_until()
            }

            /// Returns whether the holder may rely on the lock now. Reads the clock and sends nothing. Once it has
            /// returned false, it always returns false.
            pub fn is_valid(&self) -> bool {
                self.inner.is_valid()
            }

            /// Blocks until the lock is lost: for ever, if that never happens. Returns at once if the lock is lost
            /// already, and always the same reason.
            pub fn lost(&self) -> $crate::LossReason {
                $crate::api::blocking::wait(self.inner.lost())
            }

            /// Blocks until the lock is lost, at most for `timeout`. Returns `None` if it was not lost.
            pub fn lost_timeout(&self, timeout: std::time::Duration) -> Option<$crate::LossReason> {
                $crate::api::blocking::loss::block_on_timeout(timeout, self.inner.lost())
            }

            /// Returns the reason of the loss, if it is known already. Does not wait.
            pub fn loss(&self) -> Option<$crate::LossReason> {
                self.inner.loss()
            }

            /// Calls `callback` when the lock is lost, at once if it is lost already. Never calls it if the guard is
            /// dropped first.
            ///
            /// The callback runs on a thread of its own, so it may block. It may still run after the guard was dropped.
            pub fn on_lost(&self, callback: impl FnOnce($crate::LossReason) + Send + 'static) {
                let tell = $crate::api::blocking::loss::on_its_own_thread(callback);
                self.callbacks.keep(self.inner.when_lost(tell));
            }

            /// Blocks until this holder is asked to release the lock, at most for `timeout`. Returns whether it was asked.
            pub fn revoked_timeout(&self, timeout: std::time::Duration) -> bool {
                $crate::api::blocking::loss::resolves_within(timeout, self.inner.revoked())
            }

            /// Returns whether this holder has been asked to release the lock.
            pub fn is_revoked(&self) -> bool {
                self.inner.is_revoked()
            }

            /// Returns whether this holder has been asked to release the lock by now, also while it was a waiter. If
            /// that is not known yet, asks the server and blocks until it answers. Returns false if the lock is lost.
            pub fn revoked_by_now(&self) -> bool {
                $crate::api::blocking::wait(self.inner.revoked_by_now())
            }

            /// Returns the ticket, by which `revoke` and `break_lock` identify this holder. It is no fencing token.
            pub fn ticket(&self) -> $crate::Ticket {
                self.inner.ticket()
            }

            /// Returns the identifier of the acquisition, which no other one has ([`Entry::id`](crate::Entry::id)).
            pub fn acquisition_id(&self) -> String {
                self.inner.acquisition_id()
            }

            /// Returns the check for the caller's own ZooKeeper transaction.
            pub fn check(&self) -> $crate::Check {
                self.inner.check()
            }

            /// Returns the path of the znode that holds the lock; the first one of a multi-lock.
            pub fn node_path(&self) -> String {
                self.inner.node_path()
            }

            /// Returns the state of the session's connection: for messages to the user, not for decisions.
            pub fn connection(&self) -> $crate::Connection {
                *self.inner.connection().borrow()
            }

            /// Releases the lock and blocks until the server has confirmed it. Dropping the guard releases the lock
            /// in the background.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::release`].")]
            pub fn release(self) -> Result<(), $crate::Error> {
                let $name { callbacks, inner } = self;
                drop(callbacks);
                $crate::api::blocking::wait(inner.release())
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.inner.fmt(f)
            }
        }
    };
}

/// Implements the methods that only some kinds have.
macro_rules! blocking_guard_has {
    ($name:ident: path) => {
        impl $name {
            /// Returns the path of the lock directory.
            pub fn path(&self) -> &str {
                self.inner.path()
            }
        }
    };
    ($name:ident: paths) => {
        impl $name {
            /// Returns the paths of the lock directories, each once.
            pub fn paths(&self) -> Vec<&str> {
                self.inner.paths()
            }
        }
    };
    ($name:ident: previous) => {
        impl $name {
            /// Returns how the last exclusive holder left.
            pub fn previous(&self) -> $crate::Previous {
                self.inner.previous()
            }
        }
    };
    ($name:ident: token) => {
        impl $name {
            /// Returns the fencing token, which rises with every grant. The resource checks it.
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
    /// A guard that holds the lock and exposes its lease deadline; see
    /// [how loss is noticed](super#how-loss-is-noticed).
    ///
    /// It may move to another thread. Dropping it releases the lock in the background, as dropping a
    /// [`zoolock::Guard`](crate::Guard) does.
    Guard of crate::Guard
}

blocking_guard_has!(Guard: path, previous, token);

impl Guard {
    /// Converts a guard of the async API.
    pub fn from_async(guard: crate::Guard) -> Guard {
        Guard::new(guard)
    }

    /// Converts the guard to one of the async API. The callbacks of [`Guard::on_lost`] are dropped.
    pub fn into_async(self) -> crate::Guard {
        self.inner
    }

    pub(super) fn pending_release(&self) -> crate::lock::held::PendingRelease {
        self.inner.pending_release()
    }
}

blocking_guard! {
    /// A guard of an owner's lock. The lock is released when the owner's last guard is dropped; see
    /// [`zoolock::ReentrantGuard`](crate::ReentrantGuard).
    ReentrantGuard of crate::ReentrantGuard
}

blocking_guard_has!(ReentrantGuard: path, previous, token);

impl ReentrantGuard {
    /// Returns the number of guards that the owner has on this lock now, including this one.
    pub fn depth(&self) -> u32 {
        self.inner.depth()
    }
}

/// Waits for a release that has begun. Returns at once if the guard still exists.
pub(super) fn wait_if_begun(pending_release: crate::lock::held::PendingRelease) -> Result<(), Error> {
    if pending_release.has_begun() { wait(pending_release.wait()) } else { Ok(()) }
}
