//! The modes in which locks are held, as types.
//!
//! Two generic types are behind the public names: a [`Handle<M>`](crate::Handle) acquires a lock,
//! and a [`Guard<M>`](crate::Guard) holds it in the mode `M`.
//!
//! | mode | handle | guard |
//! |---|---|---|
//! | [`Exclusive`] | [`Mutex`](crate::Mutex) | [`Guard`](crate::Guard) |
//! | [`ReadWrite`] | [`RwLock`](crate::RwLock) | |
//! | [`Read`] | | [`ReadGuard`](crate::ReadGuard) |
//! | [`Write`] | | [`WriteGuard`](crate::WriteGuard) |
//! | [`Upgradable`] | | [`UpgradableReadGuard`](crate::UpgradableReadGuard) |
//! | [`Permits`] | [`Semaphore`](crate::Semaphore) | [`PermitGuard`](crate::PermitGuard) |
//! | [`Multi`] | [`MultiLock`](crate::MultiLock) | [`MultiGuard`](crate::MultiGuard) |
//! | [`MultiRead`] | | [`MultiReadGuard`](crate::MultiReadGuard) |
//!
//! Code for several kinds of guards is generic over the mode. A trait bound on the mode decides
//! which methods the code can call:
//!
//! ```
//! use zoolock::{FencingToken, Guard, mode};
//!
//! /// Returns the token of a mutex, of a writer, or of a multi-lock.
//! fn token<M: mode::Fenced>(guard: &Guard<M>) -> FencingToken {
//!     guard.token()
//! }
//! ```

// Each of these modules defines the modes of one kind of lock. The mode of a mutex is defined
// below.
pub use super::multi::modes::*;
pub use super::rwlock::modes::*;
pub use super::semaphore::modes::*;

/// The mode of a mutex: one holder at a time.
pub enum Exclusive {}

/// The modes of a single lock: all except those of multi-locks.
pub trait OneLock: sealed::Mode {}

/// The modes of handles whose locks can have an exclusive holder: all except those of semaphores. Such a handle has
/// options for the case that an exclusive holder crashes.
pub trait HasPrevious: sealed::Mode {}

/// The modes with a fencing token: those of exclusive holders.
pub trait Fenced: HasPrevious {}

/// The modes of handles that can also acquire the lock for reading.
pub trait HasReaders: HasPrevious {
    /// The mode of the guard that a reader gets.
    type Reader;
}

/// The modes of readers that can upgrade to writers.
pub trait CanUpgrade: OneLock {}

pub(super) mod sealed {
    /// A mode. Only this crate defines modes.
    pub trait Mode: 'static {}
}

impl sealed::Mode for Exclusive {}
impl OneLock for Exclusive {}
impl HasPrevious for Exclusive {}
impl Fenced for Exclusive {}

/// Returns the name of a mode, for `Debug`.
pub(super) fn name<M>() -> &'static str {
    std::any::type_name::<M>().rsplit("::").next().unwrap_or_default()
}
