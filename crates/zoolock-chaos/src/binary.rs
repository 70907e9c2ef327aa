//! Where the command `zoolock` is, which some of what is broken here runs.

use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::Outcome;

/// Beside ourselves, as cargo builds both, or where `ZOOLOCK_BIN` says.
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

/// The command with a home of its own, and with no setting of whoever started us.
pub(crate) fn command(zoolock: &Path, home: &Path) -> Command {
    let mut command = Command::new(zoolock);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ZOOLOCK_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", home).env("XDG_STATE_HOME", home.join("state")).env_remove("XDG_RUNTIME_DIR");
    // An interrupt at the terminal is for us, and we end it.
    command.process_group(0).kill_on_drop(true);
    command
}
