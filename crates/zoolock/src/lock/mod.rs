//! The acquisition of a lock, from its names to the grant, and the held lock until its release.

pub(crate) mod acquire;
pub(crate) mod acquire_errors;
pub(crate) mod context;
pub(crate) mod held;
pub(crate) mod history;
pub(crate) mod lease;
pub(crate) mod shared_hold;
