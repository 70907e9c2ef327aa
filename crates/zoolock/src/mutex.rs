//! The mutex.

use std::time::Duration;

use zoolock_core::Kind;
use zoolock_core::tenure::Limits;

use crate::acquire::Lock;
use crate::acquire_methods::{acquire, operate};
use crate::guard::Guard;
use crate::options::{crash_settings, settings};
use crate::tenure;

/// A lock that one holder has at a time, across processes and hosts. Fair: first come, first served.
///
/// Not reentrant: a second `lock()` waits until the first guard is released, so for ever if the same task has it.
/// [`lock_as`](Mutex::lock_as) returns at once. [`Error::Timeout`](crate::Error::Timeout) tells whether this client holds
/// the lock, and [`Zoolock::deadlocks`](crate::Zoolock::deadlocks) finds a task that waits for itself.
#[derive(Clone)]
pub struct Mutex {
    pub(crate) lock: Lock,
}

impl Mutex {
    pub(crate) fn new(lock: Lock) -> Mutex {
        Mutex { lock }
    }

    pub(crate) fn zoolock(&self) -> &crate::zoolock::Zoolock {
        &self.lock.zoolock
    }
}

impl Mutex {
    /// Lets the tasks of this process that wait for the lock share one place in its queue: they queue in memory, and
    /// the lock passes from one to the next without a word to the service. While somebody else waits, it is passed on
    /// so at most `max_passes` times and no more after `max_hold`, and then goes to the others; while nobody does, as
    /// long as we like. Handles of one client with the same name and settings share; others stand in the queue on their
    /// own.
    ///
    /// Each task has a token of its own, higher than the one before. What is asked of the holder (to let go, say) is
    /// asked of the task that has it. In the queue they show as one, and as an owner that holds and waits for nothing
    /// else ([`Entry::owner_kind`](crate::Entry::owner_kind)). [`Guard::release`] waits for the service only where the
    /// process lets go of the lock; so a lock that somebody takes away just then may be passed on once more until that
    /// is known. [`Mutex::try_lock`] may say no for a round trip or two after the process got the lock, until it knows
    /// whether somebody else waits.
    ///
    /// ```no_run
    /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// use std::time::Duration;
    /// let mutex = zl.mutex("counter").batching(100, Duration::from_millis(50)).linger(Duration::from_secs(1));
    /// for _ in 0..1_000 {
    ///     let guard = mutex.lock().await?; // the first one asks the service, the others do not
    ///     drop(guard);
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use = "it is the handle that it returns which does so"]
    pub fn batching(mut self, max_passes: u32, max_hold: Duration) -> Self {
        let limits = self.lock.options.tenure.unwrap_or(tenure::ALONE);
        self.lock.share_place(Limits { max_passes, max_hold, ..limits });
        self
    }

    /// Keeps the lock for so long after a task let go of it, in case one of this process wants it back: while nobody
    /// else waits, and while a handle is there that it was taken with, or a clone. To take it back costs no round trip. As
    /// soon as somebody else comes, it is let go. Not together with [`crash_detection`](Mutex::crash_detection): a
    /// lock that is kept while nobody works would look like a crash.
    #[must_use = "it is the handle that it returns which does so"]
    pub fn linger(mut self, keep: Duration) -> Self {
        let limits = self.lock.options.tenure.unwrap_or(tenure::ALONE);
        self.lock.share_place(Limits { linger: keep, ..limits });
        self
    }
}

acquire!(Mutex, Guard, Kind::Mutex, "the lock", lock, try_lock, lock_timeout, lock_deadline);
operate!(Mutex);
settings!(Mutex);
crash_settings!(Mutex);
