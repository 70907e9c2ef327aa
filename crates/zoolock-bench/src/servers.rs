//! The servers, started as users start them, each in processes of its own.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use zoolock_tests::ports::Port;

use crate::Outcome;
use crate::client::Client;

const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum time for one probe of a starting server.
const PROBE: Duration = Duration::from_millis(50);
/// The number of servers in the ensemble.
const NODES: usize = 3;

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
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

impl Kind {
    /// The kinds that speak ZooKeeper's protocol and run alone, in the order of their turns.
    pub(crate) const ZOOKEEPER: [Kind; 2] = [Kind::Ours, Kind::Apache];

    /// Returns its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Ours => "zoolock serve",
            Kind::Apache => "ZooKeeper",
            Kind::Ensemble => "three ZooKeepers",
            Kind::Redis => "Redis, no fsync",
            Kind::RedisSynced => "Redis, fsync always",
            Kind::Etcd => "etcd",
        }
    }

    /// Returns the missing program or package, with advice, if the server cannot be started.
    pub(crate) fn missing(self, zoolock: &Path) -> Option<String> {
        match self {
            Kind::Ours if zoolock.is_file() => None,
            Kind::Ours => Some(format!("no {}, run `cargo build --release`", zoolock.display())),
            Kind::Apache | Kind::Ensemble => match zoolock_tests::apache::availability() {
                zoolock_tests::apache::Availability::Available => None,
                zoolock_tests::apache::Availability::Missing(what) => Some(what),
            },
            Kind::Redis | Kind::RedisSynced => no_program("redis-server", "redis-server"),
            Kind::Etcd => no_program("etcd", "etcd-server"),
        }
    }
}

fn no_program(name: &str, package: &str) -> Option<String> {
    let mut command = Command::new(name);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let there = command.status().is_ok_and(|status| status.success());
    (!there).then(|| format!("no {name}, install the package {package}"))
}

/// A running server without data. It is killed when dropped.
pub(crate) struct Running {
    /// The address for clients.
    pub(crate) addr: SocketAddr,
    /// The time from the start to the first answer.
    pub(crate) start: Duration,
    kind: Kind,
    begun: Instant,
    nodes: Vec<Node>,
    // Declared last, so that it is dropped after the processes.
    _dir: TempDir,
}

/// One server process.
struct Node {
    child: Child,
    addr: SocketAddr,
    log: PathBuf,
    line: String,
    _ports: Vec<Port>,
}

impl Running {
    /// Starts a server and waits for its first session.
    pub(crate) fn start(kind: Kind, zoolock: &Path, dir: &Path) -> Outcome<Self> {
        let mut running = Running::launch(kind, zoolock, dir)?;
        while !running.check_serving()? {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(running)
    }

    /// Starts a server. It does not serve yet.
    pub(crate) fn launch(kind: Kind, zoolock: &Path, dir: &Path) -> Outcome<Self> {
        let dir = TempDir::with_prefix_in("zoolock-bench-", dir)?;
        let begun = Instant::now();
        let nodes = match kind {
            Kind::Ours => vec![single(dir.path(), |port, dir| Ok(ours(zoolock, port.addr(), dir)))?],
            Kind::Apache => {
                vec![single(dir.path(), |port, dir| apache(port.addr(), dir, ""))?]
            }
            Kind::Ensemble => ensemble(dir.path())?,
            Kind::Redis => vec![single(dir.path(), |port, dir| Ok(redis(port, dir, false)))?],
            Kind::RedisSynced => vec![single(dir.path(), |port, dir| Ok(redis(port, dir, true)))?],
            Kind::Etcd => vec![etcd(dir.path())?],
        };
        let addr = nodes[0].addr;
        Ok(Running { addr, start: Duration::ZERO, kind, begun, nodes, _dir: dir })
    }

    /// Returns whether it serves already.
    pub(crate) fn check_serving(&mut self) -> Outcome<bool> {
        if self.nodes.iter().all(|node| is_serving(self.kind, node.addr)) {
            self.start = self.begun.elapsed();
            if self.kind == Kind::Ensemble {
                let follower = self.nodes.iter().map(|node| node.addr).find(|addr| is_follower(*addr));
                self.addr = follower.ok_or("no follower in the ensemble")?;
            }
            return Ok(true);
        }
        for node in &mut self.nodes {
            if let Some(status) = node.child.try_wait()? {
                return Err(format!("{} ended with {status}: {}", node.line, node.log_text()).into());
            }
        }
        if self.begun.elapsed() > PATIENCE {
            return Err(format!("{} does not serve after {PATIENCE:?}", self.kind.name()).into());
        }
        Ok(false)
    }

    /// Returns the process ID of the first process.
    pub(crate) fn pid(&self) -> u32 {
        self.nodes[0].child.id()
    }

    /// Returns a visible problem of its processes, if there is one.
    pub(crate) fn trouble(&mut self) -> Option<String> {
        for node in &mut self.nodes {
            if node.log_text().contains("OutOfMemoryError") {
                return Some("the server ran out of memory".to_owned());
            }
            if let Ok(Some(status)) = node.child.try_wait() {
                return Some(format!("the server ended with {status}"));
            }
        }
        None
    }
}

impl Node {
    fn start(mut command: Command, addr: SocketAddr, dir: &Path, ports: Vec<Port>) -> Outcome<Self> {
        let log = dir.join("log.txt");
        let file = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // An interrupt at the terminal goes to the harness only, which then ends its servers.
        command.process_group(0);
        let line = format!("{command:?}");
        let child = command.spawn().map_err(|error| format!("{line}: {error}"))?;
        Ok(Node { child, addr, log, line, _ports: ports })
    }

    fn log_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn single(dir: &Path, command: impl FnOnce(&Port, &Path) -> Outcome<Command>) -> Outcome<Node> {
    let port = Port::reserve()?;
    Node::start(command(&port, dir)?, port.addr(), dir, vec![port])
}

fn ours(zoolock: &Path, addr: SocketAddr, dir: &Path) -> Command {
    let mut command = Command::new(zoolock);
    command.arg("serve").arg("--listen").arg(addr.to_string()).arg("--data").arg(dir.join("data"));
    command
}

/// Returns the command of Apache ZooKeeper. Unlike the server of the tests, it may use its just-in-time compiler fully.
fn apache(addr: SocketAddr, dir: &Path, ensemble: &str) -> Outcome<Command> {
    let config = format!(
        "tickTime=2000\nmaxClientCnxns=0\nadmin.enableServer=false\ndataDir={}\nclientPortAddress={}\nclientPort={}\n{ensemble}",
        dir.join("data").display(),
        addr.ip(),
        addr.port()
    );
    let file = dir.join("zoo.cfg");
    fs::write(&file, config)?;
    let mut command = Command::new("java");
    command
        .args(["-Xmx1000m", "-Djava.net.preferIPv4Stack=true"])
        // Runs `true` on an `OutOfMemoryError`. Then the virtual machine reports the error, which nothing else here does.
        .arg("-XX:OnOutOfMemoryError=true")
        .args(["-cp", "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(file);
    Ok(command)
}

fn ensemble(dir: &Path) -> Outcome<Vec<Node>> {
    let mut ports = Vec::new();
    for _ in 0..NODES {
        ports.push([Port::reserve()?, Port::reserve()?, Port::reserve()?]);
    }
    let members = ports.iter().enumerate().map(|(at, [_, quorum, election])| {
        format!("server.{}=127.0.0.1:{}:{}\n", at + 1, quorum.number(), election.number())
    });
    let settings = format!("initLimit=10\nsyncLimit=5\n{}", members.collect::<String>());
    let mut nodes = Vec::new();
    for (at, ports) in ports.into_iter().enumerate() {
        let dir = dir.join((at + 1).to_string());
        fs::create_dir_all(dir.join("data"))?;
        fs::write(dir.join("data/myid"), (at + 1).to_string())?;
        let addr = ports[0].addr();
        nodes.push(Node::start(apache(addr, &dir, &settings)?, addr, &dir, ports.into())?);
    }
    Ok(nodes)
}

fn redis(port: &Port, dir: &Path, synced: bool) -> Command {
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", ""]).arg("--port").arg(port.number().to_string());
    command.arg("--dir").arg(dir).arg("--appendonly").arg(if synced { "yes" } else { "no" });
    command.args(["--appendfsync", "always"]);
    command
}

fn etcd(dir: &Path) -> Outcome<Node> {
    let (port, peers) = (Port::reserve()?, Port::reserve()?);
    let (addr, clients, peer) =
        (port.addr(), format!("http://{}", port.addr()), format!("http://{}", peers.addr()));
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(dir.join("data"));
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    Node::start(command, addr, dir, vec![port, peers])
}

fn is_serving(kind: Kind, addr: SocketAddr) -> bool {
    match kind {
        // Apache ZooKeeper does not answer a client that connects too early.
        Kind::Ours | Kind::Apache | Kind::Ensemble => Client::connect_within(addr, PROBE).is_ok(),
        Kind::Redis | Kind::RedisSynced => ask(addr, "PING\r\n").contains("PONG"),
        Kind::Etcd => ask(addr, "GET /health HTTP/1.0\r\n\r\n").contains("true"),
    }
}

fn is_follower(addr: SocketAddr) -> bool {
    ask(addr, "srvr").contains("Mode: follower")
}

/// Returns the beginning of the answer to a question in plain text; nothing if there is no server.
fn ask(addr: SocketAddr, question: &str) -> String {
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
