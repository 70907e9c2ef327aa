//! A client process. On orders of its parent, it opens pairs of sessions, lets them acquire locks, and closes them.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::session_pair::SessionPair;
use super::settings::LoadBug;
use super::tally::{ChurnPhase, SharedTally};
use crate::Outcome;
use crate::orders::Orders;
use crate::process::raise_open_file_limit;

/// Number of pairs that are opened at once.
const AT_ONCE: usize = 16;
/// Pause between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The settings of a process.
#[derive(Args, Debug)]
pub(crate) struct ChurnArgs {
    #[arg(long)]
    pub(crate) connect: String,
    #[arg(long)]
    pub(crate) pairs: usize,
    /// Number of the first lock of this process.
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
    pub(crate) broken: Option<LoadBug>,
}

/// Carries out the orders of the parent process, up to `end`.
pub(crate) async fn run_client_process(settings: ChurnArgs) -> Outcome<()> {
    raise_open_file_limit();
    let mut orders = Orders::listen();
    let shared = Arc::new(SharedTally::default());
    shared.set_phase(ChurnPhase::Ready)?;
    orders.wait_for("open").await?;
    let pairs = open_pairs(&settings, &shared).await?;
    shared.set_phase(ChurnPhase::Open)?;
    orders.wait_for("churn").await?;
    let (stop, stopped) = watch::channel(false);
    let mut working = JoinSet::new();
    for pair in pairs {
        working.spawn(pair.take_turns(stopped.clone()));
    }
    shared.set_phase(ChurnPhase::Churning)?;
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
    shared.set_phase(ChurnPhase::Idle)?;
    orders.wait_for("close").await?;
    let mut closing = JoinSet::new();
    pairs.into_iter().for_each(|pair| drop(closing.spawn(pair.close())));
    while let Some(closed) = closing.join_next().await {
        closed?;
    }
    shared.set_phase(ChurnPhase::Closed)?;
    let ended = orders.wait_for("end").await;
    reporting.abort();
    ended
}

async fn open_pairs(settings: &ChurnArgs, shared: &Arc<SharedTally>) -> Outcome<Vec<SessionPair>> {
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
            SessionPair::open(connect, locks, pause, seed, broken, shared).await
        });
    }
    let mut pairs = Vec::new();
    while let Some(opened) = opening.join_next().await {
        pairs.push(opened??);
    }
    Ok(pairs)
}
