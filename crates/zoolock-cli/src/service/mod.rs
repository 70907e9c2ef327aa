//! The connection to a server.

pub(crate) mod connect;
