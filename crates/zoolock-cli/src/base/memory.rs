//! The memory that a server may take.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Memory that a server needs at least, in bytes.
pub(crate) const LEAST_MEMORY: u64 = 64 << 20;
/// Address space that the threads of a server reserve and may never use, in bytes: glibc reserves 64 MiB for each of them.
const RESERVED_BY_THREADS: u64 = 7 * (64 << 20);

/// Returns the memory that this process may take in bytes: the least of the memory of the machine, of its control groups,
/// and of its limits (`ulimit -d` and `ulimit -v`). Sources that cannot be read are left out.
pub(crate) fn available_memory() -> u64 {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib.saturating_mul(1024))
    });
    let files = limit_files(&read_to_string("/proc/self/cgroup").unwrap_or_default());
    let groups = files.iter().filter_map(|file| read_to_string(file).ok()?.trim().parse::<u64>().ok());
    let address_space =
        getrlimit(Resource::As).current.map(|limit| limit.saturating_sub(RESERVED_BY_THREADS));
    let limits = [machine, getrlimit(Resource::Data).current, address_space];
    groups.chain(limits.into_iter().flatten()).min().unwrap_or(u64::MAX)
}

/// Returns the files with the memory limits of this process's control groups, versions 1 and 2, and of the groups above
/// them. `groups` is the text of `/proc/self/cgroup`. A container may see only the upper files, which are its own then.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (controllers, group) in groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')) {
        let (mount, limits): (_, &[&str]) = match controllers {
            "" => ("/sys/fs/cgroup", &["memory.max", "memory.high"]),
            v1 if v1.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"])
            }
            _ => continue,
        };
        for group in Path::new(group.trim_start_matches('/')).ancestors() {
            files.extend(limits.iter().map(|limit| Path::new(mount).join(group).join(limit)));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_control_groups_are_seen() {
        let cases = [
            (
                "0::/system.slice/zk.service\n",
                vec![
                    "/sys/fs/cgroup/system.slice/zk.service/memory.max",
                    "/sys/fs/cgroup/system.slice/zk.service/memory.high",
                    "/sys/fs/cgroup/system.slice/memory.max",
                    "/sys/fs/cgroup/system.slice/memory.high",
                    "/sys/fs/cgroup/memory.max",
                    "/sys/fs/cgroup/memory.high",
                ],
            ),
            // A container with a namespace of control groups.
            ("0::/\n", vec!["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.high"]),
            (
                "9:name=systemd:/a\n4:hugetlb,memory:/user/1\n1:cpu,cpuacct:/x\n0::/\n",
                vec![
                    "/sys/fs/cgroup/memory/user/1/memory.limit_in_bytes",
                    "/sys/fs/cgroup/memory/user/memory.limit_in_bytes",
                    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                    "/sys/fs/cgroup/memory.max",
                    "/sys/fs/cgroup/memory.high",
                ],
            ),
            ("1:name=memory:/a\n", vec![]),
            ("", vec![]),
            ("no group\n0:\n", vec![]),
        ];
        for (groups, expected) in cases {
            let expected: Vec<PathBuf> = expected.into_iter().map(PathBuf::from).collect();
            assert_eq!(limit_files(groups), expected, "{groups}");
        }
    }
}
