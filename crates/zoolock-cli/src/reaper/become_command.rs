//! `zoolock become`: the process that becomes the command.
//!
//! This process asks for a signal at the death of its parent, takes the terminal, and corrects
//! variables of systemd. Only the command's own process can do that. Then the process replaces
//! itself with the command.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::unistd::execvpe;
use rustix::process::{Pid, Signal, getpgrp, getpid, getppid, set_parent_process_death_signal};

use crate::args::BecomeArgs;
use crate::base::executable;
use crate::base::exit::{Exit, Failure};
use crate::base::terminal::{self, Terminal};

/// Replaces this process with the command. Returns only if that fails.
pub(crate) fn become_command(args: &BecomeArgs) -> Failure {
    // The command does not outlive the reaper: the kernel kills it when the reaper's thread that started it ends.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
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
    let error = if args.ignore_pipe { exec_with_pipe_ignored(&command) } else { command.exec() };
    executable::exec_failure(program, error)
}

/// Puts the pid of this process into the variables that systemd has set for `zoolock run`, the
/// process with the pid `main`. Then the command can use the sockets and the watchdog of systemd.
fn set_systemd_variables(command: &mut Command, main: i32) {
    let is_of_main = |name: &str| std::env::var(name).is_ok_and(|pid| pid == main.to_string());
    for name in ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"].into_iter().filter(|name| is_of_main(name))
    {
        command.env(name, getpid().to_string()).env_remove("LISTEN_PIDFDID");
    }
}

/// Replaces this process with the command, and leaves PIPE ignored. Rust has ignored PIPE when this process started, and
/// `Command::exec` would set it to its default. Returns only if that fails.
fn exec_with_pipe_ignored(command: &Command) -> io::Error {
    let mut environment: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => environment.insert(name.to_owned(), value.to_owned()),
            None => environment.remove(name),
        };
    }
    let text = |words: &[&OsStr]| CString::new(words.join(OsStr::new("=")).into_encoded_bytes());
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let arguments: Result<Vec<_>, _> = words.map(|word| text(&[word])).collect();
    let variables: Result<Vec<_>, _> = environment.iter().map(|(name, value)| text(&[name, value])).collect();
    match (arguments, variables) {
        (Ok(arguments), Ok(variables)) => {
            let Err(error) = execvpe(&arguments[0], &arguments, &variables);
            error.into()
        }
        _ => io::ErrorKind::InvalidInput.into(),
    }
}
