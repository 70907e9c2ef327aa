//! `/metrics` over HTTP, for Prometheus.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::routing::get;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use zoolock_server::http::{self, ConnectionLimits};

use super::registry::Registry;
use super::text;
use crate::base::exit::Failure;

/// Maximum time from the connection to the last byte of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections. The clients are a few monitors.
const MAX_CONNECTIONS: usize = 16;

/// Listens on the address of `--metrics`. The caller listens before its work begins, so that an
/// error prevents the work.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::cannot_listen(&error, format!("--metrics {address}: cannot listen there: {error}"))
    })
}

/// Answers requests until the task is aborted.
pub(super) async fn serve(listener: TcpListener, registry: Registry) {
    let router = Router::new().route(
        "/metrics",
        get(move || async move {
            let text = text::render(&registry.families());
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
        }),
    );
    let serve = move |stream: TcpStream, _: SocketAddr, _| {
        let answering = http::serve_one_request(stream, router.clone(), REQUEST_TIMEOUT);
        async move {
            // A client that sends or reads nothing must not occupy a slot for ever.
            let _ = timeout(REQUEST_TIMEOUT, answering).await;
        }
    };
    let limits = Arc::new(ConnectionLimits::for_http(MAX_CONNECTIONS));
    http::serve_connections(listener, limits, pending(), serve).await;
}
