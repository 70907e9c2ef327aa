//! Types and functions that every part of zoolock uses.

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod duration;
pub(crate) mod executable;
pub(crate) mod exit;
pub(crate) mod inherited;
pub(crate) mod input;
pub(crate) mod machine_file;
pub(crate) mod memory;
pub(crate) mod proc;
pub(crate) mod reporter;
pub(crate) mod server_clock;
pub(crate) mod shell;
pub(crate) mod signals;
pub(crate) mod start;
pub(crate) mod starter;
pub(crate) mod terminal;
#[cfg(test)]
pub(crate) mod test_snapshots;
pub(crate) mod tips;
pub(crate) mod unix_time;
