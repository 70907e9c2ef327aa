//! TLS: the trusted authorities, and the certificate of the client.

mod diagnose;

pub(crate) use diagnose::{TlsFinding, diagnose, speaks_tls};
use diagnose::{VERSION_1, describe_tls_error, is_version_1};

use std::borrow::Cow;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName,
};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use zeroize::Zeroizing;
use zoolock_client::{TlsSource, open_regular_file, run_on_thread};

use crate::base::error::Error;
use crate::base::sync::lock;
use crate::base::telemetry::log_event;

/// Maximum size of a file, in bytes. Revocation lists can be long.
const MAX_FILE_SIZE: u64 = 16 << 20;
/// Maximum time for which a new connection waits while the certificate files are read again.
const READ_BOUND: Duration = Duration::from_millis(250);

/// TLS options: the authorities that sign the servers' certificates, and a client certificate if the servers ask for
/// one. Certificates and keys are PEM, in files or in memory. Pass the options to
/// [`Builder::tls`](crate::Builder::tls).
///
/// Files are read when a session is opened, and again before each new connection. To renew a certificate,
/// overwrite its file. The certificate of a server must be for the host in the connect string; this check
/// cannot be disabled. A file may have at most 16 MB.
///
/// zoolock uses the process's provider of cryptography
/// (`rustls::crypto::CryptoProvider::install_default`). If there is none, it uses `ring`.
///
/// # Examples
/// ```no_run
/// # async fn example() -> Result<(), zoolock::Error> {
/// use zoolock::{Tls, Zoolock};
///
/// let tls = Tls::with_ca_file("/etc/zoolock/ca.pem").identity_files("/etc/zoolock/me.pem", "/etc/zoolock/me.key");
/// let zl = Zoolock::builder().tls(tls).connect("zk1.example.org:2281").await?;
/// # drop(zl); Ok(()) }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Tls {
    authorities: Pem,
    identity: Option<CertifiedKey>,
}

#[derive(Clone)]
struct CertifiedKey {
    certificate: Pem,
    key: Pem,
}

/// The source of a PEM text.
#[derive(Clone)]
enum Pem {
    File(PathBuf),
    /// A text, and its name in errors.
    Text(&'static str, Zeroizing<String>),
}

impl Tls {
    /// Trusts the authorities in this file, and uses the revocation lists in it. If the file
    /// contains a revocation list, every authority that signs the servers' certificates needs one.
    /// Expired lists still count.
    pub fn with_ca_file(authorities: impl Into<PathBuf>) -> Tls {
        Tls { authorities: Pem::File(authorities.into()), identity: None }
    }

    /// Trusts the authorities in this text, as [`Tls::with_ca_file`] does for a file.
    pub fn with_ca(authorities: impl Into<String>) -> Tls {
        let text = Zeroizing::new(authorities.into());
        Tls { authorities: Pem::Text("the authorities", text), identity: None }
    }

    /// Presents a client certificate. The file `certificate` contains this certificate, followed by
    /// the intermediate certificates. The file `key` contains the private key. New znodes then
    /// belong to the name in the certificate, under the scheme `x509`.
    pub fn identity_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        let (certificate, key) = (Pem::File(certificate.into()), Pem::File(key.into()));
        self.identity = Some(CertifiedKey { certificate, key });
        self
    }

    /// Presents the client certificate in these texts, as [`Tls::identity_files`] does for files.
    pub fn identity(mut self, certificate: impl Into<String>, key: impl Into<String>) -> Tls {
        self.identity = Some(CertifiedKey {
            certificate: Pem::Text("the client certificate", Zeroizing::new(certificate.into())),
            key: Pem::Text("the client's private key", Zeroizing::new(key.into())),
        });
        self
    }

    /// Returns whether the client presents a certificate.
    pub fn has_identity(&self) -> bool {
        self.identity.is_some()
    }

    /// Checks the certificates. For the `zoolock` command; not a stable interface.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the file that cannot be read or used.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), Error> {
        self.load().map(drop)
    }

    /// Starts TLS on a connection. For the `zoolock` command, which sends four-letter words to servers. Not a stable
    /// interface.
    #[doc(hidden)]
    pub async fn start_tls(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let invalid = |error: Error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let name = server_name(host).map_err(invalid)?;
        TlsConnector::from(self.load().map_err(invalid)?).connect(name, stream).await
    }

    /// Describes the cause of a connection error with this host, if TLS is the cause. For the `zoolock` command; not a
    /// stable interface.
    #[doc(hidden)]
    pub fn describe_tls_error(&self, host: &str, error: &io::Error) -> Option<String> {
        describe_tls_error(self, host, error)
    }

    /// Reads the certificates and the key, and returns the TLS configuration.
    fn load(&self) -> Result<Arc<ClientConfig>, Error> {
        let authorities = self.authorities.read()?;
        let (roots, revoked) = self.authorities.parse_authorities(&authorities)?;
        let provider = provider();
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone())
            .with_crls(revoked)
            .build()
            .map_err(|error| self.authorities.refuse(error))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| self.authorities.refuse(error))?
            .with_webpki_verifier(verifier);
        Ok(Arc::new(match &self.identity {
            None => builder.with_no_client_auth(),
            Some(CertifiedKey { certificate, key }) => {
                let (chain, secret) = (certificate.read()?, key.read()?);
                let (chain, secret) = (certificate.parse_certificates(&chain)?, key.parse_key(&secret)?);
                builder.with_client_auth_cert(chain, secret).map_err(|error| match is_version_1(&error) {
                    true => certificate.refuse(format_args!("it {VERSION_1}")),
                    false => certificate.refuse(format_args!("{error}; does {} belong to it?", key.name())),
                })?
            }
        }))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut tls = f.debug_struct("Tls");
        tls.field("authorities", &format_args!("{}", self.authorities.name()));
        if let Some(CertifiedKey { certificate, .. }) = &self.identity {
            tls.field("certificate", &format_args!("{}", certificate.name()));
        }
        tls.finish_non_exhaustive()
    }
}

impl Pem {
    /// Returns the name of the source in errors.
    fn name(&self) -> Cow<'_, str> {
        match self {
            Pem::File(path) => path.to_string_lossy(),
            Pem::Text(what, _) => Cow::Borrowed(what),
        }
    }

    fn refuse(&self, why: impl std::fmt::Display) -> Error {
        Error::invalid(format!("TLS: {}", self.name()), why.to_string())
    }

    fn read(&self) -> Result<Zeroizing<String>, Error> {
        match self {
            Pem::File(path) => match read(path) {
                Ok(text) if text.len() as u64 > MAX_FILE_SIZE => {
                    Err(self.refuse(format_args!("it has more than {} megabytes", MAX_FILE_SIZE >> 20)))
                }
                Ok(text) => Ok(text),
                // The error is left out, because it might print bytes of the file.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(self.refuse("it is not PEM")),
                Err(error) => Err(self.refuse(format_args!("cannot be read: {error}"))),
            },
            Pem::Text(_, text) => Ok(text.clone()),
        }
    }

    fn parse_certificates(&self, text: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
        match read {
            Ok(found) if found.is_empty() => Err(self.refuse("contains no certificate in PEM format")),
            Ok(found) => Ok(found),
            Err(_) => Err(self.refuse("it is not PEM")),
        }
    }

    fn parse_authorities(
        &self,
        text: &str,
    ) -> Result<(RootCertStore, Vec<CertificateRevocationListDer<'static>>), Error> {
        let mut roots = RootCertStore::empty();
        for certificate in self.parse_certificates(text)? {
            roots.add(certificate).map_err(|error| self.refuse(error))?;
        }
        let revoked: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(text.as_bytes()).collect();
        Ok((roots, revoked.map_err(|_| self.refuse("it is not PEM"))?))
    }

    fn parse_key(&self, text: &str) -> Result<PrivateKeyDer<'static>, Error> {
        PrivateKeyDer::from_pem_slice(text.as_bytes()).map_err(|_| match text.contains("ENCRYPTED") {
            true => self
                .refuse("the private key is encrypted; write it without a passphrase: openssl pkey -in FILE"),
            false => self.refuse("contains no private key in PEM format"),
        })
    }
}

/// Reads a regular file, up to one byte more than the limit.
fn read(path: &Path) -> io::Result<Zeroizing<String>> {
    let file = open_regular_file(path)?;
    // Allocates the full size at once, because a reallocation would leave a copy that is not wiped.
    let size = file.metadata()?.len().min(MAX_FILE_SIZE);
    let mut text = Zeroizing::new(String::with_capacity(usize::try_from(size).unwrap_or(0) + 1));
    file.take(MAX_FILE_SIZE + 1).read_to_string(&mut text)?;
    Ok(text)
}

/// The certificates of a client's sessions, which may change while the sessions live.
#[derive(Clone)]
pub(crate) struct Certificates {
    tls: Tls,
    current: Arc<Mutex<Arc<ClientConfig>>>,
    /// Set while a thread reads the files.
    is_reading: Arc<AtomicBool>,
    failure: Arc<LastFailure>,
}

/// The last failure to read the files. `None` after a success.
#[derive(Default)]
struct LastFailure(Mutex<Option<String>>);

impl LastFailure {
    /// Records a failure, or a success. Returns whether it is a failure that differs from the last one.
    fn record(&self, failure: Option<&str>) -> bool {
        let mut last = lock(&self.0);
        let is_new = failure.is_some() && last.as_deref() != failure;
        *last = failure.map(str::to_owned);
        is_new
    }
}

impl Certificates {
    pub(crate) fn new(tls: Tls) -> Result<Certificates, Error> {
        let current = Arc::new(Mutex::new(tls.load()?));
        Ok(Certificates { tls, current, is_reading: Arc::default(), failure: Arc::default() })
    }

    fn current(&self) -> Arc<ClientConfig> {
        lock(&self.current).clone()
    }

    /// Reads the files again. If that fails, the old certificates stay.
    async fn refresh(&self) {
        if self.is_reading.swap(true, Ordering::AcqRel) {
            return;
        }
        let certificates = self.clone();
        let read = run_on_thread("zoolock-tls", move || {
            match certificates.tls.load() {
                Ok(config) => {
                    *lock(&certificates.current) = config;
                    certificates.failure.record(None);
                }
                Err(error) => certificates.log_failure(&error.to_string()),
            }
            certificates.is_reading.store(false, Ordering::Release);
        });
        // A disk that hangs must not prevent the connection, so this wait is limited.
        if let Ok(Err(error)) = tokio::time::timeout(READ_BOUND, read).await {
            self.is_reading.store(false, Ordering::Release);
            self.log_failure(&error.to_string());
        }
    }

    /// Logs a failure to read the files, unless the last read failed in the same way. Each dial reads the files, and
    /// there may be several dials in a second.
    fn log_failure(&self, error: &str) {
        if self.failure.record(Some(error)) {
            let error = error.to_owned();
            log_event!(WARN, error, "cannot reload the TLS certificates; the old ones stay in use");
        }
    }
}

impl TlsSource for Certificates {
    fn config(&self) -> Pin<Box<dyn Future<Output = Arc<ClientConfig>> + Send + '_>> {
        Box::pin(async move {
            self.refresh().await;
            self.current()
        })
    }
}

/// Returns the process's provider of cryptography, or `ring`.
fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()))
}

/// Returns the host as a name in certificates.
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        Error::invalid(
            format!("host {host:?}"),
            "is not a valid TLS host name; use a DNS name or an IP address",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_reload_failure_is_logged_once() {
        let last = LastFailure::default();
        let failures = [Some("no file"), Some("no file"), Some("not PEM"), None, Some("not PEM")];
        assert_eq!(failures.map(|failure| last.record(failure)), [true, false, true, false, true]);
    }

    #[test]
    fn invalid_certificate_host_is_refused() {
        for host in ["zk_1..org", "-", "a b", "::zz", "host_", ".org", &"x".repeat(300)] {
            // A name with an underscore may be accepted, if it has no other fault.
            if let Err(error) = server_name(host) {
                assert!(error.to_string().contains(host), "{error}");
            } else {
                assert_eq!(host, "host_");
            }
        }
        for host in ["zk1.example.org", "localhost", "127.0.0.1", "::1"] {
            server_name(host).expect(host);
        }
    }

    #[test]
    fn invalid_pem_error_names_source_and_hides_content() {
        let refused = |tls: Tls| match tls.load() {
            Ok(_) => panic!("{tls:?} was accepted"),
            Err(error) => error.to_string(),
        };
        let message = refused(Tls::with_ca_file("/nonexistent/ca.pem"));
        assert!(message.contains("/nonexistent/ca.pem") && message.contains("cannot be read"), "{message}");
        let large = std::env::temp_dir().join(format!("zoolock-large-{}", std::process::id()));
        std::fs::File::create(&large)
            .and_then(|file| file.set_len(MAX_FILE_SIZE + 1))
            .expect("the file can be written");
        let message = refused(Tls::with_ca_file(&large));
        std::fs::remove_file(&large).expect("the file can be removed");
        assert!(message.contains("more than 16 megabytes"), "{message}");
        let message = refused(Tls::with_ca_file("/dev/zero"));
        assert!(message.contains("it is a device; name a regular file"), "{message}");
        for text in ["hunter2", "-----BEGIN CERTIFICATE-----\nhunter2\n-----END CERTIFICATE-----\n"] {
            let message = refused(Tls::with_ca(text));
            assert!(message.contains("the authorities") && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn debug_names_files_and_shows_no_key() {
        let tls = Tls::with_ca_file("/etc/ca.pem").identity("certificate", "hunter2");
        let shown = format!("{tls:?}");
        assert!(shown.contains("/etc/ca.pem") && !shown.contains("hunter2"), "{shown}");
    }
}
