//! A comparison of a textbook queue with zoolock: sequential znodes, and all waiters watch the directory.
//!
//! `cargo run --release -p zoolock-bench --example watch_the_directory` runs it. The lock is for teaching, not for use.
//! `lock.rs` has the recipe and its faults.

#[path = "../compare/mod.rs"]
mod compare;
mod lock;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    compare::command::main::<lock::WatchTheDirectory>().await
}
