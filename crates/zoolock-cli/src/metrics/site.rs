//! `/metrics` over HTTP, for Prometheus; `/leader` and `/live`, for the probes of Kubernetes.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::routing::get;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use zoolock_server::http::{self, ConnectionLimits};

use super::leader::{LeaderPage, LivePage};
use super::registry::Registry;
use super::text;
use crate::args::MetricsAddress;
use crate::base::exit::Failure;
use crate::base::reporter::Reporter;

/// Pause between attempts to listen.
const LISTEN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time from the connection to the last byte of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections. The clients are a few monitors.
const MAX_CONNECTIONS: usize = 16;

/// Listens on the address of `--metrics`. Returns a future that answers requests until it is dropped. While the address is in use,
/// for example by the previous run of the same job, prints a note once and tries again, unless the metrics are required.
pub(super) async fn serve(
    MetricsAddress { address, is_required }: MetricsAddress,
    registry: Registry,
    live: Arc<LivePage>,
    leader: Arc<LeaderPage>,
    reporter: Arc<Reporter>,
) -> Result<impl Future<Output = ()>, Failure> {
    let mut listener = match TcpListener::bind(address).await {
        Ok(listener) => Some(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && !is_required => {
            reporter.note(format_args!(
                "--metrics {address}: cannot listen there: {error}; continuing without metrics, and trying again"
            ));
            None
        }
        Err(error) => {
            let message = format!("--metrics {address}: cannot listen there: {error}");
            return Err(Failure::cannot_listen(&error, message));
        }
    };
    Ok(async move {
        let listener = loop {
            if let Some(listener) = listener {
                break listener;
            }
            tokio::time::sleep(LISTEN_INTERVAL).await;
            listener = TcpListener::bind(address).await.ok();
        };
        if let Ok(address) = listener.local_addr() {
            reporter.note(format_args!("metrics at http://{address}/metrics"));
        }
        let router = Router::new()
            .route(
                "/metrics",
                get(move || async move {
                    let text = text::render(&registry.families());
                    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
                }),
            )
            .route("/live", get(move || async move { live.answer().await }))
            .route("/leader", get(move || async move { leader.answer() }));
        let serve = move |stream: TcpStream, _: SocketAddr, _| {
            let answering = http::serve_one_request(stream, router.clone(), REQUEST_TIMEOUT);
            async move {
                // A client that sends or reads nothing must not occupy a slot for ever.
                let _ = timeout(REQUEST_TIMEOUT, answering).await;
            }
        };
        let limits = Arc::new(ConnectionLimits::for_http(MAX_CONNECTIONS));
        http::serve_connections(listener, limits, pending(), serve).await;
    })
}
