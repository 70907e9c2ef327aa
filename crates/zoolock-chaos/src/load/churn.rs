//! A process of the crowd. It opens pairs of sessions, lets them work, and closes them, as ordered.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::Break;
use super::pair::Pair;
use crate::Outcome;
use crate::orders::Orders;
use crate::process::allow_files;

/// Number of pairs that are opened at once.
const AT_ONCE: usize = 16;
/// Pause between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The settings of a process.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    #[arg(long)]
    pub(crate) connect: String,
    #[arg(long)]
    pub(crate) pairs: usize,
    /// Number of its first lock.
    #[arg(long)]
    pub(crate) first: usize,
    #[arg(long)]
    pub(crate) locks: usize,
    /// Mean pause between two turns of a pair.
    #[arg(long)]
    pub(crate) pause_ms: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long = "break")]
    pub(crate) broken: Option<Break>,
}

/// The progress of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Phase {
    #[default]
    Starting,
    Ready,
    /// All sessions are open.
    Open,
    Churning,
    /// No task holds a lock or waits for one.
    Idle,
    /// All sessions are closed.
    Closed,
}

/// The record of a process, reported as a line of JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) phase: Phase,
    /// Number of turns of each kind.
    pub(crate) turns: BTreeMap<String, u64>,
    /// Number of errors of each kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Number of different locks that were held.
    pub(crate) locks: usize,
    /// Number of sessions that were opened, including the first ones.
    pub(crate) opened: u64,
}

impl Tally {
    pub(crate) fn turns(&self) -> u64 {
        self.turns.values().sum()
    }

    /// Adds another tally. The phase is that of the slower process.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.phase = self.phase.min(other.phase);
        self.locks += other.locks;
        self.opened += other.opened;
        for (own, others) in [(&mut self.turns, &other.turns), (&mut self.errors, &other.errors)] {
            for (what, count) in others {
                *own.entry(what.clone()).or_default() += count;
            }
        }
    }
}

/// The tally that the pairs of a process share.
pub(super) struct SharedTally(Mutex<Tally>);

impl SharedTally {
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_phase(&self, phase: Phase) -> Outcome<()> {
        self.tally().phase = phase;
        self.report()
    }

    fn report(&self) -> Outcome<()> {
        let line = serde_json::to_string(&*self.tally())?;
        Ok(writeln!(std::io::stdout().lock(), "{line}")?)
    }
}

/// Carries out orders until the order to end.
pub(crate) async fn churn(settings: Settings) -> Outcome<()> {
    allow_files();
    let mut orders = Orders::listen();
    let shared = Arc::new(SharedTally(Mutex::default()));
    shared.set_phase(Phase::Ready)?;
    orders.wait_for("open").await?;
    let pairs = open(&settings, &shared).await?;
    shared.set_phase(Phase::Open)?;
    orders.wait_for("churn").await?;
    let (stop, stopped) = watch::channel(false);
    let mut working = JoinSet::new();
    for pair in pairs {
        working.spawn(pair.work(stopped.clone()));
    }
    shared.set_phase(Phase::Churning)?;
    let reporting = tokio::spawn({
        let shared = shared.clone();
        async move {
            while shared.report().is_ok() {
                sleep(REPORT_INTERVAL).await;
            }
        }
    });
    orders.wait_for("stop").await?;
    stop.send_replace(true);
    let mut pairs = Vec::new();
    while let Some(pair) = working.join_next().await {
        pairs.push(pair?);
    }
    shared.set_phase(Phase::Idle)?;
    orders.wait_for("close").await?;
    let mut closing = JoinSet::new();
    pairs.into_iter().for_each(|pair| drop(closing.spawn(pair.close())));
    while let Some(closed) = closing.join_next().await {
        closed?;
    }
    shared.set_phase(Phase::Closed)?;
    let ended = orders.wait_for("end").await;
    reporting.abort();
    ended
}

async fn open(settings: &Settings, shared: &Arc<SharedTally>) -> Outcome<Vec<Pair>> {
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut opening = JoinSet::new();
    for number in 0..settings.pairs {
        let share = |number: usize| settings.first + number * settings.locks / settings.pairs;
        let locks = share(number)..share(number + 1);
        let seed = settings.seed ^ (settings.first + number) as u64;
        let pause = Duration::from_millis(settings.pause_ms);
        let (connect, shared) = (settings.connect.clone(), shared.clone());
        let (broken, turns) = (settings.broken, turns.clone());
        opening.spawn(async move {
            let _turn = turns.acquire_owned().await?;
            Pair::open(connect, locks, pause, seed, broken, shared).await
        });
    }
    let mut pairs = Vec::new();
    while let Some(opened) = opening.join_next().await {
        pairs.push(opened??);
    }
    Ok(pairs)
}
