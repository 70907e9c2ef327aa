//! Locks that belong to a thread.

use std::marker::PhantomData;
use std::ops::Deref;

use super::guard::ReentrantGuard;
use crate::error::Error;
use crate::owner::Owner;

thread_local! {
    static OWNER: Owner = Owner::of_thread();
}

/// The owner that is this thread.
pub(super) fn this_thread() -> Result<Owner, Error> {
    OWNER.try_with(Owner::clone).map_err(|_| {
        Error::invalid(
            "reentrant lock",
            "is asked for by a thread that ends; lock before it does, or without reentrance",
        )
    })
}

/// Proof that the lock is this thread's. It is released with the thread's last guard, whichever that is.
///
/// What it can do is on [`ReentrantGuard`]. It stays on its thread:
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
    /// Neither `Send` nor `Sync`.
    stays: PhantomData<*const ()>,
}

impl ThreadGuard {
    pub(super) fn new(guard: ReentrantGuard) -> ThreadGuard {
        ThreadGuard { guard, stays: PhantomData }
    }

    /// Gives this guard back. The thread's last one releases the lock and blocks until the service has confirmed it; any
    /// other returns at once.
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
