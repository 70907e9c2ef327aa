//! Memory, open files and threads of processes.

use std::fs;

use serde::Serialize;
pub(crate) use zoolock_tests::process::raise_open_file_limit;
use zoolock_tests::process::{resident_memory, status_field};

use crate::Outcome;

/// Resources in use by one or several processes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct ResourceUse {
    /// Bytes of memory in use.
    pub(crate) memory: u64,
    /// File descriptors.
    pub(crate) files: u64,
    pub(crate) threads: u64,
}

impl ResourceUse {
    /// Returns the resources of a process.
    pub(crate) fn of(pid: u32) -> Outcome<ResourceUse> {
        let files = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
        Ok(ResourceUse { memory: resident_memory(pid)?, files, threads: status_field(pid, "Threads")? })
    }

    /// Returns the sum of the resources of processes.
    pub(crate) fn of_all(pids: &[u32]) -> Outcome<ResourceUse> {
        let mut all = ResourceUse::default();
        for pid in pids {
            let one = ResourceUse::of(*pid)?;
            all.memory += one.memory;
            all.files += one.files;
            all.threads += one.threads;
        }
        Ok(all)
    }
}
