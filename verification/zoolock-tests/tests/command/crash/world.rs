//! A data directory, the servers that use it one after another, and the clients of these servers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tokio::process::Command;
use tokio::task::JoinSet;
use zoolock_tests::raw_client::{RawClient, SessionTicket};
use zoolock_tests::{Result, ServeProcess, TestFailure, ZoolockBinary};

use crate::crash::mortal::{Mortals, check_session_ended};
use crate::crash::worker::{LONG_MS, Worker};

const WORKERS: u64 = 4;

/// The way in which a round ends its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Kill,
    Term,
}

/// Returns the command `zoolock serve` for a data directory.
pub(crate) fn serve(binary: &ZoolockBinary, data: &Path) -> Command {
    let mut command = binary.command(["serve", "--listen", "127.0.0.1:0", "--tick", "50ms"]);
    command.args(["--max-session-timeout", "60s", "--data"]).arg(data);
    command
}

/// A data directory and the clients of its servers.
pub(crate) struct World<'a> {
    binary: &'a ZoolockBinary,
    data: &'a Path,
    random: Rng,
    workers: Vec<Worker>,
    mortals: Mortals,
    closed: Vec<SessionTicket>,
    /// The highest zxid that a client has seen.
    seen: i64,
    killed_in_recovery: u64,
}

impl<'a> World<'a> {
    pub(crate) fn new(binary: &'a ZoolockBinary, data: &'a Path, seed: u64) -> Self {
        World {
            binary,
            data,
            random: Rng::with_seed(seed),
            workers: (0..WORKERS).map(|index| Worker::new(index, seed)).collect(),
            mortals: Mortals::default(),
            closed: Vec::new(),
            seen: 0,
            killed_in_recovery: 0,
        }
    }

    /// Starts a server, checks its tree, lets clients write, and ends the server at a random
    /// moment.
    ///
    /// In about one of five rounds, another server is started first, and killed during its
    /// recovery.
    pub(crate) async fn round(&mut self, end: End) -> Result<()> {
        if self.random.u8(..100) < 20 {
            self.kill_in_recovery().await?;
        }
        let server = self.start().await?;
        self.check(&server).await?;
        let large = self.random.u8(..100) < 15;
        let moment = match self.random.u64(..10) {
            0..6 => self.random.u64(..40_000),
            6..9 => self.random.u64(..150_000),
            _ => self.random.u64(..400_000),
        };
        let moment = Duration::from_micros(if large { 100_000 + moment } else { moment });
        self.write_until_end(server, large, moment, end).await
    }

    /// Starts a server, checks its tree, and terminates it.
    pub(crate) async fn final_check(&mut self) -> Result<()> {
        let server = self.start().await?;
        self.check(&server).await?;
        match server.terminate().await?.code {
            Some(0) => Ok(()),
            code => Err(TestFailure::new(format!("the server ended with {code:?}"))),
        }
    }

    async fn start(&self) -> Result<ServeProcess> {
        ServeProcess::start(serve(self.binary, self.data)).await
    }

    /// Starts a server and kills it within 30 ms, usually while it reads its data directory.
    async fn kill_in_recovery(&mut self) -> Result<()> {
        let mut child = serve(self.binary, self.data)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .map_err(|error| TestFailure::during("executing the server", error))?;
        tokio::time::sleep(Duration::from_micros(self.random.u64(..30_000))).await;
        self.killed_in_recovery += 1;
        child.kill().await.map_err(|error| TestFailure::during("killing the server", error))
    }

    /// Checks that a restarted server has all acknowledged writes and a higher zxid than clients
    /// have seen, and that sessions that ended do not exist again.
    pub(crate) async fn check(&mut self, server: &ServeProcess) -> Result<()> {
        let addr = server.addr();
        let mut reader = RawClient::open_session(addr, LONG_MS, self.seen).await?;
        for worker in &mut self.workers {
            self.closed.extend(worker.check(addr, &mut reader).await?);
        }
        self.mortals.check(addr, &mut reader).await?;
        let random = (!self.closed.is_empty()).then(|| self.random.u64(..self.closed.len() as u64) as usize);
        for ticket in self.closed.last().into_iter().chain(random.map(|index| &self.closed[index])) {
            check_session_ended(addr, ticket).await?;
        }
        let header = reader.close().await?;
        if header.zxid <= self.seen {
            return Err(TestFailure::new(format!("zxid {:#x} is not above {:#x}", header.zxid, self.seen)));
        }
        Ok(())
    }

    /// Lets clients write, and ends the server after the time `moment`.
    async fn write_until_end(
        &mut self,
        server: ServeProcess,
        large: bool,
        moment: Duration,
        end: End,
    ) -> Result<()> {
        let addr = server.addr();
        let ends = async move {
            // The server must end at a random moment, so this waits for no event.
            tokio::time::sleep(moment).await;
            if end == End::Kill {
                server.kill().await;
                return Ok(());
            }
            let ended = server.terminate().await?;
            match ended.code {
                Some(0) => Ok(()),
                code => Err(TestFailure::new(format!(
                    "the terminated server ended with {code:?}: {}",
                    ended.notes
                ))),
            }
        };
        self.while_writing(addr, large, ends).await
    }

    /// Lets clients write until `ends` has ended the server. Returns the result of `ends`.
    pub(crate) async fn while_writing<T>(
        &mut self,
        addr: SocketAddr,
        large: bool,
        ends: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let seen = Arc::new(AtomicI64::new(self.seen));
        let mut tasks = JoinSet::new();
        for mut worker in std::mem::take(&mut self.workers) {
            let seen = Arc::clone(&seen);
            tasks.spawn(async move { worker.work(addr, large, &seen).await.map(|()| worker) });
        }
        let mut mortals = std::mem::take(&mut self.mortals);
        let mortal_task = tokio::spawn(async move {
            mortals.work(addr).await;
            mortals
        });
        let ended = ends.await?;
        while let Some(worker) = tasks.join_next().await {
            self.workers.push(worker.map_err(|error| TestFailure::during("a worker", error))??);
        }
        self.mortals =
            mortal_task.await.map_err(|error| TestFailure::during("the sessions that expire", error))?;
        self.seen = seen.load(Ordering::Relaxed);
        Ok(ended)
    }

    /// Returns the counts of all rounds so far.
    pub(crate) fn totals(&self) -> Totals {
        let sum = |of: fn(&Worker) -> u64| self.workers.iter().map(of).sum();
        Totals {
            acked: sum(|worker| worker.tally.acked),
            unanswered: sum(|worker| worker.tally.unanswered),
            executed: sum(|worker| worker.tally.executed),
            multis: sum(|worker| worker.tally.multis),
            closed: sum(|worker| worker.tally.closed),
            expired: self.mortals.seen_to_expire,
            killed_in_recovery: self.killed_in_recovery,
        }
    }
}

/// Counts over all rounds: writes, closed and expired sessions, and servers that were killed during
/// their recovery.
#[derive(Debug)]
pub(crate) struct Totals {
    pub(crate) acked: u64,
    pub(crate) unanswered: u64,
    /// Unanswered writes that the server executed.
    pub(crate) executed: u64,
    pub(crate) multis: u64,
    pub(crate) closed: u64,
    pub(crate) expired: u64,
    pub(crate) killed_in_recovery: u64,
}
