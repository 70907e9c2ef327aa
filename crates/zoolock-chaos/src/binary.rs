//! The command `zoolock`, which some drills run.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::Outcome;

/// Returns the path of the command: that in `ZOOLOCK_BIN`, or beside this program.
pub(crate) fn zoolock() -> Outcome<PathBuf> {
    let path = match std::env::var_os("ZOOLOCK_BIN") {
        Some(path) => PathBuf::from(path),
        None => std::env::current_exe()?.with_file_name("zoolock"),
    };
    match path.is_file() {
        true => Ok(path),
        false => Err(format!("no {}: build it with `cargo build -p zoolock-cli`", path.display()).into()),
    }
}

/// Returns a command with its own home directory and without the `ZOOLOCK_*` variables of this process.
pub(crate) fn command(zoolock: &Path, home: &Path) -> Command {
    let mut command = zoolock_tests::binary::command(zoolock, home);
    // An interrupt at the terminal goes to this process only, which then ends the command.
    command.process_group(0);
    command
}
