//! The mutex.

use std::time::Duration;

use zoolock_core::tenure::TenureLimits;

use crate::api::handle::Handle;
use crate::api::mode::Exclusive;
use crate::lock::context::Context;
use crate::lock::shared_hold::NO_SHARING;

/// A lock with one holder at a time, across processes and hosts. Fair: first come, first served.
///
/// Not reentrant: a second `lock()` waits until the first guard is released. If the same task has
/// that guard, the second call waits for ever. Use [`lock_as`](Mutex::lock_as) to acquire a lock
/// again. The field `held_here` of [`Error::Timeout`](crate::Error::Timeout) shows whether this
/// client holds the lock, and [`Zoolock::deadlocks`](crate::Zoolock::deadlocks) finds a task that
/// waits for itself.
pub type Mutex = Handle<Exclusive>;

impl Mutex {
    pub(super) fn context(&self) -> &Context {
        &self.lock.context
    }

    /// Shares one queue position among the tasks of this process that wait for the lock. The tasks
    /// queue in memory, and the lock passes from one task to the next without a request to the
    /// server. While another contender waits, the lock passes at most `max_passes` times, and only
    /// for `max_hold`. Then the client releases the lock to that contender. While no other
    /// contender waits, there is no limit. Handles of one client with the same name and settings
    /// share a position. Other handles queue by themselves.
    ///
    /// Each task has a fencing token of its own, higher than the token before. A request to release
    /// the lock reaches the task that holds it. Observers see these tasks as one contender, whose
    /// owner neither holds nor waits for another lock
    /// ([`Entry::owner_kind`](crate::Entry::owner_kind)). [`Guard::release`](crate::Guard::release)
    /// waits for the server only if the client releases the lock. So if the client loses the lock
    /// just before a task releases it, the lock may still pass to the next task until the client
    /// notices the loss. [`Mutex::try_lock`] may return `None` for a round trip or two after the
    /// client got the lock, until the client knows whether another contender waits.
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
        self.lock.share_position(TenureLimits { max_passes, max_hold, ..limits });
        self
    }

    /// Keeps the lock for this time after a task has released it, in case a task of this process wants it again. The
    /// lock is kept only while no other contender waits, and while the handle that acquired it, or a clone of that
    /// handle, exists. Acquiring it again costs no round trip. The lock is released as soon as another contender
    /// queues. Cannot be combined with [`crash_detection`](Mutex::crash_detection): a lock that is kept while no task
    /// works would look like a crash.
    #[must_use = "the option applies to the returned handle"]
    pub fn linger(mut self, keep: Duration) -> Self {
        let limits = self.lock.options.sharing.unwrap_or(NO_SHARING);
        self.lock.share_position(TenureLimits { linger: keep, ..limits });
        self
    }
}
