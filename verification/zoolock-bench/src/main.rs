//! Measures zoolock and its peers. They do the same work, on the same machine, in one run, one
//! after the other.
//!
//! `cargo build --release && cargo run --release -p zoolock-bench -- compare` writes docs/BENCHMARKS.md and
//! bench/results. `-- server` measures the embedded server beside Apache ZooKeeper. `-- attacks`
//! measures how long a session waits beside expensive requests. Times depend on the machine, so
//! only ratios of times from one run can be compared.

#![forbid(unsafe_code)]

mod attacks;
mod blocking_client;
mod compare;
mod job;
mod page;
mod process;
mod server_measurement;
mod server_report;
mod servers;
mod stats;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use zoolock_tests::failure::Outcome;

/// The page with the tables.
const PAGE: &str = "docs/BENCHMARKS.md";

#[derive(Parser)]
#[command(about, version)]
struct Args {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Compare zoolock with Curator, WriteLock, kazoo, zookeeper-client, etcd and Redis, on real servers that this
    /// command starts and stops
    Compare(compare::CompareArgs),
    /// Compare the embedded server with a standalone Apache ZooKeeper from Debian's package, both with fsync
    Server {
        /// Number of measurements of each server. The servers are measured alternately
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Number of znodes for the measurement of memory
        #[arg(long, default_value_t = 1_000_000)]
        znodes: usize,
        /// Directory for the data of the servers [default: the temporary directory]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// The command zoolock to measure
        #[arg(long, value_name = "FILE", default_value = "target/release/zoolock")]
        zoolock: PathBuf,
        /// Print the figures, and do not change docs/BENCHMARKS.md and bench/results
        #[arg(long)]
        dry_run: bool,
    },
    /// Attack the embedded server with expensive requests, and measure how long another session waits meanwhile
    Attacks {
        /// Duration of an attack that repeats its requests, in seconds
        #[arg(long, default_value_t = 5)]
        seconds: u64,
        /// Run only the attacks whose name contains this text
        #[arg(long, value_name = "TEXT", default_value = "")]
        only: String,
        /// Directory for the data of the server [default: the temporary directory]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// The command zoolock to measure
        #[arg(long, value_name = "FILE", default_value = "target/release/zoolock")]
        zoolock: PathBuf,
    },
    /// Run a client that reads its jobs from standard input
    #[command(hide = true)]
    Worker { client: worker::PeerKind },
}

fn main() -> ExitCode {
    process::raise_open_file_limit();
    let ended = match Args::parse().command {
        BenchCommand::Compare(settings) => compare::main(&settings),
        BenchCommand::Server { rounds, znodes, dir, zoolock, dry_run } => {
            let dir = dir.unwrap_or_else(std::env::temp_dir);
            let run = server_measurement::run(&server_measurement::MeasurementSettings {
                rounds,
                znodes,
                dir,
                zoolock,
            });
            run.and_then(|figures| server_report::write(&figures, dry_run))
        }
        BenchCommand::Attacks { seconds, only, dir, zoolock } => attacks::run(&attacks::AttackSettings {
            duration: Duration::from_secs(seconds),
            only,
            dir: dir.unwrap_or_else(std::env::temp_dir),
            zoolock,
        }),
        BenchCommand::Worker { client } => worker::run(client),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zoolock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
