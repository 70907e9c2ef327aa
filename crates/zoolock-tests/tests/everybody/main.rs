//! Queues in which clients of every make stand: how they are read, and how one asks another to let go.

#[path = "../common/mod.rs"]
mod common;
#[path = "../peers/foreign.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod foreign;

mod breaking;
mod make;
mod queue;
mod reading;
mod revoking;
mod semaphores;
mod unread;
mod views;
mod waiting;
mod zkcli;
