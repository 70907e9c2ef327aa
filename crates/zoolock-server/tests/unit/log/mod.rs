//! The log: what comes back after crashes, faults and damage.
//!
//! `crash` cuts the power or fails a write at every step that changes the disk, and `damage` cuts the files at every
//! byte and flips bits in every byte. `zoolock-tests/tests/crash` kills the process, and `fuzz/fuzz_targets/log.rs`
//! damages files in any other way.

mod codec;
mod crash;
mod damage;
mod live;
mod rules;
mod server;

/// Returns `long` in the long run.
fn effort(short: usize, long: usize) -> usize {
    if std::env::var_os("ZOOLOCK_LONG").is_some() { long } else { short }
}
