//! The running servers, and their delaying proxies.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::plan::Network;
use crate::Outcome;
use crate::delay::Delay;
use crate::servers::{Kind, Running};

const PAUSE: Duration = Duration::from_millis(20);

/// Servers, started on first use.
pub(super) struct Fleet {
    zoolock: PathBuf,
    dir: PathBuf,
    rtt: Duration,
    // Declared before the servers, so that the proxies are dropped first.
    delays: BTreeMap<Kind, Delay>,
    servers: BTreeMap<Kind, Running>,
}

impl Fleet {
    pub(super) fn new(zoolock: PathBuf, dir: PathBuf, rtt: Duration) -> Self {
        Self { zoolock, dir, rtt, delays: BTreeMap::new(), servers: BTreeMap::new() }
    }

    /// Returns the address to connect to.
    pub(super) async fn address(&mut self, kind: Kind, network: Network) -> Outcome<SocketAddr> {
        let addr = match self.servers.get(&kind) {
            Some(server) => server.addr,
            None => self.start(kind).await?,
        };
        if network == Network::Loopback {
            return Ok(addr);
        }
        if !self.delays.contains_key(&kind) {
            self.delays.insert(kind, Delay::start(addr, self.rtt)?);
        }
        Ok(self.delays[&kind].addr)
    }

    /// Returns the trouble of a server, if there is any. Stops such a server, so that it is started anew.
    pub(super) fn stop_if_failed(&mut self, kind: Kind) -> Option<String> {
        let trouble = self.servers.get_mut(&kind)?.trouble()?;
        self.stop(kind);
        Some(trouble)
    }

    /// Kills a server and its proxy.
    pub(super) fn stop(&mut self, kind: Kind) {
        self.delays.remove(&kind);
        self.servers.remove(&kind);
    }

    /// Kills all servers and proxies.
    pub(super) fn stop_all(&mut self) {
        self.delays.clear();
        self.servers.clear();
    }

    async fn start(&mut self, kind: Kind) -> Outcome<SocketAddr> {
        if let Some(missing) = kind.missing(&self.zoolock) {
            return Err(missing.into());
        }
        let mut server = Running::launch(kind, &self.zoolock, &self.dir)?;
        while !server.check_serving()? {
            tokio::time::sleep(PAUSE).await;
        }
        let addr = server.addr;
        self.servers.insert(kind, server);
        Ok(addr)
    }
}
