//! The methods that the handles of several kinds of locks have.
//!
//! Each handle is a type of its own, so that its page lists exactly what it can do. These macros define the common
//! methods once: `handle!` those of every handle, `exclusive!` those that acquire a lock exclusively, `crash_options!` the
//! options of locks with exclusive holders, and `named!` those of handles with one name.

/// Defines the type of a handle, with the options and the events of all kinds of locks.
macro_rules! handle {
    ($(#[$attribute:meta])* $name:ident $({ $($(#[$note:meta])* $field:ident: $type:ty),* })?) => {
        $(#[$attribute])*
        #[derive(Clone)]
        pub struct $name {
            pub(super) lock: $crate::lock::acquire::Lock,
            $($($(#[$note])* $field: $type),*)?
        }

        /// Options and events.
        impl $name {
            /// Sets the naming scheme of this handle's contenders. The default is that of the
            /// [`Builder`](crate::Builder::naming). If a scheme does not have this kind of lock, acquisitions fail.
            #[must_use = "the option applies to the returned handle"]
            pub fn naming(mut self, naming: $crate::base::naming::Naming) -> Self {
                self.lock.options.naming = naming;
                self
            }

            /// Declares that every kazoo client of this lock was created with
            /// `extra_lock_patterns=["lock-"]`, and so waits for znodes with zoolock's native names. The
            /// names of kazoo's znodes do not show this. Without this option, a kazoo client in the queue
            /// of a native lock is assumed to ignore this client's znodes, and the acquisition fails.
            #[must_use = "the option applies to the returned handle"]
            pub fn kazoo_pattern(mut self) -> Self {
                self.lock.options.kazoo_pattern = true;
                self
            }

            /// Sets a note, a free text of at most 512 characters that operators see beside the contenders of this handle.
            /// The default is that of the [`Builder`](crate::Builder::note).
            #[must_use = "the option applies to the returned handle"]
            pub fn note(mut self, note: impl AsRef<str>) -> Self {
                self.lock.options.note = Some(note.as_ref().into());
                self
            }

            /// Returns a stream of the future events of acquisitions by this handle and its clones.
            pub fn events(&self) -> $crate::base::events::LockEvents {
                self.lock.options.listeners.subscribe()
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).field("names", &self.lock.names).finish_non_exhaustive()
            }
        }
    };
}

/// Defines the methods that acquire a lock exclusively.
macro_rules! exclusive {
    ($name:ident, $guard:ident) => {
        /// Methods that acquire the lock.
        impl $name {
            /// Acquires the lock, or all locks of a multi-lock. Waits without a time limit.
            ///
            /// If the session expires while the call waits, the call queues again, at the end of the queue.
            ///
            /// # Cancel safety
            /// Dropping the future leaves the queue. The znode is deleted in the background. After a lost connection the
            /// deletion is repeated, until it succeeds or the session has ended.
            ///
            /// A future that is granted the lock must be polled within the
            /// [`claim timeout`](crate::Builder::claim_timeout). After it, or if the lock is lost first, the lock is given back.
            /// When the future is polled again, it queues anew, at the end of the queue, or times out.
            ///
            /// # Errors
            /// [`Error::Invalid`](crate::Error::Invalid) for a bad name; [`Error::WrongKind`](crate::Error::WrongKind) for a
            /// lock of another kind; [`Error::Closed`](crate::Error::Closed) and [`Error::Forked`](crate::Error::Forked) for
            /// such a client; [`Error::Removed`](crate::Error::Removed) if another client deleted the znode of this
            /// acquisition; [`Error::Unavailable`](crate::Error::Unavailable) if no session can be opened;
            /// [`Error::Denied`](crate::Error::Denied) if the server refuses.
            pub async fn lock(&self) -> Result<$guard, $crate::Error> {
                self.lock
                    .acquire(zoolock_core::Kind::Mutex, $crate::lock::acquire::WaitLimit::ForEver)
                    .await
                    .map($guard::expect_granted)
            }

            /// Acquires the lock if it is free. Returns `None` if it is busy.
            ///
            /// # Cancel safety
            /// As [`Self::lock`].
            ///
            /// # Errors
            /// [`Error::Unavailable`](crate::Error::Unavailable) if the server does not answer within
            /// [`Builder::answer_timeout`](crate::Builder::answer_timeout); else as [`Self::lock`].
            pub async fn try_lock(&self) -> Result<Option<$guard>, $crate::Error> {
                Ok(self
                    .lock
                    .acquire(zoolock_core::Kind::Mutex, $crate::lock::acquire::WaitLimit::Try)
                    .await?
                    .map($guard::new))
            }

            /// Acquires the lock. Waits for `timeout` at most, and then for the
            /// [`answer timeout`](crate::Builder::answer_timeout) if the server is slow. A timeout of zero makes one attempt.
            ///
            /// # Cancel safety
            /// As [`Self::lock`].
            ///
            /// # Errors
            /// [`Error::Timeout`](crate::Error::Timeout) if the lock is busy at the end of the wait, and the server still answers;
            /// [`Error::Unavailable`](crate::Error::Unavailable) if the server does not answer within
            /// [`Builder::answer_timeout`](crate::Builder::answer_timeout); else as [`Self::lock`].
            pub async fn lock_timeout(&self, timeout: std::time::Duration) -> Result<$guard, $crate::Error> {
                self.lock
                    .lock_until(zoolock_core::Kind::Mutex, $crate::base::clock::deadline_after(timeout))
                    .await
                    .map($guard::new)
            }

            /// Acquires the lock, waiting for `timeout` at most, lends the guard to `work`, and releases the lock when the
            /// work has returned. If the lock is lost, drops the work at once.
            ///
            /// # Errors
            /// [`Error::Lost`](crate::Error::Lost) if the lock was lost before it was released; else as
            /// [`Self::lock_timeout`].
            ///
            /// # Cancel safety
            /// Dropping the future drops the work, and releases the lock in the background.
            ///
            /// # Examples
            /// ```no_run
            /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
            /// use std::time::Duration;
            /// let token = zl.mutex("nightly").with_lock(Duration::from_secs(10), async |guard| guard.token()).await?;
            /// # let _ = token; Ok(()) }
            /// ```
            pub async fn with_lock<T>(
                &self,
                timeout: std::time::Duration,
                work: impl AsyncFnOnce(&$guard) -> T,
            ) -> Result<T, $crate::Error> {
                $crate::api::guard::lend(self.lock_timeout(timeout).await?, work).await
            }
        }
    };
}

/// Defines the options of locks with exclusive holders.
macro_rules! crash_options {
    ($name:ident) => {
        /// Options for the case that an exclusive holder crashes.
        impl $name {
            /// Makes each holder record the beginning of its hold in the lock directory. If the holder ends without a release,
            /// the next holder gets [`Previous::Crashed`](crate::Previous::Crashed). If an operator breaks the lock, it gets
            /// [`Previous::Unknown`](crate::Previous::Unknown), because the broken holder may still work.
            /// This costs one more round trip per acquisition. The lock directory is then created as a
            /// persistent znode. A directory that existed before may be a container: when the server
            /// removes the container, the record is lost.
            ///
            /// After the first holder with this option, every later holder that uses this library does the same. Holders of
            /// other client libraries do not: their crashes go unnoticed.
            #[must_use = "the option applies to the returned handle"]
            pub fn crash_detection(mut self) -> Self {
                self.lock.options.crash_detection = true;
                self
            }

            /// Makes each acquisition wait for `delay` before its grant, unless the last holder is known to
            /// have left cleanly. This gives the last writes of that holder time to arrive.
            ///
            /// The delay counts against the caller's deadline and starts again with each call. Calls that
            /// make only one attempt also wait for the delay. The first contender in a lock directory does
            /// not wait. Like `crash_detection`, this creates the directory as a persistent znode. Use the
            /// delay with [`crash_detection`](Self::crash_detection). Without it, the delay also
            /// applies whenever another contender has left the queue since the last hold, because it is
            /// then unknown how the last holder left.
            #[must_use = "the option applies to the returned handle"]
            pub fn lock_delay(mut self, delay: std::time::Duration) -> Self {
                self.lock.options.lock_delay = delay;
                self
            }

            /// Makes each acquisition read, before its grant, how the last holder left.
            ///
            /// Without this option, the deletion of the predecessor's znode grants a
            /// [`Mutex`](crate::Mutex) to a waiter, one round trip earlier. The waiter then reads some
            /// milliseconds later how the predecessor left. Until then [`previous`](crate::Held::previous)
            /// is [`Unknown`](crate::Previous::Unknown), even if the predecessor released the lock. If any
            /// holder uses [`crash_detection`](Self::crash_detection), or this handle uses
            /// [`lock_delay`](Self::lock_delay), the waiter reads this before the grant in any case.
            #[must_use = "the option applies to the returned handle"]
            pub fn tell_previous(mut self) -> Self {
                self.lock.options.tells_previous = true;
                self
            }
        }
    };
}

/// Defines the methods of handles with one name.
macro_rules! named {
    ($name:ident) => {
        /// The name.
        impl $name {
            /// Returns the name of the lock, as it was given.
            pub fn name(&self) -> &str {
                self.lock.name()
            }

            /// Returns the path of the lock directory, or the given name if the name is invalid.
            pub fn path(&self) -> String {
                self.lock.path()
            }
        }
    };
}

pub(super) use {crash_options, exclusive, handle, named};
