//! The mutex of this crate. A test replaces this module to run the threads in many interleavings.

pub(crate) use std::sync::Mutex;
use std::sync::{MutexGuard, PoisonError};

/// Locks a mutex, even if another thread panicked while it held the mutex.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
