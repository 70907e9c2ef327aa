//! The TLS handshake of a connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use zoolock_wire::Identity;

use super::{SharedServer, connection, wait_until_stopped};
use crate::x500;

/// The settings of a TLS handshake.
#[derive(Clone)]
pub(crate) struct TlsSettings {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) handshake_timeout: Duration,
}

/// Performs the TLS handshake, then serves the connection to its end.
pub(super) async fn serve_tls(
    shared: Arc<SharedServer>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: TlsSettings,
    mut stop: watch::Receiver<bool>,
) {
    let handshake = tokio::select! {
        () = wait_until_stopped(&mut stop) => return,
        handshake = timeout(tls.handshake_timeout, tls_handshake(socket, &tls.acceptor)) => handshake,
    };
    let handshake =
        handshake.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no handshake in time")));
    match handshake {
        Ok((stream, identity)) => {
            if let Some(identity) = &identity {
                tracing::debug!(%peer, name = identity.id, "client certificate");
            }
            connection::serve_connection(shared, stream, peer, identity, stop).await;
        }
        Err(error) => {
            tracing::debug!(%peer, %error, "TLS handshake failed; closing the connection");
            shared.lock().failed_handshakes += 1;
        }
    }
}

async fn tls_handshake(
    socket: TcpStream,
    acceptor: &TlsAcceptor,
) -> io::Result<(TlsStream<TcpStream>, Option<Identity>)> {
    let mut first = [0; 1];
    // The first byte shows whether the client uses TLS. A client without TLS must get no TLS alert.
    // Such a client would take the alert for a frame, and wait for the rest of that frame.
    if socket.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first[0] != connection::TLS_HANDSHAKE {
        tracing::info!("plain connection on the TLS port; closing it");
        return Err(io::Error::new(io::ErrorKind::InvalidData, "plain connection on the TLS port"));
    }
    let stream = acceptor.accept(socket).await?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let identity = match certificates.first().map(|certificate| x500::subject(certificate)) {
        None => None,
        // An empty name is not an identity.
        Some(Some(name)) if name.is_empty() => None,
        Some(Some(name)) => Some(Identity::new("x509", name)),
        Some(None) => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the certificate's subject cannot be read",
            ));
        }
    };
    Ok((stream, identity))
}
