//! Connections: how many, and for how long.

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

/// From the connection to the last byte of a page.
const PATIENCE: Duration = Duration::from_secs(30);
/// After this time who listens to events has to ask again, which browsers do by themselves: whoever has gone without
/// a word, or does not read, is not to keep a place.
const LISTENING: Duration = Duration::from_secs(15 * 60);
/// People with browsers, and few.
const MOST: usize = 256;
/// How long a request may keep us from stopping.
const FAREWELL: Duration = Duration::from_millis(500);
/// Out of descriptors, most likely: until some connections have ended.
const PAUSE: Duration = Duration::from_millis(50);

/// Who is at the other end of the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) SocketAddr);

/// Told by a request whose answer goes on and on.
#[derive(Debug, Clone, Default)]
pub(super) struct GoesOn(Arc<AtomicBool>);

impl GoesOn {
    pub(super) fn tell(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Answers until it is dropped or `stop`.
pub(super) async fn answer(router: Router, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = stopped(&mut stop) => break,
            Some(_) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                // It is closed at once, and the browser says so.
                Ok(_) if tasks.len() >= MOST => {}
                Ok((socket, peer)) => _ = tasks.spawn(serve(router.clone(), socket, peer)),
                Err(_) => sleep(PAUSE).await,
            },
        }
    }
    drop(listener);
    let _ = timeout(FAREWELL, async { while tasks.join_next().await.is_some() {} }).await;
}

/// Answers one request: a connection that is kept open for the next one is a place that somebody else needs.
async fn serve(router: Router, socket: TcpStream, peer: SocketAddr) {
    let _ = socket.set_nodelay(true);
    let goes_on = GoesOn::default();
    let router = router.layer(Extension(Peer(peer))).layer(Extension(goes_on.clone()));
    let serving = Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut serving = pin!(serving);
    if timeout(PATIENCE, serving.as_mut()).await.is_err() && goes_on.0.load(Ordering::Relaxed) {
        let _ = timeout(LISTENING, serving).await;
    }
}
