//! A database that refuses the writes of a former holder: `cargo run -p zoolock-bench --example fenced_sql`.
//!
//! A process can be paused for an hour between `is_valid()` and its write, by a garbage collector,
//! a suspended machine or a slow disk. No lock prevents that. The remedy: each write carries the
//! fencing token of its holder, and the table refuses a token that is lower than the stored one.
//! `table.rs` has the statements, with notes on PostgreSQL and MySQL. `scenarios.rs` shows late
//! writes with and without this remedy.

mod scenarios;
mod table;

use std::process::ExitCode;

use scenarios::{Outcome, between_read_and_write, late_write, wiped_ensemble};
use table::Reports;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Outcome<()> {
    println!("== A late write\n");
    late_write(&Reports::with_one_row()?, Reports::update).await?;
    println!("\n== The same without `AND token <= ?1`\n");
    late_write(&Reports::with_one_row()?, Reports::update_unfenced).await?;
    println!("\n== The same where there is no row yet\n");
    late_write(&Reports::empty()?, Reports::put).await?;
    println!("\n== A late write after the next holder has read\n");
    between_read_and_write(false).await?;
    println!("\n== The same with a claim before the reading\n");
    between_read_and_write(true).await?;
    println!("\n== A new ensemble, the old token epoch\n");
    wiped_ensemble(0).await?;
    println!("\n== A new ensemble, a higher token epoch\n");
    wiped_ensemble(1).await?;
    Ok(())
}
