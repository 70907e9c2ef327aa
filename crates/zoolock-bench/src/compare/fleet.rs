//! The servers that are up, and the delaying proxies before them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::plan::Network;
use crate::Outcome;
use crate::delay::Delay;
use crate::servers::{Kind, Running};

const PAUSE: Duration = Duration::from_millis(20);

/// Servers, started when they are first wanted.
pub(super) struct Fleet {
    zoolock: PathBuf,
    dir: PathBuf,
    rtt: Duration,
    // Before the servers, so that they end first.
    delays: BTreeMap<Kind, Delay>,
    servers: BTreeMap<Kind, Running>,
}

impl Fleet {
    pub(super) fn new(zoolock: PathBuf, dir: PathBuf, rtt: Duration) -> Self {
        Self { zoolock, dir, rtt, delays: BTreeMap::new(), servers: BTreeMap::new() }
    }

    /// Where to connect to.
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

    /// What has happened to a server, if anything; such a one is replaced.
    pub(super) fn trouble(&mut self, kind: Kind) -> Option<String> {
        let trouble = self.servers.get_mut(&kind)?.trouble()?;
        self.stop(kind);
        Some(trouble)
    }

    /// Ends a server.
    pub(super) fn stop(&mut self, kind: Kind) {
        self.delays.remove(&kind);
        self.servers.remove(&kind);
    }

    /// Ends them all.
    pub(super) fn stop_all(&mut self) {
        self.delays.clear();
        self.servers.clear();
    }

    async fn start(&mut self, kind: Kind) -> Outcome<SocketAddr> {
        if let Some(missing) = kind.missing(&self.zoolock) {
            return Err(missing.into());
        }
        let mut server = Running::launch(kind, &self.zoolock, &self.dir)?;
        while !server.serves()? {
            tokio::time::sleep(PAUSE).await;
        }
        let addr = server.addr;
        self.servers.insert(kind, server);
        Ok(addr)
    }
}
