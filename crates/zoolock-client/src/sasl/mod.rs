//! SASL: the proof of a client's identity on each new connection.

#[cfg(feature = "digest-md5")]
mod digest_md5;

#[cfg(feature = "digest-md5")]
pub use digest_md5::DigestMd5;

use std::pin::Pin;

use bytes::Bytes;

use crate::SaslStep;

/// A boxed future with the next step of an exchange.
pub type StepFuture<'a> = Pin<Box<dyn Future<Output = SaslStep> + Send + 'a>>;

/// A SASL mechanism with the credentials of a client.
pub trait SaslClient: Send + Sync + 'static {
    /// Starts an exchange on a new connection with the server of this name.
    fn start_exchange(&self, host: &str) -> Box<dyn SaslExchange>;
}

/// A SASL exchange on one connection.
pub trait SaslExchange: Send + 'static {
    /// Computes the answer to a challenge of the server. The first call has no challenge.
    ///
    /// The session's task polls the future, so the future must not block. Dropping the future ends
    /// the exchange.
    fn step(&mut self, challenge: Option<Bytes>) -> StepFuture<'_>;
}
