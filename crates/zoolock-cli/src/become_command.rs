//! The step between our process and the command's: a fresh process of ours that arranges what only the
//! command's own process can arrange, and then becomes the command.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, getpgrp, getpid, getppid};

use crate::args::BecomeArgs;
use crate::executable;
use crate::exit::{Exit, Failure};
use crate::terminal::{self, Terminal};

/// Replaces this process; returns only when it could not.
pub(crate) fn become_command(args: &BecomeArgs) -> Failure {
    die_with_parent();
    // It may have died before we asked to be told.
    if getppid() != Pid::from_raw(args.parent) {
        return Failure::new(Exit::LOST, "the process that held the lock is gone");
    }
    if args.foreground
        && let Some(terminal) = Terminal::open()
    {
        // Without the terminal the command stops when it reads, and gets it then.
        let _ = terminal.give(getpgrp());
    }
    terminal::allow_output_stop();
    let Some((program, arguments)) = args.command.split_first() else {
        return Failure::usage("no command");
    };
    let mut command = Command::new(program);
    command.args(arguments);
    take_over_variables(&mut command, args.main);
    let error = command.exec();
    executable::failed(program, error)
}

/// Names this process in the variables with which systemd hands its sockets and its watchdog to `zoolock run`, process `main`.
fn take_over_variables(command: &mut Command, main: i32) {
    for name in ["LISTEN_PID", "WATCHDOG_PID"] {
        if std::env::var(name).is_ok_and(|pid| pid == main.to_string()) {
            command.env(name, getpid().to_string()).env_remove("LISTEN_PIDFDID");
        }
    }
}

/// When the thread that started us ends, so do we: a command does not live on without its lock.
#[cfg(target_os = "linux")]
fn die_with_parent() {
    use rustix::process::{Signal, set_parent_process_death_signal};
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent() {}
