//! The built command `zoolock`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{Failure, Result};

/// The built command with its own home directory, so that local mode finds only the test's server.
#[derive(Debug)]
pub struct ZoolockBinary {
    path: PathBuf,
    home: TempDir,
}

impl ZoolockBinary {
    /// Finds the command beside the running test, or at the path in `ZOOLOCK_BIN`.
    ///
    /// # Errors
    /// Fails if the command has not been built.
    pub fn find() -> Result<Self> {
        let path = match std::env::var_os("ZOOLOCK_BIN") {
            Some(path) => PathBuf::from(path),
            None => beside_test()?,
        };
        if !path.is_file() {
            return Err(Failure::new(format!(
                "no {}: run `cargo build -p zoolock-cli` first",
                path.display()
            )));
        }
        let home = TempDir::new().map_err(|error| Failure::during("making a home for the command", error))?;
        Ok(Self { path, home })
    }

    /// Returns the path of the command.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its home directory, which is empty at first.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Returns a command with these arguments and without the `ZOOLOCK_*` variables of this process.
    ///
    /// Its child is killed when it is dropped.
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
/// Its child is killed when it is dropped.
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

/// Returns the path of the command beside the running test, `target/<profile>/deps/<name>`.
///
/// Doctests run elsewhere.
fn beside_test() -> Result<PathBuf> {
    let test = std::env::current_exe().map_err(|error| Failure::during("finding the running test", error))?;
    let deps = test.ancestors().find(|dir| dir.file_name() == Some(OsStr::new("deps")));
    match deps.and_then(Path::parent) {
        Some(profile) => Ok(profile.join(format!("zoolock{}", std::env::consts::EXE_SUFFIX))),
        None => {
            Err(Failure::new(format!("{} is not below a `deps` directory, set ZOOLOCK_BIN", test.display())))
        }
    }
}
