//! What a process has, as the kernel counts it.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

use crate::Outcome;

/// What one or several processes have at a time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Having {
    /// Bytes of memory in use.
    pub(crate) memory: u64,
    /// File descriptors.
    pub(crate) files: u64,
    pub(crate) threads: u64,
}

impl Having {
    /// That of a process.
    pub(crate) fn of(pid: u32) -> Outcome<Having> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let (Some(kib), Some(threads)) = (field("VmRSS:"), field("Threads:")) else {
            return Err(format!("/proc/{pid}/status is not understood").into());
        };
        let files = fs::read_dir(format!("/proc/{pid}/fd"))?.count() as u64;
        Ok(Having { memory: kib * 1024, files, threads })
    }

    /// That of several together.
    pub(crate) fn of_all(pids: &[u32]) -> Outcome<Having> {
        let mut all = Having::default();
        for pid in pids {
            let one = Having::of(*pid)?;
            all.memory += one.memory;
            all.files += one.files;
            all.threads += one.threads;
        }
        Ok(all)
    }
}

/// Allows us as many files as we may have.
pub(crate) fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it fails we go on with what there is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
