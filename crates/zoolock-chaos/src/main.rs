//! Injects faults into a real ensemble under zoolock. Meanwhile a referee checks that no write of a former holder
//! comes after a write of its successor.
//!
//! `cargo run --release -p zoolock-chaos -- run --time 30m` needs no privileges: three Apache ZooKeeper nodes on loopback. All
//! connections, between nodes and from clients, go through ports that can be shut in one or both directions, or delayed.

#![forbid(unsafe_code)]

mod binary;
mod clock;
mod divergence;
mod drill;
mod ensemble;
mod faults;
mod held;
mod judge;
mod link;
mod load;
mod loss;
mod notes;
mod orders;
mod outages;
mod process;
mod reach;
mod referee;
mod report;
mod seen;
mod task;
mod timeline;
mod tree;
mod worker;
mod workers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A result whose error ends the program.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
#[command(about, version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Starts an ensemble and workers, injects faults, and judges.
    Run(seen::Settings),
    /// Cuts holders off in several ways, and checks that they learn of the loss of their locks in time.
    Loss(loss::Settings),
    /// Checks that short outages cost no lock.
    Outages(outages::Settings),
    /// Opens and closes thousands of sessions and locks: memory and files must not grow.
    Load(load::Settings),
    /// Runs some tasks that acquire locks.
    #[command(hide = true)]
    Worker(worker::Settings),
    /// Holds one lock and reports what its guard reports.
    #[command(hide = true)]
    Holder(loss::holder::Settings),
    /// Opens some of the thousands of sessions.
    #[command(hide = true)]
    Churn(load::churn::Settings),
}

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Args::parse().what {
        What::Run(settings) => drill::run(&settings).await,
        What::Loss(settings) => loss::run(&settings).await,
        What::Outages(settings) => outages::run(&settings).await,
        What::Load(settings) => load::run(&settings).await,
        What::Worker(settings) => worker::run(settings).await.map(|()| true),
        What::Holder(settings) => loss::holder::hold(settings).await.map(|()| true),
        What::Churn(settings) => load::churn::churn(settings).await.map(|()| true),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("zoolock-chaos: {error}");
            ExitCode::from(2)
        }
    }
}
