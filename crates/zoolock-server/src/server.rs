use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::core::ServerStats;
use crate::serve::SharedServer;
use crate::state::State;

/// The entry point to the embedded server. [`Server::builder`] configures and starts a server.
#[derive(Debug)]
#[non_exhaustive]
pub struct Server;

/// A running server. Dropping the handle stops the server, but does not wait until the server has
/// stopped.
pub struct ServerHandle {
    pub(crate) addr: SocketAddr,
    pub(crate) epoch: u32,
    pub(crate) repairs: Vec<String>,
    pub(crate) shared: Arc<SharedServer>,
    pub(crate) stop: watch::Sender<bool>,
    /// Set when the server has stopped serving clients.
    pub(crate) clients_stopped: watch::Sender<bool>,
    pub(crate) tasks: Vec<JoinHandle<()>>,
    pub(crate) http: Option<JoinHandle<()>>,
}

impl Server {
    /// Default address to listen on.
    pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2181);
    /// Default tick.
    pub const DEFAULT_TICK: Duration = Duration::from_millis(2000);
}

impl ServerHandle {
    /// Returns messages about damaged files of the data directory that the server did not need. No acknowledged write
    /// is lost.
    pub fn repairs(&self) -> &[String] {
        &self.repairs
    }

    /// Returns the address that the server listens on, with the actual port. Returns the TLS address if plain
    /// connections are off. Returns port 0 if the server listens only on a Unix socket.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address that the server listens on for TLS, with the actual port.
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.shared.timing.conf.tls_addr
    }

    /// Returns the epoch of this server: the upper half of its zxids.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the address that serves HTTP, with the actual port.
    pub fn metrics_addr(&self) -> Option<SocketAddr> {
        self.shared.timing.conf.metrics_addr
    }

    /// Returns the number of live sessions, connected or not.
    pub fn sessions(&self) -> usize {
        self.shared.lock().core.stats().sessions
    }

    /// Returns the instant since which there has been no session, or `None` while there is a
    /// session.
    pub fn idle_since(&self) -> Option<Instant> {
        self.shared.lock().idle_since
    }

    /// Returns the counts of the server.
    pub fn stats(&self) -> ServerStats {
        self.shared.lock().core.stats()
    }

    /// Waits until the server stops because its log has failed, because its data directory was moved
    /// or removed, or because of a bug. Returns the reason. If the server has a log, the log contains
    /// all acknowledged writes even then. Never resolves while the server works.
    ///
    /// # Cancel safety
    /// This method is cancel safe.
    pub async fn wait_for_failure(&self) -> String {
        self.shared.wait_for_failure().await
    }

    /// Stops the server and waits for all of its tasks. Sessions survive with
    /// [`Durability::Sync`](crate::Durability::Sync). Otherwise sessions are lost.
    ///
    /// # Cancel safety
    /// If the future is dropped early, the server still stops, but in the background.
    pub async fn shutdown(mut self) {
        self.stop().await;
    }

    /// Sets the counter for the sequential children of a znode, for tests of its overflow. Returns false if there is no
    /// such znode.
    #[doc(hidden)]
    pub fn set_child_counter(&self, path: &str, count: i32) -> bool {
        self.shared.lock().core.set_child_counter(path, count)
    }

    /// Expires a session now: closes its connection and deletes its ephemerals. Returns false if there is no such
    /// session.
    pub fn expire_session(&self, session: i64) -> bool {
        self.shared.expire_session(session)
    }

    /// Expires all sessions now, and returns their number.
    pub fn expire_sessions(&self) -> usize {
        self.shared.expire_sessions()
    }

    /// Closes all connections, like a network failure. The sessions remain until they expire.
    pub fn cut_connections(&self) {
        self.shared.disconnect_all();
    }

    /// Advances the server's clocks. Then expires the sessions whose timeout has passed, and
    /// deletes empty containers and znodes past their time to live.
    pub fn advance(&self, by: Duration) {
        self.shared.advance(by);
    }

    /// Returns the children of a znode, each with the id of the session that owns the child, or 0
    /// if the child is not ephemeral. The list is empty if there is no such znode.
    pub fn children(&self, path: &str) -> Vec<(String, i64)> {
        let inner = self.shared.lock();
        let tree = &inner.core.state().tree;
        let Some(node) = tree.get(path) else { return Vec::new() };
        let base = path.trim_end_matches('/');
        let owner = |name: &str| tree.get(&format!("{base}/{name}")).map_or(0, |child| child.owner().max(0));
        node.children().map(|name| (name.to_owned(), owner(name))).collect()
    }

    /// Returns the state of the server; see [`Builder::resume`](crate::Builder::resume).
    #[doc(hidden)]
    pub fn state(&self) -> State {
        self.shared.lock().core.state().clone()
    }

    /// Stops the server and waits for all of its tasks, but keeps the handle; see [`ServerHandle::shutdown`].
    #[doc(hidden)]
    pub async fn stop(&mut self) {
        self.stop.send_replace(true);
        let tasks = std::mem::take(&mut self.tasks);
        join_tasks(tasks).await;
        self.clients_stopped.send_replace(true);
        join_tasks(self.http.take()).await;
        let (stopping, stopped) = oneshot::channel::<()>();
        let shared = Arc::clone(&self.shared);
        let stop = move || {
            shared.stop_journal();
            // `shared` holds the lock of the data directory. The thread drops `shared` before
            // `stop` returns, because the caller may start the next server then.
            drop(shared);
            drop(stopping);
        };
        match std::thread::Builder::new().name("zoolock-stop".to_owned()).spawn(stop) {
            Ok(_) => drop(stopped.await),
            // The system cannot start a thread. Blocking here delays no task of the server, because all of them have
            // ended.
            Err(_) => self.shared.stop_journal(),
        }
    }
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerHandle")
            .field("addr", &self.addr)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

async fn join_tasks(tasks: impl IntoIterator<Item = JoinHandle<()>>) {
    for task in tasks {
        if let Err(error) = task.await
            && error.is_panic()
        {
            tracing::error!(%error, "a server task panicked");
        }
    }
}

impl Drop for ServerHandle {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.clients_stopped.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn core_panic_stops_server_and_is_reported() {
        let mut server =
            Server::builder().listen(([127, 0, 0, 1], 0).into()).start().await.expect("a free port");
        let shared = Arc::clone(&server.shared);
        let panicked = std::thread::spawn(move || {
            let _inner = shared.lock();
            panic!("a bug");
        });
        assert!(panicked.join().is_err());
        // The first connection detects the panic.
        let _client = tokio::net::TcpStream::connect(server.local_addr()).await.expect("server listens");
        let patience = Duration::from_secs(20);
        let why = tokio::time::timeout(patience, server.wait_for_failure()).await.expect("failure reported");
        assert!(why.contains("bug"), "{why}");
        tokio::time::timeout(patience, server.stop()).await.expect("server stops");
        assert!(tokio::net::TcpStream::connect(server.local_addr()).await.is_err());
    }
}
