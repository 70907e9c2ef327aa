//! The servers, started as their users start them, each a process of its own.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Outcome;
use crate::client::Client;

const PATIENCE: Duration = Duration::from_secs(60);

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `zoolock serve --data DIR`.
    Ours,
    /// Apache ZooKeeper with the settings of Debian's package: a heap of at most 1000 MB, fsync on.
    Apache,
}

impl Kind {
    /// Both, in the order in which they take turns.
    pub(crate) const BOTH: [Kind; 2] = [Kind::Ours, Kind::Apache];
}

/// A running server with an empty tree; it is killed when dropped.
pub(crate) struct Running {
    /// Where it listens.
    pub(crate) addr: SocketAddr,
    /// From its start to its first answer.
    pub(crate) start: Duration,
    child: Child,
    _dir: TempDir,
}

impl Running {
    /// Starts a server and waits for its first session.
    pub(crate) fn start(kind: Kind, zoolock: &Path, dir: &Path) -> Outcome<Self> {
        let dir = TempDir::with_prefix_in("zoolock-bench-", dir)?;
        let addr = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = match kind {
            Kind::Ours => ours(zoolock, addr, dir.path()),
            Kind::Apache => apache(addr, dir.path())?,
        };
        let log = File::create(dir.path().join("log.txt"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let begun = Instant::now();
        let child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
        let mut running = Running { addr, start: Duration::ZERO, child, _dir: dir };
        loop {
            // Apache ZooKeeper leaves who comes too early without an answer.
            if Client::connect_within(addr, Duration::from_millis(50)).is_ok() {
                running.start = begun.elapsed();
                return Ok(running);
            }
            if let Some(status) = running.child.try_wait()? {
                let log = std::fs::read_to_string(running._dir.path().join("log.txt")).unwrap_or_default();
                return Err(format!("{command:?} ended with {status}: {log}").into());
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("{command:?} does not serve after {PATIENCE:?}").into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ours(zoolock: &Path, addr: SocketAddr, dir: &Path) -> Command {
    let mut command = Command::new(zoolock);
    command.arg("serve").arg("--listen").arg(addr.to_string()).arg("--data").arg(dir.join("data"));
    command
}

fn apache(addr: SocketAddr, dir: &Path) -> Outcome<Command> {
    let config = format!(
        "tickTime=2000\nmaxClientCnxns=0\nadmin.enableServer=false\ndataDir={}\nclientPortAddress={}\nclientPort={}\n",
        dir.join("data").display(),
        addr.ip(),
        addr.port()
    );
    let file = dir.join("zoo.cfg");
    std::fs::write(&file, config)?;
    let mut command = Command::new("java");
    command
        .args(["-Xmx1000m", "-cp", "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(file);
    Ok(command)
}
