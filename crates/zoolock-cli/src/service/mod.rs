//! The connection to a server, and the watches of locks.

pub(crate) mod connect;
pub(crate) mod lock_watches;
