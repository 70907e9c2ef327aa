//! Crash tests of `zoolock serve` and its data directory.
//!
//! `ZOOLOCK_SEED=n` repeats a run, except for its timing. `ZOOLOCK_LONG=1` kills servers ten times
//! as often.

mod ends;
mod kill;
mod model;
mod mortal;
mod worker;
mod world;
