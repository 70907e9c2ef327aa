//! Several locks at once.

/// Several locks that are taken together; see [`zoolock::MultiLock`](crate::MultiLock), which it is but for the waiting.
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
    MultiLock of crate::MultiLock, MultiReadGuard, "every lock, for reading,",
    read, try_read, read_timeout, read_deadline
);

blocking_guard! {
    /// We hold every lock. If one is lost, all count as lost.
    MultiGuard of crate::MultiGuard
}
blocking_guard_has!(MultiGuard: paths, previous, token);

blocking_guard! {
    /// We read under every lock. If one is lost, all count as lost.
    MultiReadGuard of crate::MultiReadGuard
}
blocking_guard_has!(MultiReadGuard: paths, previous);

impl super::Zoolock {
    /// Several mutexes by name, to be taken together. A name that comes twice counts once.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(self.as_async().multi(names))
    }
}
