//! A database that refuses a holder who lost the lock without knowing: `cargo run -p zoolock-bench --example fenced_sql`.
//!
//! No lock can stop a process that does not look at the clock: between `is_valid()` and the write it may be stopped
//! for an hour (a garbage collector, a suspended machine, a slow disk). What helps is that each write carries the
//! holder's token, and that the table takes no token lower than the one it has. `table.rs` has the statements, for
//! PostgreSQL and MySQL as well, `story.rs` what happens with and without them.

mod story;
mod table;

use std::process::ExitCode;

use story::{Outcome, between_read_and_write, late_write, wiped_ensemble};
use table::Reports;

#[tokio::main]
async fn main() -> ExitCode {
    match tell().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn tell() -> Outcome<()> {
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
