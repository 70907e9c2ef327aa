//! The access of locks to ZooKeeper: the operations of a session, transport, credentials and TLS.

pub(crate) mod connect;
pub(crate) mod directory;
pub(crate) mod hello;
#[cfg(feature = "sasl")]
pub mod sasl;
pub(crate) mod session;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod transport;
