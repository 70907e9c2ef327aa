//! The options of a lock handle.

use std::time::Duration;

use zoolock_core::tenure::Limits;

use crate::base::events::Listeners;
use crate::base::naming::Naming;
use crate::base::owner_id::OwnerMode;

/// Options of one handle; its clones have the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) crash_detection: bool,
    pub(crate) lock_delay: Duration,
    pub(crate) tells_previous: bool,
    pub(crate) naming: Naming,
    pub(crate) kazoo_pattern: bool,
    pub(crate) owner_mode: OwnerMode,
    /// Set if the tasks of this process share one queue position.
    pub(crate) sharing: Option<Limits>,
    pub(crate) listeners: Listeners,
}

/// Implements the options that all kinds of locks have.
macro_rules! settings {
    ($handle:ident) => {
        impl $handle {
            /// Sets the naming scheme of its contenders. The default is that of the [`Builder`](crate::Builder::naming).
            /// If a naming does not have this kind of lock, the first call that would use it fails.
            #[must_use = "the option applies to the returned handle"]
            pub fn naming(mut self, naming: crate::base::naming::Naming) -> Self {
                self.lock.options.naming = naming;
                self
            }

            /// Declares that every kazoo client of this lock was created with `extra_lock_patterns=["lock-"]`, and so
            /// sees zoolock's native names. The names of kazoo's znodes do not tell. Without this option a kazoo client
            /// in the queue of a native lock is assumed to ignore this client's znodes, and the acquisition fails.
            #[must_use = "the option applies to the returned handle"]
            pub fn kazoo_pattern(mut self) -> Self {
                self.lock.options.kazoo_pattern = true;
                self
            }

            /// Returns a stream of the events of this handle's and its clones' acquisitions, from now on.
            pub fn events(&self) -> crate::base::events::LockEvents {
                self.lock.options.listeners.subscribe()
            }

            /// Calls `listener` with each event, in order, on a thread of its own, until this handle, its
            /// clones and their guards are dropped. So the listener should not own one of them.
            pub fn listen(&self, listener: impl FnMut(crate::base::events::LockEvent) + Send + 'static) {
                self.lock.listen(listener);
            }
        }
    };
}

/// Implements the options of exclusive locks.
macro_rules! crash_settings {
    ($handle:ident) => {
        impl $handle {
            /// Records in the lock's directory when a holder begins, so that the next holder reads
            /// [`Previous::Crashed`](crate::Previous::Crashed) if it did not release the lock. This costs one
            /// more round trip per acquisition. The lock's directory is persistent then, unless it existed
            /// before: an older directory loses the record when the server removes it.
            ///
            /// After the first holder with this option, every holder that uses this library takes part. Other
            /// client libraries do not: their crashes go unnoticed.
            #[must_use = "the option applies to the returned handle"]
            pub fn crash_detection(mut self) -> Self {
                self.lock.options.crash_detection = true;
                self
            }

            /// Waits for `delay` before it takes the lock, unless the last holder is known to have left
            /// cleanly. This gives the last writes of that holder time to arrive.
            ///
            /// The delay counts against the caller's deadline and starts again with each call. Calls that
            /// only try wait for it, too, and so does the first holder of a lock. Use it with
            /// [`crash_detection`](Self::crash_detection): without, every contender that left the queue in
            /// between makes the last holder unknown.
            #[must_use = "the option applies to the returned handle"]
            pub fn lock_delay(mut self, delay: std::time::Duration) -> Self {
                self.lock.options.lock_delay = delay;
                self
            }

            /// Reads before each grant how the last holder left.
            ///
            /// Without it, the deletion of the predecessor's znode grants a [`Mutex`](crate::Mutex) to a waiter, one
            /// round trip earlier. The waiter then reads how the predecessor left some milliseconds later. Until then
            /// [`previous`](crate::Guard::previous) is [`Unknown`](crate::Previous::Unknown) if the predecessor
            /// released the lock. If any holder uses [`crash_detection`](Self::crash_detection), or this handle uses
            /// [`lock_delay`](Self::lock_delay), it is read before the grant anyway.
            #[must_use = "the option applies to the returned handle"]
            pub fn tell_previous(mut self) -> Self {
                self.lock.options.tells_previous = true;
                self
            }
        }
    };
}

pub(crate) use {crash_settings, settings};
