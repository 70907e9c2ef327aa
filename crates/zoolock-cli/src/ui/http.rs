//! Serves connections, and limits their number and duration.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use zoolock_server::http;

use super::wait_until_stopped;

/// Maximum time from the connection to the last byte of a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum duration of an event stream after `PAGE_TIMEOUT`. A client that has vanished, or does not read, must not
/// occupy a slot for ever. Browsers reconnect by themselves.
const MAX_STREAM_TIME: Duration = Duration::from_secs(15 * 60);
/// Maximum number of connections. The clients are a few people with browsers.
const MAX_CONNECTIONS: usize = 256;

/// Address of the client.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerAddress(pub(super) SocketAddr);

/// Flag that a request sets if its response is an event stream.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamFlag(Arc<AtomicBool>);

impl StreamFlag {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Serves requests until `stop` is set or the future is dropped.
pub(super) async fn serve(router: Router, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let serve = move |socket, peer| serve_connection(router.clone(), socket, peer);
    http::serve_connections(listener, MAX_CONNECTIONS, wait_until_stopped(&mut stop), serve).await;
}

/// Serves one request, within the time limit for its kind of response.
async fn serve_connection(router: Router, socket: TcpStream, peer: SocketAddr) {
    let stream_flag = StreamFlag::default();
    let router = router.layer(Extension(PeerAddress(peer))).layer(Extension(stream_flag.clone()));
    let mut serving = pin!(http::serve_one_request(socket, router));
    if timeout(PAGE_TIMEOUT, serving.as_mut()).await.is_err() && stream_flag.0.load(Ordering::Relaxed) {
        let _ = timeout(MAX_STREAM_TIME, serving).await;
    }
}
