//! Locks that are acquired and held: from the names to the grant, and to the release.

pub(crate) mod acquire;
pub(crate) mod context;
pub(crate) mod held;
pub(crate) mod shared_hold;
