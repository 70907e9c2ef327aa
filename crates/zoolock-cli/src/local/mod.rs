//! Local mode: one server per user and machine. The first command that needs it starts it.
//!
//! Its files are in a directory to which only this user has access:
//!
//! | file | contents |
//! |---|---|
//! | `socket` | the Unix socket of the server |
//! | `lock` | locked by the server while it runs |
//! | `server` | the process of the server; valid while `lock` is locked |
//! | `starting` | locked by the command that starts the server |
//! | `stopped` | present after `serve --stop`: commands that hold or wait do not start the server again |
//! | `sessions` | the number of sessions, for `serve --status` |
//! | `log` | the messages of the server |
//! | `data` | the data of the server, so that tokens rise over restarts |

mod keep;
mod paths;
mod server;
mod start;

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;

use rustix::process::{Pid, getpid};

pub(crate) use keep::{Keeper, stopped};
pub(crate) use paths::StateDir;
pub(crate) use server::{become_independent, serve};
pub(crate) use start::running;

use crate::exit::{Exit, Failure};

/// The name of the socket.
const SOCKET: &str = "socket";

/// A server that can be connected to.
#[derive(Debug)]
pub(crate) struct Running {
    socket: PathBuf,
}

impl Running {
    /// Returns the connect string.
    ///
    /// # Errors
    /// The path of the state directory is not UTF-8.
    pub(crate) fn address(&self) -> Result<String, Failure> {
        let path = self.socket.to_str().ok_or_else(|| {
            Failure::usage(format!(
                "the path {} is not UTF-8; set ZOOLOCK_STATE_DIR to another directory",
                self.socket.display()
            ))
        })?;
        Ok(format!("unix:{path}"))
    }
}

/// The process of a server, as it writes it to the file `server`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// The process namespace, in which the pid is valid.
    namespace: String,
    /// The id of the boot of the machine. Containers share it with their machine.
    boot: String,
    /// The name of the machine.
    host: String,
}

impl Process {
    fn current() -> Process {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Process {
            pid: getpid(),
            namespace: namespace.to_string_lossy().into_owned(),
            boot: boot.trim().to_owned(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// Returns whether a signal to the pid reaches this process.
    pub(crate) fn is_in_our_namespace(&self) -> bool {
        self.namespace == Process::current().namespace
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Process { pid, namespace, boot, host } = self;
        write!(f, "{pid} {namespace} {boot} {host}")
    }
}

impl FromStr for Process {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.trim_end().splitn(4, ' ').map(str::to_owned);
        let mut word = || words.next().ok_or(());
        let pid = word()?.parse().ok().and_then(Pid::from_raw).ok_or(())?;
        Ok(Process { pid, namespace: word()?, boot: word()?, host: word()? })
    }
}

/// The state of this user's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// No server runs.
    Absent,
    /// A server starts or exits.
    Busy,
    /// A server listens.
    Listening(Process),
    /// A server runs on another machine, which shares the state directory.
    Elsewhere(Process),
}

/// Removes a file, if it is there.
fn remove(dir: &StateDir, name: &str) -> Result<(), Failure> {
    match std::fs::remove_file(dir.file(name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(dir.failed("delete", name, &error)),
        _ => Ok(()),
    }
}

/// Returns the state of the server, without changing it.
pub(crate) fn look(dir: &StateDir) -> Result<State, Failure> {
    let lock = open_lock(dir, "lock")?;
    match lock.try_lock_shared() {
        Ok(()) => return Ok(State::Absent),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(dir.failed("lock", "lock", &error)),
    }
    let text = std::fs::read_to_string(dir.file("server")).unwrap_or_default();
    Ok(match text.parse::<Process>() {
        Err(()) => State::Busy,
        Ok(process) if process.boot == Process::current().boot => State::Listening(process),
        Ok(process) => State::Elsewhere(process),
    })
}

/// Returns the error for a server on another machine.
pub(crate) fn elsewhere(dir: &StateDir, process: &Process) -> Failure {
    Failure::unavailable(format!(
        "the state directory {} is shared with {}, where this user's server runs; local mode works on one machine: set \
         ZOOLOCK_STATE_DIR to a directory of this machine, or name an ensemble with --connect",
        dir.path().display(),
        process.host
    ))
}

/// Opens a file that is used as a lock.
fn open_lock(dir: &StateDir, name: &str) -> Result<File, Failure> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(dir.file(name))
        .map_err(|error| dir.failed("open", name, &error))
}

/// Returns the failure for an error of the file system.
fn storage(message: String, error: &std::io::Error) -> Failure {
    let exit = match error.kind() {
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    Failure::new(exit, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_reads_back_as_it_was_written() {
        let process = Process::current();
        assert_eq!(process.to_string().parse(), Ok(process.clone()));
        assert!(process.is_in_our_namespace());
        for bad in ["", "42", "42 pid:[1] boot", "0 pid:[1] boot host", "x pid:[1] boot host"] {
            assert_eq!(bad.parse::<Process>(), Err(()), "{bad:?}");
        }
    }

    #[test]
    fn server_of_another_machine_is_recognised() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        assert_eq!(look(&state).expect("readable"), State::Absent);
        let lock = open_lock(&state, "lock").expect("created");
        lock.lock().expect("locked");
        assert_eq!(look(&state).expect("readable"), State::Busy);
        let ours = Process::current();
        std::fs::write(state.file("server"), ours.to_string()).expect("file written");
        assert_eq!(look(&state).expect("readable"), State::Listening(ours.clone()));
        let other = Process { boot: "another".to_owned(), host: "build7".to_owned(), ..ours };
        std::fs::write(state.file("server"), other.to_string()).expect("file written");
        assert_eq!(look(&state).expect("readable"), State::Elsewhere(other.clone()));
        assert!(elsewhere(&state, &other).to_string().contains("build7"));
    }
}
