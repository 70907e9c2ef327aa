//! Many tasks that want the same lock, or the same few locks.
//!
//! All tasks queue behind a holder, the gate. Then the gate releases the lock. A sample is the time
//! of a hand-over: from the beginning of a release to the grant of the next holder.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use zoolock_tests::lock;

use super::peer::{Peer, cpu_ns, ns, shared_lock_of};
use crate::Outcome;
use crate::job::{Fields, Measurement};

pub(super) async fn run<P: Peer>(fields: &Fields<'_>) -> Outcome<Measurement> {
    let (address, path) = (fields.text("connect")?, fields.text("path")?);
    let (tasks, sessions): (usize, usize) = (fields.number("tasks")?, fields.number("sessions")?);
    let (turns, locks): (usize, usize) = (fields.number("turns")?, fields.number("locks")?);
    let hold = Duration::from_micros(fields.number("hold_us")?);
    let paths: Vec<String> = (0..locks).map(|at| format!("{path}-{at}")).collect();
    P::prepare(address, &paths).await?;
    let mut peers = Vec::new();
    for _ in 0..sessions {
        peers.push(P::open(address).await?);
    }
    let logs: Vec<Arc<HoldLog>> = paths.iter().map(|_| Arc::default()).collect();
    // The gates have a session of their own, because etcd treats all acquisitions with one lease as
    // those of one holder.
    let keeper = P::open(address).await?;
    let mut gates = Vec::new();
    for path in &paths {
        let lock = keeper.lock(path);
        let held = P::acquire(&lock).await?;
        gates.push((lock, held));
    }
    let (cpu, begun) = (cpu_ns(), Instant::now());
    // The tasks of a session share a hold only if they use clones of one handle.
    let shared_lock = |peer: &P, path: &String| shared_lock_of(peer, path, fields);
    let shared: Vec<Vec<Option<P::Lock>>> =
        peers.iter().map(|peer| paths.iter().map(|path| shared_lock(peer, path)).collect()).collect();
    let mut crowd = JoinSet::new();
    for task in 0..tasks {
        let (at, session) = (task % locks, task / locks % sessions);
        let lock = shared[session][at].clone().unwrap_or_else(|| peers[session].lock(&paths[at]));
        crowd.spawn(take_turns::<P>(lock, logs[at].clone(), turns, hold));
    }
    let is_shared = shared.iter().flatten().any(Option::is_some);
    let queue_length = if is_shared { sessions } else { tasks / locks };
    tokio::select! {
        queued = P::await_contenders(address, &paths, queue_length + 1) => queued?,
        ended = crowd.join_next() => {
            return Err(match ended {
                Some(Ok(Err(error))) => error,
                _ => "a task was granted the lock before the gate opened".into(),
            });
        }
    }
    let joined_ns = ns(begun.elapsed());
    let opened = Instant::now();
    for (at, (lock, held)) in gates.into_iter().enumerate() {
        logs[at].leave(Instant::now());
        P::release(&lock, held).await?;
    }
    while let Some(ended) = crowd.join_next().await {
        ended??;
    }
    let (elapsed_ns, cpu_ns) = (ns(opened.elapsed()), cpu_ns() - cpu);
    if let Ok(stop) = fields.text("stop") {
        // Ends the second process, which would otherwise continue alone.
        std::fs::write(stop, "")?;
    }
    for peer in peers.into_iter().chain([keeper]) {
        peer.close().await?;
    }
    let mut samples_ns = Vec::new();
    for log in &logs {
        samples_ns.extend(log.hand_overs()?);
    }
    Ok(Measurement { elapsed_ns, cpu_ns, joined_ns, turns: samples_ns.len() as u64, samples_ns })
}

async fn take_turns<P: Peer>(lock: P::Lock, log: Arc<HoldLog>, turns: usize, hold: Duration) -> Outcome<()> {
    for _ in 0..turns {
        let held = P::acquire(&lock).await?;
        log.enter(Instant::now());
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        log.leave(Instant::now());
        P::release(&lock, held).await?;
    }
    Ok(())
}

/// The log of all entries into the critical section, and of all exits from it.
#[derive(Default)]
struct HoldLog(Mutex<Vec<(SectionEvent, Instant)>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectionEvent {
    Entered,
    Left,
}

impl HoldLog {
    fn enter(&self, now: Instant) {
        lock(&self.0).push((SectionEvent::Entered, now));
    }

    fn leave(&self, now: Instant) {
        lock(&self.0).push((SectionEvent::Left, now));
    }

    fn hand_overs(&self) -> Outcome<Vec<u64>> {
        let steps = lock(&self.0);
        let pairs = steps.windows(2).map(|pair| match (pair[0], pair[1]) {
            ((SectionEvent::Left, left), (SectionEvent::Entered, entered)) => Ok(Some(ns(entered - left))),
            ((SectionEvent::Entered, _), (SectionEvent::Left, _)) => Ok(None),
            _ => Err("two tasks held the lock at once".into()),
        });
        pairs.filter_map(Outcome::transpose).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{HoldLog, Instant};

    #[test]
    fn overlapping_holders_are_an_error() {
        let (log, now) = (HoldLog::default(), Instant::now());
        log.leave(now);
        log.enter(now);
        assert_eq!(log.hand_overs().expect("holders do not overlap"), [0]);
        log.enter(now);
        assert!(log.hand_overs().is_err());
    }
}
