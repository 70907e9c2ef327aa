//! The built command `zoolock`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{Result, TestFailure};

/// The built command with a home directory of its own. In local mode, the command looks for the
/// user's server in the home directory. So it finds only a server that the test has started.
#[derive(Debug)]
pub struct ZoolockBinary {
    path: PathBuf,
    home: TempDir,
}

impl ZoolockBinary {
    /// Finds the command at the path that [`path()`] returns, and creates an empty home directory.
    ///
    /// # Errors
    /// Fails if the command has not been built.
    pub fn find() -> Result<Self> {
        let path = path()?;
        let home =
            TempDir::new().map_err(|error| TestFailure::during("making a home for the command", error))?;
        Ok(Self { path, home })
    }

    /// Returns the path of the command.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the home directory of the command, which is empty at first.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns a command with these arguments and without the `ZOOLOCK_*` variables of this process.
    ///
    /// A process that this command starts is killed when its [`Child`] is dropped.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = command(&self.path, self.home());
        command.args(args);
        command
    }

    /// Starts the command with its three streams piped.
    ///
    /// # Panics
    /// Panics if the command cannot be executed.
    pub fn spawn<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("cannot execute {}: {error}", self.path.display()),
        }
    }
}

/// Returns a command with this home directory and without the `ZOOLOCK_*` variables of this process.
///
/// A process that this command starts is killed when its [`Child`] is dropped.
pub fn command(path: &Path, home: &Path) -> Command {
    let mut command = Command::new(path);
    for name in zoolock_variables() {
        command.env_remove(name);
    }
    command.env("HOME", home).env("XDG_STATE_HOME", home.join("state")).env_remove("XDG_RUNTIME_DIR");
    command.kill_on_drop(true);
    command
}

/// Returns the names of the `ZOOLOCK_*` variables of this process.
pub(crate) fn zoolock_variables() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("ZOOLOCK_"))
}

/// Returns the path of the command.
///
/// This is the value of the environment variable `ZOOLOCK_BIN`, if it is set. Otherwise it is
/// `zoolock` in the build directory: the directory of the running program, or, for a test program
/// in `deps`, the directory that contains `deps`.
///
/// # Errors
/// Fails if the command has not been built.
pub fn path() -> Result<PathBuf> {
    let path = match std::env::var_os("ZOOLOCK_BIN") {
        Some(path) => PathBuf::from(path),
        None => beside_program()?,
    };
    match path.is_file() {
        true => Ok(path),
        false => Err(TestFailure::new(format!(
            "no {}: run `cargo build -p zoolock-cli` first, or set ZOOLOCK_BIN",
            path.display()
        ))),
    }
}

fn beside_program() -> Result<PathBuf> {
    let program =
        std::env::current_exe().map_err(|error| TestFailure::during("finding the running program", error))?;
    let deps = program.ancestors().find(|dir| dir.file_name() == Some(OsStr::new("deps")));
    Ok(deps.unwrap_or(&program).with_file_name(format!("zoolock{}", std::env::consts::EXE_SUFFIX)))
}
