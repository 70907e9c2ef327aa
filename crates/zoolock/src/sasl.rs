//! SASL mechanisms of other crates.
//!
//! DIGEST-MD5 is built in: [`Builder::sasl_digest_md5`](crate::Builder::sasl_digest_md5). Kerberos needs a C library, so it
//! is in a crate of its own, [zoolock-gssapi](https://docs.rs/zoolock-gssapi).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use zookeeper_client as zk;

use crate::error::Error;
use crate::path::ConnectString;

/// A boxed future that borrows the authenticator.
#[doc(hidden)]
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A SASL mechanism of another crate, such as `Kerberos` of
/// [zoolock-gssapi](https://docs.rs/zoolock-gssapi).
///
/// [`Builder::sasl_mechanism`](crate::Builder::sasl_mechanism) takes it. The methods are hidden because they depend on the
/// ZooKeeper client crate: they may change in any release.
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
    /// Returns the options that the client crate authenticates with.
    fn options(&self) -> zk::SaslOptions;

    /// Returns the runtime that opens and drives the sessions.
    ///
    /// Authentication may block its threads. The thread that watches over leases is not one of them.
    fn runtime(&self) -> Handle;

    /// Fetches the credentials for a new session, so that an error can say what is missing.
    fn fetch(&self) -> BoxFuture<'_, Result<(), Missing>>;

    /// Fetches the credentials for the next connection of an open session.
    fn refresh(&self) -> BoxFuture<'_, ()>;

    /// Returns the reason why there are no credentials, if the last fetch found one or has not ended.
    fn problem(&self) -> Option<String>;

    /// Returns likely reasons why the server refuses credentials that exist.
    fn refusal(&self) -> String;
}

/// The reason why an [`Authenticator`] has no credentials.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The problem and the remedy.
    pub message: String,
    /// Set if another attempt would fail, too.
    pub is_final: bool,
}

impl From<Missing> for zk::Error {
    /// The client crate's error that ends the attempts to open a session, or that starts the next one.
    fn from(missing: Missing) -> zk::Error {
        match missing.is_final {
            true => zk::Error::AuthFailed,
            false => zk::Error::Timeout,
        }
    }
}

/// Starts an authenticator for the hosts of the connect string.
pub(crate) fn start(
    mechanism: &dyn Mechanism,
    connect: &ConnectString,
) -> Result<Arc<dyn Authenticator>, Error> {
    mechanism.authenticator(connect.hosts().iter().map(|(host, _)| host.clone()).collect())
}

/// Runs the opening of a session on the authenticator's runtime. Dropping the future ends the opening.
pub(crate) async fn open_on<F>(runtime: &Handle, open: F) -> Result<zk::Client, zk::Error>
where
    F: Future<Output = Result<zk::Client, zk::Error>> + Send + 'static,
{
    let mut opening = JoinSet::new();
    opening.spawn_on(open, runtime);
    match opening.join_next().await {
        Some(Ok(opened)) => opened,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        _ => Err(zk::Error::ClientClosed),
    }
}

/// Returns the options of `mechanism` once its credentials are there. For the command, which uses the client crate directly
/// for requests that are not about locks.
///
/// # Errors
/// [`Error::Denied`] if there are no credentials, [`Error::Unavailable`] if there are none within `patience`,
/// [`Error::Invalid`] for settings or an address that cannot be right.
#[doc(hidden)]
pub async fn options(
    mechanism: &dyn Mechanism,
    address: &str,
    patience: Duration,
) -> Result<zk::SaslOptions, Error> {
    let connect = ConnectString::parse(address)?;
    let authenticator = start(mechanism, &connect)?;
    let missing = match tokio::time::timeout(patience, authenticator.fetch()).await {
        Ok(Ok(())) => return Ok(authenticator.options()),
        Ok(Err(missing)) => missing,
        Err(_) => {
            let message = authenticator.problem().unwrap_or_else(|| "no credentials in time".to_owned());
            Missing { message, is_final: false }
        }
    };
    match missing.is_final {
        true => Err(Error::Denied { subject: connect.endpoints(), message: missing.message }),
        false => Err(Error::unavailable(connect.endpoints(), missing.message)),
    }
}
