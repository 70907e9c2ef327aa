//! Metrics and health checks over HTTP, for monitors and orchestrators.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::metrics::{MetricValue, collect_metrics};
use super::words::VERSION;
use super::{SharedServer, wait_until_stopped};
use crate::http::{self, ConnectionLimits};

#[derive(Clone)]
struct HttpState {
    shared: Arc<SharedServer>,
    stop: watch::Receiver<bool>,
}

/// The HTTP service.
#[derive(Clone)]
pub(super) struct HttpService {
    router: Router,
    /// Maximum time from the accept to the last byte of the answer.
    answer_timeout: Duration,
}

impl HttpService {
    pub(super) fn new(shared: Arc<SharedServer>, stop: watch::Receiver<bool>) -> Self {
        let answer_timeout = shared.timing.connect_timeout;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/ready", get(ready))
            .route("/live", get(live))
            .with_state(HttpState { shared, stop });
        HttpService { router, answer_timeout }
    }

    /// Answers one request within `answer_timeout`, so that a client that sends or reads nothing does not stay
    /// connected.
    pub(super) async fn answer_request(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<(), String> {
        let answered =
            timeout(self.answer_timeout, http::serve_one_request(stream, self.router, self.answer_timeout))
                .await;
        answered.unwrap_or_else(|_| Err("request timed out".to_owned()))
    }
}

/// Serves HTTP until `clients_stopped` is set. `stop` is set earlier. While only `stop` is set, the
/// server reports that it is alive but not ready.
pub(crate) async fn serve_http(
    shared: Arc<SharedServer>,
    listener: TcpListener,
    max_connections: usize,
    stop: watch::Receiver<bool>,
    mut clients_stopped: watch::Receiver<bool>,
) {
    let service = HttpService::new(Arc::clone(&shared), stop);
    let serve = move |socket: TcpStream, peer: SocketAddr, _| {
        let service = service.clone();
        let counted = CountedConnection::new(Arc::clone(&shared));
        async move {
            let _counted = counted;
            if let Err(why) = service.answer_request(socket).await {
                tracing::debug!(%peer, why, "HTTP connection failed");
            }
        }
    };
    let limits = Arc::new(ConnectionLimits::for_http(max_connections));
    http::serve_connections(listener, limits, wait_until_stopped(&mut clients_stopped), serve).await;
}

/// An open connection, as the metrics count it.
struct CountedConnection(Arc<SharedServer>);

impl CountedConnection {
    fn new(shared: Arc<SharedServer>) -> Self {
        shared.http_connections.fetch_add(1, Ordering::Relaxed);
        CountedConnection(shared)
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.http_connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn metrics(State(HttpState { shared, .. }): State<HttpState>) -> impl IntoResponse {
    if !shared.is_healthy() {
        return (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], String::new());
    }
    let mut text = String::new();
    let version = VERSION.split(',').next().unwrap_or_default();
    let _ = writeln!(text, "# TYPE zoolock_info gauge\nzoolock_info{{version=\"{version}\"}} 1");
    for metric in collect_metrics(&shared) {
        let kind = if metric.is_counter { "counter" } else { "gauge" };
        let _ = writeln!(text, "# TYPE {} {kind}", metric.name);
        let _ = match metric.value {
            MetricValue::Whole(value) => writeln!(text, "{} {value}", metric.name),
            MetricValue::Fraction(value) => writeln!(text, "{} {value}", metric.name),
        };
    }
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn ready(State(HttpState { shared, stop }): State<HttpState>) -> impl IntoResponse {
    if *stop.borrow() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else if !shared.is_healthy() {
        (StatusCode::SERVICE_UNAVAILABLE, "broken\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

async fn live() -> &'static str {
    "live\n"
}
