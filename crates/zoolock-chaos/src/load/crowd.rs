//! All clients: some processes that carry out orders and report their progress.

use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum as _;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use super::churn::{Phase, Tally};
use super::{ARENAS, LOOK, SETTLED, Settings};
use crate::Outcome;
use crate::process::ResourceUse;

/// The processes. They end when this value is dropped.
pub(super) struct Crowd {
    processes: Vec<Process>,
}

struct Process {
    child: Child,
    orders: ChildStdin,
    pid: u32,
    tally: Arc<Mutex<Tally>>,
}

impl Crowd {
    pub(super) fn start(settings: &Settings, server: &std::net::SocketAddr, seed: u64) -> Outcome<Crowd> {
        let pairs = settings.sessions / 2;
        let share = |all: usize, number: usize| all * number / settings.processes;
        // All processes together take `rate` turns per second.
        let pause = pairs as u64 * 1000 / settings.rate.max(1);
        let mut processes = Vec::new();
        for number in 0..settings.processes {
            let part = |all: usize| share(all, number + 1) - share(all, number);
            let mut command = Command::new(std::env::current_exe()?);
            let figures = [
                ("--pairs", part(pairs) as u64),
                ("--first", share(settings.locks, number) as u64),
                ("--locks", part(settings.locks) as u64),
                ("--pause-ms", pause),
                ("--seed", seed ^ ((number as u64) << 48)),
            ];
            command.args(["churn", "--connect", &server.to_string()]);
            for (name, figure) in figures {
                command.arg(name).arg(figure.to_string());
            }
            if let Some(broken) = settings.broken.and_then(|broken| broken.to_possible_value()) {
                command.args(["--break", broken.get_name()]);
            }
            command.env(ARENAS.0, ARENAS.1);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
            let mut child = command.spawn()?;
            let (Some(orders), Some(said), Some(pid)) = (child.stdin.take(), child.stdout.take(), child.id())
            else {
                return Err("a client process ended at once".into());
            };
            let tally = Arc::new(Mutex::default());
            tokio::spawn(listen(said, tally.clone()));
            processes.push(Process { child, orders, pid, tally });
        }
        Ok(Crowd { processes })
    }

    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    pub(super) async fn send_order(&mut self, order: &str) -> Outcome<()> {
        for process in &mut self.processes {
            process.orders.write_all(format!("{order}\n").as_bytes()).await?;
        }
        Ok(())
    }

    /// Waits until all processes have reached this phase.
    pub(super) async fn wait_for_phase(&mut self, phase: Phase, patience: Duration) -> Outcome<()> {
        let deadline = Instant::now() + patience;
        loop {
            if self.processes.iter().all(|process| lock(&process.tally).phase >= phase) {
                return Ok(());
            }
            for process in &mut self.processes {
                if let Some(status) = process.child.try_wait()? {
                    return Err(format!("a process of clients ended with {status}").into());
                }
            }
            if Instant::now() > deadline {
                return Err(format!("not all clients reached {phase:?} after {patience:?}").into());
            }
            sleep(LOOK).await;
        }
    }

    pub(super) fn tally(&self) -> Tally {
        let mut all = Tally { phase: Phase::Closed, ..Tally::default() };
        self.processes.iter().for_each(|process| all.add(&lock(&process.tally)));
        all
    }

    pub(super) fn resources(&self) -> Outcome<ResourceUse> {
        let pids: Vec<u32> = self.processes.iter().map(|process| process.pid).collect();
        ResourceUse::of_all(&pids)
    }

    /// Ends all processes.
    pub(super) async fn end(mut self) -> Outcome<()> {
        self.send_order("end").await?;
        for process in &mut self.processes {
            let status = timeout(SETTLED, process.child.wait()).await??;
            if !status.success() {
                return Err(format!("a process of clients ended with {status}").into());
            }
        }
        Ok(())
    }
}

async fn listen(said: ChildStdout, tally: Arc<Mutex<Tally>>) {
    let mut lines = BufReader::new(said).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str(&line) {
            Ok(said) => *lock(&tally) = said,
            Err(error) => eprintln!("a process of clients says `{line}`: {error}"),
        }
    }
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}
