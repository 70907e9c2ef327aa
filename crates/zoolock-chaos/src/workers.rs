//! The workers: processes, each with a link of its own to each node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout_at};
use zoolock_tests::ports::Port;

use crate::Outcome;
use crate::link::{Fault, Link};
use crate::reach::Span;
use crate::task::Break;

/// All workers.
pub(crate) struct Workers {
    referee: PathBuf,
    seed: u64,
    broken: Option<Break>,
    workers: Vec<Worker>,
}

struct Worker {
    child: Option<Child>,
    life: u32,
    links: Vec<Link>,
}

impl Workers {
    /// Opens the links of this number of workers. Starts no worker.
    pub(crate) async fn new(
        count: usize,
        nodes: &[SocketAddr],
        referee: PathBuf,
        seed: u64,
        broken: Option<Break>,
    ) -> Outcome<Self> {
        let mut workers = Vec::new();
        for _ in 0..count {
            let mut links = Vec::new();
            for node in nodes {
                links.push(Link::open(Port::reserve()?, *node, None, Duration::ZERO).await?);
            }
            workers.push(Worker { child: None, life: 0, links });
        }
        Ok(Workers { referee, seed, broken, workers })
    }

    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Returns the number of times that a worker was started.
    pub(crate) fn life(&self, worker: usize) -> u32 {
        self.workers[worker].life
    }

    /// Starts a worker unless it runs. Returns whether it was started.
    pub(crate) fn start(&mut self, number: usize) -> Outcome<bool> {
        let worker = &mut self.workers[number];
        if let Some(child) = &mut worker.child
            && child.try_wait()?.is_none()
        {
            return Ok(false);
        }
        worker.life += 1;
        let addrs: Vec<String> = worker.links.iter().map(|link| link.addr().to_string()).collect();
        let seed = self.seed ^ ((number as u64) << 56) ^ (u64::from(worker.life) << 48);
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("worker")
            .args(["--number", &number.to_string(), "--life", &worker.life.to_string()])
            .args(["--connect", &addrs.join(","), "--seed", &seed.to_string(), "--referee"])
            .arg(&self.referee)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .kill_on_drop(true);
        if let Some(broken) = self.broken.and_then(|broken| broken.to_possible_value()) {
            command.args(["--break", broken.get_name()]);
        }
        worker.child = Some(command.spawn()?);
        Ok(true)
    }

    pub(crate) fn signal(&mut self, worker: usize, signal: Signal) {
        if let Some(child) = &mut self.workers[worker].child
            && let Ok(None) = child.try_wait()
            && let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32))
        {
            // Until the child is waited for, the pid is its own.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills a worker.
    pub(crate) async fn kill(&mut self, worker: usize) {
        if let Some(mut child) = self.workers[worker].child.take() {
            let _ = child.kill().await;
        }
    }

    /// Returns the number of connections of a worker to a node.
    pub(crate) fn connections(&self, worker: usize, node: usize) -> usize {
        self.workers[worker].links[node].connections()
    }

    pub(crate) fn set(&self, worker: usize, node: usize, fault: Fault) {
        self.workers[worker].links[node].set(fault);
    }

    pub(crate) fn cut(&self, worker: usize) {
        self.workers[worker].links.iter().for_each(Link::cut);
    }

    pub(crate) fn open_links(&self) {
        for link in self.workers.iter().flat_map(|worker| &worker.links) {
            link.set(Fault::default());
        }
    }

    /// Returns the spans in which the links were broken, by worker and node.
    pub(crate) fn broken(&self) -> Vec<Vec<Vec<Span>>> {
        let links = |worker: &Worker| worker.links.iter().map(Link::broken).collect();
        self.workers.iter().map(links).collect()
    }

    /// Returns the workers that ended without being told to, with their status.
    pub(crate) fn ended_workers(&mut self) -> Vec<String> {
        let mut ended = Vec::new();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if let Some(Ok(Some(status))) = worker.child.as_mut().map(Child::try_wait) {
                ended.push(format!("worker {number} ended with {status}"));
                worker.child = None;
            }
        }
        ended
    }

    /// Tells all workers to stop, and waits for them. Kills workers that do not stop, and returns their names.
    pub(crate) async fn stop(&mut self, patience: Duration) -> Vec<String> {
        let mut inputs = Vec::new();
        for worker in &mut self.workers {
            // Waiting for a child closes its input, which tells it to end at once.
            if let Some(mut input) = worker.child.as_mut().and_then(|child| child.stdin.take()) {
                let _ = input.write_all(b"stop\n").await;
                inputs.push(input);
            }
        }
        let deadline = Instant::now() + patience;
        let mut late = Vec::new();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            let Some(mut child) = worker.child.take() else { continue };
            match timeout_at(deadline, child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(ended) => late.push(format!("worker {number} ended with {ended:?}")),
                Err(_) => {
                    late.push(format!("worker {number} is not done {patience:?} after it was told to stop"));
                    let _ = child.kill().await;
                }
            }
        }
        late
    }
}
