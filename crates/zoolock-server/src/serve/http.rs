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

use super::figures::{Value, figures};
use super::words::VERSION;
use super::{Shared, report, stopped};

/// Maximum time that pending requests delay the stop of the server.
const FAREWELL: Duration = Duration::from_millis(500);

/// Maximum number of HTTP connections at a time. Only a few monitors are expected.
const MAX_ASKING: usize = 128;

/// Pause after a failed accept. Most likely no file descriptors are left until some connections end.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone)]
struct Asked {
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
}

/// The HTTP service.
#[derive(Clone)]
pub(super) struct Site {
    router: Router,
    /// Maximum time from the accept to the last byte of the answer.
    patience: Duration,
}

impl Site {
    pub(super) fn new(shared: Arc<Shared>, stop: watch::Receiver<bool>) -> Self {
        let patience = shared.timing.connect_timeout;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/ready", get(ready))
            .route("/live", get(live))
            .with_state(Asked { shared, stop });
        Site { router, patience }
    }

    /// Answers one request, within `patience`. So a client that sends or reads nothing does not stay connected.
    pub(super) async fn answer(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<(), String> {
        let service = TowerToHyperService::new(self.router);
        let serving = Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
        match timeout(self.patience, serving).await {
            Ok(answered) => answered.map_err(|error| error.to_string()),
            Err(_) => Err("it took too long".to_owned()),
        }
    }
}

/// Serves HTTP until `gone` is set. `stop` is set before it. In between the server is alive, but not ready.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    listener: TcpListener,
    stop: watch::Receiver<bool>,
    mut gone: watch::Receiver<bool>,
) {
    let site = Site::new(shared, stop);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = stopped(&mut gone) => break,
            Some(ended) = tasks.join_next() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok((_, peer)) if tasks.len() >= MAX_ASKING => {
                    tracing::debug!(%peer, "too many ask over HTTP, closing");
                }
                Ok((socket, peer)) => {
                    let site = site.clone();
                    tasks.spawn(async move {
                        if let Err(why) = site.answer(socket).await {
                            tracing::debug!(%peer, why, "nothing came of a connection for HTTP, closing");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for HTTP");
                    sleep(PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let _ = timeout(FAREWELL, async { while tasks.join_next().await.is_some() {} }).await;
}

async fn metrics(State(Asked { shared, .. }): State<Asked>) -> impl IntoResponse {
    if !shared.is_sound() {
        return (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], String::new());
    }
    let mut text = String::new();
    let version = VERSION.split(',').next().unwrap_or_default();
    let _ = writeln!(text, "# TYPE zoolock_info gauge\nzoolock_info{{version=\"{version}\"}} 1");
    for figure in figures(&shared) {
        let kind = if figure.counter { "counter" } else { "gauge" };
        let _ = writeln!(text, "# TYPE {} {kind}", figure.name);
        let _ = match figure.value {
            Value::Whole(value) => writeln!(text, "{} {value}", figure.name),
            Value::Fraction(value) => writeln!(text, "{} {value}", figure.name),
        };
    }
    (StatusCode::OK, [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn ready(State(Asked { shared, stop }): State<Asked>) -> impl IntoResponse {
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
