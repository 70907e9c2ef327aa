//! The mutex.

use zoolock_core::Kind;

use crate::acquire::Lock;
use crate::acquire_methods::{acquire, operate};
use crate::guard::Guard;
use crate::options::{crash_settings, settings};

/// A lock that one holder has at a time, across processes and hosts. Fair: first come, first served.
///
/// Not reentrant: a second `lock()` waits for the first guard like anybody else's; see
/// [`lock_as`](Mutex::lock_as).
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

acquire!(Mutex, Guard, Kind::Mutex, "the lock", lock, try_lock, lock_timeout, lock_deadline);
operate!(Mutex);
settings!(Mutex);
crash_settings!(Mutex);
