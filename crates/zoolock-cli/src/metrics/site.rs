//! `/metrics` over HTTP, for Prometheus.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::routing::get;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::registry::Registry;
use super::text;
use crate::base::exit::{Exit, Failure};

/// Maximum time from the connection to the last byte of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections. The clients are a few monitors.
const MAX_CONNECTIONS: usize = 16;
/// Pause after a failed accept, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens on the address of `--metrics`. It is called before the work begins, so that an error prevents the work.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let exit = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::DENIED,
            _ => Exit::UNAVAILABLE,
        };
        Failure::new(exit, format!("--metrics {address}: cannot listen there: {error}"))
    })
}

/// Answers requests until it is aborted.
pub(super) async fn serve(listener: TcpListener, registry: Registry) {
    let router = Router::new().route(
        "/metrics",
        get(move || async move {
            let text = text::render(&registry.families());
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
        }),
    );
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while connections.try_join_next().is_some() {}
                if connections.len() >= MAX_CONNECTIONS {
                    continue;
                }
                let service = TowerToHyperService::new(router.clone());
                connections.spawn(async move {
                    let serving =
                        Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
                    // A client that sends or reads nothing must not occupy a slot for ever.
                    let _ = timeout(REQUEST_TIMEOUT, serving).await;
                });
            }
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}
