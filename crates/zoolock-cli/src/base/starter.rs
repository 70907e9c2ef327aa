//! The process that started this one: a script or a shell, whose end ends `zoolock hold`.

use std::os::fd::OwnedFd;

// rustix has no value for a process outside of the own namespace, such as the parent of a `docker exec`.
use nix::unistd::{Pid, getpgid, getpgrp, getpid, getppid, getsid};
use rustix::process::{PidfdFlags, pidfd_open};

use crate::base::proc::{ignored_signals, status_field};

/// Opens the process that started this one, as a file that becomes readable when that process ends. Returns `None` if
/// it has already ended, or if this process was started to outlive it: as the leader of a session (setsid, systemd), or
/// with nohup.
///
/// A subshell counts as the shell that forked it, because `pid=$(zoolock hold a >token & echo $!)` must not release the
/// lock at once. Both have the same command line. If the subshell has ended, the script is the leader of the group.
pub(crate) fn open_starter() -> Option<OwnedFd> {
    let (mut child, parent, leader) = (getpid(), getppid(), getpgrp());
    // The later stages of a pipeline of an interactive shell are no orphans: their leader is the first stage.
    let is_orphan =
        leader != child && getpgid(Some(parent)) != Ok(leader) && parent_of(leader) != Some(parent);
    let mut starter = if is_orphan { leader } else { parent };
    // A script that was itself started with nohup ignores HUP, too.
    if getsid(None) == Ok(child) || ignores_hup(child) && !ignores_hup(starter) {
        return None;
    }
    if is_orphan {
        return open(leader);
    }
    loop {
        let opened = open(starter)?;
        let (line, above) = (command_line(starter)?, parent_of(starter));
        // While `starter` is the parent, it has not ended. So `opened` is no later process with the same pid.
        if parent_of(child) != Some(starter) {
            return None;
        }
        match above.filter(|above| command_line(*above).as_ref() == Some(&line)) {
            Some(shell) => (child, starter) = (starter, shell),
            None => return Some(opened),
        }
    }
}

fn open(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(rustix::process::Pid::from_raw(pid.as_raw())?, PidfdFlags::empty()).ok()
}

fn ignores_hup(pid: Pid) -> bool {
    ignored_signals(pid) & 1 == 1
}

fn parent_of(pid: Pid) -> Option<Pid> {
    status_field(pid, "PPid:")?.parse().ok().map(Pid::from_raw)
}

/// Returns the command line of a process that has not ended.
fn command_line(pid: Pid) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| !line.is_empty())
}
