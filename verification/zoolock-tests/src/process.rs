//! Memory, threads, limits and logs of processes.

use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{Result, TestFailure};

/// Returns the number in a field of `/proc/PID/status`, such as `Threads`.
///
/// # Errors
/// Fails if the process or the field does not exist.
pub fn status_field(pid: u32, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(|error| TestFailure::during(&path, error))?;
    let mut fields = status.lines().filter_map(|line| line.split_once(':'));
    let value = fields.find(|(field, _)| *field == name).map(|(_, value)| value);
    value
        .and_then(|value| value.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| TestFailure::new(format!("{path} has no number in the field {name}")))
}

/// Returns the memory in use by a process, in bytes.
///
/// # Errors
/// Fails if the process does not exist.
pub fn resident_memory(pid: u32) -> Result<u64> {
    status_field(pid, "VmRSS").map(|kib| kib * 1024)
}

/// Returns the last `count` lines of a log. The result is empty if the log does not exist.
pub fn last_lines(log: &Path, count: usize) -> String {
    let log = std::fs::read(log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Raises the limit of open files to its maximum, for this process and its children.
pub fn raise_open_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // An error is ignored, and then the old limit applies.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
