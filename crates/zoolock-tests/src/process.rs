//! Memory, threads and limits of processes, as Linux reports them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{Failure, Result};

/// Returns the number in a field of `/proc/PID/status`, such as `Threads`.
///
/// # Errors
/// Fails if the process or the field does not exist.
pub fn status_field(pid: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(|error| Failure::during(&path, error))?;
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    let value = fields.find(|(field, _)| *field == name).map(|(_, value)| value);
    value
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| Failure::new(format!("{path} has no number in the field {name}")))
}

/// Returns the memory in use by a process, in bytes.
///
/// # Errors
/// Fails if the process does not exist.
pub fn resident_memory(pid: u32) -> Result<u64> {
    status_field(pid, "VmRSS").map(|kib| kib * 1024)
}

/// Raises the limit of open files to the maximum, for this process and its children.
pub fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // After a failure the old limit applies.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
