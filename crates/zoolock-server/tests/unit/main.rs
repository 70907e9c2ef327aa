//! Tests of the parts that need no socket: the core, the tree and the log.

#[path = "../support/sim_disk.rs"]
mod sim_disk;

mod core_client;
mod core_connections;
mod core_properties;
mod listing;
mod lists;
mod log;
mod memory;
mod turns;
mod watches;
mod work;
