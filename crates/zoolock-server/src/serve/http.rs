//! What monitors and orchestrators ask for, over HTTP.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

use super::figures::{Value, figures};
use super::words::VERSION;
use super::{Shared, stopped};

/// How long a request may keep us from stopping.
const FAREWELL: Duration = Duration::from_millis(500);

#[derive(Clone)]
struct Asked {
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
}

/// Answers until `gone`, which comes after `stop`: in between we are alive, but not ready.
pub(crate) async fn answer(
    shared: Arc<Shared>,
    listener: TcpListener,
    stop: watch::Receiver<bool>,
    mut gone: watch::Receiver<bool>,
) {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/ready", get(ready))
        .route("/live", get(live))
        .with_state(Asked { shared, stop });
    let mut end = gone.clone();
    let served = axum::serve(listener, router).with_graceful_shutdown(async move { stopped(&mut end).await });
    tokio::select! {
        result = served.into_future() => {
            if let Err(error) = result {
                tracing::error!(%error, "cannot answer HTTP any more");
            }
        }
        () = async { stopped(&mut gone).await; sleep(FAREWELL).await } => {}
    }
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
