//! The queue of many an article, beside ours: sequential znodes, and everybody watches the directory.
//!
//! `cargo run --release -p zoolock-bench --example watch_the_directory`; for teaching, not for use. The recipe and
//! what is wrong with it are in `lock.rs`.

#[path = "../compare/mod.rs"]
mod compare;
mod lock;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    compare::command::main::<lock::WatchTheDirectory>().await
}
