//! Injects faults into a real ensemble while workers acquire zoolock's locks on it. A run fails if
//! a write of a former holder is accepted after a write of the next holder.
//!
//! `cargo run --release -p zoolock-chaos -- run --time 30m` starts three Apache ZooKeeper nodes on loopback, and needs
//! no privileges. All connections between nodes and from clients go through ports that can be shut in one or both
//! directions, or delayed.

#![forbid(unsafe_code)]

mod clock;
mod commands;
mod divergence;
mod drill;
mod election;
mod ensemble;
mod faults;
mod interrupt;
mod judge;
mod link;
mod load;
mod loss;
mod messages;
mod orders;
mod outages;
mod pairs;
mod process;
mod referee;
mod report;
mod settings;
mod strays;
mod task;
mod timeline;
mod tree;
mod usable_spans;
mod verdict;
mod worker;
mod workers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use zoolock_tests::failure::Outcome;

#[derive(Parser)]
#[command(about, version)]
struct Args {
    #[command(subcommand)]
    what: ChaosCommand,
}

#[derive(Subcommand)]
enum ChaosCommand {
    /// Starts an ensemble and workers, injects faults, and judges.
    Run(settings::DrillArgs),
    /// Cuts holders off in several ways, and checks that they learn of the loss of their locks in time.
    Loss(loss::LossArgs),
    /// Checks that no lock is lost in a short outage.
    Outages(outages::OutagesArgs),
    /// Checks that no lock is lost while two faults hit at once.
    Pairs(pairs::PairsArgs),
    /// Checks that no znode blocks a queue because its create was carried out late.
    Strays(strays::StraysArgs),
    /// Kills, stops and cuts off leaders of elections, and checks that no two terms are valid at once.
    Election(election::ElectionArgs),
    /// Opens and closes thousands of sessions and acquires locks: memory and open files must not
    /// grow.
    Load(load::LoadArgs),
    /// Runs some tasks that acquire locks.
    #[command(hide = true)]
    Worker(worker::WorkerArgs),
    /// Holds one lock, and reports whether its guard is valid and when the lock is lost.
    #[command(hide = true)]
    Holder(loss::holder::HolderArgs),
    /// Stands in elections, and reports its terms.
    #[command(hide = true)]
    Candidate(election::candidate::CandidateArgs),
    /// Opens a part of the sessions of `load`, and acquires locks with them.
    #[command(hide = true)]
    Churn(load::client_process::ChurnArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Args::parse().what {
        ChaosCommand::Run(settings) => drill::run(&settings).await,
        ChaosCommand::Loss(settings) => loss::run(&settings).await,
        ChaosCommand::Outages(settings) => outages::run(&settings).await,
        ChaosCommand::Pairs(settings) => pairs::run(&settings).await,
        ChaosCommand::Strays(settings) => strays::run(&settings).await,
        ChaosCommand::Election(settings) => election::run(&settings).await,
        ChaosCommand::Load(settings) => load::run(&settings).await,
        ChaosCommand::Worker(settings) => worker::run(settings).await.map(|()| true),
        ChaosCommand::Holder(settings) => loss::holder::hold(settings).await.map(|()| true),
        ChaosCommand::Candidate(settings) => election::candidate::stand(settings).await.map(|()| true),
        ChaosCommand::Churn(settings) => {
            load::client_process::run_client_process(settings).await.map(|()| true)
        }
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
