//! The connection to a server.

pub(crate) mod connect;
pub(crate) mod outer;
