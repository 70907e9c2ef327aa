//! A command with the worst of company: what must not outlive the lock.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, kill_process};

use super::{Running, Sandbox, lives, wait_until};

/// The session timeout of these tests, the shortest there is; a lock is lost after two thirds of it.
pub(crate) const SESSION: &str = "6s";
pub(crate) const LEASE: Duration = Duration::from_secs(4);

/// A command whose group has one that takes no notice of signals, and a descendant that has left the group and lost
/// its parents. They start processes all the time.
pub(crate) struct Band {
    pub(crate) zoolock: Running,
    pub(crate) leader: String,
    pub(crate) stubborn: String,
    pub(crate) escaped: String,
    mark: String,
    beat: PathBuf,
}

impl Band {
    /// Starts it below the lock `name`.
    pub(crate) fn start(sandbox: &Sandbox, address: &str, name: &str, flags: &[&str]) -> Self {
        // Nobody else's, also where several tests share a process.
        let mark = format!("BAND={}", sandbox.path(name).display());
        let forever = format!("while :; do : > {name}.beat; sleep 0.02; done");
        let script = format!(
            "export {mark}
             sh -c 'trap \"\" TERM INT HUP; echo $$ > {name}.stubborn; {forever}' &
             (setsid sh -c 'trap \"\" TERM INT HUP; echo $$ > {name}.escaped; {forever}' &)
             while ! [ -s {name}.stubborn ] || ! [ -s {name}.escaped ]; do sleep 0.01; done
             echo $$ > {name}.leader; wait"
        );
        let fixed = ["run", "--session-timeout", SESSION, "--connect", address];
        let zoolock = sandbox.converse(&[&fixed[..], flags, &[name, "--", "sh", "-c", &script]].concat());
        let leader = sandbox.wait_for_file(&format!("{name}.leader"));
        let stubborn = sandbox.wait_for_file(&format!("{name}.stubborn"));
        let escaped = sandbox.wait_for_file(&format!("{name}.escaped"));
        let beat = sandbox.path(&format!("{name}.beat"));
        Self { zoolock, leader, stubborn, escaped, mark, beat }
    }

    /// Who of it lives, those that it starts in passing among them.
    pub(crate) fn living(&self) -> Vec<String> {
        let processes = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
        let numbers = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let ours = |pid: &String| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|word| word == self.mark.as_bytes()) && lives(pid)
        };
        let mut living: Vec<_> = numbers.filter(ours).collect();
        living.extend([&self.leader].into_iter().filter(|pid| lives(pid)).cloned());
        living
    }

    /// Who of its group lives.
    pub(crate) fn living_of_group(&self) -> Vec<String> {
        let group = |pid: &String| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(2)).map(str::to_owned)
        };
        self.living().into_iter().filter(|pid| group(pid).as_ref() == Some(&self.leader)).collect()
    }

    /// Waits until nobody is left, and returns how long after `begun` they were last at work.
    pub(crate) fn worked_since(&self, begun: SystemTime) -> Duration {
        wait_until("all of the command is dead", || self.living().is_empty());
        let last = std::fs::metadata(&self.beat).and_then(|file| file.modified()).expect("they work");
        last.duration_since(begun).unwrap_or_default()
    }

    /// Our process that watches over the command.
    pub(crate) fn reaper(&self) -> String {
        child_of(&self.zoolock.0.id().to_string(), "lock-reaper").expect("there is a reaper")
    }
}

impl Drop for Band {
    fn drop(&mut self) {
        // What may live on after a clean end.
        for pid in [&self.escaped, &self.stubborn] {
            if lives(pid) {
                signal(pid, Signal::KILL);
            }
        }
    }
}

/// A child of `parent` by its name.
pub(crate) fn child_of(parent: &str, name: &str) -> Option<String> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().into_string().ok()).find(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(&format!("({name}) "))
            && stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)) == Some(parent)
    })
}

pub(crate) fn signal(pid: &str, signal: Signal) {
    let pid = pid.parse().ok().and_then(Pid::from_raw).expect("a process id");
    let _ = kill_process(pid, signal);
}

/// Does `round` several times, a hundred with ZOOLOCK_LONG=1; a few at once. Each has a number of its own.
pub(crate) fn rounds(round: impl Fn(usize) + Sync) {
    rounds_of_each(&[()], |(), number| round(number));
}

/// The same for each of these.
pub(crate) fn rounds_of_each<T: Sync>(cases: &[T], round: impl Fn(&T, usize) + Sync) {
    let is_long = std::env::var_os("ZOOLOCK_LONG").is_some_and(|long| long == "1");
    let (lanes, all) = if is_long { (5, 100 * cases.len()) } else { (3, cases.len().max(3)) };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= all {
                        break;
                    }
                    round(&cases[number % cases.len()], number);
                }
            });
        }
    });
}
