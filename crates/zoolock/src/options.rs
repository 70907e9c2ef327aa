//! What a lock handle was asked to do besides locking.

use std::time::Duration;

use zoolock_core::tenure::Limits;

use crate::asker::AskAs;
use crate::events::Listeners;
use crate::naming::Naming;

/// Settings of one handle; its clones have the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) crash_detection: bool,
    pub(crate) lock_delay: Duration,
    pub(crate) tells_previous: bool,
    pub(crate) requeue: bool,
    pub(crate) naming: Naming,
    pub(crate) kazoo_pattern: bool,
    pub(crate) ask_as: AskAs,
    /// The tasks of this process share one place in the queue.
    pub(crate) tenure: Option<Limits>,
    pub(crate) listeners: Listeners,
}

/// Gives a lock handle the settings that all kinds have.
macro_rules! settings {
    ($handle:ident) => {
        impl $handle {
            /// Queues again, at the tail, when the session of a waiter expires; without it the waiter is told.
            /// A deadline counts from the beginning.
            #[must_use = "it is the handle that it returns which does so"]
            pub fn requeue_on_expiry(mut self) -> Self {
                self.lock.options.requeue = true;
                self
            }

            /// Whose names its contenders have; those of the [`Builder`](crate::Builder::naming) unless set. A naming
            /// without this kind of lock is reported by the first call that would use it.
            #[must_use = "it is the handle that it returns which does so"]
            pub fn naming(mut self, naming: crate::Naming) -> Self {
                self.lock.options.naming = naming;
                self
            }

            /// Says that every kazoo client of this lock was made with `extra_lock_patterns=["lock-"]`, and so sees our
            /// native names. Their own names do not tell; without this word a kazoo client in the queue of a native lock
            /// is taken for one that does not see us, and the lock is refused.
            #[must_use = "it is the handle that it returns which does so"]
            pub fn kazoo_pattern(mut self) -> Self {
                self.lock.options.kazoo_pattern = true;
                self
            }

            /// What happens to this handle's acquisitions, and to those of its clones, from now on.
            pub fn events(&self) -> crate::events::LockEvents {
                self.lock.options.listeners.subscribe()
            }

            /// Calls `listener` with what happens, in order, on a thread of its own, until this handle, its clones
            /// and their guards are gone: so it should not own one of them.
            pub fn listen(&self, listener: impl FnMut(crate::events::LockEvent) + Send + 'static) {
                self.lock.listen(listener);
            }
        }
    };
}

/// The same, and what makes sense only for those who want to be alone.
macro_rules! crash_settings {
    ($handle:ident) => {
        impl $handle {
            /// Says in the lock's record when a holder begins, so that the next one is told
            /// [`Previous::Crashed`](crate::Previous::Crashed) if it went without a word. One round trip more for each
            /// acquisition; the lock's directory stays when nobody uses it, unless it was there already: one that others
            /// made before forgets when the service removes it.
            ///
            /// Every holder through this library takes part from the first on that asked for it. Clients of other
            /// makes do not: a crash of theirs goes unnoticed.
            #[must_use = "it is the handle that it returns which does so"]
            pub fn crash_detection(mut self) -> Self {
                self.lock.options.crash_detection = true;
                self
            }

            /// Waits for `delay` before it takes the lock, unless the last holder is known to have left cleanly: so that
            /// what that one wrote at the end can land. It counts against the caller's deadline, begins anew with each
            /// call, and is waited for by those who only try, too; the first holder of all waits. Best with [`crash_detection`](Self::crash_detection); without, any
            /// contender that gave up in between makes the last holder unknown.
            #[must_use = "it is the handle that it returns which does so"]
            pub fn lock_delay(mut self, delay: std::time::Duration) -> Self {
                self.lock.options.lock_delay = delay;
                self
            }

            /// Reads how the last holder left before each grant. Without, whoever waited in the queue of a
            /// [`Mutex`](crate::Mutex) is granted by the end of the one before it, a round trip sooner, and reads that
            /// some milliseconds later: until then [`previous`](crate::Guard::previous) says
            /// [`Unknown`](crate::Previous::Unknown) where that one released the lock. With
            /// [`crash_detection`](Self::crash_detection) and [`lock_delay`](Self::lock_delay), whichever holder asked
            /// for the first, it is read before the grant anyway.
            #[must_use = "it is the handle that it returns which does so"]
            pub fn tell_previous(mut self) -> Self {
                self.lock.options.tells_previous = true;
                self
            }
        }
    };
}

pub(crate) use {crash_settings, settings};
