//! Serves connections, and limits their number and duration.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::{Extension, Router};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use zoolock_server::http::{self, ConnectionLimits, ConnectionPermit, CountedConnection};

use super::wait_until_stopped;

/// Maximum time from the connection to the end of the head of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time from the connection to the last byte of a page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum duration of an event stream after `PAGE_TIMEOUT`. A client that has vanished, or does not read, must not
/// occupy a slot for ever. Browsers reconnect by themselves.
const MAX_STREAM_TIME: Duration = Duration::from_secs(15 * 60);
/// Maximum number of connections for pages. The clients are a few people with browsers, which open up to six connections
/// each.
const MAX_PAGES: usize = 256;
/// Maximum number of event streams, beside the pages.
const MAX_STREAMS: usize = 128;
/// Minimum number of connections for pages and of event streams, also on a small limit on open files.
const MIN_CONNECTIONS: usize = 8;

/// A connection for one request: a page, until its response turns out to be an event stream.
#[derive(Debug, Clone)]
pub(super) struct PageConnection {
    page: CountedConnection,
    stream: Arc<OnceLock<ConnectionPermit>>,
    /// The network of the client, for which connections are counted.
    pub(super) network: IpAddr,
}

impl PageConnection {
    /// Counts the connection as an event stream instead of a page.
    pub(super) fn count_as_stream(&self, permit: ConnectionPermit) {
        // A connection has only one request, so the permit is set once.
        let _ = self.stream.set(permit);
        self.page.end_count();
    }
}

/// Returns the limits on pages and on event streams, given the number of connections that the process may open. A part of
/// them is left for other files.
pub(super) fn page_and_stream_limits(connections: usize) -> (Arc<ConnectionLimits>, Arc<ConnectionLimits>) {
    let limits =
        |count: usize, most| Arc::new(ConnectionLimits::for_http(count.clamp(MIN_CONNECTIONS, most)));
    (limits(connections / 2, MAX_PAGES), limits(connections / 4, MAX_STREAMS))
}

/// Serves requests until `stop` is set or the future is dropped.
pub(super) async fn serve(
    router: Router,
    listener: TcpListener,
    pages: Arc<ConnectionLimits>,
    mut stop: watch::Receiver<bool>,
) {
    let serve = move |socket, peer, page| serve_connection(router.clone(), socket, peer, page);
    http::serve_connections(listener, pages, wait_until_stopped(&mut stop), serve).await;
}

/// Serves one request, within the time limit for its kind of response.
async fn serve_connection(router: Router, socket: TcpStream, peer: SocketAddr, page: CountedConnection) {
    let network = http::client_network(peer.ip());
    let connection = PageConnection { page, stream: Arc::default(), network };
    let router = router.layer(Extension(connection.clone()));
    let mut serving = pin!(http::serve_one_request(socket, router, READ_TIMEOUT));
    if timeout(PAGE_TIMEOUT, serving.as_mut()).await.is_err() && connection.stream.get().is_some() {
        let _ = timeout(MAX_STREAM_TIME, serving).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_and_stream_limits_follow_open_files() {
        let counts = |connections| {
            let (pages, streams) = page_and_stream_limits(connections);
            // Each client has an address of its own, so only the total limits them.
            let count = |limits: Arc<ConnectionLimits>| {
                let addresses = (0_u32..).map(|number| IpAddr::from(number.to_be_bytes()));
                addresses.map_while(|address| limits.try_acquire(address)).collect::<Vec<_>>().len()
            };
            (count(pages), count(streams))
        };
        assert_eq!(counts(usize::MAX), (MAX_PAGES, MAX_STREAMS));
        assert_eq!(counts(236), (118, 59));
        assert_eq!(counts(0), (MIN_CONNECTIONS, MIN_CONNECTIONS));
    }
}
