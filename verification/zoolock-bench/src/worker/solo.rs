//! One client that acquires a lock again and again.

use std::path::Path;
use std::time::{Duration, Instant};

use super::peer::{Peer, cpu_ns, ns, shared_lock_of};
use crate::Outcome;
use crate::job::{Fields, Measurement};

/// Measures a client without other contenders. `release=drop` does not wait for the server's confirmation. With
/// `rest_us=` there is a rest before each request, and the acquisition and the release are a sample each.
pub(super) async fn run<P: Peer>(fields: &Fields<'_>) -> Outcome<Measurement> {
    let (address, path) = (fields.text("connect")?, fields.text("path")?);
    let (count, warm): (usize, usize) = (fields.number("count")?, fields.number("warm")?);
    let dropped = fields.text("release")? == "drop";
    P::prepare(address, &[path.to_owned()]).await?;
    let peer = P::open(address).await?;
    let lock = shared_lock_of(&peer, path, fields).unwrap_or_else(|| peer.lock(path));
    for _ in 0..warm {
        acquire_and_release::<P>(&lock, dropped).await?;
    }
    let mut samples_ns = Vec::with_capacity(count);
    let rest = fields.number("rest_us").ok().map(Duration::from_micros);
    let (cpu, begun) = (cpu_ns(), Instant::now());
    for _ in 0..count {
        let Some(rest) = rest else {
            let begun = Instant::now();
            acquire_and_release::<P>(&lock, dropped).await?;
            samples_ns.push(ns(begun.elapsed()));
            continue;
        };
        tokio::time::sleep(rest).await;
        let begun = Instant::now();
        let held = P::acquire(&lock).await?;
        samples_ns.push(ns(begun.elapsed()));
        tokio::time::sleep(rest).await;
        let begun = Instant::now();
        P::release(&lock, held).await?;
        samples_ns.push(ns(begun.elapsed()));
    }
    let (elapsed_ns, cpu_ns) = (ns(begun.elapsed()), cpu_ns() - cpu);
    drop(lock);
    peer.close().await?;
    Ok(Measurement { elapsed_ns, cpu_ns, joined_ns: 0, turns: count as u64, samples_ns })
}

async fn acquire_and_release<P: Peer>(lock: &P::Lock, dropped: bool) -> Outcome<()> {
    let held = P::acquire(lock).await?;
    if dropped { P::release_without_waiting(lock, held) } else { P::release(lock, held).await }
}

/// Acquires and releases the lock again and again, while another process runs a crowd, until the
/// file `stop` exists. The samples are the waiting times.
pub(super) async fn visit<P: Peer>(fields: &Fields<'_>) -> Outcome<Measurement> {
    let (address, path, stop) = (fields.text("connect")?, fields.text("path")?, fields.text("stop")?);
    P::prepare(address, &[path.to_owned()]).await?;
    let peer = P::open(address).await?;
    let lock = peer.lock(path);
    let mut samples_ns = Vec::new();
    let (cpu, begun) = (cpu_ns(), Instant::now());
    while !Path::new(stop).exists() {
        let begun = Instant::now();
        let held = P::acquire(&lock).await?;
        samples_ns.push(ns(begun.elapsed()));
        P::release(&lock, held).await?;
    }
    let (elapsed_ns, cpu_ns) = (ns(begun.elapsed()), cpu_ns() - cpu);
    drop(lock);
    peer.close().await?;
    Ok(Measurement { elapsed_ns, cpu_ns, joined_ns: 0, turns: samples_ns.len() as u64, samples_ns })
}
