//! Many tasks that want the same lock, or the same few locks.
//!
//! All tasks queue behind a holder, the gate. Then the gate releases. A sample is a hand-over: the time from the
//! moment in which a holder begins its release to the moment in which the next holder may begin.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Peer, cpu_ns, lock_of, ns};
use crate::Outcome;
use crate::job::{Fields, Taken};

pub(super) async fn run<P: Peer>(fields: &Fields<'_>) -> Outcome<Taken> {
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
    let halls: Vec<Arc<Hall>> = paths.iter().map(|_| Arc::default()).collect();
    // A session of its own: etcd takes one lease for one holder, however often it acquires.
    let keeper = P::open(address).await?;
    let mut gates = Vec::new();
    for path in &paths {
        let lock = keeper.lock(path);
        let held = P::acquire(&lock).await?;
        gates.push((lock, held));
    }
    let (cpu, begun) = (cpu_ns(), Instant::now());
    let mut share = false;
    let mut crowd = JoinSet::new();
    for task in 0..tasks {
        let (at, peer) = (task % locks, &peers[task / locks % sessions]);
        let (lock, shared) = lock_of(peer, &paths[at], fields);
        share |= shared;
        crowd.spawn(member::<P>(lock, halls[at].clone(), turns, hold));
    }
    let places = if share { sessions } else { tasks / locks };
    tokio::select! {
        queued = P::await_contenders(address, &paths, places + 1) => queued?,
        ended = crowd.join_next() => {
            return Err(match ended {
                Some(Ok(Err(error))) => error,
                _ => "somebody had a turn before the gate was open".into(),
            });
        }
    }
    let joined_ns = ns(begun.elapsed());
    let opened = Instant::now();
    for (at, (lock, held)) in gates.into_iter().enumerate() {
        halls[at].leave(Instant::now());
        P::release(&lock, held).await?;
    }
    while let Some(ended) = crowd.join_next().await {
        ended??;
    }
    let (elapsed_ns, cpu_ns) = (ns(opened.elapsed()), cpu_ns() - cpu);
    if let Ok(stop) = fields.text("stop") {
        // Ends the second process, which would continue alone.
        std::fs::write(stop, "")?;
    }
    for peer in peers.into_iter().chain([keeper]) {
        peer.close().await?;
    }
    let mut samples_ns = Vec::new();
    for hall in &halls {
        samples_ns.extend(hall.hand_overs()?);
    }
    Ok(Taken { elapsed_ns, cpu_ns, joined_ns, turns: samples_ns.len() as u64, samples_ns })
}

async fn member<P: Peer>(lock: P::Lock, hall: Arc<Hall>, turns: usize, hold: Duration) -> Outcome<()> {
    for _ in 0..turns {
        let held = P::acquire(&lock).await?;
        hall.enter(Instant::now());
        if !hold.is_zero() {
            tokio::time::sleep(hold).await;
        }
        hall.leave(Instant::now());
        P::release(&lock, held).await?;
    }
    Ok(())
}

/// The log of all entries and exits.
#[derive(Default)]
struct Hall(Mutex<Vec<(Step, Instant)>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    In,
    Out,
}

impl Hall {
    fn enter(&self, now: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((Step::In, now));
    }

    fn leave(&self, now: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((Step::Out, now));
    }

    fn hand_overs(&self) -> Outcome<Vec<u64>> {
        let steps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pairs = steps.windows(2).map(|pair| match (pair[0], pair[1]) {
            ((Step::Out, left), (Step::In, entered)) => Ok(Some(ns(entered - left))),
            ((Step::In, _), (Step::Out, _)) => Ok(None),
            _ => Err("two were inside together".into()),
        });
        pairs.filter_map(Outcome::transpose).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Hall, Instant};

    #[test]
    fn two_inside_are_noticed() {
        let (hall, now) = (Hall::default(), Instant::now());
        hall.leave(now);
        hall.enter(now);
        assert_eq!(hall.hand_overs().expect("one after the other"), [0]);
        hall.enter(now);
        assert!(hall.hand_overs().is_err());
    }
}
