//! Lists the processes of this machine and their descendants.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};

/// The name of a reaper in the list of processes.
pub(crate) const REAPER_NAME: &CStr = c"lock-reaper";

/// A process, as `/proc` showed it at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessEntry {
    pid: i32,
    parent: i32,
    group: i32,
    /// The start time, in clock ticks since the boot. The pid alone does not identify a process,
    /// because pids are reused.
    start_time: u64,
    alive: bool,
    is_reaper: bool,
}

impl ProcessEntry {
    /// Reads the process with this pid.
    fn read(pid: i32) -> Option<Self> {
        parse(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Sends a signal to this process. Does nothing if the process has ended, even if another
    /// process has its pid now.
    pub(crate) fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.pid) else { return };
        let process = pidfd_open(pid, PidfdFlags::empty());
        if Self::read(self.pid).is_none_or(|now| now.start_time != self.start_time) {
            return;
        }
        let _ = match process {
            Ok(process) => pidfd_send_signal(process, signal),
            // Linux before 5.3 and some sandboxes have no pidfd.
            Err(_) => kill_process(pid, signal),
        };
    }

    /// Returns whether this process has the name of a reaper of zoolock.
    pub(crate) fn is_reaper(&self) -> bool {
        self.is_reaper
    }

    /// Returns whether the system allows zoolock to signal this process. The system refuses signals
    /// to processes of other users.
    fn is_ours_to_signal(&self) -> bool {
        Pid::from_raw(self.pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::PERM))
    }

    /// Returns whether this process is this user's local server. A command may have started the
    /// server. The server must not end with that command, because other commands need it.
    fn is_local_server(&self) -> bool {
        let of_server = std::fs::read(format!("/proc/{}/cmdline", self.pid))
            .is_ok_and(|line| line.split(|byte| *byte == 0).skip(1).take(2).eq([&b"serve"[..], b"--local"]));
        let program = |of: &str| std::fs::metadata(format!("/proc/{of}/exe")).ok();
        let identity = |metadata: std::fs::Metadata| {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        of_server && program(&self.pid.to_string()).map(identity) == program("self").map(identity)
    }
}

/// Returns the start time of a process in clock ticks since the boot, if the process is alive.
pub(crate) fn start_time(pid: Pid) -> Option<u64> {
    ProcessEntry::read(pid.as_raw_pid()).filter(|process| process.alive).map(|process| process.start_time)
}

/// Returns the pids of this process's children, ended ones included, or `None` if the system does not list them. A child
/// leaves the list when it is reaped.
pub(crate) fn list_children() -> Option<Vec<i32>> {
    // A thread may end during the read. Its children then move to another thread, whose list may
    // have been read already. The list of the ended thread cannot be read, so the whole read is
    // repeated.
    const ATTEMPTS: usize = 3;
    (0..ATTEMPTS).find_map(|_| children_of_threads())
}

/// Returns the children of all threads of this process, or `None` if one list cannot be read.
fn children_of_threads() -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let list = std::fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        children.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(children)
}

/// All processes that this process can see.
#[derive(Debug)]
pub(crate) struct ProcessTable(HashMap<i32, ProcessEntry>);

impl ProcessTable {
    /// Reads all processes. Without `/proc` there are none.
    pub(crate) fn read() -> Self {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Self(numbers.filter_map(ProcessEntry::read).map(|process| (process.pid, process)).collect())
    }

    /// Returns the living processes of a group. Leaves out this user's local server, and processes
    /// that this process has no permission to signal.
    pub(crate) fn of_group(&self, group: Pid) -> Vec<ProcessEntry> {
        let group = group.as_raw_nonzero().get();
        self.0.values().filter(|it| it.group == group && is_ours_to_kill(it)).copied().collect()
    }

    /// Returns the living descendants of `root`. Leaves out `excluded` and their descendants, this
    /// user's local server, and processes that this process has no permission to signal.
    pub(crate) fn living_descendants(&self, root: Pid, excluded: &HashSet<(i32, u64)>) -> Vec<ProcessEntry> {
        let mut below: Vec<_> = self.descendants(root, excluded);
        below.retain(is_ours_to_kill);
        below
    }

    /// Returns the pids and start times of all descendants of `root`.
    pub(crate) fn descendant_ids(&self, root: Pid) -> HashSet<(i32, u64)> {
        self.descendants(root, &HashSet::new()).iter().map(|it| (it.pid, it.start_time)).collect()
    }

    /// Returns the children of `parent` that have ended and were not reaped.
    pub(crate) fn ended_children(&self, parent: Pid) -> impl Iterator<Item = Pid> {
        let parent = parent.as_raw_nonzero().get();
        let ended = self.0.values().filter(move |it| it.parent == parent && !it.alive);
        ended.filter_map(|it| Pid::from_raw(it.pid))
    }

    fn descendants(&self, root: Pid, excluded: &HashSet<(i32, u64)>) -> Vec<ProcessEntry> {
        let mut children: HashMap<i32, Vec<&ProcessEntry>> = HashMap::new();
        for process in self.0.values() {
            children.entry(process.parent).or_default().push(process);
        }
        let mut found = Vec::new();
        let mut parents = vec![root.as_raw_nonzero().get()];
        let mut seen: HashSet<i32> = parents.iter().copied().collect();
        while let Some(parent) = parents.pop() {
            for child in children.get(&parent).into_iter().flatten() {
                // The processes were read one after the other, so the parents can form a circle.
                if !excluded.contains(&(child.pid, child.start_time)) && seen.insert(child.pid) {
                    parents.push(child.pid);
                    found.push(**child);
                }
            }
        }
        found
    }
}

fn is_ours_to_kill(process: &ProcessEntry) -> bool {
    process.alive && process.is_ours_to_signal() && !process.is_local_server()
}

/// Parses `/proc/PID/stat`. The process name is in brackets, and can contain brackets and spaces.
/// The kernel cuts the name after fifteen bytes, so it may not be valid UTF-8.
fn parse(stat: &[u8]) -> Option<ProcessEntry> {
    let name = stat.iter().position(|byte| *byte == b'(')?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let pid = text(stat.get(..name)?)?.trim_ascii().parse().ok()?;
    let fields: Vec<&str> = text(stat.get(end + 1..)?)?.split_ascii_whitespace().collect();
    // `fields` begins with the third field of proc_pid_stat(5).
    let field = |number: usize| fields.get(number - 3).copied();
    let threads: i64 = field(20)?.parse().ok()?;
    // The state is also Z if the first thread has ended and other threads run.
    let alive = !matches!(field(3)?, "Z" | "X" | "x") || threads > 1;
    Some(ProcessEntry {
        pid,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
        alive,
        is_reaper: stat.get(name + 1..end) == Some(REAPER_NAME.to_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_is_not_parsed_as_fields() {
        let tail = "S 7 9 9 34816 9 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 1 1";
        let names: [&[u8]; 6] = [b"sh", b"a) R 1 1 1", b"(((", b") ", b"a b\nc", b"caf\xe9"];
        for name in names {
            let stat = [b"12 (", name, b") ", tail.as_bytes()].concat();
            let process = parse(&stat).expect("the line is well formed");
            assert_eq!(
                process,
                ProcessEntry {
                    pid: 12,
                    parent: 7,
                    group: 9,
                    start_time: 4711,
                    alive: true,
                    is_reaper: false
                }
            );
        }
        assert_eq!(parse(b"12 (sh"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn process_with_live_threads_is_alive() {
        let stat = |state, threads| format!("12 (x) {state} 7 9 9 0 0 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 5");
        let alive = |state, threads| parse(stat(state, threads).as_bytes()).expect("valid line").alive;
        assert!(alive("S", 1) && alive("T", 1) && alive("Z", 2));
        assert!(!alive("Z", 1) && !alive("X", 1));
    }

    #[test]
    fn descendants_exclude_other_subtrees() {
        let process = |pid, parent| ProcessEntry {
            pid,
            parent,
            group: pid,
            start_time: 1,
            alive: true,
            is_reaper: false,
        };
        // 3 and 4 are a circle, which a read during a change can see.
        let all = [(2, 1), (5, 2), (6, 5), (7, 2), (8, 7), (9, 1), (3, 4), (4, 3)];
        let table = ProcessTable(all.iter().map(|(pid, parent)| (*pid, process(*pid, *parent))).collect());
        let root = Pid::from_raw(2).expect("not zero");
        let numbers = |found: Vec<ProcessEntry>| {
            let mut numbers: Vec<_> = found.iter().map(|it| it.pid).collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(numbers(table.descendants(root, &HashSet::new())), [5, 6, 7, 8]);
        assert_eq!(numbers(table.descendants(root, &HashSet::from([(7, 1)]))), [5, 6]);
        // The excluded process has the same pid, but another start time.
        assert_eq!(numbers(table.descendants(root, &HashSet::from([(7, 2)]))), [5, 6, 7, 8]);
    }

    #[test]
    fn children_are_listed_until_reaped() {
        let mut child = std::process::Command::new("true").spawn().expect("`true` starts");
        let pid = i32::try_from(child.id()).expect("a process id");
        assert!(list_children().is_none_or(|children| children.contains(&pid)));
        child.wait().expect("the child is reaped");
        assert!(list_children().is_none_or(|children| !children.contains(&pid)));
    }

    #[test]
    fn own_process_is_listed_alive() {
        let ours = rustix::process::getpid();
        let table = ProcessTable::read();
        let own = table.0.get(&ours.as_raw_nonzero().get()).expect("this process is listed");
        assert!(own.alive);
        assert_eq!(own.group, rustix::process::getpgrp().as_raw_nonzero().get());
    }
}
