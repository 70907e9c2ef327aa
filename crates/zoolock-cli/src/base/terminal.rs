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
    pub(crate) fn is_ours(&self) -> bool {
        self.belongs_to(getpgrp())
    }

    /// Returns whether `group` is in the foreground.
    pub(crate) fn belongs_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// Puts `group` in the foreground. The caller has TTOU blocked ([`survive_output_stop`]).
    pub(crate) fn give(&self, group: Pid) -> io::Result<()> {
        Ok(tcsetpgrp(&self.tty, group)?)
    }

    /// Puts the process group of this process in the foreground, if `group` is there now.
    pub(crate) fn take_back(&self, group: Pid) {
        if self.belongs_to(group) {
            // This fails only if the terminal was closed.
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
    }

    /// Restores the recorded modes, which a killed command could not do. Does nothing in the background.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && self.is_ours()
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Drain, modes);
        }
    }
}

/// Returns whether a started command should have the terminal from the beginning. If the output is piped, as in
/// `zoolock run … | less`, another process of the group may need the terminal. Then the command gets it when it
/// asks for it.
pub(crate) fn wanted_at_once() -> bool {
    isatty(std::io::stdin()) && isatty(std::io::stdout())
}

/// Blocks TTOU in this thread and in threads that it starts later. Then TTOU does not stop this process when it writes
/// or sets the foreground group from the background. A stopped process could not supervise its command.
pub(crate) fn survive_output_stop() {
    let _ = only_ttou().thread_block();
}

/// Undoes [`survive_output_stop`], before this process executes another program.
pub(crate) fn allow_output_stop() {
    let _ = only_ttou().thread_unblock();
}

fn only_ttou() -> SigSet {
    let mut set = SigSet::empty();
    set.add(NixSignal::SIGTTOU);
    set
}

/// Returns whether a shell would continue this process after a stop. That is a parent in the same session, outside the
/// process group.
pub(crate) fn is_controlled_by_a_shell() -> bool {
    let Some(parent) = getppid() else { return false };
    let same_session =
        matches!((getsid(Some(parent)), getsid(None)), (Ok(theirs), Ok(ours)) if theirs == ours);
    same_session && getpgid(Some(parent)).is_ok_and(|group| group != getpgrp())
}

/// Stops this process until another process continues it.
pub(crate) fn stop_ourselves() {
    let _ = kill_process(getpid(), Signal::STOP);
}
