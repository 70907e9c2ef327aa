//! What a process costs, as the kernel counts it.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Outcome;

/// The processor time a process has used, all of its threads together.
pub(crate) fn cpu(pid: u32) -> Outcome<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold anything, but ends with the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let (Some(user), Some(system)) = (ticks(11), ticks(12)) else {
        return Err(format!("/proc/{pid}/stat is not understood").into());
    };
    Ok(Duration::from_secs_f64((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The memory a process has in use, in bytes.
pub(crate) fn resident(pid: u32) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| format!("/proc/{pid}/status is not understood").into())
}

/// Allows us, and what we start, as many files as we may have: thousands of sessions take five each.
pub(crate) fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it fails we go on with what there is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The processor's name and the number of cores.
pub(crate) fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim))
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory =
        memory.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or("?").trim().to_owned();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "{cores} cores of {}, {memory} memory, Linux {}",
        field("model name").unwrap_or("?"),
        kernel.trim()
    )
}
