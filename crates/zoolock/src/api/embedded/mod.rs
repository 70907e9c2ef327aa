//! A server in this process: for programs on one host, and for tests without an ensemble.

mod test_server;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use zoolock_client::limit_advice;
use zoolock_server::{Secret, Server, ServerHandle};

pub use self::test_server::TestServer;
use crate::api::builder::{Builder, LONGEST};
use crate::api::zoolock::Zoolock;
use crate::base::error::Error;
use crate::base::runtime_thread::RuntimeThread;

/// The default tick of an embedded server, as in ZooKeeper's sample configuration.
const TICK: std::time::Duration = std::time::Duration::from_secs(2);

impl Zoolock {
    /// Starts a server in this process and connects to it. The tasks of this program can use the
    /// locks of this server, which have all features of locks between hosts. The server writes
    /// nothing to disk. The server ends after the last clone of the client and the last guard are
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no port or thread is available.
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), zoolock::Error> {
    /// let zl = zoolock::Zoolock::embedded().await?;
    /// let guard = zl.mutex("nightly").lock().await?;
    /// assert!(zl.mutex("nightly").try_lock().await?.is_none());
    /// guard.release().await?;
    /// zl.close().await;
    /// # Ok(()) }
    /// ```
    pub async fn embedded() -> Result<Zoolock, Error> {
        Zoolock::builder().embedded().await
    }
}

impl Builder {
    /// Starts a server in this process and connects to it; see [`Zoolock::embedded`].
    ///
    /// # Errors
    /// As [`Builder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the server.
    pub async fn embedded(self) -> Result<Zoolock, Error> {
        // Other users of this machine can reach the port. The secret denies them access to these locks.
        let secret = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let tick = self.tick().unwrap_or(TICK);
        let server = Server::builder()
            .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .tick(tick)
            .max_session_timeout(LONGEST)
            .secret(Secret::new(secret.as_str()));
        let server = InProcessServer::start(server).await?;
        let address = server.handle.local_addr().to_string();
        self.tick_time(tick)
            .auth("digest", format!("{}:{secret}", Secret::USER))
            .open(&address, Some(Arc::new(server)))
            .await
    }
}

/// A server on a thread of its own, so that a caller that blocks its executor does not stall the server. Dropping this
/// ends the server.
struct InProcessServer {
    thread: RuntimeThread,
    handle: ServerHandle,
}

impl InProcessServer {
    async fn start(builder: zoolock_server::Builder) -> Result<InProcessServer, Error> {
        let failed = |message: String, error: Arc<dyn std::error::Error + Send + Sync>| Error::Unavailable {
            servers: Ipv4Addr::LOCALHOST.to_string(),
            message: format!("the embedded server {message}"),
            source: Some(error),
        };
        let thread = RuntimeThread::start("zoolock-server")
            .map_err(|error| failed(format!("has no thread: {error}"), Arc::new(error)))?;
        let started = thread.handle().spawn(builder.start()).await;
        let started = started.map_err(|error| failed(format!("did not start: {error}"), Arc::new(error)))?;
        let handle = started.map_err(|error| {
            let advice = match &error {
                zoolock_server::Error::Thread { source } => limit_advice(source),
                _ => None,
            };
            let advice = advice.map_or(String::new(), |advice| format!("; {advice}"));
            failed(format!("did not start: {error}{advice}"), Arc::new(error))
        })?;
        Ok(InProcessServer { thread, handle })
    }
}
