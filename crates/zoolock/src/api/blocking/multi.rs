//! Several locks at once.

/// Several locks that are taken together: the blocking form of [`zoolock::MultiLock`](crate::MultiLock).
#[derive(Clone)]
pub struct MultiLock {
    inner: crate::MultiLock,
}

blocking_settings!(MultiLock of crate::MultiLock);
blocking_crash_settings!(MultiLock of crate::MultiLock);
blocking_acquire!(
    MultiLock of crate::MultiLock, MultiGuard, "every lock", lock, try_lock, lock_timeout, lock_deadline
);
blocking_acquire!(
    MultiLock of crate::MultiLock, MultiReadGuard, "every lock for reading",
    read, try_read, read_timeout, read_deadline
);

blocking_guard! {
    /// A guard that holds every lock. If one is lost, all count as lost.
    MultiGuard of crate::MultiGuard
}
blocking_guard_has!(MultiGuard: paths, previous, token);

blocking_guard! {
    /// A guard that holds every lock for reading. If one is lost, all count as lost.
    MultiReadGuard of crate::MultiReadGuard
}
blocking_guard_has!(MultiReadGuard: paths, previous);

impl super::Zoolock {
    /// Returns a lock of several mutexes, by their names. A repeated name counts once.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(self.as_async().multi(names))
    }
}
