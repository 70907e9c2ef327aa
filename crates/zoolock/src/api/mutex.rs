//! The mutex.

use std::time::Duration;

use zoolock_core::Kind;
use zoolock_core::tenure::Limits;

use crate::api::acquire_methods::{acquire, operate};
use crate::api::guard::Guard;
use crate::base::options::{crash_settings, settings};
use crate::lock::acquire::Lock;
use crate::lock::shared_hold::NO_SHARING;

/// A lock with one holder at a time, across processes and hosts. Fair: first come, first served.
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

    pub(crate) fn context(&self) -> &crate::lock::context::Context {
        &self.lock.context
    }
}

impl Mutex {
    /// Shares one queue position among the tasks of this process that wait for the lock. The tasks queue in memory,
    /// and the lock passes from one to the next without a request to the server. While another contender waits, the
    /// lock passes at most `max_passes` times, and not after `max_hold`. Then the other contender gets it. While no
    /// other contender waits, there is no limit. Handles of one client with the same name and settings share a
    /// position. Other handles queue by themselves.
    ///
    /// Each task has a fencing token of its own, higher than the token before. A request to the holder, for example
    /// to release, reaches the task that holds the lock. The queue shows these tasks as one contender, and as an
    /// owner that holds and waits for nothing else ([`Entry::owner_kind`](crate::Entry::owner_kind)).
    /// [`Guard::release`] waits for the server only if the process releases the lock. So a lock that is taken away at
    /// that moment may pass on once more, until this is known. [`Mutex::try_lock`] may return `None` for a round trip
    /// or two after the process got the lock, until it knows whether another contender waits.
    ///
    /// ```no_run
    /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// use std::time::Duration;
    /// let mutex = zl.mutex("counter").batching(100, Duration::from_millis(50)).linger(Duration::from_secs(1));
    /// for _ in 0..1_000 {
    ///     let guard = mutex.lock().await?; // only the first one sends a request to the server
    ///     drop(guard);
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use = "the option applies to the returned handle"]
    pub fn batching(mut self, max_passes: u32, max_hold: Duration) -> Self {
        let limits = self.lock.options.sharing.unwrap_or(NO_SHARING);
        self.lock.share_position(Limits { max_passes, max_hold, ..limits });
        self
    }

    /// Keeps the lock for this time after a task has released it, in case a task of this process wants it again. Keeps
    /// it only while no other contender waits, and while a handle with which it was taken, or a clone, exists. To take
    /// it again costs no round trip. The lock is released as soon as another contender queues. Cannot be combined with
    /// [`crash_detection`](Mutex::crash_detection): a lock that is kept while no task works would look like a crash.
    #[must_use = "the option applies to the returned handle"]
    pub fn linger(mut self, keep: Duration) -> Self {
        let limits = self.lock.options.sharing.unwrap_or(NO_SHARING);
        self.lock.share_position(Limits { linger: keep, ..limits });
        self
    }
}

acquire!(Mutex, Guard, Kind::Mutex, "the lock", lock, try_lock, lock_timeout, lock_deadline);
operate!(Mutex);
settings!(Mutex);
crash_settings!(Mutex);
