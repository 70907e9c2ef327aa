//! Breaks a real ensemble under zoolock, on purpose and by a plan, while a referee watches that nobody who has lost a lock
//! writes after who has it.
//!
//! `cargo run --release -p zoolock-chaos -- run --time 30m` needs no privileges: three Apache ZooKeepers on loopback, whose
//! every way to each other and to each client goes through a port that can be shut, one way or both, or made late.

#![forbid(unsafe_code)]

mod binary;
mod clock;
mod crew;
mod drill;
mod ensemble;
mod faults;
mod held;
mod judge;
mod link;
mod load;
mod loss;
mod mend;
mod notes;
mod orders;
mod process;
mod referee;
mod report;
mod task;
mod timeline;
mod tree;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What is an error here: shown, and the end.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Parser)]
#[command(about, version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Starts an ensemble and workers, breaks them, and judges.
    Run(drill::Settings),
    /// Takes holders from an ensemble in three ways, and looks whether they know in time that their locks are lost.
    Loss(loss::Settings),
    /// Thousands of sessions and locks that come and go: memory and files are to stay as they are.
    Load(load::Settings),
    /// Some tasks that take locks.
    #[command(hide = true)]
    Worker(worker::Settings),
    /// Holds one lock and says what its guard says.
    #[command(hide = true)]
    Holder(loss::holder::Settings),
    /// Some of the thousands of sessions.
    #[command(hide = true)]
    Churn(load::churn::Settings),
}

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Args::parse().what {
        What::Run(settings) => drill::run(&settings).await,
        What::Loss(settings) => loss::run(&settings).await,
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
