//! `zoolock serve` and its data directory, however the server ends.
//!
//! `ZOOLOCK_SEED=n` does the same again, as far as the moments allow; `ZOOLOCK_LONG=1` ten times as much.

mod client;
mod ends;
mod kill;
mod model;
mod mortal;
mod worker;
mod world;
