//! Measures zoolock beside its peers: the same work, on the same machine, in one run, taking turns.
//!
//! `cargo build --release && cargo run --release -p zoolock-bench -- compare` writes docs/BENCHMARKS.md and
//! bench/results; `-- server` measures the embedded server alone. Absolute figures drift with the machine; the ratios are what counts.

mod client;
mod compare;
mod delay;
mod job;
mod page;
mod process;
mod report;
mod server;
mod servers;
mod stats;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What is an error here: shown, and the end.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Where the tables are kept.
const PAGE: &str = "docs/BENCHMARKS.md";

#[derive(Parser)]
#[command(about, version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// zoolock beside Curator, WriteLock, kazoo, zookeeper-client, etcd and Redis, on the real servers, which it starts
    /// and stops itself.
    Compare(compare::Settings),
    /// The embedded server beside a standalone Apache ZooKeeper (Debian's package), fsync on in both.
    Server {
        /// How often each is measured; they take turns.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// How many znodes the memory is measured with.
        #[arg(long, default_value_t = 1_000_000)]
        znodes: usize,
        /// Where the servers keep their data; the same disk for both.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// The command to measure; the release build unless given.
        #[arg(long, value_name = "FILE", default_value = "target/release/zoolock")]
        zoolock: PathBuf,
        /// Only print; leave docs/BENCHMARKS.md and bench/results alone.
        #[arg(long)]
        dry_run: bool,
    },
    /// A client that takes its orders from standard input.
    #[command(hide = true)]
    Worker { client: worker::Client },
}

fn main() -> ExitCode {
    process::allow_files();
    let ended = match Args::parse().what {
        What::Compare(settings) => compare::main(&settings),
        What::Server { rounds, znodes, dir, zoolock, dry_run } => {
            let dir = dir.unwrap_or_else(std::env::temp_dir);
            let run = server::run(&server::Settings { rounds, znodes, dir, zoolock });
            run.and_then(|figures| report::write(&figures, dry_run))
        }
        What::Worker { client } => worker::run(client),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("zoolock-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
