//! TLS for the connections of a session.

use std::pin::Pin;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::platform::Stream;

/// A source of TLS settings for a session. The settings may change during the session, for example
/// when a certificate is renewed.
pub trait TlsSource: Send + Sync + 'static {
    /// Returns the settings for the next connections. Called before each dial.
    ///
    /// The future must resolve within a fraction of a second, because a holder's lease runs out meanwhile.
    fn config(&self) -> Pin<Box<dyn Future<Output = Arc<ClientConfig>> + Send + '_>>;
}

/// Performs the TLS handshake with the server of this name.
///
/// # Errors
/// The handshake fails, or no certificate can have this name. The error is a text in lower case.
pub(crate) async fn tls_handshake(
    config: Arc<ClientConfig>,
    name: &str,
    stream: Box<dyn Stream>,
) -> Result<Box<dyn Stream>, String> {
    let server = ServerName::try_from(name.to_owned())
        .map_err(|_| "the host name is no name that a certificate can have".to_owned())?;
    match TlsConnector::from(config).connect(server, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(format!("TLS fails ({error})")),
    }
}
