//! Processor time of a process, and a description of the machine.

use std::fs;
use std::time::Duration;

pub(crate) use zoolock_tests::process::{raise_open_file_limit, resident_memory as resident};

use crate::Outcome;

/// Returns the processor time that all threads of a process have used.
pub(crate) fn processor_time(pid: u32) -> Outcome<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program can contain any character. The name ends at the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok());
    let (Some(user), Some(system)) = (ticks(11), ticks(12)) else {
        return Err(format!("/proc/{pid}/stat has no processor times").into());
    };
    Ok(Duration::from_secs_f64((user + system) as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// Returns the number of cores, the name of the processor, the memory and the kernel of this machine.
pub(crate) fn describe_machine() -> String {
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
