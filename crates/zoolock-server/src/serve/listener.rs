//! The sockets that a server listens on: TCP, TCP with TLS, and Unix sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rustix::process::geteuid;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use zoolock_wire::Identity;

use super::handshake::{TlsSettings, serve_tls};
use super::{SharedServer, connection};
use crate::error::Error;

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

    /// Returns the TCP address for TLS, with the actual port.
    pub(crate) fn tls_addr(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp { addr, tls: Some(_), .. } => Some(*addr),
            _ => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_socket_is_for_its_user_and_root() {
        assert!(may_connect(1000, 1000) && may_connect(0, 1000));
        assert!(!may_connect(1001, 1000) && !may_connect(1000, 0));
    }
}
