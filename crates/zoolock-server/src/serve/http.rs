//! Metrics and health checks over HTTP, for monitors and orchestrators.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::metrics::{Value, collect_metrics};
use super::words::VERSION;
use super::{Shared, log_task_panic, stopped};

/// Maximum time that pending requests delay the stop of the server.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum number of HTTP connections at a time. Only a few monitors are expected.
const MAX_HTTP_CONNECTIONS: usize = 128;

/// Pause after a failed accept. Most likely no file descriptors are left until some connections end.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone)]
struct HttpState {
    shared: Arc<Shared>,
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
    pub(super) fn new(shared: Arc<Shared>, stop: watch::Receiver<bool>) -> Self {
        let answer_timeout = shared.timing.connect_timeout;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/ready", get(ready))
            .route("/live", get(live))
            .with_state(HttpState { shared, stop });
        HttpService { router, answer_timeout }
    }

    /// Answers one request, within `answer_timeout`. So a client that sends or reads nothing does not stay connected.
    pub(super) async fn answer_request(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<(), String> {
        let service = TowerToHyperService::new(self.router);
        let serving = Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
        match timeout(self.answer_timeout, serving).await {
            Ok(answered) => answered.map_err(|error| error.to_string()),
            Err(_) => Err("request timed out".to_owned()),
        }
    }
}

/// Serves HTTP until `clients_stopped` is set. `stop` is set before it. In between the server is alive, but not ready.
pub(crate) async fn serve_http(
    shared: Arc<Shared>,
    listener: TcpListener,
    stop: watch::Receiver<bool>,
    mut clients_stopped: watch::Receiver<bool>,
) {
    let service = HttpService::new(shared, stop);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = stopped(&mut clients_stopped) => break,
            Some(ended) = tasks.join_next() => log_task_panic(ended),
            accepted = listener.accept() => match accepted {
                Ok((_, peer)) if tasks.len() >= MAX_HTTP_CONNECTIONS => {
                    tracing::debug!(%peer, "too many HTTP connections; closing this one");
                }
                Ok((socket, peer)) => {
                    let service = service.clone();
                    tasks.spawn(async move {
                        if let Err(why) = service.answer_request(socket).await {
                            tracing::debug!(%peer, why, "HTTP connection failed");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    sleep(PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let _ = timeout(STOP_TIMEOUT, async { while tasks.join_next().await.is_some() {} }).await;
}

async fn metrics(State(HttpState { shared, .. }): State<HttpState>) -> impl IntoResponse {
    if !shared.is_sound() {
        return (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], String::new());
    }
    let mut text = String::new();
    let version = VERSION.split(',').next().unwrap_or_default();
    let _ = writeln!(text, "# TYPE zoolock_info gauge\nzoolock_info{{version=\"{version}\"}} 1");
    for metric in collect_metrics(&shared) {
        let kind = if metric.is_counter { "counter" } else { "gauge" };
        let _ = writeln!(text, "# TYPE {} {kind}", metric.name);
        let _ = match metric.value {
            Value::Whole(value) => writeln!(text, "{} {value}", metric.name),
            Value::Fraction(value) => writeln!(text, "{} {value}", metric.name),
        };
    }
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn ready(State(HttpState { shared, stop }): State<HttpState>) -> impl IntoResponse {
    if *stop.borrow() {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    } else if !shared.is_sound() {
        (StatusCode::SERVICE_UNAVAILABLE, "broken\n")
    } else {
        (StatusCode::OK, "ready\n")
    }
}

async fn live() -> &'static str {
    "live\n"
}
