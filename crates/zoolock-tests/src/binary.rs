//! The command `zoolock`, as it was built.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{Failure, Result};

/// The built command, with a home of its own: local mode finds no server but the test's.
#[derive(Debug)]
pub struct ZoolockBinary {
    path: PathBuf,
    home: TempDir,
}

impl ZoolockBinary {
    /// Finds the command beside the running test, or where `ZOOLOCK_BIN` says.
    ///
    /// # Errors
    /// When it has not been built.
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

    /// Where the command is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its home directory, empty at first.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// A command line that takes nothing from this process's `ZOOLOCK_*` variables; killed when its child is
    /// dropped.
    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(&self.path);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ZOOLOCK_") {
                command.env_remove(name);
            }
        }
        command.env("HOME", self.home()).env("XDG_STATE_HOME", self.home().join("state"));
        command.env_remove("XDG_RUNTIME_DIR").args(args).kill_on_drop(true);
        command
    }

    /// Starts the command with its three streams piped.
    ///
    /// # Panics
    /// When it cannot be executed.
    pub fn spawn<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("cannot execute {}: {error}", self.path.display()),
        }
    }
}

/// Tests run as `target/<profile>/deps/<name>`, doc tests elsewhere.
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
