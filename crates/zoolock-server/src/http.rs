//! Serves HTTP/1 with limits, for the metrics of this server and for the pages and metrics of the command `zoolock`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{sleep, timeout};

pub use crate::connection_limits::{ConnectionLimits, ConnectionPermit};

/// Maximum time for which [`serve_connections`] waits for open connections after `stop` completes.
const STOP_TIMEOUT: Duration = Duration::from_millis(500);

/// Pause after a failed accept. Most likely no file descriptor is free until a connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Maximum size of the head of a request in bytes. Several connections may send heads at the same time.
const MAX_HEAD: usize = 64 << 10;

/// The count of one connection. Clones share the count, which ends with the connection.
#[derive(Debug, Clone)]
pub struct CountedConnection(Arc<Mutex<Option<ConnectionPermit>>>);

impl CountedConnection {
    /// Ends the count early, for a connection that other limits count from now on.
    pub fn end_count(&self) {
        *lock_permit(&self.0) = None;
    }
}

/// A connection that can be closed to make room for another one.
struct OpenConnection {
    network: IpAddr,
    permit: Weak<Mutex<Option<ConnectionPermit>>>,
    task: AbortHandle,
}

impl OpenConnection {
    fn is_counted(&self) -> bool {
        self.permit.upgrade().is_some_and(|permit| lock_permit(&permit).is_some())
    }
}

/// The connections of a listener.
struct Connections {
    limits: Arc<ConnectionLimits>,
    tasks: JoinSet<()>,
    /// The connections that may still be counted, oldest first.
    open: Vec<OpenConnection>,
}

impl Connections {
    /// Counts a connection of this network. If a limit is reached, first closes an older connection.
    async fn count(&mut self, network: IpAddr) -> Option<CountedConnection> {
        self.open.retain(OpenConnection::is_counted);
        loop {
            if let Some(permit) = self.limits.try_acquire(network) {
                return Some(CountedConnection(Arc::new(Mutex::new(Some(permit)))));
            }
            let own = self.open.iter().position(|connection| connection.network == network);
            if self.open.is_empty() {
                return None;
            }
            let closed = self.open.remove(own.unwrap_or(0)).task;
            closed.abort();
            // Its descriptor and its count are free when the task has ended.
            while !closed.is_finished()
                && let Some(ended) = self.tasks.join_next().await
            {
                log_panic(ended);
            }
        }
    }
}

fn lock_permit(permit: &Mutex<Option<ConnectionPermit>>) -> MutexGuard<'_, Option<ConnectionPermit>> {
    permit.lock().unwrap_or_else(PoisonError::into_inner)
}

fn log_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "an HTTP task panicked");
    }
}

/// Returns the address for which the connections and the failures of a client are counted.
///
/// For IPv6 this is the prefix of 64 bits, because one client can use all addresses of its network.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
        other => other,
    }
}

/// Accepts connections until `stop` completes, and runs `serve` for each one.
///
/// If a limit is reached, a new connection replaces the oldest connection of the same network, or else the oldest one of
/// all. Answers take little time, so the oldest connections are those of idle and slow clients. If they were kept, a
/// client with many idle connections would block the other clients that share its address, such as all users of this
/// machine.
pub async fn serve_connections<F>(
    listener: TcpListener,
    limits: Arc<ConnectionLimits>,
    stop: impl Future<Output = ()>,
    serve: impl Fn(TcpStream, SocketAddr, CountedConnection) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut stop = pin!(stop);
    let mut connections = Connections { limits, tasks: JoinSet::new(), open: Vec::new() };
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(ended) = connections.tasks.join_next() => log_panic(ended),
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    let network = client_network(peer.ip());
                    let Some(counted) = connections.count(network).await else { continue };
                    let _ = socket.set_nodelay(true);
                    let permit = Arc::downgrade(&counted.0);
                    let serving = serve(socket, peer, counted.clone());
                    let task = connections.tasks.spawn(async move {
                        let _counted = counted;
                        serving.await;
                    });
                    connections.open.push(OpenConnection { network, permit, task });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let _ = timeout(STOP_TIMEOUT, async { while connections.tasks.join_next().await.is_some() {} }).await;
}

/// Answers one request, then closes the connection, because an idle connection would occupy a slot.
/// The caller limits the total time.
///
/// # Errors
/// If the client sends no HTTP, does not send the head of a request within `head_timeout`, or disconnects.
pub async fn serve_one_request(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    head_timeout: Duration,
) -> Result<(), String> {
    let service = TowerToHyperService::new(router);
    let mut builder = Builder::new();
    builder
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout);
    builder.serve_connection(TokioIo::new(stream), service).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_clients_are_counted_by_network() {
        let network = |text: &str| client_network(text.parse().expect("an address")).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("::ffff:10.0.0.7"), "10.0.0.7");
        assert_eq!(network("10.0.0.7"), "10.0.0.7");
        assert_eq!(network("::1"), "::1");
    }
}
