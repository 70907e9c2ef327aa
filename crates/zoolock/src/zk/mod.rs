//! ZooKeeper, as locks need it: the operations of a session, transport, credentials and TLS.

pub(crate) mod connect;
pub(crate) mod directory;
#[cfg(feature = "sasl")]
pub mod sasl;
pub(crate) mod session;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod transport;
