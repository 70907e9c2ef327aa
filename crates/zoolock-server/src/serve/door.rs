//! Where connections come in, with TLS or without.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use zoolock_wire::Identity;

use super::{Shared, connection, stopped};
use crate::error::Error;
use crate::x500;

/// An address that is listened on.
pub(crate) struct Door {
    pub(crate) addr: SocketAddr,
    pub(crate) tls: Option<Tls>,
    pub(super) listener: TcpListener,
}

/// What a handshake needs.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) handshake_timeout: Duration,
}

impl Door {
    pub(crate) async fn open(listen: SocketAddr, tls: Option<Tls>) -> Result<Self, Error> {
        let failed = |source| Error::Listen { addr: listen, source };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Door { addr, tls, listener })
    }
}

/// Shakes hands, then serves the connection to its end.
pub(super) async fn admit(
    shared: Arc<Shared>,
    socket: TcpStream,
    peer: SocketAddr,
    tls: Tls,
    mut stop: watch::Receiver<bool>,
) {
    let shaken = tokio::select! {
        () = stopped(&mut stop) => return,
        shaken = timeout(tls.handshake_timeout, shake_hands(socket, &tls.acceptor)) => shaken,
    };
    let shaken =
        shaken.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no handshake in time")));
    match shaken {
        Ok((stream, who)) => {
            if let Some(who) = &who {
                tracing::debug!(%peer, name = who.id, "client certificate");
            }
            connection::run(shared, stream, peer, who, stop).await;
        }
        Err(error) => {
            tracing::debug!(%peer, %error, "TLS handshake failed, closing");
            shared.lock().failed_handshakes += 1;
        }
    }
}

async fn shake_hands(
    socket: TcpStream,
    acceptor: &TlsAcceptor,
) -> io::Result<(TlsStream<TcpStream>, Option<Identity>)> {
    let mut first = [0; 1];
    // Whoever speaks plainly would take an alert for a frame, and wait for its end.
    if socket.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if first[0] != HANDSHAKE {
        tracing::info!("a client without TLS on the port for TLS, closing");
        return Err(io::Error::new(io::ErrorKind::InvalidData, "plain bytes on a port for TLS"));
    }
    let stream = acceptor.accept(socket).await?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let who = match certificates.first().map(|certificate| x500::subject(certificate)) {
        // A name that says nothing names nobody.
        None => None,
        Some(Some(name)) if name.is_empty() => None,
        Some(Some(name)) => Some(Identity::new("x509", name)),
        Some(None) => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the certificate's subject cannot be read",
            ));
        }
    };
    Ok((stream, who))
}

/// The type of a TLS record that begins a connection.
const HANDSHAKE: u8 = 22;

/// What else these first bytes of a plain connection are the start of. None of them is the length of a frame.
pub(super) fn other_protocol(input: &[u8]) -> Option<&'static str> {
    match input.first_chunk::<4>()? {
        [HANDSHAKE, 3, ..] => Some("TLS"),
        b"GET " | b"HEAD" | b"POST" | b"PUT " | b"DELE" | b"OPTI" | b"CONN" | b"PATC" | b"PRI " => {
            Some("HTTP")
        }
        b"SSH-" => Some("SSH"),
        _ => None,
    }
}
