//! A queue of hosts for one mutex, to measure the hand-overs after a long wait.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::work::{connect, until_closing};
use crate::{Sim, lock};

pub(crate) const HOSTS: usize = 5;

/// The time from one join to the next.
const BETWEEN_JOINS: Duration = Duration::from_secs(2);

/// The time for which each task but the first holds the lock. A renewal that waits for its next turn comes later.
const HOLD: Duration = Duration::from_secs(1);

pub(crate) struct Queue {
    wait: Duration,
    tells_previous: bool,
    /// The time of each grant and of the start of its release, in the order of the grants.
    turns: Mutex<Vec<(Duration, Duration)>>,
}

impl Queue {
    pub(crate) fn new(wait: Duration, tells_previous: bool) -> Queue {
        Queue { wait, tells_previous, turns: Mutex::default() }
    }

    /// Returns the times from each release to the next grant.
    pub(crate) fn hand_overs(&self) -> Vec<Duration> {
        let turns = lock(&self.turns);
        assert_eq!(turns.len(), HOSTS, "each host had a turn");
        turns.windows(2).map(|turns| turns[1].0 - turns[0].1).collect()
    }
}

/// Starts the client of a host, and its task.
pub(crate) fn start_host(queue: &Arc<Queue>, sim: &Arc<Sim>, host: usize) {
    lock(&sim.history).working.insert(host, 1);
    let task = run_host(queue.clone(), sim.clone(), host);
    sim.executor.spawn(host, false, Box::pin(task));
}

async fn run_host(queue: Arc<Queue>, sim: Arc<Sim>, host: usize) {
    let Some(zoolock) = connect(&sim, host).await else { return };
    tokio::time::sleep(BETWEEN_JOINS * host as u32).await;
    let mutex = zoolock.mutex("lock0");
    let mutex = if queue.tells_previous { mutex.tell_previous() } else { mutex };
    match mutex.lock().await {
        Ok(guard) => {
            let granted = sim.elapsed();
            tokio::time::sleep(if host == 0 { queue.wait } else { HOLD }).await;
            lock(&queue.turns).push((granted, sim.elapsed()));
            if let Err(error) = guard.release().await {
                sim.record_violation(format!("host {host} lost the lock: {error}"));
            }
        }
        Err(error) => sim.record_violation(format!("host {host} did not get the lock: {error}")),
    }
    drop(mutex);
    sim.count_ended_task(host);
    until_closing(&sim).await;
    zoolock.close().await;
}
