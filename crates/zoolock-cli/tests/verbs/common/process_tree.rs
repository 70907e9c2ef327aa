//! A command whose descendants ignore signals, to test that no descendant outlives the lock.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::{Running, Sandbox, is_alive, wait_until};

/// Session timeout of the tests with a process tree. It is the shortest that zoolock accepts.
pub(crate) const SESSION: &str = "6s";
/// The longest lease with this session timeout: eleven twelfths of the timeout.
pub(crate) const LEASE: Duration = Duration::from_millis(5500);

/// A `zoolock run` and its command, which has two descendants that ignore signals.
///
/// The first descendant is in the command's process group. The second has left the group, and its
/// parents have ended. Both start processes all the time.
pub(crate) struct ProcessTree {
    pub(crate) zoolock: Running,
    /// Process id of the command, which leads the group.
    pub(crate) leader: String,
    /// Process id of the first descendant, which is in the group.
    pub(crate) stubborn: String,
    /// Process id of the second descendant, which has left the group.
    pub(crate) escaped: String,
    /// Environment variable and value that all descendants of the command inherit.
    mark: String,
    /// File that the descendants write all the time.
    heartbeat: PathBuf,
}

impl ProcessTree {
    /// Starts the command with the lock `name`, and waits until its descendants run.
    pub(crate) fn start(sandbox: &Sandbox, address: &str, name: &str, flags: &[&str]) -> Self {
        // The path makes the mark unique, even if several tests run in one process.
        let mark = format!("PROCESS_TREE={}", sandbox.path(name).display());
        let forever = format!("while :; do : > {name}.beat; sleep 0.02; done");
        let script = format!(
            "export {mark}
             sh -c 'trap \"\" TERM INT HUP; echo $$ > {name}.stubborn; {forever}' &
             (setsid sh -c 'trap \"\" TERM INT HUP; echo $$ > {name}.escaped; {forever}' &)
             while ! [ -s {name}.stubborn ] || ! [ -s {name}.escaped ]; do sleep 0.01; done
             echo $$ > {name}.leader; wait"
        );
        let fixed = ["run", "--session-timeout", SESSION, "--connect", address];
        let zoolock = sandbox.start_piped(&[&fixed[..], flags, &[name, "--", "sh", "-c", &script]].concat());
        let leader = sandbox.wait_for_file(&format!("{name}.leader"));
        let stubborn = sandbox.wait_for_file(&format!("{name}.stubborn"));
        let escaped = sandbox.wait_for_file(&format!("{name}.escaped"));
        let heartbeat = sandbox.path(&format!("{name}.beat"));
        Self { zoolock, leader, stubborn, escaped, mark, heartbeat }
    }

    /// Returns the process ids of all live processes of the command.
    pub(crate) fn live_pids(&self) -> Vec<String> {
        let mut live_pids = live_pids_with(&self.mark);
        // The leader started before it set the variable, so its own environment has no mark.
        live_pids.extend([&self.leader].into_iter().filter(|pid| is_alive(pid)).cloned());
        live_pids
    }

    /// Returns the process ids of all live processes in the command's process group.
    pub(crate) fn live_pids_of_group(&self) -> Vec<String> {
        let group = |pid: &String| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(2)).map(str::to_owned)
        };
        self.live_pids().into_iter().filter(|pid| group(pid).as_ref() == Some(&self.leader)).collect()
    }

    /// Waits until all processes of the command are dead. Returns the time from `begun` to their last heartbeat.
    pub(crate) fn wait_until_dead(&self, begun: SystemTime) -> Duration {
        wait_until("all processes of the command are dead", || self.live_pids().is_empty());
        let last = std::fs::metadata(&self.heartbeat)
            .and_then(|file| file.modified())
            .expect("the heartbeat file exists");
        last.duration_since(begun).unwrap_or_default()
    }

    /// Returns the process id of the reaper, the child of zoolock that kills the command.
    pub(crate) fn reaper(&self) -> String {
        child_of(&self.zoolock.0.id().to_string(), "lock-reaper").expect("zoolock has a reaper")
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        // These processes may outlive a clean end of the command.
        for pid in [&self.escaped, &self.stubborn] {
            if is_alive(pid) {
                signal(pid, Signal::KILL);
            }
        }
    }
}

/// Returns the process ids of all live processes that started with this variable and value in their environment.
pub(crate) fn live_pids_with(variable: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("/proc is readable").flatten();
    let pids = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_ours = |pid: &String| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == variable.as_bytes()) && is_alive(pid)
    };
    pids.filter(is_ours).collect()
}

/// Returns the process id of the child of `parent` with this name.
pub(crate) fn child_of(parent: &str, name: &str) -> Option<String> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().into_string().ok()).find(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(&format!("({name}) "))
            && stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)) == Some(parent)
    })
}

/// Returns the names and parents of all zombies.
pub(crate) fn zombies() -> Vec<(String, String)> {
    let processes = std::fs::read_dir("/proc").expect("/proc is readable").flatten();
    let zombie = |entry: std::fs::DirEntry| {
        let stat = std::fs::read(entry.path().join("stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let parent = rest.strip_prefix("Z ")?.split(' ').next()?;
        Some((name.to_owned(), parent.to_owned()))
    };
    processes.filter_map(zombie).collect()
}

/// Waits until no child of `parent` is a zombie.
pub(crate) fn wait_until_no_zombie_of(parent: &str) {
    wait_until("no child is a zombie", || zombies().iter().all(|(_, its_parent)| its_parent != parent));
}

/// Sends a signal. Does nothing if the process has ended. STOP takes effect before this returns.
pub(crate) fn signal(pid: &str, signal: Signal) {
    let id = pid.parse().ok().and_then(Pid::from_raw).expect("valid process id");
    if kill_process(id, signal).is_ok() && signal == Signal::STOP {
        // One thread of the process gets the signal, and stops the others. On a busy machine they run on until then.
        wait_until("the process is stopped", || !is_running(pid));
    }
}

/// Returns whether a thread of the process is neither stopped nor a zombie.
fn is_running(pid: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let state = |stat: String| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    threads
        .filter_map(|thread| state(std::fs::read_to_string(thread.path().join("stat")).ok()?))
        .any(|state| !matches!(state, 'T' | 't' | 'Z' | 'X'))
}

/// Runs `round` three times, or a hundred times with ZOOLOCK_LONG=1, on several threads. Each call gets its own number.
pub(crate) fn rounds(round: impl Fn(usize) + Sync) {
    rounds_with_cases(&[()], |(), number| round(number));
}

/// Runs `round` at least once for each case, or a hundred times for each case with ZOOLOCK_LONG=1, on several threads.
pub(crate) fn rounds_with_cases<T: Sync>(cases: &[T], round: impl Fn(&T, usize) + Sync) {
    let (threads, count) =
        if zoolock_tests::skip::is_long() { (5, 100 * cases.len()) } else { (3, cases.len().max(3)) };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    round(&cases[number % cases.len()], number);
                }
            });
        }
    });
}
