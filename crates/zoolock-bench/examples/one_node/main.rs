//! The lock of many a first article, beside ours: one ephemeral znode that everybody watches.
//!
//! `cargo run --release -p zoolock-bench --example one_node`; for teaching, not for use. The recipe and what is wrong
//! with it are in `lock.rs`.

#[path = "../compare/mod.rs"]
mod compare;
mod lock;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    compare::command::main::<lock::OneNode>().await
}
