//! Namespaces of Linux in which a program has its own name servers, loopback interface and processes.
//!
//! A program runs itself again in the namespaces. [`is_inside`] is true there. No privileges are needed if the kernel lets
//! users make namespaces.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::name_servers::{FIRST, SECOND};
use crate::skip::Availability;
use crate::{Result, TestFailure};

/// The variable that is set in the namespaces.
const INSIDE: &str = "ZOOLOCK_TEST_NAMESPACES";

/// Runs a command with the files of a directory in place of those in `/etc`.
const SCRIPT: &str = r#"
    ip link set lo up || exit 99
    for file in hosts resolv.conf nsswitch.conf; do mount --bind "$1/$file" "/etc/$file" || exit 99; done
    shift
    exec "$@""#;

/// The files that replace those in `/etc`. Dropping this value deletes them.
#[derive(Debug)]
pub struct Namespaces(TempDir);

/// Returns whether this process runs in the namespaces.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

impl Namespaces {
    /// Writes the files. Names are looked up in [`NameServers`](crate::name_servers::NameServers).
    ///
    /// # Errors
    /// Fails if the files cannot be written.
    pub fn new() -> Result<Self> {
        let servers = format!("nameserver {FIRST}\nnameserver {SECOND}\n");
        let files = [
            ("hosts", "127.0.0.1 localhost\n"),
            ("resolv.conf", &servers),
            ("nsswitch.conf", "hosts: files dns\n"),
        ];
        let write = || {
            let dir = TempDir::with_prefix("zoolock-namespaces-")?;
            for (name, text) in files {
                std::fs::write(dir.path().join(name), text)?;
            }
            std::io::Result::Ok(dir)
        };
        Ok(Namespaces(
            write().map_err(|error| TestFailure::during("writing the files of namespaces", error))?,
        ))
    }

    /// Returns the directory of the files. Programs in the namespaces may write to it.
    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    /// Returns whether programs can be run in namespaces on this machine.
    pub fn availability(&self) -> Availability {
        match self.command("true").output() {
            Ok(probe) if probe.status.success() => Availability::Available,
            Ok(probe) => Availability::Missing(String::from_utf8_lossy(&probe.stderr).into_owned()),
            Err(error) => Availability::Missing(format!("no unshare ({error})")),
        }
    }

    /// Returns a command that runs `program` in new namespaces. All processes in the namespaces end with the command.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut unshare = Command::new("unshare");
        unshare
            .args(["--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", SCRIPT, "sh"])
            .arg(self.dir())
            .arg(program)
            .env(INSIDE, "1");
        unshare
    }
}
