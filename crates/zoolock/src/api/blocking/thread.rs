//! Reentrant locks whose owner is a thread.

use std::marker::PhantomData;
use std::ops::Deref;

use super::guard::ReentrantGuard;
use crate::api::owner::Owner;
use crate::base::error::Error;

thread_local! {
    static OWNER: Owner = Owner::of_thread();
}

/// Returns the owner of the calling thread.
pub(super) fn this_thread() -> Result<Owner, Error> {
    OWNER.try_with(Owner::clone).map_err(|_| {
        Error::invalid(
            "reentrant lock",
            "cannot be acquired while the thread ends; acquire it earlier, or use lock()",
        )
    })
}

/// A guard of a reentrant lock whose owner is a thread. The lock is released when the thread's last
/// guard is dropped.
///
/// It has the methods of [`ReentrantGuard`], but cannot move to another thread:
///
/// ```compile_fail,E0277
/// # fn example(mutex: zoolock::blocking::Mutex) -> Result<(), zoolock::Error> {
/// let guard = mutex.lock_reentrant()?;
/// std::thread::spawn(move || drop(guard));
/// # Ok(()) }
/// ```
#[must_use = "the lock is released when the thread's last guard is dropped"]
#[derive(Debug)]
pub struct ThreadGuard {
    guard: ReentrantGuard,
    /// Makes the guard neither `Send` nor `Sync`.
    not_send: PhantomData<*const ()>,
}

impl ThreadGuard {
    pub(super) fn new(guard: ReentrantGuard) -> ThreadGuard {
        ThreadGuard { guard, not_send: PhantomData }
    }

    /// Releases this guard. The thread's last guard releases the lock and blocks until the server
    /// has confirmed the release. Other guards return at once.
    ///
    /// # Errors
    /// As [`ReentrantGuard::release`].
    pub fn release(self) -> Result<(), Error> {
        self.guard.release()
    }
}

impl Deref for ThreadGuard {
    type Target = ReentrantGuard;

    fn deref(&self) -> &ReentrantGuard {
        &self.guard
    }
}
