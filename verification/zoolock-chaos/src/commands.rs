//! The processes of the drills: the command `zoolock`, and this program itself.

use std::path::Path;
use std::process::Stdio;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
pub(crate) use zoolock_tests::binary::path;

use crate::Outcome;

/// Returns a command with its own home directory and without the `ZOOLOCK_*` variables of this process.
pub(crate) fn zoolock_command(zoolock: &Path, home: &Path) -> Command {
    let mut command = zoolock_tests::binary::command(zoolock, home);
    // In its own process group, the command gets no interrupt from the terminal. This process ends
    // the command.
    command.process_group(0);
    command
}

/// Returns a command that runs a hidden subcommand of this program, with `--break` if a deliberate
/// bug is given. Input and output are piped. The child process is killed when its handle is
/// dropped.
pub(crate) fn own_command(subcommand: &str, broken: Option<impl ValueEnum>) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(subcommand);
    if let Some(broken) = broken.and_then(|broken| broken.to_possible_value()) {
        command.args(["--break", broken.get_name()]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
    Ok(command)
}

/// Sends a signal to a child if it still runs.
pub(crate) fn send_signal(child: &mut Child, signal: Signal) {
    if let Ok(None) = child.try_wait()
        && let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid as i32))
    {
        // No other process can have this pid before the child is waited for.
        let _ = kill_process(pid, signal);
    }
}
