//! Serves HTTP/1 with limits, for the metrics of this server and for the pages and metrics of the command `zoolock`.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Maximum time for which [`serve_connections`] waits for open connections after `stop` completes.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// Pause after a failed accept. Most likely no file descriptor is free until a connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until `stop` completes, and runs `serve` for each one. While
/// `max_connections` connections are open, closes new connections at once.
pub async fn serve_connections<F>(
    listener: TcpListener,
    max_connections: usize,
    stop: impl Future<Output = ()>,
    serve: impl Fn(TcpStream, SocketAddr) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut stop = pin!(stop);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "an HTTP task panicked");
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((_, peer)) if tasks.len() >= max_connections => {
                    tracing::debug!(%peer, "too many HTTP connections; closing this one");
                }
                Ok((socket, peer)) => {
                    let _ = socket.set_nodelay(true);
                    tasks.spawn(serve(socket, peer));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let _ = timeout(STOP_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await;
}

/// Answers one request, then closes the connection, because an idle connection would occupy a slot.
/// The caller limits the time.
///
/// # Errors
/// If the client sends no HTTP, or disconnects.
pub async fn serve_one_request(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
) -> Result<(), String> {
    let service = TowerToHyperService::new(router);
    let serving = Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    serving.await.map_err(|error| error.to_string())
}
