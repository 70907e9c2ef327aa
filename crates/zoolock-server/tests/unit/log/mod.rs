//! Recovery of the log after crashes, disk errors and damage.
//!
//! `crash` cuts the power or injects an error at every step that changes the disk. `damage`
//! truncates the files at every byte and flips bits in every byte.
//! `zoolock-tests/tests/command/crash` kills the process. `verification/fuzz/fuzz_targets/log.rs` damages files
//! in other ways. `core_properties` replays the transactions of a whole core.

mod codec;
mod crash;
mod damage;
mod end;
mod rules;
mod salvage;
pub(crate) mod server;

/// Returns `long` if `ZOOLOCK_LONG` is set, otherwise `short`.
fn iterations(short: usize, long: usize) -> usize {
    if std::env::var_os("ZOOLOCK_LONG").is_some() { long } else { short }
}
