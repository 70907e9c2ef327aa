//! Checks that holders learn of the loss of their locks in time. There are many holders at once, each in its own
//! process. Each holder has a rival, which waits for the same lock on another node.
//!
//! Each round injects one fault, waits until every rival has been granted its lock, and heals the fault. All processes
//! read the same clock, so the last time at which a guard was valid can be compared with the grant of the rival.

pub(crate) mod holder;
mod holder_process;
mod holder_report;
mod judge;
mod report;
mod settings;

use std::time::Duration;

use clap::ValueEnum as _;
use fastrand::Rng;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zookeeper_client::Client;
use zoolock::{Guard, Zoolock};
use zoolock_tests::wait::wait_until;

use crate::Outcome;
use crate::clock::{now, seconds};
use crate::commands;
use crate::divergence::restart_diverged_nodes;
use crate::ensemble::{Ensemble, NODES, START, WHOLE, save_logs};
use crate::faults::isolate;
use crate::interrupt::until_interrupted;
use crate::tree;
use holder_process::{HolderProcess, HolderSettings};
use judge::HolderCase;
pub(crate) use settings::LossArgs;
use settings::{LossFault, SESSION, SHORTER};

/// The number of ticks after which the leader drops a silent follower: ten seconds, ZooKeeper's default. So a follower
/// that is cut off serves its clients for longer than their session timeout, as this run needs.
pub(crate) const SYNC_LIMIT: u32 = 20;
/// Every fourth holder is `zoolock run`.
const RUNS: usize = 4;
/// The longest time until all holders have their locks and all rivals are in their queues.
const READY: Duration = Duration::from_secs(60);
/// The longest time after the session timeout until all rivals have been granted their locks.
const SERVED: Duration = Duration::from_secs(20);
/// The longest time after healing until all holders have noticed the loss.
const KNOWN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
/// The longest time from the forwarding of a request to the kill of the node, in microseconds.
const FORWARDED: u64 = 3_000;

/// Runs the drill. Returns whether all holders learned of the loss in time.
pub(crate) async fn run(settings: &LossArgs) -> Outcome<bool> {
    let seed = settings.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}, {} holders, {} rounds of each fault", settings.holders, settings.rounds);
    let dir = TempDir::with_prefix("zoolock-loss-")?;
    let holder_settings =
        HolderSettings { dir: dir.path().to_owned(), zoolock: commands::path()?, broken: settings.broken };
    let mut ensemble = Ensemble::configure(dir.path(), SYNC_LIMIT).await?;
    ensemble.wait_until_whole(START).await?;
    let mut drill = Drill {
        holders: settings.holders,
        rng: Rng::with_seed(seed),
        holder_settings,
        ensemble,
        cases: Vec::new(),
        violations: Vec::new(),
        diverged: Vec::new(),
    };
    until_interrupted(drill.run_rounds(settings)).await?;
    let Drill { ensemble, cases, mut violations, diverged, .. } = drill;
    drop(ensemble);
    violations.extend(cases.iter().flat_map(HolderCase::violations));
    let text = report::format_report(settings, seed, &cases, &diverged, &violations);
    println!("{text}");
    if let Some(out) = &settings.out {
        std::fs::create_dir_all(out)?;
        std::fs::write(out.join("loss.md"), &text)?;
        std::fs::write(out.join("loss.json"), report::json(seed, &cases, &violations)?)?;
        std::fs::copy(dir.path().join("holders.log"), out.join("holders.log"))?;
        save_logs(dir.path(), out)?;
    }
    Ok(violations.is_empty())
}

struct Drill {
    holders: usize,
    rng: Rng,
    holder_settings: HolderSettings,
    ensemble: Ensemble,
    cases: Vec<HolderCase>,
    /// Violations that belong to no holder.
    violations: Vec<String>,
    diverged: Vec<String>,
}

/// The time of a rival's grant, and its guard.
type RivalGrant = Result<(i64, Guard), zoolock::Error>;

/// The rivals of one round. The rivals on one node share a session.
struct Rivals {
    clients: Vec<Zoolock>,
    waiting: JoinSet<(usize, RivalGrant)>,
    granted: Vec<Option<i64>>,
    guards: Vec<Guard>,
    /// Errors of the rivals. They do not end the round, so that its results are kept.
    failed: Vec<String>,
}

impl Drill {
    async fn run_rounds(&mut self, settings: &LossArgs) -> Outcome<()> {
        for round in 1..=settings.rounds {
            for fault in LossFault::value_variants() {
                if settings.only.is_empty() || settings.only.contains(fault) {
                    let begun = now();
                    self.run_round(*fault, round).await?;
                    let (name, took) = (fault.name(), seconds(now() - begun));
                    eprintln!("{round:3} {name:18} {took:5.1} s");
                }
            }
        }
        Ok(())
    }

    async fn run_round(&mut self, fault: LossFault, round: usize) -> Outcome<()> {
        let leader = self.ensemble.leader(START).await?;
        let follower = (leader + self.rng.usize(1..NODES)) % NODES;
        let mut holders = Vec::new();
        for number in 0..self.holders {
            let runs = number % RUNS == RUNS - 1 || self.holders < RUNS && number + 1 == self.holders;
            let (lock, node) = (format!("l{number:02}"), self.ensemble.client_addr(follower));
            holders.push(
                HolderProcess::start(&self.holder_settings, fault, node, &lock, runs && self.holders > 1)
                    .await?,
            );
        }
        wait_until("all hold", READY, || holders.iter().all(|holder| holder.record().held.is_some())).await?;
        let client = tree::connect(&self.ensemble.client_addr(leader).to_string()).await?;
        let mut rivals = self.queue_rivals(follower, &holders).await?;
        wait_until_queued(&client, &holders).await?;
        if fault == LossFault::Shortened {
            self.limit_sessions(follower, Some(SHORTER)).await?;
            wait_until("all are attached", READY, || holders.iter().all(|holder| holder.connections() > 0))
                .await?;
        }
        // The fault strikes at a random time between two renewals.
        sleep(Duration::from_millis(self.rng.u64(1_000..2_000))).await;
        holders.iter_mut().for_each(|holder| holder.has_lost_before = holder.knows_loss());
        let mut struck = Vec::new();
        match fault {
            LossFault::Cut => {
                if holders.iter().any(|holder| holder.connections() == 0) {
                    return Err("a holder has no connection that could be cut".into());
                }
                for holder in &holders {
                    holder.block_link(round.is_multiple_of(2)).await;
                    struck.push(now());
                }
            }
            LossFault::Stopped | LossFault::Shortened => {
                for holder in &mut holders {
                    holder.signal(Signal::STOP);
                    struck.push(now());
                }
            }
            LossFault::Killed => {
                let renewed = holders[self.rng.usize(..holders.len())].wait_until_forwarded();
                timeout(READY, renewed).await.map_err(|_| "a holder sends nothing")?;
                sleep(Duration::from_micros(self.rng.u64(..FORWARDED))).await;
                self.ensemble.signal(follower, Signal::KILL);
                struck.resize(holders.len(), now());
            }
            LossFault::Isolated => {
                isolate(&self.ensemble, follower);
                struck.resize(holders.len(), now());
            }
        }
        rivals.wait_until_granted(Instant::now() + SESSION + SERVED).await?;
        sleep(Duration::from_millis(self.rng.u64(300..1_000))).await;
        let mut continued = vec![None; holders.len()];
        match fault {
            LossFault::Cut => holders.iter().for_each(HolderProcess::reopen_link),
            LossFault::Killed => {}
            LossFault::Stopped | LossFault::Shortened => {
                for (holder, continued) in holders.iter_mut().zip(&mut continued) {
                    *continued = Some(now());
                    holder.signal(Signal::CONT);
                }
            }
            LossFault::Isolated => self.ensemble.open_links(),
        }
        self.ensemble.wait_until_whole(WHOLE).await?;
        // If a holder does not learn of the loss in time, the judge finds a violation.
        let _ = wait_until("all know", KNOWN, || holders.iter_mut().all(HolderProcess::knows_loss)).await;
        let mut ending = JoinSet::new();
        for (number, holder) in holders.into_iter().enumerate() {
            let (lock, runs, has_lost_before) =
                (holder.lock().to_owned(), holder.is_zoolock_run(), holder.has_lost_before);
            let (struck, continued, rival) = (struck[number], continued[number], rivals.granted[number]);
            ending.spawn(async move {
                let (record, exit) = holder.end().await;
                HolderCase {
                    fault,
                    round,
                    lock,
                    runs,
                    has_lost_before,
                    struck,
                    continued,
                    rival,
                    exit,
                    record,
                }
            });
        }
        while let Some(case) = ending.join_next().await {
            self.cases.push(case?);
        }
        let failed = rivals.release().await;
        if fault == LossFault::Shortened {
            self.limit_sessions(follower, None).await?;
        }
        self.violations
            .extend(failed.into_iter().map(|error| format!("round {round}, {}: {error}", fault.name())));
        self.diverged.extend(restart_diverged_nodes(&mut self.ensemble, WHOLE).await?);
        let client = tree::connect(&self.ensemble.connect_string()).await?;
        let left = wait_for_leftovers(&client).await?;
        self.violations
            .extend(left.into_iter().map(|it| format!("round {round}, {}: {it} is left", fault.name())));
        Ok(())
    }

    /// Restarts a node with another limit for session timeouts.
    async fn limit_sessions(&mut self, node: usize, longest: Option<Duration>) -> Outcome<()> {
        self.ensemble.end_node(node, Signal::TERM).await;
        self.ensemble.set_longest_session(node, longest);
        self.ensemble.wait_until_whole(WHOLE).await
    }

    /// Queues a rival behind each holder, on one of the other nodes.
    async fn queue_rivals(&self, follower: usize, holders: &[HolderProcess]) -> Outcome<Rivals> {
        let mut clients = Vec::new();
        for node in (0..NODES).filter(|node| *node != follower) {
            clients.push(holder::connect(&self.ensemble.client_addr(node).to_string(), SESSION).await?);
        }
        let mut waiting = JoinSet::new();
        for (number, holder) in holders.iter().enumerate() {
            let mutex = clients[number % clients.len()].mutex(holder.lock());
            waiting.spawn(async move {
                let guard = mutex.lock().await;
                (number, guard.map(|guard| (now(), guard)))
            });
        }
        Ok(Rivals {
            clients,
            waiting,
            granted: vec![None; holders.len()],
            guards: Vec::new(),
            failed: Vec::new(),
        })
    }
}

impl Rivals {
    /// Waits until all rivals have their locks, or until the deadline.
    async fn wait_until_granted(&mut self, deadline: Instant) -> Outcome<()> {
        while let Ok(Some(ended)) = timeout_at(deadline, self.waiting.join_next()).await {
            let (number, granted) = ended?;
            match granted {
                Ok((at, guard)) => {
                    self.granted[number] = Some(at);
                    self.guards.push(guard);
                }
                Err(error) => self.failed.push(format!("a rival was not granted: {error}")),
            }
        }
        Ok(())
    }

    /// Releases all locks of the rivals. Returns their errors.
    async fn release(mut self) -> Vec<String> {
        self.waiting.shutdown().await;
        for guard in self.guards {
            if let Err(error) = guard.release().await {
                self.failed.push(format!("a rival could not release: {error}"));
            }
        }
        for client in self.clients {
            client.close().await;
        }
        self.failed
    }
}

/// Waits until a rival is behind each holder.
async fn wait_until_queued(client: &Client, holders: &[HolderProcess]) -> Outcome<()> {
    let deadline = Instant::now() + READY;
    loop {
        let contenders = tree::contenders(client).await?;
        let queue = |holder: &HolderProcess| {
            let dir = format!("{}/{}/", tree::ROOT, holder.lock());
            contenders.iter().filter(|contender| contender.path.starts_with(&dir)).count()
        };
        if holders.iter().all(|holder| queue(holder) == 2) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("a contender is not in its queue after {READY:?}").into());
        }
        sleep(LOOK).await;
    }
}

/// Returns the znodes that are left after the end of all sessions.
async fn wait_for_leftovers(client: &Client) -> Outcome<Vec<String>> {
    let deadline = Instant::now() + 3 * SESSION;
    loop {
        let left = tree::contenders(client).await?;
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left.into_iter().map(|contender| contender.path).collect());
        }
        sleep(LOOK).await;
    }
}
