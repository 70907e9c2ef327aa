//! The mutex.

use std::time::Duration;

use zoolock_core::tenure::TenureLimits;

use crate::api::batching::Batching;
use crate::api::handle::Handle;
use crate::api::mode::Exclusive;
use crate::lock::context::Context;

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

    /// Returns a handle whose tasks share one queue position; see [`Batching`]. While another contender waits, the lock
    /// passes from task to task at most `max_passes` times, and only for `max_hold`. Then the client releases the lock
    /// to that contender. While no other contender waits, there is no limit.
    ///
    /// The options of this handle, such as [`crash_detection`](Mutex::crash_detection), also apply to the returned
    /// handle.
    pub fn batching(self, max_passes: u32, max_hold: Duration) -> Batching {
        Batching::new(self, TenureLimits { max_passes, max_hold, linger: Duration::ZERO })
    }

    /// Returns a handle that keeps the lock for some time after its release; see [`Batching::linger`]. While another
    /// contender waits, the lock does not pass from task to task.
    pub fn linger(self, keep: Duration) -> Batching {
        self.batching(0, Duration::ZERO).linger(keep)
    }
}
