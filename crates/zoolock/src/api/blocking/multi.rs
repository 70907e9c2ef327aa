//! Several locks at once.

use super::handle::Blocking;

/// Several locks that are acquired together: the blocking form of [`zoolock::MultiLock`](crate::MultiLock).
pub type MultiLock = Blocking<crate::MultiLock>;

impl super::Zoolock {
    /// Returns a multi-lock of the locks with these names. A repeated name counts once.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        Blocking { inner: self.inner.multi(names) }
    }
}
