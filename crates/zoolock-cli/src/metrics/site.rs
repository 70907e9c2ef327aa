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
use crate::exit::{Exit, Failure};

/// From the connection to the last byte of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many may ask at once. They are monitors, and few.
const MOST: usize = 16;
/// Out of descriptors, most likely.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes the address, before anything else is begun.
pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        let exit = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Exit::DENIED,
            _ => Exit::UNAVAILABLE,
        };
        Failure::new(exit, format!("--metrics {address}: cannot listen there: {error}"))
    })
}

/// Answers until it is aborted.
pub(super) async fn answer(listener: TcpListener, registry: Registry) {
    let router = Router::new().route(
        "/metrics",
        get(move || async move {
            let text = text::render(&registry.families());
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
        }),
    );
    let mut asking = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                while asking.try_join_next().is_some() {}
                if asking.len() >= MOST {
                    continue;
                }
                let service = TowerToHyperService::new(router.clone());
                asking.spawn(async move {
                    let serving =
                        Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
                    // Whoever says nothing, or does not read, is not to keep a place.
                    let _ = timeout(PATIENCE, serving).await;
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}
