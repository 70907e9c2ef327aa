//! TLS settings, and the loading of the files that they name.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::error::Error;
use crate::serve::TlsSettings;

/// TLS settings: PEM files, which are read when the server starts.
#[derive(Debug, Clone)]
#[must_use]
pub struct TlsConfig {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    clients: ClientCertificates,
    handshake_timeout: Duration,
}

/// The policy for client certificates. The subject of a client's certificate is an identity of scheme `x509`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ClientCertificates {
    /// Clients are not asked for certificates.
    #[default]
    None,
    /// Clients may send a certificate. A certificate that no authority of [`TlsConfig::client_ca`] has signed ends the
    /// connection.
    Optional,
    /// Clients must send a certificate that an authority of [`TlsConfig::client_ca`] has signed.
    Required,
}

impl TlsConfig {
    /// Creates settings with the files of the server's certificate and key. In the certificate file, the intermediate
    /// certificates follow the server's certificate.
    pub fn new(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        TlsConfig {
            certificate: certificate.into(),
            key: key.into(),
            client_ca: None,
            clients: ClientCertificates::None,
            handshake_timeout: Duration::from_secs(10),
        }
    }

    /// Sets the file of the authorities that sign client certificates, and the policy for client certificates.
    pub fn client_ca(mut self, authorities: impl Into<PathBuf>, clients: ClientCertificates) -> Self {
        self.client_ca = Some(authorities.into());
        self.clients = clients;
        self
    }

    /// Sets the maximum time of a handshake. Default: 10 s.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        self.handshake_timeout = timeout;
        self
    }

    pub(crate) fn asks_for_certificates(&self) -> bool {
        self.client_ca.is_some() && self.clients != ClientCertificates::None
    }

    pub(crate) fn load(&self) -> Result<TlsSettings, Error> {
        let provider = Arc::new(ring::default_provider());
        let chain = read_certificates("the certificate", &self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|error| {
            let is_encrypted =
                std::fs::read_to_string(&self.key).is_ok_and(|text| text.contains("ENCRYPTED"));
            let why = match is_encrypted {
                true => "it is encrypted; write it without a passphrase: openssl pkey -in FILE".to_owned(),
                false => pem_error_text(&error, "private key"),
            };
            certificate_error("the key", &self.key, why)
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| certificate_error("the certificate", &self.certificate, error))?;
        let builder = match &self.client_ca {
            Some(path) if self.asks_for_certificates() => {
                let what = "the authority of clients";
                let mut roots = RootCertStore::empty();
                for certificate in read_certificates(what, path)? {
                    roots.add(certificate).map_err(|error| certificate_error(what, path, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = match self.clients {
                    ClientCertificates::Required => verifier,
                    _ => verifier.allow_unauthenticated(),
                };
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|error| certificate_error(what, path, error))?,
                )
            }
            _ => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(chain, key).map_err(|error| {
            let both = match error.to_string().contains("UnsupportedCertVersion") {
                true => "it is of X.509 version 1; sign one of version 3 (openssl x509 -req -extfile FILE)"
                    .to_owned(),
                false => format!("{error}; does it belong to the key {}?", self.key.display()),
            };
            certificate_error("the certificate", &self.certificate, both)
        })?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(TlsSettings { acceptor, handshake_timeout: self.handshake_timeout })
    }
}

fn read_certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| certificate_error(what, path, pem_error_text(&error, "certificate")))?;
    if found.is_empty() {
        return Err(certificate_error(what, path, "it contains no certificate; use a PEM file"));
    }
    Ok(found)
}

fn pem_error_text(error: &pem::Error, wanted: &str) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => format!("it contains no {wanted}; use a PEM file"),
        // Other errors may quote the contents of the file.
        _ => "it is not a valid PEM file".to_owned(),
    }
}

fn certificate_error(what: &'static str, path: &Path, why: impl ToString) -> Error {
    Error::Certificate { what, path: path.to_owned(), why: why.to_string() }
}
