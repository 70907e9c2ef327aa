//! The controlling terminal and its foreground process group. Only that group reads from the terminal and gets ^C and ^Z.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgid, getpgrp, getpid, getppid, getsid, kill_process};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The controlling terminal of this process.
pub(crate) struct Terminal {
    tty: OwnedFd,
    modes: Option<Termios>,
}

impl Terminal {
    /// Opens the terminal, if there is one, and records its modes.
    pub(crate) fn open() -> Option<Self> {
        let tty: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?.into();
        let modes = tcgetattr(&tty).ok();
        Some(Self { tty, modes })
    }

    /// Returns whether the process group of this process is in the foreground.
    pub(crate) fn is_foreground(&self) -> bool {
        self.is_foreground_group(getpgrp())
    }

    /// Returns whether `group` is in the foreground.
    pub(crate) fn is_foreground_group(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// Puts `group` in the foreground. The caller must have blocked TTOU ([`block_ttou`]).
    pub(crate) fn set_foreground(&self, group: Pid) -> io::Result<()> {
        Ok(tcsetpgrp(&self.tty, group)?)
    }

    /// Puts the process group of this process in the foreground, if `group` is in the foreground now.
    pub(crate) fn restore_foreground(&self, group: Pid) {
        if self.is_foreground_group(group) {
            // This fails only if the terminal was closed.
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
    }

    /// Restores the recorded modes, because a killed command could not restore them. Does nothing in the background.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && self.is_foreground()
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Drain, modes);
        }
    }
}

/// Returns whether a command is in the foreground of the terminal from its start. If the output is
/// piped, as in `zoolock run … | less`, another process of zoolock's process group may need the
/// terminal. The command then gets the terminal when it first uses the terminal.
pub(crate) fn command_starts_in_foreground() -> bool {
    isatty(std::io::stdin()) && isatty(std::io::stdout())
}

/// Blocks TTOU in this thread and in threads that it starts later. Otherwise TTOU would stop this
/// process when it writes or sets the foreground group from the background. A stopped process could
/// not supervise its command.
pub(crate) fn block_ttou() {
    let _ = only_ttou().thread_block();
}

/// Undoes [`block_ttou`], before this process executes another program.
pub(crate) fn unblock_ttou() {
    let _ = only_ttou().thread_unblock();
}

fn only_ttou() -> SigSet {
    let mut set = SigSet::empty();
    set.add(NixSignal::SIGTTOU);
    set
}

/// Returns whether a shell with job control started this process. Such a shell continues this
/// process after a stop. It is the parent process, in the same session and in another process
/// group.
pub(crate) fn has_job_control_shell() -> bool {
    let Some(parent) = getppid() else { return false };
    let same_session =
        matches!((getsid(Some(parent)), getsid(None)), (Ok(theirs), Ok(ours)) if theirs == ours);
    same_session && getpgid(Some(parent)).is_ok_and(|group| group != getpgrp())
}

/// Stops this process until another process continues it.
pub(crate) fn stop_this_process() {
    let _ = kill_process(getpid(), Signal::STOP);
}
