//! The workers: processes, each with a link of its own to each node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use tokio::time::{Instant, timeout_at};
use zoolock_tests::proxy::LinkFault;

use crate::Outcome;
use crate::commands::{own_command, send_signal};
use crate::link::Link;
use crate::task::DeliberateBug;
use crate::usable_spans::TimeSpan;

/// All workers.
pub(crate) struct Workers {
    referee: PathBuf,
    seed: u64,
    broken: Option<DeliberateBug>,
    workers: Vec<Worker>,
}

struct Worker {
    child: Option<Child>,
    life: u32,
    links: Vec<Link>,
}

impl Workers {
    /// Opens the links of `count` workers. Starts no worker.
    pub(crate) async fn new(
        count: usize,
        nodes: &[SocketAddr],
        referee: PathBuf,
        seed: u64,
        broken: Option<DeliberateBug>,
    ) -> Outcome<Self> {
        let mut workers = Vec::new();
        for _ in 0..count {
            let mut links = Vec::new();
            for node in nodes {
                links.push(Link::open(*node).await?);
            }
            workers.push(Worker { child: None, life: 0, links });
        }
        Ok(Workers { referee, seed, broken, workers })
    }

    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Returns the number of times that a worker was started.
    pub(crate) fn starts_of(&self, worker: usize) -> u32 {
        self.workers[worker].life
    }

    /// Starts a worker unless it runs. Returns whether this call started it.
    pub(crate) fn start(&mut self, number: usize) -> Outcome<bool> {
        let worker = &mut self.workers[number];
        if let Some(child) = &mut worker.child
            && child.try_wait()?.is_none()
        {
            return Ok(false);
        }
        worker.life += 1;
        let addrs: Vec<String> = worker.links.iter().map(Link::addr).collect();
        let seed = self.seed ^ ((number as u64) << 56) ^ (u64::from(worker.life) << 48);
        let mut command = own_command("worker", self.broken)?;
        command
            .args(["--number", &number.to_string(), "--life", &worker.life.to_string()])
            .args(["--connect", &addrs.join(","), "--seed", &seed.to_string(), "--referee"])
            .arg(&self.referee)
            .stdout(Stdio::null());
        worker.child = Some(command.spawn()?);
        Ok(true)
    }

    pub(crate) fn signal(&mut self, worker: usize, signal: Signal) {
        if let Some(child) = &mut self.workers[worker].child {
            send_signal(child, signal);
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

    pub(crate) fn set_fault(&self, worker: usize, node: usize, fault: LinkFault) {
        self.workers[worker].links[node].set_fault(fault);
    }

    pub(crate) async fn close_connections(&self, worker: usize) {
        for link in &self.workers[worker].links {
            link.close_connections().await;
        }
    }

    pub(crate) fn open_links(&self) {
        for link in self.workers.iter().flat_map(|worker| &worker.links) {
            link.set_fault(LinkFault::default());
        }
    }

    /// Returns the spans in which the links were broken, by worker and node.
    pub(crate) fn broken_spans(&self) -> Vec<Vec<Vec<TimeSpan>>> {
        let links = |worker: &Worker| worker.links.iter().map(Link::broken_spans).collect();
        self.workers.iter().map(links).collect()
    }

    /// Returns the workers that ended without an order to stop, with their status.
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

    /// Tells all workers to stop, and waits for them. Kills workers that do not stop in time.
    /// Returns a message for each worker that was killed, and for each worker that failed.
    pub(crate) async fn stop(&mut self, patience: Duration) -> Vec<String> {
        let mut inputs = Vec::new();
        for worker in &mut self.workers {
            // The input is kept: waiting for a child would close it, and the child would end at once.
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
