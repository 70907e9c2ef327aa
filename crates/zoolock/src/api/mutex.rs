//! The mutex.

use std::time::Duration;

use crate::api::guard::{fenced, guard, of_one_lock};
use crate::api::handle::{crash_options, exclusive, handle, named};
use crate::api::shared_hold::SharedHold;
use crate::lock::acquire::Lock;
use crate::lock::context::Context;

handle! {
    /// A lock with one holder at a time, across processes and hosts. Fair: first come, first served.
    ///
    /// Not reentrant: a second `lock()` waits until the first guard is released. If the same task has
    /// that guard, the second call waits for ever. Use [`lock_as`](Mutex::lock_as) to acquire a lock
    /// again. The field `held_here` of [`Error::Timeout`](crate::Error::Timeout) shows whether this
    /// client holds the lock, and [`Admin::deadlocks`](crate::Admin::deadlocks) finds a task that
    /// waits for itself.
    Mutex
}

exclusive!(Mutex, Guard);
crash_options!(Mutex);
named!(Mutex);

guard! {
    /// A guard that holds a [`Mutex`].
    ///
    /// Dropping it releases the lock in the background. The request is sent before any later request of
    /// the same session, except for renewals of the lease. After a lost connection, the request is
    /// repeated, until the znode is deleted or the session has ended.
    ///
    /// It has the methods of [`Held`](crate::Held), as all guards have, which show the lease, the loss of the lock and
    /// requests to release it. [`AnyGuard`](crate::AnyGuard) is a guard of any kind.
    Guard
}

of_one_lock!(Guard);
fenced!(Guard);

impl Mutex {
    pub(super) fn new(lock: Lock) -> Mutex {
        Mutex { lock }
    }

    pub(super) fn context(&self) -> &Context {
        &self.lock.context
    }

    /// Returns a handle whose tasks share one hold of the lock; see [`SharedHold`]. The client gives the hold back when
    /// `limit` has passed: while another contender waits, the time for which the lock passes from task to task; while none
    /// waits, the time for which the client keeps a lock that no task wants. While another contender waits, the client
    /// does not keep such a lock. While none waits, the lock passes from task to task without a limit.
    ///
    /// The options of this handle also apply to the returned handle. With [`crash_detection`](Mutex::crash_detection) the
    /// client keeps no lock that no task wants, because that would look like a crash.
    pub fn shared_hold(self, limit: Duration) -> SharedHold {
        SharedHold::new(self, limit)
    }
}
