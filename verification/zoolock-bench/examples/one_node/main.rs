//! A comparison of the simplest textbook lock with zoolock: one ephemeral znode that all waiters watch.
//!
//! `cargo run --release -p zoolock-bench --example one_node` runs it. The lock is for teaching, not for use. `lock.rs` has
//! the recipe and its faults.

#[path = "../compare/mod.rs"]
mod compare;
mod lock;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    compare::command::main::<lock::OneNode>().await
}
