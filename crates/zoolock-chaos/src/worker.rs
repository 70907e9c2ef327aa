//! A worker: a process with two sessions, and tasks that acquire locks of every kind, write under them and release them.
//!
//! It ends when it reads `stop`, after the attempts of its tasks have ended. It ends at once when its input ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use tokio::task::JoinSet;
use tokio::time::sleep;
use zoolock::Zoolock;

use crate::Outcome;
use crate::ensemble::TICK;
use crate::notes::Who;
use crate::task::{Break, Kind, Task};

/// The session timeouts of a worker's sessions. A task uses the session of its number, modulo their count.
pub(crate) const TIMEOUTS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(8)];

/// The settings of a worker.
#[derive(Args, Debug)]
pub(crate) struct Settings {
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
    pub(crate) broken: Option<Break>,
}

/// Runs the tasks until the worker is told to stop.
pub(crate) async fn run(settings: Settings) -> Outcome<()> {
    let stop = Arc::new(AtomicBool::new(false));
    // A thread of its own, which blocks until the end.
    std::thread::spawn({
        let stop = stop.clone();
        move || listen(&stop)
    });
    let mut addresses = settings.connect.as_str();
    if settings.broken == Some(Break::OneServer) {
        let all: Vec<&str> = addresses.split(',').collect();
        addresses = all[settings.number % all.len()];
    }
    let mut sessions = Vec::new();
    for timeout in TIMEOUTS {
        sessions.push(connect(addresses, timeout, &stop).await);
    }
    let mut tasks = JoinSet::new();
    for (number, kind) in Kind::MIX.into_iter().enumerate() {
        let who = Who { worker: settings.number, life: settings.life, task: number };
        let Some(zoolock) = sessions[number % sessions.len()].clone() else { continue };
        let seed = settings.seed ^ ((number as u64) << 40);
        let task = Task::new(who, kind, zoolock, &settings.referee, seed, settings.broken).await?;
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
    // The drill has ended.
    std::process::exit(3);
}

/// Connects. Tries again until the worker is told to stop, since the ensemble may be down.
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
