//! Three Apache ZooKeeper nodes on loopback, which reach each other through links only.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};
use zoolock_tests::apache::{self, EnsembleMember};
use zoolock_tests::four_letter::send_four_letter_word;
use zoolock_tests::ports::Port;
use zoolock_tests::process::last_lines;
use zoolock_tests::proxy::{LinkFault, ProxiedProtocol, ProxySettings};
use zoolock_tests::{Proxy, ServerOptions, ServerProcess};

use crate::Outcome;

/// The number of nodes.
pub(crate) const NODES: usize = 3;
/// The tick of the ensemble.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// The usual number of ticks after which the leader gives up a follower.
pub(crate) const SYNC_LIMIT: u32 = 5;
/// The longest time in which three Java virtual machines start on a busy machine.
pub(crate) const START: Duration = Duration::from_secs(120);
/// The longest time after healing until a leader and two followers serve.
pub(crate) const WHOLE: Duration = Duration::from_secs(60);
/// The longest session timeout that a node grants.
const LONGEST_SESSION: Duration = Duration::from_secs(40);
const PROBE: Duration = Duration::from_millis(500);

/// The current role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRole {
    Leader,
    Follower,
    /// The node does not serve or answer.
    None,
}

/// The nodes, and all links between them. Dropping the ensemble kills the nodes.
pub(crate) struct Ensemble {
    nodes: Vec<EnsembleNode>,
    /// `links[from][to]` has two links from one node to another: for the quorum and for elections.
    links: Vec<Vec<Vec<Proxy>>>,
}

struct EnsembleNode {
    dir: PathBuf,
    client: Port,
    member: EnsembleMember,
    options: ServerOptions,
    process: Option<ServerProcess>,
}

impl Ensemble {
    /// Chooses the ports of each node and opens the links. Starts no node.
    pub(crate) async fn configure(dir: &Path, sync_limit: u32) -> Outcome<Self> {
        let mut own = Vec::new();
        for _ in 0..NODES {
            own.push((Port::reserve()?, [Port::reserve()?, Port::reserve()?]));
        }
        // All ports are reserved before the first link opens: a link for elections needs the address of the link in
        // the other direction.
        let mut gates: Vec<Vec<Option<[Port; 2]>>> = Vec::new();
        for from in 0..NODES {
            let gate = |to| Ok((from != to).then_some([Port::reserve()?, Port::reserve()?]));
            gates.push((0..NODES).map(gate).collect::<Outcome<_>>()?);
        }
        let addrs = |ports: &[Port; 2]| [ports[0].addr(), ports[1].addr()];
        let seen: Vec<Vec<[SocketAddr; 2]>> = (0..NODES)
            .map(|from| {
                let one = |to: usize| gates[from][to].as_ref().map_or_else(|| addrs(&own[to].1), addrs);
                (0..NODES).map(one).collect()
            })
            .collect();
        let mut links = Vec::new();
        for (from, row) in gates.into_iter().enumerate() {
            let mut outgoing = Vec::new();
            for (to, gate) in row.into_iter().enumerate() {
                let Some([quorum, election]) = gate else {
                    outgoing.push(Vec::new());
                    continue;
                };
                let [to_quorum, to_election] = addrs(&own[to].1);
                let back = seen[to][from][1];
                let quorum = ProxySettings {
                    port: quorum,
                    upstream: to_quorum,
                    protocol: ProxiedProtocol::Any,
                    // A new leader starts to listen a little after its followers connect. A follower retries after a
                    // refusal, but begins a new election if its connection is accepted and closed.
                    patience: Duration::from_secs(3),
                };
                let election = ProxySettings {
                    port: election,
                    upstream: to_election,
                    protocol: ProxiedProtocol::Election { return_address: back },
                    patience: Duration::ZERO,
                };
                outgoing.push(vec![Proxy::start_with(quorum).await, Proxy::start_with(election).await]);
            }
            links.push(outgoing);
        }
        let mut nodes = Vec::new();
        for (at, ((client, _), servers)) in own.into_iter().zip(seen).enumerate() {
            let dir = dir.join(format!("node{}", at + 1));
            let member = EnsembleMember { number: at + 1, init_limit: 10, sync_limit, servers };
            nodes.push(EnsembleNode { dir, client, member, options: options(), process: None });
        }
        Ok(Ensemble { nodes, links })
    }

    /// Returns the client address of a node. Connections to this address bypass all links.
    pub(crate) fn client_addr(&self, node: usize) -> SocketAddr {
        self.nodes[node].client.addr()
    }

    /// Returns the client addresses of all nodes. Connections to these addresses bypass all links.
    pub(crate) fn connect_string(&self) -> String {
        let addrs = self.nodes.iter().map(|node| node.client.addr().to_string());
        addrs.collect::<Vec<_>>().join(",")
    }

    /// Starts a node unless it runs.
    pub(crate) fn start(&mut self, node: usize) -> Outcome<()> {
        let node = &mut self.nodes[node];
        if node.running().is_some() {
            return Ok(());
        }
        let mut command =
            apache::command(&node.dir, node.client.addr(), None, &node.options, Some(&node.member))?;
        // In its own process group, the node gets no interrupt from the terminal. This process stops it.
        command.process_group(0);
        node.process = Some(ServerProcess::start(command, &node.log())?);
        Ok(())
    }

    /// Sets the longest session timeout that a node grants from its next start on. `None` sets the usual one.
    pub(crate) fn set_longest_session(&mut self, node: usize, longest: Option<Duration>) {
        self.nodes[node].options.max_session_timeout = longest.unwrap_or(LONGEST_SESSION);
    }

    /// Sends a signal to a node if it runs.
    pub(crate) fn signal(&self, node: usize, signal: Signal) {
        if let Some(process) = self.nodes[node].running() {
            process.signal(signal);
        }
    }

    /// Sends SIGSTOP to a node, and waits until it has stopped. Before that, it can still handle requests.
    pub(crate) async fn stop(&self, node: usize) -> Outcome<()> {
        Ok(self.nodes[node].running().ok_or("the node does not run")?.stop().await?)
    }

    /// Ends a node with this signal, and waits until it has ended. Kills it after five seconds.
    pub(crate) async fn end_node(&self, node: usize, signal: Signal) {
        if let Some(process) = self.nodes[node].running() {
            process.end(signal, Duration::from_secs(5)).await;
        }
    }

    /// Sets or removes the limit on the size of the files that a node writes, in bytes.
    pub(crate) fn limit_file_size(&self, node: usize, bytes: Option<u64>) {
        if let Some(process) = self.nodes[node].running() {
            process.limit_file_size(bytes);
        }
    }

    /// Ends a node and deletes its data.
    ///
    /// ZooKeeper 3.8 continues silently after its disk was full. The transactions that it could not
    /// write are missing in its log, and after its next start also in its tree. Then it serves
    /// znodes that were deleted long ago. In one run, a lock therefore had no holder, and yet none
    /// of its waiters acquired it.
    pub(crate) async fn wipe(&self, node: usize) -> Outcome<()> {
        self.end_node(node, Signal::KILL).await;
        Ok(std::fs::remove_dir_all(self.nodes[node].dir.join("data/version-2"))?)
    }

    /// Asks a node for its role.
    pub(crate) async fn role(&self, node: usize) -> NodeRole {
        match timeout(PROBE, send_four_letter_word(self.client_addr(node), "srvr")).await {
            Ok(Ok(answer)) if answer.contains("Mode: leader") => NodeRole::Leader,
            Ok(Ok(answer)) if answer.contains("Mode: follower") => NodeRole::Follower,
            _ => NodeRole::None,
        }
    }

    /// Returns the leader. Asks again while no node, or more than one, reports that it leads.
    pub(crate) async fn leader(&self, patience: Duration) -> Outcome<usize> {
        let deadline = Instant::now() + patience;
        loop {
            let mut leaders = Vec::new();
            for node in 0..NODES {
                if self.role(node).await == NodeRole::Leader {
                    leaders.push(node);
                }
            }
            match leaders[..] {
                [leader] => return Ok(leader),
                _ if Instant::now() > deadline => return Err("no leader".into()),
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Waits until a leader and two followers serve. Starts nodes that do not run.
    pub(crate) async fn wait_until_whole(&mut self, patience: Duration) -> Outcome<()> {
        let deadline = Instant::now() + patience;
        loop {
            let mut roles = Vec::new();
            for node in 0..NODES {
                self.start(node)?;
                roles.push(self.role(node).await);
            }
            let leaders = roles.iter().filter(|role| **role == NodeRole::Leader).count();
            if leaders == 1 && !roles.contains(&NodeRole::None) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the ensemble is not whole after {patience:?}: {roles:?}").into());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Blocks all messages from node `from` to node `to`, on the connections that either node opened.
    pub(crate) fn block_messages(&self, from: usize, to: usize) {
        for link in &self.links[from][to] {
            link.set_fault(LinkFault { blocks_requests: true, ..link.fault() });
        }
        for link in &self.links[to][from] {
            link.set_fault(LinkFault { blocks_replies: true, ..link.fault() });
        }
    }

    /// Delays all messages between two nodes.
    pub(crate) fn delay_messages(&self, one: usize, other: usize, delay: Duration) {
        for link in self.links[one][other].iter().chain(&self.links[other][one]) {
            link.set_fault(LinkFault { delay, ..link.fault() });
        }
    }

    /// Opens all links between nodes.
    pub(crate) fn open_links(&self) {
        for link in self.links.iter().flatten().flatten() {
            link.set_fault(LinkFault::default());
        }
    }

    /// Returns the last lines of a node's log.
    pub(crate) fn log_tail(&self, node: usize) -> String {
        last_lines(&self.nodes[node].log(), 20)
    }
}

/// Copies the logs of all nodes, whose directories are in `dir`.
pub(crate) fn save_logs(dir: &Path, out: &Path) -> Outcome<()> {
    for node in 1..=NODES {
        std::fs::copy(dir.join(format!("node{node}/log")), out.join(format!("node{node}.log")))?;
    }
    Ok(())
}

impl EnsembleNode {
    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Returns the process, if it runs.
    fn running(&self) -> Option<&ServerProcess> {
        self.process.as_ref().filter(|process| process.exit_status().is_none())
    }
}

/// Returns the options of all nodes.
fn options() -> ServerOptions {
    let properties = [
        "zookeeper.cnxTimeout=1000",
        "zookeeper.fastleader.minNotificationInterval=200",
        "zookeeper.fastleader.maxNotificationInterval=1000",
        "org.slf4j.simpleLogger.showDateTime=true",
        "org.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    ];
    ServerOptions {
        tick: TICK,
        max_session_timeout: LONGEST_SESSION,
        properties: properties.map(str::to_owned).to_vec(),
        ..ServerOptions::default()
    }
}
