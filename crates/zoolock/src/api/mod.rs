//! The public types.

pub(crate) mod admin;
pub(crate) mod any_guard;
pub(crate) mod builder;
pub(crate) mod election;
#[cfg(feature = "embedded")]
pub(crate) mod embedded;
pub(crate) mod guard;
pub(crate) mod handle;
#[cfg(feature = "internals")]
pub mod internals;
pub(crate) mod local;
pub(crate) mod locker;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod once;
pub(crate) mod owner;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod shared_hold;
#[cfg(feature = "simulation")]
pub mod sim;
pub(crate) mod zoolock;
