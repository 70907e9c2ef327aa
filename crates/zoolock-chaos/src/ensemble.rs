//! Three Apache ZooKeepers on loopback that reach each other by links only.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tokio::time::{Instant, sleep, timeout};
use zoolock_tests::four_letter::four_letter;
use zoolock_tests::ports::Port;

use crate::Outcome;
use crate::link::{Fault, Link};

/// So many nodes.
pub(crate) const NODES: usize = 3;
/// The tick of the ensemble, and after how many of them a follower is given up, unless it is said otherwise.
pub(crate) const TICK: Duration = Duration::from_millis(500);
pub(crate) const SYNC_LIMIT: u32 = 5;
const JARS: &str = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";
const PROBE: Duration = Duration::from_millis(500);

/// What a node is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Leader,
    Follower,
    /// It does not serve, or does not answer.
    None,
}

/// The nodes and all ways between them; they end with this value.
pub(crate) struct Ensemble {
    nodes: Vec<Node>,
    /// `ways[from][to]`: for the quorum and for elections.
    ways: Vec<Vec<Vec<Link>>>,
}

struct Node {
    dir: PathBuf,
    client: Port,
    config: String,
    child: Option<Child>,
}

impl Ensemble {
    /// Writes the configuration of each node and opens the ways. Nothing is started.
    pub(crate) async fn lay_out(dir: &Path, sync_limit: u32) -> Outcome<Self> {
        let mut own = Vec::new();
        for _ in 0..NODES {
            own.push((Port::reserve()?, [Port::reserve()?, Port::reserve()?]));
        }
        // Each names the ways to it before they are open: whoever is called back comes by one of them.
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
        let mut ways = Vec::new();
        for (from, row) in gates.into_iter().enumerate() {
            let mut links = Vec::new();
            for (to, gate) in row.into_iter().enumerate() {
                let Some([quorum, election]) = gate else {
                    links.push(Vec::new());
                    continue;
                };
                let [to_quorum, to_election] = addrs(&own[to].1);
                let back = seen[to][from][1];
                links.push(vec![
                    Link::open(quorum, to_quorum, None, Duration::from_secs(3)).await?,
                    Link::open(election, to_election, Some(back), Duration::ZERO).await?,
                ]);
            }
            ways.push(links);
        }
        let mut nodes = Vec::new();
        for (at, (client, _)) in own.into_iter().enumerate() {
            let dir = dir.join(format!("node{}", at + 1));
            std::fs::create_dir_all(dir.join("data"))?;
            std::fs::write(dir.join("data/myid"), (at + 1).to_string())?;
            let mut config = format!(
                "tickTime={}\ninitLimit=10\nsyncLimit={sync_limit}\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\n\
                 maxClientCnxns=0\n4lw.commands.whitelist=*\nadmin.enableServer=false\n",
                TICK.as_millis(),
                dir.join("data").display(),
                client.number(),
            );
            for (to, [quorum, election]) in seen[at].iter().enumerate() {
                config += &format!("server.{}=127.0.0.1:{}:{}\n", to + 1, quorum.port(), election.port());
            }
            nodes.push(Node { dir, client, config, child: None });
        }
        Ok(Ensemble { nodes, ways })
    }

    /// Where clients reach a node past all links.
    pub(crate) fn client_addr(&self, node: usize) -> SocketAddr {
        self.nodes[node].client.addr()
    }

    /// All of them, for a client that is not broken.
    pub(crate) fn connect_string(&self) -> String {
        let addrs = self.nodes.iter().map(|node| node.client.addr().to_string());
        addrs.collect::<Vec<_>>().join(",")
    }

    /// Starts a node unless it runs.
    pub(crate) fn start(&mut self, node: usize) -> Outcome<()> {
        let node = &mut self.nodes[node];
        if node.runs() {
            return Ok(());
        }
        std::fs::write(node.dir.join("zoo.cfg"), &node.config)?;
        let log = node.log()?;
        let mut command = Command::new("java");
        command
            .args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            .args(["-Djava.net.preferIPv4Stack=true", "-Dzookeeper.cnxTimeout=1000"])
            .args([
                "-Dzookeeper.fastleader.minNotificationInterval=200",
                "-Dzookeeper.fastleader.maxNotificationInterval=1000",
            ])
            .args([
                "-Dorg.slf4j.simpleLogger.showDateTime=true",
                "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            ])
            .args(["-cp", JARS, "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zoo.cfg"])
            .current_dir(&node.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // An interrupt at the terminal is for us, and we end them.
            .process_group(0);
        node.child = Some(command.spawn().map_err(|error| format!("starting java: {error}"))?);
        Ok(())
    }

    /// Sends a signal to a node that runs.
    pub(crate) fn signal(&mut self, node: usize, signal: Signal) {
        if let Some(child) = self.nodes[node].running() {
            // Until it is waited for, the number is our child's.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Ends a node with this signal and waits for it.
    pub(crate) async fn end(&mut self, node: usize, signal: Signal) {
        self.signal(node, signal);
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.nodes[node].runs() {
            if Instant::now() > deadline {
                self.signal(node, Signal::KILL);
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Forbids a node to write files beyond so many bytes, or lets it again. The kernel then refuses a write as it does
    /// on a full disk, with another number of the error.
    pub(crate) fn limit_files(&mut self, node: usize, bytes: Option<u64>) {
        if let Some(child) = self.nodes[node].running() {
            let limit = Rlimit { current: bytes, maximum: None };
            let _ = prlimit(Some(Pid::from_child(child)), Resource::Fsize, limit);
        }
    }

    /// Ends a node and takes its data away.
    ///
    /// ZooKeeper 3.8 goes on without a word where its disk was full and is not any more: what it could not write is missing
    /// in its log, and from its next start on in its tree. It then serves znodes that were deleted long ago: seen here, a
    /// lock that nobody held and nobody got.
    pub(crate) async fn wipe(&mut self, node: usize) -> Outcome<()> {
        self.end(node, Signal::KILL).await;
        Ok(std::fs::remove_dir_all(self.nodes[node].dir.join("data/version-2"))?)
    }

    /// What a node says it is.
    pub(crate) async fn role(&self, node: usize) -> Role {
        match timeout(PROBE, four_letter(self.client_addr(node), "srvr")).await {
            Ok(Ok(answer)) if answer.contains("Mode: leader") => Role::Leader,
            Ok(Ok(answer)) if answer.contains("Mode: follower") => Role::Follower,
            _ => Role::None,
        }
    }

    /// The node that leads; where two say so, or none, it is asked again.
    pub(crate) async fn leader(&self, patience: Duration) -> Outcome<usize> {
        let deadline = Instant::now() + patience;
        loop {
            let mut leaders = Vec::new();
            for node in 0..NODES {
                if self.role(node).await == Role::Leader {
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

    /// Waits until a leader and two followers serve. Starts whoever ended by itself.
    pub(crate) async fn whole(&mut self, patience: Duration) -> Outcome<()> {
        let deadline = Instant::now() + patience;
        loop {
            let mut roles = Vec::new();
            for node in 0..NODES {
                self.start(node)?;
                roles.push(self.role(node).await);
            }
            let leaders = roles.iter().filter(|role| **role == Role::Leader).count();
            if leaders == 1 && !roles.contains(&Role::None) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the ensemble is not whole after {patience:?}: {roles:?}").into());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sets what is wrong with what `from` says to `to`, whoever of them connected.
    pub(crate) fn silence(&self, from: usize, to: usize) {
        for link in &self.ways[from][to] {
            link.set(Fault { no_way_forth: true, ..link.fault() });
        }
        for link in &self.ways[to][from] {
            link.set(Fault { no_way_back: true, ..link.fault() });
        }
    }

    /// Makes everything between two nodes late.
    pub(crate) fn slow(&self, one: usize, other: usize, delay: Duration) {
        for link in self.ways[one][other].iter().chain(&self.ways[other][one]) {
            link.set(Fault { delay, ..link.fault() });
        }
    }

    /// Opens all ways.
    pub(crate) fn open_ways(&self) {
        for link in self.ways.iter().flatten().flatten() {
            link.set(Fault::default());
        }
    }

    /// The last lines of what a node logged.
    pub(crate) fn said(&self, node: usize) -> String {
        let log = std::fs::read(self.nodes[node].dir.join("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Node {
    fn log(&self) -> std::io::Result<File> {
        OpenOptions::new().create(true).append(true).open(self.dir.join("log"))
    }

    fn running(&mut self) -> Option<&mut Child> {
        if self.runs() { self.child.as_mut() } else { None }
    }

    fn runs(&mut self) -> bool {
        match &mut self.child {
            Some(child) => matches!(child.try_wait(), Ok(None)),
            None => false,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
