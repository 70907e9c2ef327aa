//! Several locks at once.

use crate::api::guard::Guard;
use crate::api::handle::Handle;
use crate::api::mode::{Multi, MultiRead};
use crate::api::zoolock::Zoolock;

/// Several locks that are acquired together. Callers may name them in any order, and never wait for
/// each other in a cycle. The reason is that one transaction queues for all locks. So a contender
/// that is ahead of another one in one queue is ahead in every queue that contains both.
///
/// Multi-locks and single locks also never wait for each other in a cycle, as long as no caller
/// acquires a lock while it holds another one.
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// let guard = zl.multi(["accounts/7", "accounts/42"]).lock().await?;
/// # drop(guard); Ok(()) }
/// ```
pub type MultiLock = Handle<Multi>;

/// A guard that holds every lock of a [`MultiLock`]. If one lock is lost, all count as lost.
pub type MultiGuard = Guard<Multi>;

/// A guard that holds every lock of a [`MultiLock`] for reading. If one lock is lost, all count as lost.
pub type MultiReadGuard = Guard<MultiRead>;

/// The modes of multi-locks.
pub(super) mod modes {
    use crate::api::mode::sealed::Mode;
    use crate::api::mode::{Fenced, HasPrevious, HasReaders};

    /// The mode of a multi-lock. Each of its locks has one holder at a time.
    pub enum Multi {}

    impl Mode for Multi {}
    impl HasPrevious for Multi {}
    impl Fenced for Multi {}
    impl HasReaders for Multi {
        type Reader = MultiRead;
    }

    /// The mode of a multi-lock's reader. Other readers may hold the same locks.
    pub enum MultiRead {}

    impl Mode for MultiRead {}
}

impl MultiLock {
    /// Returns the names that were passed to [`Zoolock::multi`].
    pub fn names(&self) -> &[String] {
        &self.lock.names
    }
}

impl Zoolock {
    /// Returns a multi-lock of the locks with these names. A repeated name counts once. Sends nothing. If a name is
    /// bad, the first request, such as `lock()`, fails.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        let names = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        Handle::new(self.context(), names)
    }
}
