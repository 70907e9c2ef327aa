//! The clients: processes that carry out orders and report their progress.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin};
use tokio::time::{Instant, sleep, timeout};
use zoolock_tests::lock;

use super::settings::{ARENAS, LOOK, LoadArgs, SETTLED};
use super::tally::{ChurnPhase, ChurnTally};
use crate::Outcome;
use crate::commands::own_command;
use crate::orders::read_reports;
use crate::process::ResourceUse;

/// The client processes. They end when this value is dropped.
pub(super) struct ClientCrowd {
    processes: Vec<ClientProcess>,
}

struct ClientProcess {
    child: Child,
    orders: ChildStdin,
    pid: u32,
    tally: Arc<Mutex<ChurnTally>>,
}

impl ClientCrowd {
    pub(super) fn start(
        settings: &LoadArgs,
        server: &std::net::SocketAddr,
        seed: u64,
    ) -> Outcome<ClientCrowd> {
        let pairs = settings.sessions / 2;
        let share = |all: usize, number: usize| all * number / settings.processes;
        // All processes together take `rate` turns per second. In a turn, a task uses one lock or
        // reopens one session.
        let pause = pairs as u64 * 1000 / settings.rate.max(1);
        let mut processes = Vec::new();
        for number in 0..settings.processes {
            let part = |all: usize| share(all, number + 1) - share(all, number);
            let mut command = own_command("churn", settings.broken)?;
            let figures = [
                ("--pairs", part(pairs) as u64),
                ("--first", share(settings.locks, number) as u64),
                ("--locks", part(settings.locks) as u64),
                ("--pause-ms", pause),
                ("--seed", seed ^ ((number as u64) << 48)),
            ];
            command.args(["--connect", &server.to_string()]).env(ARENAS.0, ARENAS.1);
            for (name, figure) in figures {
                command.arg(name).arg(figure.to_string());
            }
            let mut child = command.spawn()?;
            let (Some(orders), Some(said), Some(pid)) = (child.stdin.take(), child.stdout.take(), child.id())
            else {
                return Err("a client process ended at once".into());
            };
            let tally = Arc::new(Mutex::new(ChurnTally::default()));
            let reported = tally.clone();
            let record = move |report: ChurnTally| *lock(&reported) = report;
            tokio::spawn(read_reports(said, "a process of clients", record));
            processes.push(ClientProcess { child, orders, pid, tally });
        }
        Ok(ClientCrowd { processes })
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
    pub(super) async fn wait_for_phase(&mut self, phase: ChurnPhase, patience: Duration) -> Outcome<()> {
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

    pub(super) fn tally(&self) -> ChurnTally {
        let mut all = ChurnTally { phase: ChurnPhase::Closed, ..ChurnTally::default() };
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
