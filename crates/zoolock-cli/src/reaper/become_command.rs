//! `zoolock become`: the process that becomes the command.
//!
//! This process asks for a signal at the death of its parent, takes the terminal, and corrects
//! variables of systemd. Only the command's own process can do that. Then the process replaces
//! itself with the command.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, getpgrp, getpid, getppid};

use crate::args::BecomeArgs;
use crate::base::executable;
use crate::base::exit::{Exit, Failure};
use crate::base::terminal::{self, Terminal};

/// Replaces this process with the command. Returns only if that fails.
pub(crate) fn become_command(args: &BecomeArgs) -> Failure {
    die_with_parent();
    // If the parent died before this process asked for the signal, the signal never comes.
    if getppid() != Pid::from_raw(args.parent) {
        return Failure::new(Exit::LOST, "zoolock ended before the command was started");
    }
    if args.foreground
        && let Some(terminal) = Terminal::open()
    {
        // If this call fails, the command is stopped at its first read from the terminal, and gets
        // the terminal then.
        let _ = terminal.set_foreground(getpgrp());
    }
    terminal::unblock_ttou();
    let Some((program, arguments)) = args.command.split_first() else {
        return Failure::usage("no command");
    };
    let mut command = Command::new(program);
    command.args(arguments);
    set_systemd_variables(&mut command, args.main);
    let error = command.exec();
    executable::exec_failure(program, error)
}

/// Puts the pid of this process into the variables that systemd has set for `zoolock run`, the
/// process with the pid `main`. Then the command can use the sockets and the watchdog of systemd.
fn set_systemd_variables(command: &mut Command, main: i32) {
    for name in ["LISTEN_PID", "WATCHDOG_PID"] {
        if std::env::var(name).is_ok_and(|pid| pid == main.to_string()) {
            command.env(name, getpid().to_string()).env_remove("LISTEN_PIDFDID");
        }
    }
}

/// Asks the kernel to kill this process when the reaper's thread that started it ends. So the
/// command does not outlive the reaper.
#[cfg(target_os = "linux")]
fn die_with_parent() {
    use rustix::process::{Signal, set_parent_process_death_signal};
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent() {}
