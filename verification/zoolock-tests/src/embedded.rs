//! The embedded server on its own threads, so that a test can kill it like a process.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tempfile::TempDir;
use zoolock_server::{ClientCertificates, Limits, ServerHandle, TlsConfig};

use crate::own_runtime::OwnRuntime;
use crate::ports::Port;
use crate::{Result, ServerOptions, TestFailure, lock};

/// A running embedded server. Dropping this value kills the server.
#[derive(Debug)]
pub struct Embedded {
    options: ServerOptions,
    /// The maximum session timeout that the server grants. [`Embedded::restart_with_limit`] changes it.
    longest_session: Mutex<Duration>,
    port: Port,
    secure: Option<Port>,
    dir: TempDir,
    running: Mutex<Option<RunningEmbedded>>,
}

#[derive(Debug)]
struct RunningEmbedded {
    // The first field is dropped first. So a kill ends the tasks before the handle can ask them to shut down.
    _runtime: OwnRuntime,
    handle: ServerHandle,
}

impl Embedded {
    /// Starts a server with an empty tree.
    ///
    /// # Errors
    /// Fails if the server cannot start.
    pub async fn start(options: ServerOptions) -> Result<Self> {
        let dir = TempDir::new()
            .map_err(|error| TestFailure::during("making a directory for the server", error))?;
        let secure = options.tls.is_some().then(Port::reserve).transpose()?;
        let longest_session = Mutex::new(options.max_session_timeout);
        let server =
            Self { options, longest_session, port: Port::reserve()?, secure, dir, running: Mutex::new(None) };
        server.launch().await?;
        Ok(server)
    }

    /// Returns the address on which the server listens.
    pub fn socket_addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Returns the options with which the server was started.
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Returns the address of the server's TLS port, if it has one.
    pub fn secure_addr(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(Port::addr)
    }

    /// Calls `look` with the handle of the running server.
    ///
    /// # Panics
    /// Panics if the server is down.
    pub fn inspect<T>(&self, look: impl FnOnce(&ServerHandle) -> T) -> T {
        let running = self.running();
        look(&running.as_ref().expect("the server runs").handle)
    }

    /// Kills the server: drops all its tasks, which breaks its connections.
    pub async fn kill(&self) {
        let running = self.running().take();
        drop(running);
    }

    /// Starts the server again with the same port and data. Kills it first if it runs.
    ///
    /// # Errors
    /// Fails like [`Embedded::start`].
    pub async fn restart(&self) -> Result<()> {
        self.kill().await;
        self.launch().await
    }

    /// Restarts the server like [`Self::restart`], with `longest` as its new maximum session timeout.
    ///
    /// # Errors
    /// Fails like [`Self::restart`].
    pub async fn restart_with_limit(&self, longest: Duration) -> Result<()> {
        *lock(&self.longest_session) = longest;
        self.restart().await
    }

    async fn launch(&self) -> Result<()> {
        let runtime = OwnRuntime::new("embedded", 2);
        let longest_session = *lock(&self.longest_session);
        let mut builder = zoolock_server::Server::builder()
            .listen(self.socket_addr())
            .data_dir(self.dir.path().join("data"))
            // The Apache ZooKeeper of the tests allows all words too.
            .words(zoolock_server::FourLetterWord::ALL)
            .tick(self.options.tick)
            .max_session_timeout(longest_session)
            .max_connections_per_address(self.options.max_client_connections)
            .container_check(self.options.container_check)
            .limits(Limits { min_session_timeout: self.options.min_session_timeout, ..Limits::default() });
        if let Some(digest) = &self.options.super_digest {
            builder = builder.super_digest(digest.as_str());
        }
        if let (Some(secure), Some(authority)) = (&self.secure, &self.options.tls) {
            let server = authority.server();
            let clients = match authority.demands_client_certificates() {
                true => ClientCertificates::Required,
                false => ClientCertificates::None,
            };
            let config = TlsConfig::new(server.certificate, server.key).client_ca(authority.ca(), clients);
            builder = builder.tls(secure.addr(), config);
        }
        let started = runtime.handle().spawn(builder.start()).await;
        let started = started.expect("the start of a server does not panic");
        let handle = started.map_err(|error| TestFailure::during("starting the embedded server", error))?;
        *self.running() = Some(RunningEmbedded { _runtime: runtime, handle });
        Ok(())
    }

    fn running(&self) -> MutexGuard<'_, Option<RunningEmbedded>> {
        lock(&self.running)
    }
}
