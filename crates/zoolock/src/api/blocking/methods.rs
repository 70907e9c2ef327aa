//! The methods that handles of several kinds have in common.

/// Implements the four methods that acquire one kind of guard.
macro_rules! blocking_acquire {
    (
        $handle:ident of $inner:ty, $guard:ident, $object:literal,
        $lock:ident, $try_lock:ident, $lock_timeout:ident, $lock_deadline:ident
    ) => {
        impl $handle {
            #[doc = concat!("Blocks until it acquires ", $object, ".")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::", stringify!($lock), "`].")]
            pub fn $lock(&self) -> Result<$guard, $crate::Error> {
                $crate::api::blocking::wait(self.inner.$lock()).map($guard::new)
            }

            #[doc = concat!("Acquires ", $object, " if it is free. Returns `None` if it is busy. Blocks for a round trip.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Self::", stringify!($lock), "`].")]
            pub fn $try_lock(&self) -> Result<Option<$guard>, $crate::Error> {
                Ok($crate::api::blocking::wait(self.inner.$try_lock())?.map($guard::new))
            }

            #[doc = concat!("Blocks until it acquires ", $object, ", at most for `timeout`.")]
            ///
            /// # Errors
            /// [`Error::Timeout`](crate::Error::Timeout) if the lock is busy at the end of the wait; else
            #[doc = concat!("as [`Self::", stringify!($lock), "`].")]
            pub fn $lock_timeout(&self, timeout: std::time::Duration) -> Result<$guard, $crate::Error> {
                $crate::api::blocking::wait(self.inner.$lock_timeout(timeout)).map($guard::new)
            }

            #[doc = concat!("Blocks until it acquires ", $object, ", at most until `deadline`.")]
            ///
            /// # Errors
            /// [`Error::Timeout`](crate::Error::Timeout) if the lock is busy at the end of the wait; else
            #[doc = concat!("as [`Self::", stringify!($lock), "`].")]
            pub fn $lock_deadline(&self, deadline: std::time::Instant) -> Result<$guard, $crate::Error> {
                $crate::api::blocking::wait(self.inner.$lock_deadline(deadline)).map($guard::new)
            }
        }
    };
}

/// Implements the settings of a handle, and its conversion from the async API.
macro_rules! blocking_settings {
    ($handle:ident of $inner:ty) => {
        impl $handle {
            pub(in $crate::api::blocking) fn new(inner: $inner) -> $handle {
                $handle { inner }
            }

            /// Returns the same handle of the async API.
            pub fn as_async(&self) -> &$inner {
                &self.inner
            }

            #[doc = concat!("As [`", stringify!($inner), "::naming`].")]
            pub fn naming(self, naming: $crate::Naming) -> Self {
                $handle { inner: self.inner.naming(naming) }
            }

            #[doc = concat!("As [`", stringify!($inner), "::kazoo_pattern`].")]
            pub fn kazoo_pattern(self) -> Self {
                $handle { inner: self.inner.kazoo_pattern() }
            }

            #[doc = concat!("As [`", stringify!($inner), "::listen`].")]
            pub fn listen(&self, listener: impl FnMut($crate::LockEvent) + Send + 'static) {
                self.inner.listen(listener);
            }
        }

        impl std::fmt::Debug for $handle {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.inner.fmt(f)
            }
        }
    };
}

/// Implements the settings of handles with exclusive holders.
macro_rules! blocking_crash_settings {
    ($handle:ident of $inner:ty) => {
        impl $handle {
            #[doc = concat!("As [`", stringify!($inner), "::crash_detection`].")]
            pub fn crash_detection(self) -> Self {
                $handle { inner: self.inner.crash_detection() }
            }

            #[doc = concat!("As [`", stringify!($inner), "::lock_delay`].")]
            pub fn lock_delay(self, delay: std::time::Duration) -> Self {
                $handle { inner: self.inner.lock_delay(delay) }
            }

            #[doc = concat!("As [`", stringify!($inner), "::tell_previous`].")]
            pub fn tell_previous(self) -> Self {
                $handle { inner: self.inner.tell_previous() }
            }
        }
    };
}

/// Implements the methods of a handle for operators and observers.
macro_rules! blocking_operate {
    ($handle:ident of $inner:ty) => {
        impl $handle {
            /// Returns the name that it was made with.
            pub fn name(&self) -> &str {
                self.inner.name()
            }

            /// Returns the path of the lock directory, or the given name if that is invalid.
            pub fn path(&self) -> String {
                self.inner.path()
            }

            /// Returns the holders and the waiters of the lock.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::snapshot`].")]
            pub fn snapshot(&self) -> Result<$crate::Snapshot, $crate::Error> {
                $crate::api::blocking::wait(self.inner.snapshot())
            }

            /// Asks a holder or waiter to release the lock.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::revoke`].")]
            pub fn revoke(&self, ticket: impl Into<$crate::Ticket>) -> Result<(), $crate::Error> {
                $crate::api::blocking::wait(self.inner.revoke(ticket))
            }

            /// Takes the lock, or the queue position, away from the contender with this ticket. Returns that contender.
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($inner), "::break_lock`].")]
            pub fn break_lock(
                &self,
                ticket: impl Into<$crate::Ticket>,
            ) -> Result<$crate::Entry, $crate::Error> {
                $crate::api::blocking::wait(self.inner.break_lock(ticket))
            }
        }
    };
}
