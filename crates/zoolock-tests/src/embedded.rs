//! Our own server, on threads of its own, so that it can be killed as a process is.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;
use zoolock_server::{ClientCertificates, Limits, ServerHandle, TlsConfig};

use crate::own_runtime::OwnRuntime;
use crate::ports::Port;
use crate::{Failure, Result, ServerOptions};

/// A running embedded server; dropping it kills it.
#[derive(Debug)]
pub struct Embedded {
    options: ServerOptions,
    port: Port,
    secure: Option<Port>,
    dir: TempDir,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    // First, so that a kill takes the tasks away before the handle can ask them for anything.
    runtime: OwnRuntime,
    handle: ServerHandle,
}

impl Embedded {
    /// Starts a server with an empty tree.
    ///
    /// # Errors
    /// What the server says when it cannot start.
    pub async fn start(options: ServerOptions) -> Result<Self> {
        let dir =
            TempDir::new().map_err(|error| Failure::during("making a directory for the server", error))?;
        let secure = options.tls.is_some().then(Port::reserve).transpose()?;
        let server = Self { options, port: Port::reserve()?, secure, dir, running: Mutex::new(None) };
        server.launch().await?;
        Ok(server)
    }

    /// Where it listens.
    pub fn socket_addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// As it was asked for.
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Where it listens for TLS, if it does.
    pub fn secure_addr(&self) -> Option<SocketAddr> {
        self.secure.as_ref().map(Port::addr)
    }

    /// Looks into the running server, past the wire.
    ///
    /// # Panics
    /// When it is down.
    pub fn inspect<T>(&self, look: impl FnOnce(&ServerHandle) -> T) -> T {
        let running = self.running();
        look(&running.as_ref().expect("a test looks only into a server that runs").handle)
    }

    /// Drops all its tasks where they stand: connections break, nothing is said goodbye to.
    pub async fn kill(&self) {
        let running = self.running().take();
        drop(running);
    }

    /// Shuts it down in good order.
    pub async fn stop(&self) {
        let running = self.running().take();
        if let Some(Running { runtime, handle }) = running {
            let ended = runtime.handle().spawn(handle.shutdown()).await;
            ended.expect("a server that is asked to stop does not panic");
        }
    }

    /// Starts it again on the same port and the same data directory; kills it first where it runs.
    ///
    /// # Errors
    /// As [`Embedded::start`].
    pub async fn restart(&self) -> Result<()> {
        self.kill().await;
        self.launch().await
    }

    async fn launch(&self) -> Result<()> {
        let runtime = OwnRuntime::new("embedded", 2);
        let mut builder = zoolock_server::Server::builder()
            .listen(self.socket_addr())
            .data_dir(self.dir.path().join("data"))
            // As on the other arm.
            .words(zoolock_server::Word::ALL)
            .tick(self.options.tick)
            .max_session_timeout(self.options.max_session_timeout)
            .container_check(self.options.container_check)
            .limits(Limits { min_session_timeout: self.options.min_session_timeout, ..Limits::default() });
        if let Some(digest) = &self.options.super_digest {
            builder = builder.super_digest(digest.as_str());
        }
        if let (Some(secure), Some(authority)) = (&self.secure, &self.options.tls) {
            let server = authority.server();
            let clients = match authority.asks() {
                true => ClientCertificates::Required,
                false => ClientCertificates::None,
            };
            let config = TlsConfig::new(server.certificate, server.key).client_ca(authority.ca(), clients);
            builder = builder.tls(secure.addr(), config);
        }
        let started = runtime.handle().spawn(builder.start()).await;
        let started = started.expect("a server that starts does not panic");
        let handle = started.map_err(|error| Failure::during("starting the embedded server", error))?;
        *self.running() = Some(Running { runtime, handle });
        Ok(())
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
