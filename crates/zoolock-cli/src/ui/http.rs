//! Serves connections, and limits their number and duration.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::stopped;

/// Maximum time from the connection to the last byte of a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum further duration of an event stream. Browsers reconnect by themselves. A client that has vanished, or does not
/// read, must not occupy a slot for ever.
const MAX_STREAM_TIME: Duration = Duration::from_secs(15 * 60);
/// Maximum number of connections. The clients are a few people with browsers.
const MAX_CONNECTIONS: usize = 256;
/// Maximum time for which open requests delay the end of the command.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after a failed accept, most likely for lack of file descriptors. Some connections may end meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Address of the client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Flag that a request sets if its response is an event stream.
#[derive(Debug, Clone, Default)]
pub(super) struct StreamFlag(Arc<AtomicBool>);

impl StreamFlag {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Serves requests until it is dropped or `stop` is set.
pub(super) async fn serve(router: Router, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = stopped(&mut stop) => break,
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                // The connection is closed at once, which the browser reports.
                Ok(_) if tasks.len() >= MAX_CONNECTIONS => {}
                Ok((socket, peer)) => _ = tasks.spawn(serve_connection(router.clone(), socket, peer)),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    let _ = timeout(SHUTDOWN_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await;
}

/// Serves one request, then closes the connection: an idle connection would occupy a slot.
async fn serve_connection(router: Router, socket: TcpStream, peer: SocketAddr) {
    let _ = socket.set_nodelay(true);
    let stream_flag = StreamFlag::default();
    let router = router.layer(Extension(Peer(peer))).layer(Extension(stream_flag.clone()));
    let serving = Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut serving = pin!(serving);
    if timeout(PAGE_TIMEOUT, serving.as_mut()).await.is_err() && stream_flag.0.load(Ordering::Relaxed) {
        let _ = timeout(MAX_STREAM_TIME, serving).await;
    }
}
