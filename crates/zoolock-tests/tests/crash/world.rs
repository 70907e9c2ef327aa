//! A data directory, its servers one after the other, and their clients.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::process::Command;
use tokio::task::JoinSet;
use zoolock_server::wire::Request;
use zoolock_tests::{Failure, Random, Result, Serving, ZoolockBinary};

use crate::client::{Client, Dead, Ticket};
use crate::mortal::{Mortals, assert_gone};
use crate::worker::{LONG_MS, Worker};

const WORKERS: u64 = 4;

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Kill,
    Term,
}

pub(crate) fn command(binary: &ZoolockBinary, data: &Path) -> Command {
    let mut command = binary.command(["serve", "--listen", "127.0.0.1:0", "--tick", "50ms"]);
    command.args(["--max-session-timeout", "60s", "--data"]).arg(data);
    command
}

pub(crate) struct World<'a> {
    binary: &'a ZoolockBinary,
    data: &'a Path,
    random: Random,
    workers: Vec<Worker>,
    mortals: Mortals,
    closed: Vec<Ticket>,
    seen: i64,
    pub(crate) killed_in_recovery: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(binary: &'a ZoolockBinary, data: &'a Path, seed: u64) -> Self {
        World {
            binary,
            data,
            random: Random::new(seed),
            workers: (0..WORKERS).map(|index| Worker::new(index, seed)).collect(),
            mortals: Mortals::default(),
            closed: Vec::new(),
            seen: 0,
            killed_in_recovery: 0,
        }
    }

    /// Starts a server, looks whether everything is as it was promised, and lets clients write until it ends.
    pub(crate) async fn round(&mut self, end: End) -> Result<()> {
        if self.random.chance(20) {
            self.kill_in_recovery().await?;
        }
        let server = self.start().await?;
        self.check(&server).await?;
        let large = self.random.chance(15);
        let moment = match self.random.below(10) {
            0..6 => self.random.below(40_000),
            6..9 => self.random.below(150_000),
            _ => self.random.below(400_000),
        };
        let moment = Duration::from_micros(if large { 100_000 + moment } else { moment });
        self.load(server, large, moment, end).await
    }

    /// Starts a server, and looks whether everything is as it was promised.
    pub(crate) async fn last(&mut self) -> Result<()> {
        let server = self.start().await?;
        self.check(&server).await?;
        match server.terminate().await?.code {
            Some(0) => Ok(()),
            code => Err(Failure::new(format!("it ended with {code:?}"))),
        }
    }

    async fn start(&self) -> Result<Serving> {
        Serving::start(command(self.binary, self.data)).await
    }

    async fn kill_in_recovery(&mut self) -> Result<()> {
        let mut child = command(self.binary, self.data)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .map_err(|error| Failure::during("executing the server", error))?;
        tokio::time::sleep(Duration::from_micros(self.random.below(30_000))).await;
        self.killed_in_recovery += 1;
        child.kill().await.map_err(|error| Failure::during("killing the server", error))
    }

    pub(crate) async fn check(&mut self, server: &Serving) -> Result<()> {
        let addr = server.addr();
        let dead = |Dead| {
            Failure::new(
                "the server is gone while nobody kills it, or is behind what it had told its clients",
            )
        };
        let mut reader = Client::begin(addr, LONG_MS, self.seen).await.map_err(dead)?;
        for worker in &mut self.workers {
            self.closed.extend(worker.check(addr, &mut reader).await?);
        }
        self.mortals.check(addr, &mut reader).await?;
        let some = (!self.closed.is_empty()).then(|| self.random.index(self.closed.len()));
        for ticket in self.closed.last().into_iter().chain(some.map(|index| &self.closed[index])) {
            assert_gone(addr, ticket).await?;
        }
        let (header, _) = reader.call(Request::CloseSession).await.map_err(dead)?;
        if header.zxid <= self.seen {
            return Err(Failure::new(format!("{:#x} comes after {:#x}", header.zxid, self.seen)));
        }
        Ok(())
    }

    async fn load(&mut self, server: Serving, large: bool, moment: Duration, end: End) -> Result<()> {
        let addr = server.addr();
        let ends = async move {
            // The moment is what is tried here, nothing is waited for.
            tokio::time::sleep(moment).await;
            if end == End::Kill {
                server.kill().await;
                return Ok(());
            }
            let ended = server.terminate().await?;
            match ended.code {
                Some(0) => Ok(()),
                code => Err(Failure::new(format!("told to stop it ended with {code:?}: {}", ended.notes))),
            }
        };
        self.while_writing(addr, large, ends).await
    }

    /// Lets clients write until what ends the server has done so.
    pub(crate) async fn while_writing<T>(
        &mut self,
        addr: SocketAddr,
        large: bool,
        ends: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let seen = Arc::new(AtomicI64::new(self.seen));
        let mut working = JoinSet::new();
        for mut worker in std::mem::take(&mut self.workers) {
            let seen = Arc::clone(&seen);
            working.spawn(async move { worker.work(addr, large, &seen).await.map(|()| worker) });
        }
        let mut mortals = std::mem::take(&mut self.mortals);
        let living = tokio::spawn(async move {
            mortals.work(addr).await;
            mortals
        });
        let ended = ends.await?;
        while let Some(worker) = working.join_next().await {
            self.workers.push(worker.map_err(|error| Failure::during("a worker", error))??);
        }
        self.mortals = living.await.map_err(|error| Failure::during("the mortals", error))?;
        self.seen = seen.load(Ordering::Relaxed);
        Ok(ended)
    }

    /// What has happened, in words, lest too little did.
    pub(crate) fn tally(&self) -> Counted {
        let sum = |of: fn(&Worker) -> u64| self.workers.iter().map(of).sum();
        Counted {
            acked: sum(|worker| worker.tally.acked),
            unanswered: sum(|worker| worker.tally.unanswered),
            done: sum(|worker| worker.tally.done),
            multis: sum(|worker| worker.tally.multis),
            closed: sum(|worker| worker.tally.closed),
            expired: self.mortals.seen_to_expire,
            killed_in_recovery: self.killed_in_recovery,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) acked: u64,
    pub(crate) unanswered: u64,
    pub(crate) done: u64,
    pub(crate) multis: u64,
    pub(crate) closed: u64,
    pub(crate) expired: u64,
    pub(crate) killed_in_recovery: u64,
}
