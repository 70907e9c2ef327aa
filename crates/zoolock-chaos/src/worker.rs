//! A worker: a process with two sessions and some tasks that take locks of every kind, write under them, and let go.
//!
//! It ends when it reads `stop`, after its tasks have had what they wait for, and at once when its input ends.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::task::JoinSet;
use tokio::time::sleep;
use zoolock::Zoolock;

use crate::Outcome;
use crate::ensemble::TICK;
use crate::notes::Who;
use crate::task::{Kind, Task};

/// One session is renewed by writes and one by `sync`, as their timeouts have it.
pub(crate) const TIMEOUTS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(8)];

/// What a worker does wrong, so that the judge is seen to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Break {
    /// The referee lets older tokens write.
    Unfenced,
    /// Guards are never asked whether they are valid.
    NoCheck,
    /// One in ten goes ahead without the lock.
    NoLock,
    /// One in a hundred says that it has released the lock, and has not.
    NoRelease,
}

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

/// Works until it is told to stop.
pub(crate) async fn run(settings: Settings) -> Outcome<()> {
    let stop = Arc::new(AtomicBool::new(false));
    // A thread of its own, which blocks until the end.
    std::thread::spawn({
        let stop = stop.clone();
        move || listen(&stop)
    });
    let mut sessions = Vec::new();
    for timeout in TIMEOUTS {
        sessions.push(connect(&settings.connect, timeout, &stop).await);
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
    // Whoever started us is gone.
    std::process::exit(3);
}

/// Until it is told to stop, as the ensemble may be anything but whole.
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
