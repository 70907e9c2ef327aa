//! Many locks, acquired all at once.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::task::JoinSet;

use super::peer::{Peer, cpu_ns, ns};
use crate::Outcome;
use crate::job::{Fields, Measurement};

/// Acquires all locks, holds them for `hold_us=` if given, then releases them all. The directories
/// of the locks are created before the measurement. A sample is one acquisition beside all the
/// others.
pub(super) async fn run<P: Peer>(fields: &Fields<'_>) -> Outcome<Measurement> {
    let (address, path) = (fields.text("connect")?, fields.text("path")?);
    let (locks, sessions): (usize, usize) = (fields.number("locks")?, fields.number("sessions")?);
    let hold = fields.number("hold_us").ok().map(Duration::from_micros);
    let paths: Vec<String> = (0..locks).map(|at| format!("{path}/{at}")).collect();
    P::prepare(address, &paths).await?;
    let mut peers = Vec::new();
    for _ in 0..sessions {
        peers.push(P::open(address).await?);
    }
    let (cpu, begun) = (cpu_ns(), Instant::now());
    let mut parts = JoinSet::new();
    for (at, peer) in peers.iter().enumerate() {
        let mine: Vec<P::Lock> =
            paths.iter().skip(at).step_by(sessions).map(|path| peer.lock(path)).collect();
        parts.spawn(async move {
            let acquired = mine.iter().map(|lock| async move {
                let begun = Instant::now();
                let held = P::acquire(lock).await?;
                Outcome::Ok((lock, held, ns(begun.elapsed())))
            });
            let held = try_join_all(acquired).await?;
            if let Some(hold) = hold {
                tokio::time::sleep(hold).await;
            }
            let samples: Vec<u64> = held.iter().map(|(_, _, took)| *took).collect();
            try_join_all(held.into_iter().map(|(lock, held, _)| P::release(lock, held))).await?;
            Outcome::Ok(samples)
        });
    }
    let mut samples_ns = Vec::with_capacity(locks);
    while let Some(part) = parts.join_next().await {
        samples_ns.extend(part??);
    }
    let (elapsed_ns, cpu_ns) = (ns(begun.elapsed()), cpu_ns() - cpu);
    for peer in peers {
        peer.close().await?;
    }
    Ok(Measurement { elapsed_ns, cpu_ns, joined_ns: 0, turns: locks as u64, samples_ns })
}
