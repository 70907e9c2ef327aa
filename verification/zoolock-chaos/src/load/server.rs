//! The server under load, and its counts.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use zoolock_tests::four_letter::send_four_letter_word;
use zoolock_tests::{Apache, ServeProcess, ServerOptions};

use super::settings::{ARENAS, LOOK, SETTLED, ServerChoice};
use crate::Outcome;
use crate::commands;
use crate::tree::{self, ROOT};

/// The tick, which is the default of ZooKeeper and of `zoolock serve`.
const TICK: Duration = Duration::from_secs(2);
/// Number of requests that are in flight together.
const FLIGHT: usize = 500;

/// The server under load.
pub(super) enum LoadedServer {
    Serve(Box<ServeProcess>),
    Apache(Box<Apache>),
}

/// The counts that a server reports.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct ServerCounts {
    pub(super) sessions: u64,
    pub(super) ephemerals: u64,
    pub(super) watches: u64,
    pub(super) znodes: u64,
}

impl ServerCounts {
    /// Returns whether no client holds a lock, waits for one, or watches one.
    pub(super) fn is_free(&self) -> bool {
        self.ephemerals == 0 && self.watches == 0
    }
}

impl LoadedServer {
    pub(super) async fn start(kind: ServerChoice, dir: &Path) -> Outcome<LoadedServer> {
        match kind {
            ServerChoice::Serve => {
                let mut command = commands::zoolock_command(&commands::path()?, dir);
                command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir.join("data"));
                command.env(ARENAS.0, ARENAS.1);
                Ok(LoadedServer::Serve(Box::new(ServeProcess::start(command).await?)))
            }
            ServerChoice::Apache => {
                // The harness already allows any number of clients from one address.
                let options = ServerOptions {
                    tick: TICK,
                    heap: "512m".to_owned(),
                    whole_heap: true,
                    ..Default::default()
                };
                Ok(LoadedServer::Apache(Box::new(Apache::start(options).await?)))
            }
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        match self {
            LoadedServer::Serve(serving) => serving.addr(),
            LoadedServer::Apache(apache) => apache.socket_addr(),
        }
    }

    pub(super) fn pid(&self) -> Outcome<u32> {
        match self {
            LoadedServer::Serve(serving) => Ok(serving.pid().as_raw_nonzero().get().unsigned_abs()),
            LoadedServer::Apache(apache) => apache.pid().ok_or_else(|| "ZooKeeper has ended".into()),
        }
    }

    /// Returns the live bytes on the heap of a Java server after a garbage collection, or `None` for another server.
    /// The memory of the process does not show them, because the process reserves its whole heap at the start.
    pub(super) async fn live_heap(&self) -> Outcome<Option<u64>> {
        let LoadedServer::Apache(_) = self else { return Ok(None) };
        let mut jcmd = Command::new("jcmd");
        jcmd.arg(self.pid()?.to_string()).arg("GC.class_histogram").kill_on_drop(true);
        let output = timeout(SETTLED, jcmd.output()).await??;
        let said = String::from_utf8_lossy(&output.stdout);
        // The last line has `Total`, the number of objects, and their bytes.
        let total = said.lines().rev().find_map(|line| line.strip_prefix("Total"));
        let bytes = total.and_then(|figures| figures.split_whitespace().nth(1)?.parse().ok());
        bytes.map(Some).ok_or_else(|| format!("jcmd does not say what is on the heap: {said}").into())
    }

    async fn read_counts(&self) -> Outcome<ServerCounts> {
        let answer = send_four_letter_word(self.addr(), "mntr").await?;
        let figure = |name: &str| {
            let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
            let figure = line.and_then(|figure| figure.trim().parse::<f64>().ok());
            figure.map(|figure| figure as u64).ok_or_else(|| format!("mntr says no {name}"))
        };
        Ok(ServerCounts {
            sessions: figure("zk_global_sessions")?,
            ephemerals: figure("zk_ephemerals_count")?,
            watches: figure("zk_watch_count")?,
            znodes: figure("zk_znode_count")?,
        })
    }

    /// Waits until the counts satisfy `is_so`, at most for [`SETTLED`]. Returns the counts.
    pub(super) async fn wait_for_counts(
        &self,
        is_so: impl Fn(&ServerCounts) -> bool,
    ) -> Outcome<ServerCounts> {
        let deadline = Instant::now() + SETTLED;
        loop {
            let counts = self.read_counts().await?;
            if is_so(&counts) || Instant::now() > deadline {
                return Ok(counts);
            }
            sleep(LOOK).await;
        }
    }

    /// Returns the number of lock directories, which also counts ephemeral znodes directly below
    /// the root. Also returns descriptions of what is left: of each directory that still contains a
    /// znode, and of each of these ephemeral znodes.
    pub(super) async fn find_leftovers(&self) -> Outcome<(usize, Vec<String>)> {
        let client = tree::connect(&self.addr().to_string()).await?;
        client.sync(ROOT).await?;
        let directories = client.list_children(ROOT).await?;
        let mut left = Vec::new();
        for some in directories.chunks(FLIGHT) {
            let paths: Vec<String> = some.iter().map(|name| format!("{ROOT}/{name}")).collect();
            let asked: Vec<_> = paths.iter().map(|path| client.check_stat(path)).collect();
            for (path, stat) in paths.iter().zip(asked) {
                // A directory that was deleted meanwhile was empty.
                match stat.await? {
                    Some(stat) if stat.num_children > 0 => {
                        left.push(format!("{path}, with {} in it", stat.num_children));
                    }
                    Some(stat) if stat.ephemeral_owner > 0 => left.push(path.clone()),
                    _ => {}
                }
            }
        }
        Ok((directories.len(), left))
    }

    /// Stops the server cleanly.
    pub(super) async fn end(self) -> Outcome<()> {
        match self {
            LoadedServer::Serve(serving) => {
                let ended = serving.terminate().await?;
                match ended.code {
                    Some(0) => Ok(()),
                    code => Err(format!("the server ended with {code:?}: {}", ended.notes).into()),
                }
            }
            LoadedServer::Apache(apache) => {
                apache.stop().await;
                Ok(())
            }
        }
    }
}
