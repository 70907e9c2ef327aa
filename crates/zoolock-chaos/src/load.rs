//! A long run in minutes: thousands of sessions and ten times as many locks are opened and closed, against `zoolock serve`
//! and Apache ZooKeeper. Memory and file descriptors of server and clients must not grow, and nothing may be left.

pub(crate) mod churn;
mod crowd;
mod flat;
mod pair;
mod report;
mod server;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::Outcome;
use crate::clock::{now, seconds};
use crate::process::ResourceUse;
use crate::seen::duration;
use churn::Tally;
use crowd::Crowd;
use server::{Counts, Server};

/// The setting for one heap per process. Sixteen heaps that a thousand threads share grow for hours, by the gaps
/// between the pieces in use. One heap has its final size after some minutes, and shows a leak as well.
const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "1");
/// The time in which many sessions that are opened at once are open.
const OPENED: Duration = Duration::from_secs(300);
/// The time in which each lock is held once.
const FIRST_ROUND: Duration = Duration::from_secs(600);
/// The time in which all clients release their locks and close, and the server forgets them.
const SETTLED: Duration = Duration::from_secs(120);
/// The number of other files that a process may open, once.
const OTHER_FILES: u64 = 8;
const LOOK: Duration = Duration::from_millis(100);

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
pub(crate) enum Kind {
    /// `zoolock serve`, with its data on disk.
    Serve,
    /// One Apache ZooKeeper.
    Apache,
}

/// A seeded bug of the clients, which the judge must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Break {
    /// Clients keep some memory of each turn.
    Leak,
}

/// The settings of a run.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    /// Number of concurrent sessions, two per task.
    #[arg(long, default_value_t = 5_000)]
    sessions: usize,
    /// Number of different locks.
    #[arg(long, default_value_t = 50_000)]
    locks: usize,
    /// Length of the run after each lock was held once: `90s`, `5m`.
    #[arg(long, default_value = "5m", value_parser = duration)]
    time: Duration,
    /// Number of client processes.
    #[arg(long, default_value_t = 5)]
    processes: usize,
    /// Turns per second of all clients together.
    #[arg(long, default_value_t = 500)]
    rate: u64,
    /// Largest growth of a figure over the second half, in percent of its mean there.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    tolerance: f64,
    /// The seed of the random choices. A random one by default. It is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this server.
    #[arg(long, value_delimiter = ',', value_name = "SERVER")]
    only: Vec<Kind>,
    /// Seeds a bug: the run must fail.
    #[arg(long = "break", value_name = "WHAT")]
    broken: Option<Break>,
    /// The directory for the table, and for all samples as JSON.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The figures at one time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    /// Seconds since each lock had been held once.
    at: f64,
    turns: u64,
    server: ResourceUse,
    clients: ResourceUse,
}

/// The results of one server.
#[derive(Debug, Serialize)]
pub(crate) struct LoadResult {
    kind: Kind,
    /// The resources before the first session.
    server_before: ResourceUse,
    clients_before: ResourceUse,
    /// Seconds until all sessions were open.
    opening: f64,
    /// Seconds until each lock had been held once. From then on, server and clients have what they need for all locks.
    first_round: f64,
    /// Live bytes on the heap of a server that reserves its heap as a whole: after the first round, and after all
    /// clients had stopped.
    alive: Option<(u64, u64)>,
    samples: Vec<Sample>,
    tally: Tally,
    /// The counts after all clients had stopped, with their sessions still open.
    idle: Counts,
    /// The counts after all sessions were closed.
    empty: Counts,
    server_after: ResourceUse,
    clients_after: ResourceUse,
    /// Number of lock directories, and the znodes that are left in them.
    directories: usize,
    left: Vec<String>,
}

/// Runs the load. Returns whether there were no violations.
pub(crate) async fn run(settings: &Settings) -> Outcome<bool> {
    if settings.sessions < 2 * settings.processes || settings.locks < settings.sessions / 2 {
        return Err("too few sessions for so many processes, or fewer locks than tasks".into());
    }
    let seed = settings.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}, {} sessions, {} locks, {:?}", settings.sessions, settings.locks, settings.time);
    let mut terminated = signal(SignalKind::terminate())?;
    let results = tokio::select! {
        results = all(settings, seed) => results?,
        _ = tokio::signal::ctrl_c() => return Err("interrupted".into()),
        _ = terminated.recv() => return Err("terminated".into()),
    };
    let violations: Vec<String> =
        results.iter().flat_map(|result| report::violations(settings, result)).collect();
    let text = report::text(settings, seed, &results, &violations);
    println!("{text}");
    if let Some(out) = &settings.out {
        std::fs::create_dir_all(out)?;
        std::fs::write(out.join("load.md"), &text)?;
        std::fs::write(out.join("load.json"), serde_json::to_string(&results)?)?;
    }
    Ok(violations.is_empty())
}

async fn all(settings: &Settings, seed: u64) -> Outcome<Vec<LoadResult>> {
    let mut results = Vec::new();
    for kind in Kind::value_variants() {
        if settings.only.is_empty() || settings.only.contains(kind) {
            results.push(one(settings, *kind, seed).await?);
        }
    }
    Ok(results)
}

async fn one(settings: &Settings, kind: Kind, seed: u64) -> Outcome<LoadResult> {
    let dir = TempDir::with_prefix("zoolock-load-")?;
    let server = Server::start(kind, dir.path()).await?;
    let mut crowd = Crowd::start(settings, &server.addr(), seed)?;
    // The processes report when they have begun. Then they have the files and the memory that any process has.
    crowd.wait_for_phase(churn::Phase::Ready, OPENED).await?;
    let (server_before, clients_before) = (ResourceUse::of(server.pid()?)?, crowd.resources()?);
    let begun = now();
    crowd.send_order("open").await?;
    crowd.wait_for_phase(churn::Phase::Open, OPENED).await?;
    let opening = seconds(now() - begun);
    eprintln!("{kind:?}: {} sessions are open after {opening:.1} s", settings.sessions);
    crowd.send_order("churn").await?;
    let first_round = time_to_first_hold(settings, &crowd).await;
    eprintln!("{kind:?}: {} locks were held once after {first_round:.1} s", crowd.tally().locks);
    let heap_then = server.live_heap().await?;
    let samples = watch(settings, &server, &crowd).await?;
    crowd.send_order("stop").await?;
    crowd.wait_for_phase(churn::Phase::Idle, SETTLED).await?;
    let idle = server
        .wait_for_counts(|counts| counts.is_free() && counts.sessions == (settings.sessions / 2 * 2) as u64)
        .await?;
    let alive = heap_then.zip(server.live_heap().await?);
    crowd.send_order("close").await?;
    crowd.wait_for_phase(churn::Phase::Closed, SETTLED).await?;
    let empty = server.wait_for_counts(|counts| counts.is_free() && counts.sessions == 0).await?;
    let (server_after, clients_after) =
        wait_for_closed_files(&server, &crowd, server_before.files, clients_before.files).await?;
    let tally = crowd.tally();
    crowd.end().await?;
    let (directories, left) = server.left().await?;
    server.end().await?;
    let result = LoadResult {
        kind,
        server_before,
        clients_before,
        opening,
        first_round,
        alive,
        samples,
        tally,
        idle,
        empty,
        server_after,
        clients_after,
        directories,
        left,
    };
    Ok(result)
}

/// Waits until each lock was held once, at most for [`FIRST_ROUND`]. Returns the seconds that this took.
async fn time_to_first_hold(settings: &Settings, crowd: &Crowd) -> f64 {
    let begun = Instant::now();
    while crowd.tally().locks < settings.locks && begun.elapsed() < FIRST_ROUND {
        sleep(LOOK).await;
    }
    begun.elapsed().as_secs_f64()
}

/// Samples server and clients once a second, or fifty times in a short run.
async fn watch(settings: &Settings, server: &Server, crowd: &Crowd) -> Outcome<Vec<Sample>> {
    let mut samples = Vec::new();
    let begun = Instant::now();
    let mut ticks = interval((settings.time / 50).min(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_printed = Instant::now();
    while begun.elapsed() < settings.time {
        tokio::select! {
            _ = ticks.tick() => {}
            () = sleep_until(begun + settings.time) => break,
        }
        let (at, turns) = (begun.elapsed().as_secs_f64(), crowd.tally().turns());
        let sample =
            Sample { at, turns, server: ResourceUse::of(server.pid()?)?, clients: crowd.resources()? };
        if last_printed.elapsed() >= Duration::from_secs(15) {
            last_printed = Instant::now();
            let mib = |used: &ResourceUse| used.memory >> 20;
            let (of_server, of_clients) = (mib(&sample.server), mib(&sample.clients));
            eprintln!("{at:5.0} s: {turns} turns, server {of_server} MiB, clients {of_clients} MiB");
        }
        samples.push(sample);
    }
    Ok(samples)
}

/// Waits until the files are closed, which the last threads of the clients do in the background. Returns the resources.
async fn wait_for_closed_files(
    server: &Server,
    crowd: &Crowd,
    of_server: u64,
    of_clients: u64,
) -> Outcome<(ResourceUse, ResourceUse)> {
    let deadline = Instant::now() + SETTLED;
    loop {
        let (at_server, at_clients) = (ResourceUse::of(server.pid()?)?, crowd.resources()?);
        let is_back = at_server.files <= of_server + OTHER_FILES
            && at_clients.files <= of_clients + OTHER_FILES * crowd.len() as u64;
        if is_back || Instant::now() > deadline {
            return Ok((at_server, at_clients));
        }
        sleep(LOOK).await;
    }
}
