//! Simulates a long run in minutes: clients open and close thousands of sessions, and acquire ten times as many locks,
//! on `zoolock serve` and on Apache ZooKeeper. Memory and file descriptors of server and clients must not grow. At the
//! end, no session, contender or watch may be left.

pub(crate) mod client_process;
mod client_processes;
mod growth;
mod report;
mod result;
mod server;
mod session_pair;
mod settings;
mod tally;

use std::time::Duration;

use clap::ValueEnum as _;
use tempfile::TempDir;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use crate::Outcome;
use crate::clock::{now, seconds};
use crate::interrupt::until_interrupted;
use crate::process::ResourceUse;
use client_processes::ClientCrowd;
use result::{LoadResult, LoadSample};
use server::LoadedServer;
pub(crate) use settings::LoadArgs;
use settings::{LOOK, OTHER_FILES, SETTLED, ServerChoice};
use tally::ChurnPhase;

/// The longest time to open all sessions.
const OPENED: Duration = Duration::from_secs(300);
/// The longest time until each lock was held once.
const FIRST_ROUND: Duration = Duration::from_secs(600);

/// Runs the load. Returns whether there were no violations.
pub(crate) async fn run(settings: &LoadArgs) -> Outcome<bool> {
    if settings.sessions < 2 * settings.processes || settings.locks < settings.sessions / 2 {
        return Err("too few sessions for so many processes, or fewer locks than tasks".into());
    }
    let seed = settings.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}, {} sessions, {} locks, {:?}", settings.sessions, settings.locks, settings.time);
    let results = until_interrupted(measure_servers(settings, seed)).await?;
    let violations: Vec<String> =
        results.iter().flat_map(|result| report::violations(settings, result)).collect();
    let text = report::format_report(settings, seed, &results, &violations);
    println!("{text}");
    if let Some(out) = &settings.out {
        std::fs::create_dir_all(out)?;
        std::fs::write(out.join("load.md"), &text)?;
        std::fs::write(out.join("load.json"), serde_json::to_string(&results)?)?;
    }
    Ok(violations.is_empty())
}

async fn measure_servers(settings: &LoadArgs, seed: u64) -> Outcome<Vec<LoadResult>> {
    let mut results = Vec::new();
    for kind in ServerChoice::value_variants() {
        if settings.only.is_empty() || settings.only.contains(kind) {
            results.push(measure_server(settings, *kind, seed).await?);
        }
    }
    Ok(results)
}

async fn measure_server(settings: &LoadArgs, kind: ServerChoice, seed: u64) -> Outcome<LoadResult> {
    let dir = TempDir::with_prefix("zoolock-load-")?;
    let server = LoadedServer::start(kind, dir.path()).await?;
    let mut crowd = ClientCrowd::start(settings, &server.addr(), seed)?;
    // Each client process reports when it is ready. By then it has the files and the memory that any process has.
    crowd.wait_for_phase(ChurnPhase::Ready, OPENED).await?;
    let (server_before, clients_before) = (ResourceUse::of(server.pid()?)?, crowd.resources()?);
    let begun = now();
    crowd.send_order("open").await?;
    crowd.wait_for_phase(ChurnPhase::Open, OPENED).await?;
    let opening = seconds(now() - begun);
    eprintln!("{kind:?}: {} sessions are open after {opening:.1} s", settings.sessions);
    crowd.send_order("churn").await?;
    let first_round = time_to_first_hold(settings, &crowd).await;
    eprintln!("{kind:?}: {} locks were held once after {first_round:.1} s", crowd.tally().locks);
    let heap_then = server.live_heap().await?;
    let samples = sample_resources(settings, &server, &crowd).await?;
    crowd.send_order("stop").await?;
    crowd.wait_for_phase(ChurnPhase::Idle, SETTLED).await?;
    let idle = server
        .wait_for_counts(|counts| counts.is_free() && counts.sessions == (settings.sessions / 2 * 2) as u64)
        .await?;
    let alive = heap_then.zip(server.live_heap().await?);
    crowd.send_order("close").await?;
    crowd.wait_for_phase(ChurnPhase::Closed, SETTLED).await?;
    let empty = server.wait_for_counts(|counts| counts.is_free() && counts.sessions == 0).await?;
    let (server_after, clients_after) =
        wait_for_closed_files(&server, &crowd, server_before.files, clients_before.files).await?;
    let tally = crowd.tally();
    crowd.end().await?;
    let (directories, left) = server.find_leftovers().await?;
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
async fn time_to_first_hold(settings: &LoadArgs, crowd: &ClientCrowd) -> f64 {
    let begun = Instant::now();
    while crowd.tally().locks < settings.locks && begun.elapsed() < FIRST_ROUND {
        sleep(LOOK).await;
    }
    begun.elapsed().as_secs_f64()
}

/// Samples server and clients once a second, or fifty times in a short run.
async fn sample_resources(
    settings: &LoadArgs,
    server: &LoadedServer,
    crowd: &ClientCrowd,
) -> Outcome<Vec<LoadSample>> {
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
            LoadSample { at, turns, server: ResourceUse::of(server.pid()?)?, clients: crowd.resources()? };
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

/// Waits until server and clients have closed their files: the last threads of the clients do so in the background.
/// Returns the resources in use.
async fn wait_for_closed_files(
    server: &LoadedServer,
    crowd: &ClientCrowd,
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
