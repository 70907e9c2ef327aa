//! Tests that start servers.

mod backup;
mod common;
mod differential;
mod durability;
mod frames;
mod gate;
mod operating;
mod operations;
mod tls;
mod words;
