//! The sockets that a server listens on: TCP, TCP with TLS, and Unix sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::geteuid;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use zoolock_wire::Identity;

use super::{SharedServer, connection, wait_until_stopped};
use crate::error::Error;
use crate::x500;

/// A socket that the server listens on.
pub(crate) enum Listener {
    /// A TCP socket, for TLS if `tls` is set.
    Tcp { addr: SocketAddr, tls: Option<TlsSettings>, listener: TcpListener },
    /// A Unix socket.
    Unix(UnixListener),
}

/// An accepted connection.
pub(super) enum AcceptedSocket {
    Tcp(TcpStream, SocketAddr, Option<TlsSettings>),
    Unix(UnixStream),
}

/// The address reported for a client on a Unix socket.
const UNIX_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The settings of a TLS handshake.
#[derive(Clone)]
pub(crate) struct TlsSettings {
    pub(crate) acceptor: TlsAcceptor,
    pub(crate) handshake_timeout: Duration,
}

impl Listener {
    pub(crate) async fn open(listen: SocketAddr, tls: Option<TlsSettings>) -> Result<Self, Error> {
        let failed = |source| Error::Listen { addr: listen, source };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        Ok(Listener::Tcp { addr, tls, listener })
    }

    /// Listens on a bound Unix socket.
    pub(crate) fn from_unix(listener: &std::os::unix::net::UnixListener) -> Result<Self, Error> {
        let listen = || {
            let listener = listener.try_clone()?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        let failed = |error| Error::Invalid { what: format!("the Unix socket cannot be used: {error}") };
        Ok(Listener::Unix(listen().map_err(failed)?))
    }

    /// Returns the TCP address, with the actual port.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp { addr, .. } => Some(*addr),
            Listener::Unix(_) => None,
        }
    }

    pub(super) async fn accept(&self) -> io::Result<AcceptedSocket> {
        match self {
            Listener::Tcp { tls, listener, .. } => {
                let (socket, peer) = listener.accept().await?;
                let _ = socket.set_nodelay(true);
                Ok(AcceptedSocket::Tcp(socket, peer, tls.clone()))
            }
            Listener::Unix(listener) => Ok(AcceptedSocket::Unix(listener.accept().await?.0)),
        }
    }
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listener::Tcp { addr, tls: None, .. } => write!(f, "{addr}"),
            Listener::Tcp { addr, .. } => write!(f, "{addr} with TLS"),
            Listener::Unix(_) => f.write_str("a Unix socket"),
        }
    }
}

impl AcceptedSocket {
    pub(super) fn peer(&self) -> SocketAddr {
        match self {
            AcceptedSocket::Tcp(_, peer, _) => *peer,
            AcceptedSocket::Unix(_) => UNIX_PEER,
        }
    }

    /// Serves the connection to its end.
    pub(super) async fn serve(self, shared: Arc<SharedServer>, stop: watch::Receiver<bool>) {
        match self {
            AcceptedSocket::Tcp(socket, peer, None) => {
                connection::serve_connection(shared, socket, peer, None, stop).await
            }
            // This future is boxed, so that tasks without TLS do not take the memory that a
            // handshake needs.
            AcceptedSocket::Tcp(socket, peer, Some(tls)) => {
                Box::pin(serve_tls(shared, socket, peer, tls, stop)).await;
            }
            AcceptedSocket::Unix(socket) => match check_peer(&socket) {
                Ok(user) => connection::serve_connection(shared, socket, UNIX_PEER, Some(user), stop).await,
                Err(error) => {
                    tracing::debug!(%error, "closing a connection on the Unix socket");
                    shared.lock().rejected += 1;
                }
            },
        }
    }
}

/// Returns the identity of the process at the other end of a Unix socket.
///
/// # Errors
/// If the process runs neither as the server's user nor as root.
fn check_peer(socket: &UnixStream) -> io::Result<Identity> {
    let user = socket.peer_cred()?.uid();
    if !may_connect(user, geteuid().as_raw()) {
        let message = format!("user {user} is not the user of this server");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(Identity::new("uid", user.to_string()))
}

fn may_connect(user: u32, ours: u32) -> bool {
    user == 0 || user == ours
}

/// Performs the TLS handshake, then serves the connection to its end.
async fn serve_tls(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_socket_is_for_its_user_and_root() {
        assert!(may_connect(1000, 1000) && may_connect(0, 1000));
        assert!(!may_connect(1001, 1000) && !may_connect(1000, 0));
    }
}
