//! SASL mechanisms of other crates.
//!
//! DIGEST-MD5 is built in: [`Builder::sasl_digest_md5`](crate::Builder::sasl_digest_md5). Kerberos
//! needs a C library, so it is in a crate of its own,
//! [zoolock-gssapi](https://docs.rs/zoolock-gssapi).

use std::sync::Arc;

use crate::base::error::Error;
use crate::base::path::ConnectString;

#[doc(hidden)]
pub use futures_util::future::BoxFuture;

/// A SASL mechanism of another crate, such as `Kerberos` of
/// [zoolock-gssapi](https://docs.rs/zoolock-gssapi).
///
/// Pass a mechanism to [`Builder::sasl_mechanism`](crate::Builder::sasl_mechanism). The methods are hidden because they
/// depend on the crate `zoolock-client`, and may change in any release.
pub trait Mechanism: Send + Sync + 'static {
    /// Checks the settings and starts an authenticator for a client of these hosts.
    ///
    /// # Errors
    /// [`Error::Invalid`] for settings that cannot be right, [`Error::Unavailable`] if threads cannot be started.
    #[doc(hidden)]
    fn authenticator(&self, hosts: Vec<String>) -> Result<Arc<dyn Authenticator>, Error>;
}

impl<M: Mechanism + ?Sized> Mechanism for Arc<M> {
    fn authenticator(&self, hosts: Vec<String>) -> Result<Arc<dyn Authenticator>, Error> {
        (**self).authenticator(hosts)
    }
}

/// A [`Mechanism`] in use by one client.
#[doc(hidden)]
pub trait Authenticator: Send + Sync + 'static {
    /// Returns the mechanism that authenticates each connection.
    fn mechanism(self: Arc<Self>) -> Arc<dyn zoolock_client::sasl::SaslClient>;

    /// Fetches the credentials for a new session, so that an error can name the problem.
    fn fetch(&self) -> BoxFuture<'_, Result<(), MissingCredentials>>;

    /// Returns the reason why there are no credentials: the last fetch has failed, or has not ended. `None` if there
    /// are credentials.
    fn problem(&self) -> Option<String>;

    /// Returns likely reasons why the server refuses credentials that exist.
    fn refusal(&self) -> String;
}

/// The reason why an [`Authenticator`] has no credentials.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingCredentials {
    /// The problem and the remedy.
    pub message: String,
    /// Set if another attempt would fail, too.
    pub is_final: bool,
}

/// Starts an authenticator for the hosts of the connect string.
pub(crate) fn start(
    mechanism: &dyn Mechanism,
    connect: &ConnectString,
) -> Result<Arc<dyn Authenticator>, Error> {
    mechanism.authenticator(connect.hosts().iter().map(|host| host.name().to_owned()).collect())
}
