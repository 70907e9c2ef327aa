//! The settings of a run.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::settings::parse_duration;

/// The environment variable that limits glibc to one heap per process. By default, the threads of a
/// process share eight heaps for each core. These heaps grow for hours by fragmentation. A single
/// heap reaches its final size within minutes, and still shows a leak.
pub(super) const ARENAS: (&str, &str) = ("MALLOC_ARENA_MAX", "1");
/// The longest time of one step at the end of a run, such as the release of all locks, or the end
/// of all sessions.
pub(super) const SETTLED: Duration = Duration::from_secs(120);
/// The number of files that a process may open for other purposes, and keep.
pub(super) const OTHER_FILES: u64 = 8;
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
pub(crate) enum ServerChoice {
    /// `zoolock serve`, with its data on disk.
    Serve,
    /// One Apache ZooKeeper.
    Apache,
}

/// A deliberate bug of the clients, which the run must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadBug {
    /// Clients keep some memory of each turn.
    Leak,
}

/// The settings of a run.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// Number of concurrent sessions, two per task.
    #[arg(long, default_value_t = 5_000)]
    pub(super) sessions: usize,
    /// Number of different locks.
    #[arg(long, default_value_t = 50_000)]
    pub(super) locks: usize,
    /// Length of the run after each lock was held once: `90s`, `5m`.
    #[arg(long, default_value = "5m", value_parser = parse_duration)]
    pub(super) time: Duration,
    /// Number of client processes.
    #[arg(long, default_value_t = 5)]
    pub(super) processes: usize,
    /// Turns per second of all clients together. In a turn, a task uses one lock or reopens one
    /// session.
    #[arg(long, default_value_t = 500)]
    pub(super) rate: u64,
    /// Largest growth of memory or open files over the second half of the run, in percent of their
    /// mean in that half.
    #[arg(long, default_value_t = 5.0, value_name = "PERCENT")]
    pub(super) tolerance: f64,
    /// The seed of the random choices. A random one by default. It is printed.
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Only this server.
    #[arg(long, value_delimiter = ',', value_name = "SERVER")]
    pub(super) only: Vec<ServerChoice>,
    /// Adds a deliberate bug: the run must fail.
    #[arg(long = "break", value_name = "WHAT")]
    pub(super) broken: Option<LoadBug>,
    /// The directory for the table, and for all samples as JSON.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}
