//! A worker: a process with two sessions, and tasks that acquire locks of every kind, write under them and release them.
//!
//! When the process reads `stop` from its input, it ends after the current attempts of its tasks.
//! When its input ends, the process ends at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;
use zoolock::{SharedHold, Zoolock};

use crate::Outcome;
use crate::ensemble::TICK;
use crate::messages::TaskId;
use crate::task::{DeliberateBug, LockTask, TaskKind};

/// The timeouts of a worker's sessions. Task number N uses session number N modulo the number of
/// sessions.
pub(crate) const TIMEOUTS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(8)];

/// The limit of the shared holds.
const SHARED_HOLD_LIMIT: Duration = Duration::from_millis(100);

/// The settings of a worker.
#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    pub(crate) number: usize,
    #[arg(long)]
    pub(crate) life: u32,
    #[arg(long)]
    pub(crate) connect: String,
    #[arg(long)]
    pub(crate) referee: PathBuf,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long = "break")]
    pub(crate) broken: Option<DeliberateBug>,
}

/// Runs the tasks until the worker reads `stop`.
pub(crate) async fn run(settings: WorkerArgs) -> Outcome<()> {
    let stop = Arc::new(AtomicBool::new(false));
    // The thread blocks on standard input until the process ends.
    std::thread::spawn({
        let stop = stop.clone();
        move || listen(&stop)
    });
    let mut addresses = settings.connect.as_str();
    if settings.broken == Some(DeliberateBug::OneServer) {
        let all: Vec<&str> = addresses.split(',').collect();
        addresses = all[settings.number % all.len()];
    }
    let mut sessions = Vec::new();
    for timeout in TIMEOUTS {
        sessions.push(connect(addresses, timeout, &stop).await);
    }
    // All tasks of a session have clones of these handles.
    let shared = |zoolock: &Zoolock| -> Vec<SharedHold> {
        let names = TaskKind::SharedHold.locks().iter();
        names.map(|name| zoolock.mutex(name).shared_hold(SHARED_HOLD_LIMIT)).collect()
    };
    let shared: Vec<_> = sessions.iter().map(|session| session.as_ref().map(shared)).collect();
    let mut tasks = JoinSet::new();
    let kinds = TaskKind::MIX.into_iter().flat_map(|(kind, count)| std::iter::repeat_n(kind, count));
    for (number, kind) in kinds.enumerate() {
        let who = TaskId { worker: settings.number, life: settings.life, task: number };
        let session = number % sessions.len();
        let (Some(zoolock), Some(shared)) = (sessions[session].clone(), shared[session].clone()) else {
            continue;
        };
        let seed = settings.seed ^ ((number as u64) << 40);
        let task =
            LockTask::new(who, kind, zoolock, shared, &settings.referee, seed, settings.broken).await?;
        tasks.spawn(task.run(stop.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    for zoolock in sessions.into_iter().flatten() {
        zoolock.close().await;
    }
    Ok(())
}

fn listen(stop: &AtomicBool) {
    let mut lines = std::io::stdin().lines();
    if let Some(Ok(_)) = lines.next() {
        stop.store(true, Ordering::Relaxed);
        let _ = lines.next();
    }
    // The input has ended, so the drill has ended.
    std::process::exit(3);
}

/// Connects. Retries until `stop` is set, because the ensemble may be down.
async fn connect(addresses: &str, timeout: Duration, stop: &AtomicBool) -> Option<Zoolock> {
    while !stop.load(Ordering::Relaxed) {
        let builder = Zoolock::builder().tick_time(TICK).session_timeout(timeout);
        match builder.connect(addresses).await {
            Ok(zoolock) => return Some(zoolock),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
    None
}
