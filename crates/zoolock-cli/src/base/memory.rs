//! The memory that a server may take.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

/// Returns the memory that this process may take in bytes: the least of the memory of the machine, of the control group,
/// and of the limit on address space (`ulimit -v`). Sources that cannot be read are left out.
pub(crate) fn available_memory() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib.saturating_mul(1024))
    });
    let group = || {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
        let limit = Path::new("/sys/fs/cgroup").join(path).join("memory.max");
        std::fs::read_to_string(limit).ok()?.trim().parse::<u64>().ok()
    };
    let address_space = getrlimit(Resource::As).current;
    [machine, group(), address_space].into_iter().flatten().min().unwrap_or(u64::MAX)
}
