//! The mutex of this crate. A test replaces this module, to run the threads in many orders.

pub(crate) use std::sync::Mutex;
use std::sync::{MutexGuard, PoisonError};

/// Locks a mutex. A panic of another holder does not poison it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
