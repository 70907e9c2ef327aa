//! The guards.

use crate::lock::held::PendingRelease;

/// Defines a guard with the methods that all guards have.
macro_rules! guard {
    ($(#[$doc:meta])* $guard:ident) => {
        $(#[$doc])*
        ///
        /// Dropping it releases the lock in the background. The request is sent at once, before all other requests of
        /// its session. It is repeated after a lost connection until the znode is deleted or the session has ended.
        #[must_use = "the lock is released when the guard is dropped"]
        pub struct $guard {
            held: crate::lock::held::Held,
        }

        impl $guard {
            pub(crate) fn new(held: crate::lock::held::Held) -> $guard {
                $guard { held }
            }

            /// Calls `tell` on this client's thread when the lock is lost, unless the returned task is aborted first.
            pub(crate) fn when_lost(
                &self,
                tell: impl FnOnce(crate::LossReason) + Send + 'static,
            ) -> crate::base::tasks::Task {
                self.held.when_lost(tell)
            }

            /// Returns the lease deadline, until which the holder may rely on the lock. Each renewal extends it.
            /// Reads no clock and sends nothing. After a loss the deadline has passed.
            pub fn valid_until(&self) -> crate::Deadline {
                self.held.valid_until()
            }

            /// Returns whether the holder may rely on the lock now. Reads the clock and sends nothing. Once it has
            /// returned false, it always returns false.
            pub fn is_valid(&self) -> bool {
                self.held.is_valid()
            }

            /// Waits until the lock is lost. Resolves at once if it is lost already, and always to the same reason.
            ///
            /// # Cancel safety
            /// Can be dropped and called again at any time.
            pub async fn lost(&self) -> crate::LossReason {
                self.held.lost().await
            }

            /// Returns the reason of the loss, if it is known already. Does not wait.
            pub fn loss(&self) -> Option<crate::LossReason> {
                self.held.loss()
            }

            /// Waits until this holder is asked to release the lock: by `zoolock revoke`, by Curator, or by another
            /// client that follows ZooKeeper's recipe. It is only a request: the lock is held until it is released.
            ///
            /// # Cancel safety
            /// Can be dropped and called again at any time.
            pub async fn revoked(&self) {
                self.held.revoked().await;
            }

            /// Returns whether this holder has been asked to release the lock.
            pub fn is_revoked(&self) -> bool {
                self.held.is_revoked()
            }

            /// Returns whether this holder has been asked to release the lock by now, also while it was a waiter.
            /// Asks the server if that is not known yet. Returns false if the lock is lost.
            ///
            /// # Cancel safety
            /// Can be dropped and called again at any time.
            pub async fn revoked_by_now(&self) -> bool {
                self.held.revoked_by_now().await
            }

            /// Returns the ticket, by which [`revoke`](crate::Mutex::revoke) and
            /// [`break_lock`](crate::Mutex::break_lock) identify this holder. It is no fencing token.
            pub fn ticket(&self) -> crate::Ticket {
                self.held.ticket()
            }

            /// Returns the identifier of the acquisition, which no other one has ([`Entry::id`](crate::Entry::id)).
            pub fn acquisition_id(&self) -> String {
                self.held.acquisition_id()
            }

            /// Returns the check for the caller's own ZooKeeper transaction.
            pub fn check(&self) -> crate::Check {
                self.held.check()
            }

            /// Returns the path of the znode that holds the lock; the first one of a multi-lock.
            pub fn node_path(&self) -> String {
                self.held.node_path()
            }

            /// Returns the id of the session that holds the lock.
            #[doc(hidden)]
            pub fn session_id(&self) -> i64 {
                self.held.session_id()
            }

            /// Returns the state of the session's connection: for messages to the user, not for decisions.
            pub fn connection(&self) -> tokio::sync::watch::Receiver<crate::Connection> {
                self.held.connection()
            }

            /// Releases the lock and waits until the server has confirmed it.
            ///
            /// # Errors
            /// [`Error::Lost`](crate::Error::Lost) if the lock was lost before;
            /// [`Error::Denied`](crate::Error::Denied) if the server refuses the delete. The delete is then repeated
            /// in the background until the session ends.
            ///
            /// # Cancel safety
            /// Dropping the future releases the lock in the background.
            pub async fn release(self) -> Result<(), crate::Error> {
                self.held.release().await
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("path", &self.held.paths())
                    .field("ticket", &self.held.ticket())
                    .finish_non_exhaustive()
            }
        }
    };
}

/// Implements the path of a guard of one lock.
macro_rules! guard_path {
    ($guard:ident) => {
        impl $guard {
            /// Returns the path of the lock directory.
            pub fn path(&self) -> &str {
                self.held.path()
            }
        }
    };
}

/// Implements the method that tells how the last holder left.
macro_rules! guard_previous {
    ($guard:ident) => {
        impl $guard {
            /// Returns how the last exclusive holder left, as far as it is known now. With
            /// [`crash_detection`](crate::Mutex::crash_detection) or [`tell_previous`](crate::Mutex::tell_previous)
            /// it is known from the grant on. Without them, a holder that had to wait for a [`Mutex`](crate::Mutex)
            /// may get [`Unknown`](crate::Previous::Unknown) in its first milliseconds. Any other result is final.
            pub fn previous(&self) -> crate::Previous {
                self.held.previous()
            }
        }
    };
}

/// Implements the fencing token of exclusive holders.
macro_rules! exclusive_guard {
    ($guard:ident) => {
        impl $guard {
            /// Returns the fencing token, which rises with every grant. The resource checks it.
            pub fn token(&self) -> crate::FencingToken {
                self.held.token()
            }
        }
    };
}

pub(crate) use {exclusive_guard, guard, guard_path, guard_previous};

guard! {
    /// A guard that holds the lock and exposes its lease deadline.
    Guard
}
guard_path!(Guard);
guard_previous!(Guard);
exclusive_guard!(Guard);

impl Guard {
    pub(crate) fn pending_release(&self) -> PendingRelease {
        self.held.pending_release()
    }

    /// Releases a lock under which no work was done. Drop the guard after that.
    pub(crate) fn release_untouched(&self) {
        self.held.release_untouched();
    }

    /// Releases the lock like a holder that panics. Drop the guard after that.
    pub(crate) fn release_as_panicked(&self) {
        self.held.release_as_panicked();
    }
}
