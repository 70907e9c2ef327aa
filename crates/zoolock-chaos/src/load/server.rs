//! The server under load, and what it says of itself.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};
use zoolock_tests::four_letter::four_letter;
use zoolock_tests::{Apache, ServerOptions, Serving};

use super::{ARENAS, Kind, LOOK, SETTLED};
use crate::Outcome;
use crate::binary;
use crate::tree::{self, ROOT};

/// ZooKeeper's own default, and that of the command.
const TICK: Duration = Duration::from_secs(2);
/// How many answers are waited for at once.
const FLIGHT: usize = 500;

/// One of both.
pub(super) enum Server {
    Serve(Box<Serving>),
    Apache(Box<Apache>),
}

/// What a server counts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) sessions: u64,
    pub(super) ephemerals: u64,
    pub(super) watches: u64,
    pub(super) znodes: u64,
}

impl Counts {
    /// Nobody has a lock, waits for one, or looks at one.
    pub(super) fn is_free(&self) -> bool {
        self.ephemerals == 0 && self.watches == 0
    }
}

impl Server {
    pub(super) async fn start(kind: Kind, dir: &Path) -> Outcome<Server> {
        match kind {
            Kind::Serve => {
                let mut command = binary::command(&binary::zoolock()?, dir);
                command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(dir.join("data"));
                command.env(ARENAS.0, ARENAS.1);
                Ok(Server::Serve(Box::new(Serving::start(command).await?)))
            }
            Kind::Apache => {
                // Any number of clients from one address, as the harness has it.
                let options = ServerOptions {
                    tick: TICK,
                    heap: "512m".to_owned(),
                    whole_heap: true,
                    ..Default::default()
                };
                Ok(Server::Apache(Box::new(Apache::start(options).await?)))
            }
        }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        match self {
            Server::Serve(serving) => serving.addr(),
            Server::Apache(apache) => apache.socket_addr(),
        }
    }

    pub(super) fn pid(&self) -> Outcome<u32> {
        match self {
            Server::Serve(serving) => Ok(serving.pid().as_raw_nonzero().get().unsigned_abs()),
            Server::Apache(apache) => apache.pid().ok_or_else(|| "ZooKeeper has ended".into()),
        }
    }

    /// Bytes on the heap of the virtual machine that something can still reach, when it has thrown away the others. Its
    /// process has the heap whole from the start, and would not show them.
    pub(super) async fn alive(&self) -> Outcome<Option<u64>> {
        let Server::Apache(_) = self else { return Ok(None) };
        let mut jcmd = Command::new("jcmd");
        jcmd.arg(self.pid()?.to_string()).arg("GC.class_histogram").kill_on_drop(true);
        let output = timeout(SETTLED, jcmd.output()).await??;
        let said = String::from_utf8_lossy(&output.stdout);
        // `Total`, how many objects, and their bytes.
        let total = said.lines().rev().find_map(|line| line.strip_prefix("Total"));
        let bytes = total.and_then(|figures| figures.split_whitespace().nth(1)?.parse().ok());
        bytes.map(Some).ok_or_else(|| format!("jcmd does not say what is on the heap: {said}").into())
    }

    async fn counts(&self) -> Outcome<Counts> {
        let answer = four_letter(self.addr(), "mntr").await?;
        let figure = |name: &str| {
            let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
            let figure = line.and_then(|figure| figure.trim().parse::<f64>().ok());
            figure.map(|figure| figure as u64).ok_or_else(|| format!("mntr says no {name}"))
        };
        Ok(Counts {
            sessions: figure("zk_global_sessions")?,
            ephemerals: figure("zk_ephemerals_count")?,
            watches: figure("zk_watch_count")?,
            znodes: figure("zk_znode_count")?,
        })
    }

    /// What it counts when it is so, or after a while.
    pub(super) async fn settles(&self, is_so: impl Fn(&Counts) -> bool) -> Outcome<Counts> {
        let deadline = Instant::now() + SETTLED;
        loop {
            let counts = self.counts().await?;
            if is_so(&counts) || Instant::now() > deadline {
                return Ok(counts);
            }
            sleep(LOOK).await;
        }
    }

    /// How many directories of locks there are, and what is in them.
    pub(super) async fn left(&self) -> Outcome<(usize, Vec<String>)> {
        let client = tree::connect(&self.addr().to_string()).await?;
        client.sync(ROOT).await?;
        let directories = client.list_children(ROOT).await?;
        let mut left = Vec::new();
        for some in directories.chunks(FLIGHT) {
            let paths: Vec<String> = some.iter().map(|name| format!("{ROOT}/{name}")).collect();
            let asked: Vec<_> = paths.iter().map(|path| client.check_stat(path)).collect();
            for (path, stat) in paths.iter().zip(asked) {
                // One that is gone by now was empty.
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

    /// Ends it in good order.
    pub(super) async fn end(self) -> Outcome<()> {
        match self {
            Server::Serve(serving) => {
                let ended = serving.terminate().await?;
                match ended.code {
                    Some(0) => Ok(()),
                    code => Err(format!("the server ended with {code:?}: {}", ended.notes).into()),
                }
            }
            Server::Apache(apache) => {
                apache.stop().await;
                Ok(())
            }
        }
    }
}
