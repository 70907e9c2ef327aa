//! Stands for `handshake.rs` in a server without the feature `tls`, which has no TLS settings.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::watch;

use super::SharedServer;

/// No value of this type exists.
#[derive(Clone)]
pub(crate) enum TlsSettings {}

pub(super) async fn serve_tls(
    _: Arc<SharedServer>,
    _: TcpStream,
    _: SocketAddr,
    tls: TlsSettings,
    _: watch::Receiver<bool>,
) {
    match tls {}
}
