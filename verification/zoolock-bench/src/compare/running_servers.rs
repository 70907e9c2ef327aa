//! The running servers, and their delaying proxies.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use zoolock_tests::Proxy;
use zoolock_tests::ports::Port;
use zoolock_tests::proxy::{ProxiedProtocol, ProxySettings};

use super::plan::Network;
use crate::Outcome;
use crate::servers::{RunningServer, ServerKind};

const PAUSE: Duration = Duration::from_millis(20);

/// Servers, started on first use.
pub(super) struct Fleet {
    zoolock: PathBuf,
    dir: PathBuf,
    rtt: Duration,
    // Declared before the servers, so that the proxies are dropped first.
    delays: BTreeMap<ServerKind, Proxy>,
    servers: BTreeMap<ServerKind, RunningServer>,
}

impl Fleet {
    pub(super) fn new(zoolock: PathBuf, dir: PathBuf, rtt: Duration) -> Self {
        Self { zoolock, dir, rtt, delays: BTreeMap::new(), servers: BTreeMap::new() }
    }

    /// Returns the address to connect to.
    pub(super) async fn address(&mut self, kind: ServerKind, network: Network) -> Outcome<SocketAddr> {
        let addr = match self.servers.get(&kind) {
            Some(server) => server.addr,
            None => self.start(kind).await?,
        };
        if network == Network::Loopback {
            return Ok(addr);
        }
        if !self.delays.contains_key(&kind) {
            let (port, protocol) = (Port::reserve()?, ProxiedProtocol::Any);
            let settings = ProxySettings { port, upstream: addr, protocol, patience: Duration::ZERO };
            let proxy = Proxy::start_with(settings).await;
            proxy.delay(self.rtt / 2);
            self.delays.insert(kind, proxy);
        }
        Ok(self.delays[&kind].socket_addr())
    }

    /// Returns the problem of a server, if the server has failed. Stops a failed server, so that the next job starts a
    /// new one.
    pub(super) fn stop_if_failed(&mut self, kind: ServerKind) -> Option<String> {
        let trouble = self.servers.get_mut(&kind)?.visible_problem()?;
        self.stop(kind);
        Some(trouble)
    }

    /// Kills a server and its proxy.
    pub(super) fn stop(&mut self, kind: ServerKind) {
        self.delays.remove(&kind);
        self.servers.remove(&kind);
    }

    /// Kills all servers and proxies.
    pub(super) fn stop_all(&mut self) {
        self.delays.clear();
        self.servers.clear();
    }

    async fn start(&mut self, kind: ServerKind) -> Outcome<SocketAddr> {
        if let Some(missing) = kind.missing(&self.zoolock) {
            return Err(missing.into());
        }
        let mut server = RunningServer::launch(kind, &self.zoolock, &self.dir)?;
        while !server.check_serving()? {
            tokio::time::sleep(PAUSE).await;
        }
        let addr = server.addr;
        self.servers.insert(kind, server);
        Ok(addr)
    }
}
