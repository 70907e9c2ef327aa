//! ZooKeeper, as locks need it: the operations of a session, transport, credentials and TLS.

pub(crate) mod connect;
pub(crate) mod directory;
pub(crate) mod keeper;
#[cfg(feature = "sasl")]
pub mod sasl;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod transport;
