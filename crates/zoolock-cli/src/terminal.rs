//! The terminal we were started on: who may read from it, and who gets ^C and ^Z.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgid, getpgrp, getpid, getppid, getsid, kill_process};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// Our controlling terminal.
pub(crate) struct Terminal {
    tty: OwnedFd,
    modes: Option<Termios>,
}

impl Terminal {
    /// Finds it, if there is one.
    pub(crate) fn open() -> Option<Self> {
        let tty: OwnedFd = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?.into();
        let modes = tcgetattr(&tty).ok();
        Some(Self { tty, modes })
    }

    /// Whether our own process group is in the foreground.
    pub(crate) fn is_ours(&self) -> bool {
        self.belongs_to(getpgrp())
    }

    /// Whether `group` is in the foreground.
    pub(crate) fn belongs_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    /// Puts `group` in the foreground. The caller has TTOU blocked ([`survive_output_stop`]).
    pub(crate) fn give(&self, group: Pid) -> io::Result<()> {
        Ok(tcsetpgrp(&self.tty, group)?)
    }

    /// Puts our own group in the foreground, if `group` is there now.
    pub(crate) fn take_back(&self, group: Pid) {
        if self.belongs_to(group) {
            // It can only fail when the terminal is gone.
            let _ = tcsetpgrp(&self.tty, getpgrp());
        }
    }

    /// Sets the modes as they were found: who was killed had no time to do it.
    pub(crate) fn restore_modes(&self) {
        if let Some(modes) = &self.modes
            && self.is_ours()
        {
            let _ = tcsetattr(&self.tty, OptionalActions::Drain, modes);
        }
    }
}

/// Whether a command that we start should have the terminal from its first moment. Where our output is piped
/// on, as in `zoolock run … | less`, another process of our group may need it; the command gets it when it
/// asks for it.
pub(crate) fn wanted_at_once() -> bool {
    isatty(std::io::stdin()) && isatty(std::io::stdout())
}

/// Blocks TTOU, in this thread and those it starts later: in the background we go on writing, and may set the
/// foreground group. A guard that is stopped does not guard.
pub(crate) fn survive_output_stop() {
    let _ = only_ttou().thread_block();
}

/// Undoes [`survive_output_stop`], for a process that is about to become another.
pub(crate) fn allow_output_stop() {
    let _ = only_ttou().thread_unblock();
}

fn only_ttou() -> SigSet {
    let mut set = SigSet::empty();
    set.add(NixSignal::SIGTTOU);
    set
}

/// Whether somebody would continue us if we stopped: a parent in our session, outside our group.
pub(crate) fn is_controlled_by_a_shell() -> bool {
    let Some(parent) = getppid() else { return false };
    let same_session =
        matches!((getsid(Some(parent)), getsid(None)), (Ok(theirs), Ok(ours)) if theirs == ours);
    same_session && getpgid(Some(parent)).is_ok_and(|group| group != getpgrp())
}

/// Stops this process until somebody continues it.
pub(crate) fn stop_ourselves() {
    let _ = kill_process(getpid(), Signal::STOP);
}
