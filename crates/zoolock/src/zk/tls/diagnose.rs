//! Diagnoses a failed TLS handshake, so that the error can name the cause. It runs only when no session was opened.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error as TlsError, OtherError, RootCertStore,
};

use super::{Certificates, Tls, provider, server_name};
use crate::zk::hello::{ServerGreeting, probe_zookeeper};

/// The behaviour of a host towards a client with TLS.
pub(crate) enum TlsFinding {
    /// Any other behaviour than the following two, as a text.
    Other(String),
    /// The host does not accept the client's certificate, or asks for one.
    Refuses(String),
    /// The host does not speak TLS.
    Plain,
}

/// Does the TLS handshake of a session, and describes its outcome.
pub(crate) async fn diagnose(certificates: &Certificates, host: &str, stream: TcpStream) -> TlsFinding {
    let name = match server_name(host) {
        Ok(name) => name,
        Err(error) => return TlsFinding::Other(error.to_string()),
    };
    let tls = &certificates.tls;
    match TlsConnector::from(certificates.current()).connect(name, stream).await {
        Err(error) => explain(tls, host, &error, false),
        // The server's refusal of a certificate arrives at the first read, after the handshake has
        // ended for the client.
        Ok(mut stream) => match probe_zookeeper(&mut stream).await {
            Ok(ServerGreeting::ZooKeeper) => {
                TlsFinding::Other("speaks ZooKeeper over TLS, but opened no session; see its log".to_owned())
            }
            Ok(ServerGreeting::Other) => {
                TlsFinding::Other("something answers over TLS, but it does not speak ZooKeeper".to_owned())
            }
            Err(error) => {
                // If a write failed, the alert that the server sent before can still be read.
                let alert = if error.get_ref().is_none() { stream.read_u8().await.err() } else { None };
                explain(tls, host, &alert.unwrap_or(error), true)
            }
        },
    }
}

/// Describes the cause of a connection error, if TLS is the cause. Returns `None` for an error of another kind, and for
/// an answer without TLS.
pub(super) fn describe_tls_error(tls: &Tls, host: &str, error: &io::Error) -> Option<String> {
    tls_error_in(error)?;
    match explain(tls, host, error, true) {
        TlsFinding::Other(what) | TlsFinding::Refuses(what) => Some(what),
        TlsFinding::Plain => None,
    }
}

/// Returns the TLS error inside a connection error, if there is one.
fn tls_error_in(error: &io::Error) -> Option<&TlsError> {
    error.get_ref().and_then(|error| error.downcast_ref::<TlsError>())
}

fn explain(tls: &Tls, host: &str, error: &io::Error, after: bool) -> TlsFinding {
    let authorities = tls.authorities.name();
    match tls_error_in(error) {
        Some(TlsError::InvalidCertificate(why)) => TlsFinding::Other(match why {
            // The error is `BadSignature` if another authority with the same name has signed the
            // certificate.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("its certificate is signed by none of the authorities in {authorities}")
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired; check this machine's clock".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet; check this machine's clock".to_owned()
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("its certificate is not for the host {host}")
            }
            CertificateError::UnknownRevocationStatus => format!(
                "no revocation list in {authorities} covers its certificate; add one for every authority, or remove all \
                 lists"
            ),
            CertificateError::Revoked => format!("its certificate was revoked, as {authorities} says"),
            CertificateError::Other(why) if is_named(why, "CaUsedAsEndEntity") => {
                "its certificate is a CA certificate (CA:TRUE), not a server certificate; sign a server certificate with it"
                    .to_owned()
            }
            CertificateError::Other(why) if is_named(why, UNSUPPORTED_VERSION) => format!("its certificate {VERSION_1}"),
            other => format!("its certificate is not accepted ({other})"),
        }),
        Some(TlsError::AlertReceived(alert)) if is_about_certificates(*alert) => refused_certificate(tls, alert),
        // The host has answered without TLS.
        Some(TlsError::InvalidMessage(_)) => TlsFinding::Plain,
        Some(other) => TlsFinding::Other(format!("TLS fails: {other}")),
        // A server that is busy or stops also closes the connection. So only an alert counts as a refusal.
        None if after && tls.has_identity() => TlsFinding::Other(format!(
            "closed the connection after the TLS handshake ({error}); check the server's log for the reason"
        )),
        None if after => TlsFinding::Other(
            "closed the connection after the TLS handshake; it may require a client certificate (`--cert` and `--key`)"
                .to_owned(),
        ),
        None => TlsFinding::Plain,
    }
}

/// The name of webpki's error for a certificate that is not of version 3.
const UNSUPPORTED_VERSION: &str = "UnsupportedCertVersion";
/// The problem of such a certificate, and the remedy.
pub(super) const VERSION_1: &str = "is an X.509 certificate of version 1; sign one of version 3 (openssl x509 -req -extfile FILE adds extensions)";

/// Returns whether a certificate was refused because it is not of version 3.
pub(super) fn is_version_1(error: &TlsError) -> bool {
    matches!(error, TlsError::InvalidCertificate(CertificateError::Other(why)) if is_named(why, UNSUPPORTED_VERSION))
}

/// Returns whether webpki's error has this name. rustls has no variant for this error, and does not export webpki's errors.
fn is_named(why: &OtherError, name: &str) -> bool {
    format!("{:?}", why.0) == name
}

fn refused_certificate(tls: &Tls, alert: &AlertDescription) -> TlsFinding {
    TlsFinding::Refuses(match &tls.identity {
        None => "requires a client certificate; give one (`--cert` and `--key`)".to_owned(),
        Some(identity) => {
            let why = match alert {
                AlertDescription::CertificateExpired => "it has expired".to_owned(),
                AlertDescription::CertificateRevoked => "it was revoked".to_owned(),
                AlertDescription::UnknownCA | AlertDescription::DecryptError => {
                    "it knows no authority that signed it".to_owned()
                }
                other => format!("it says {other:?}"),
            };
            format!("rejected the client certificate {}: {why}", identity.certificate.name())
        }
    })
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as A;
    matches!(
        alert,
        A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::DecryptError
            | A::AccessDenied
            | A::CertificateRequired
            | A::NoCertificate
    )
}

/// Returns whether a host speaks TLS, to explain why a client without TLS got no ZooKeeper answer.
pub(crate) async fn speaks_tls(host: &str, address: SocketAddr) -> bool {
    let Ok(name) = server_name(host) else { return false };
    let Ok(stream) = TcpStream::connect(address).await else { return false };
    let Ok(builder) = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()
    else {
        return false;
    };
    // No authority is trusted, so the handshake fails before anything is sent to the host.
    let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(_) => true,
        Err(error) => {
            error.get_ref().and_then(|error| error.downcast_ref::<TlsError>()).is_some_and(|error| {
                matches!(error, TlsError::InvalidCertificate(_) | TlsError::AlertReceived(_))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_errors_suggest_to_check_the_clock() {
        let tls = Tls::with_ca_file("/etc/ca.pem");
        for (why, words) in [
            (CertificateError::Expired, "its certificate has expired"),
            (CertificateError::NotValidYet, "its certificate is not valid yet"),
        ] {
            let error = io::Error::other(TlsError::InvalidCertificate(why));
            let trouble = describe_tls_error(&tls, "zk1", &error).expect("TLS is the reason");
            assert_eq!(trouble, format!("{words}; check this machine's clock"));
        }
        assert_eq!(describe_tls_error(&tls, "zk1", &io::Error::from(io::ErrorKind::UnexpectedEof)), None);
    }
}
