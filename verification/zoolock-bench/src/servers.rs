//! The servers, started as users start them, each in processes of its own.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use zoolock_tests::apache::{self, Availability, EnsembleMember};
use zoolock_tests::ports::Port;
use zoolock_tests::{ServerOptions, ServerProcess};

use crate::Outcome;
use crate::blocking_client::BlockingClient;

const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for one probe of a starting server.
const PROBE: Duration = Duration::from_millis(50);
/// The number of servers in the ensemble.
const NODES: usize = 3;

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ServerKind {
    /// `zoolock serve --data DIR`.
    Ours,
    /// Apache ZooKeeper with the settings of Debian's package: a heap of at most 1000 MB, fsync on.
    Apache,
    /// An ensemble of three Apache ZooKeepers. All clients connect to the same follower.
    Ensemble,
    /// Redis without persistence.
    Redis,
    /// Redis that syncs each write before it answers.
    RedisSynced,
    /// etcd, one node, with its defaults: fsync on.
    Etcd,
}

impl ServerKind {
    /// The kinds that use ZooKeeper's protocol and consist of one server, in the order in which
    /// they are measured.
    pub(crate) const ZOOKEEPER: [ServerKind; 2] = [ServerKind::Ours, ServerKind::Apache];

    /// Returns the name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            ServerKind::Ours => "zoolock serve",
            ServerKind::Apache => "ZooKeeper",
            ServerKind::Ensemble => "three ZooKeepers",
            ServerKind::Redis => "Redis, no fsync",
            ServerKind::RedisSynced => "Redis, fsync always",
            ServerKind::Etcd => "etcd",
        }
    }

    /// Returns the missing program or package, with advice, if the server cannot be started.
    pub(crate) fn missing(self, zoolock: &Path) -> Option<String> {
        match self {
            ServerKind::Ours if zoolock.is_file() => None,
            ServerKind::Ours => Some(format!("no {}, run `cargo build --release`", zoolock.display())),
            ServerKind::Apache | ServerKind::Ensemble => match apache::availability() {
                Availability::Available => None,
                Availability::Missing(what) => Some(what),
            },
            ServerKind::Redis | ServerKind::RedisSynced => missing_program("redis-server", "redis-server"),
            ServerKind::Etcd => missing_program("etcd", "etcd-server"),
        }
    }
}

fn missing_program(name: &str, package: &str) -> Option<String> {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let there = command.status().is_ok_and(|status| status.success());
    (!there).then(|| format!("no {name}, install the package {package}"))
}

/// A running server, started without data. Dropping it kills the server.
pub(crate) struct RunningServer {
    /// The address for clients.
    pub(crate) addr: SocketAddr,
    /// The time from the start to the first answer.
    pub(crate) start: Duration,
    kind: ServerKind,
    begun: Instant,
    nodes: Vec<NodeProcess>,
    // Declared last, so that the directory is deleted after the processes have ended.
    _dir: TempDir,
}

/// One server process.
struct NodeProcess {
    process: ServerProcess,
    addr: SocketAddr,
    _ports: Vec<Port>,
}

impl RunningServer {
    /// Starts a server, and waits until it serves.
    pub(crate) fn start(kind: ServerKind, zoolock: &Path, dir: &Path) -> Outcome<Self> {
        let mut running = RunningServer::launch(kind, zoolock, dir)?;
        while !running.check_serving()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(running)
    }

    /// Starts a server. It does not serve yet.
    pub(crate) fn launch(kind: ServerKind, zoolock: &Path, dir: &Path) -> Outcome<Self> {
        let dir = TempDir::with_prefix_in("zoolock-bench-", dir)?;
        let begun = Instant::now();
        let nodes = match kind {
            ServerKind::Ours => vec![start_single_node(dir.path(), |port, dir| {
                Ok(our_server_command(zoolock, port.addr(), dir))
            })?],
            ServerKind::Apache => {
                vec![start_single_node(dir.path(), |port, dir| {
                    Ok(apache::command(dir, port.addr(), None, &apache_options(), None)?)
                })?]
            }
            ServerKind::Ensemble => start_ensemble(dir.path())?,
            ServerKind::Redis => {
                vec![start_single_node(dir.path(), |port, dir| Ok(redis_command(port, dir, false)))?]
            }
            ServerKind::RedisSynced => {
                vec![start_single_node(dir.path(), |port, dir| Ok(redis_command(port, dir, true)))?]
            }
            ServerKind::Etcd => vec![start_etcd(dir.path())?],
        };
        let addr = nodes[0].addr;
        Ok(RunningServer { addr, start: Duration::ZERO, kind, begun, nodes, _dir: dir })
    }

    /// Returns whether the server serves already. Fails if a process has ended, or does not serve in time.
    pub(crate) fn check_serving(&mut self) -> Outcome<bool> {
        if self.nodes.iter().all(|node| is_serving(self.kind, node.addr)) {
            self.start = self.begun.elapsed();
            if self.kind == ServerKind::Ensemble {
                let follower = self.nodes.iter().map(|node| node.addr).find(|addr| is_follower(*addr));
                self.addr = follower.ok_or("no follower in the ensemble")?;
            }
            return Ok(true);
        }
        for node in &self.nodes {
            node.process.check_running()?;
        }
        if self.begun.elapsed() > PATIENCE {
            return Err(format!("{} does not serve after {PATIENCE:?}", self.kind.name()).into());
        }
        Ok(false)
    }

    /// Returns the process ID of the first process.
    pub(crate) fn pid(&self) -> u32 {
        self.nodes[0].process.pid()
    }

    /// Returns a visible problem of the server processes, if there is one.
    pub(crate) fn visible_problem(&self) -> Option<String> {
        self.nodes.iter().map(|node| &node.process).find_map(|process| {
            if process.log_tail(usize::MAX).contains("OutOfMemoryError") {
                return Some("the server ran out of memory".to_owned());
            }
            process.exit_status().map(|status| format!("the server ended with {status}"))
        })
    }
}

impl NodeProcess {
    fn start(mut command: Command, addr: SocketAddr, dir: &Path, ports: Vec<Port>) -> Outcome<Self> {
        // In its own process group, the server gets no interrupt from the terminal. The harness ends it.
        command.process_group(0);
        Ok(NodeProcess { process: ServerProcess::start(command, &dir.join("log.txt"))?, addr, _ports: ports })
    }
}

fn start_single_node(
    dir: &Path,
    command: impl FnOnce(&Port, &Path) -> Outcome<Command>,
) -> Outcome<NodeProcess> {
    let port = Port::reserve()?;
    NodeProcess::start(command(&port, dir)?, port.addr(), dir, vec![port])
}

fn our_server_command(zoolock: &Path, addr: SocketAddr, dir: &Path) -> Command {
    let mut command = Command::new(zoolock);
    command.arg("serve").arg("--listen").arg(addr.to_string()).arg("--data").arg(dir.join("data"));
    command
}

/// Returns the options of Apache ZooKeeper: those of Debian's package. Unlike the server of the tests, it may use its
/// just-in-time compiler fully.
fn apache_options() -> ServerOptions {
    ServerOptions {
        tick: Duration::from_secs(2),
        max_session_timeout: Duration::from_secs(40),
        heap: "1000m".to_owned(),
        words: "srvr,mntr".to_owned(),
        fast_start: false,
        properties: vec!["org.slf4j.simpleLogger.defaultLogLevel=off".to_owned()],
        ..ServerOptions::default()
    }
}

fn start_ensemble(dir: &Path) -> Outcome<Vec<NodeProcess>> {
    let mut ports = Vec::new();
    for _ in 0..NODES {
        ports.push([Port::reserve()?, Port::reserve()?, Port::reserve()?]);
    }
    let servers: Vec<_> =
        ports.iter().map(|[_, quorum, election]| [quorum.addr(), election.addr()]).collect();
    let mut nodes = Vec::new();
    for (at, ports) in ports.into_iter().enumerate() {
        let dir = dir.join((at + 1).to_string());
        let member =
            EnsembleMember { number: at + 1, init_limit: 10, sync_limit: 5, servers: servers.clone() };
        let addr = ports[0].addr();
        let command = apache::command(&dir, addr, None, &apache_options(), Some(&member))?;
        nodes.push(NodeProcess::start(command, addr, &dir, ports.into())?);
    }
    Ok(nodes)
}

fn redis_command(port: &Port, dir: &Path, synced: bool) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", ""]).arg("--port").arg(port.number().to_string());
    command.arg("--dir").arg(dir).arg("--appendonly").arg(if synced { "yes" } else { "no" });
    command.args(["--appendfsync", "always"]);
    command
}

fn start_etcd(dir: &Path) -> Outcome<NodeProcess> {
    let (port, peers) = (Port::reserve()?, Port::reserve()?);
    let (addr, clients, peer) =
        (port.addr(), format!("http://{}", port.addr()), format!("http://{}", peers.addr()));
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(dir.join("data"));
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    NodeProcess::start(command, addr, dir, vec![port, peers])
}

fn is_serving(kind: ServerKind, addr: SocketAddr) -> bool {
    match kind {
        // Apache ZooKeeper does not answer a client that connects too early, so each probe has a
        // time limit.
        ServerKind::Ours | ServerKind::Apache | ServerKind::Ensemble => {
            BlockingClient::connect_within(addr, PROBE).is_ok()
        }
        ServerKind::Redis | ServerKind::RedisSynced => ask_in_plain_text(addr, "PING\r\n").contains("PONG"),
        ServerKind::Etcd => ask_in_plain_text(addr, "GET /health HTTP/1.0\r\n\r\n").contains("true"),
    }
}

fn is_follower(addr: SocketAddr) -> bool {
    ask_in_plain_text(addr, "srvr").contains("Mode: follower")
}

/// Sends a question in plain text. Returns the beginning of the answer, or an empty text if there is no server.
fn ask_in_plain_text(addr: SocketAddr, question: &str) -> String {
    let answer = || {
        let mut socket = TcpStream::connect(addr)?;
        socket.set_read_timeout(Some(10 * PROBE))?;
        socket.write_all(question.as_bytes())?;
        let mut answer = vec![0; 4096];
        let mut filled = 0;
        while filled < answer.len() && !answer[..filled].starts_with(b"+PONG") {
            match socket.read(&mut answer[filled..])? {
                0 => break,
                read => filled += read,
            }
        }
        answer.truncate(filled);
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    answer().unwrap_or_default()
}
