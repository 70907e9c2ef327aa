//! Local mode: one server per user and machine. The first command that needs it starts it.
//!
//! Its files are in a directory to which only this user has access:
//!
//! | file | contents |
//! |---|---|
//! | `socket` | the Unix socket of the server |
//! | `lock` | locked by the server while it runs |
//! | `server` | the process of the server; valid while `lock` is locked |
//! | `starting` | locked by the command that starts the server, and for a moment by `serve --stop` |
//! | `wanted` | present until `serve --stop`: commands that hold or wait start the server again if it ends |
//! | `sessions` | the number of sessions, for `serve --status` |
//! | `log` | the messages of the server |
//! | `data` | the data of the server, so that tokens rise over restarts |
//! | `holders` | a file for each command of `run`; its locks are freed when the command has died |
//! | `machine` | the machine and the boot of the last server; other machines are refused |

mod file_system;
mod holders;
mod keep;
pub(crate) mod limits;
mod log;
mod machine;
mod paths;
mod server;
mod start;

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rustix::process::{Pid, getpid};

pub(crate) use holders::HolderFile;
pub(crate) use keep::{ServerKeeper, mark_stopped};
pub(crate) use machine::adopt;
pub(crate) use paths::StateDir;
pub(crate) use server::{become_independent, serve};
pub(crate) use start::{find_or_start_server, lock_starts};

use self::machine::Machine;
use crate::base::exit::{Exit, Failure};
use crate::reaper::table::start_time;

/// Interval between checks of the server by a command that connects.
const LOOK: Duration = Duration::from_millis(100);

const VERSION: &str = env!("CARGO_PKG_VERSION");

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
    /// The time of its start. A later process may have the same pid.
    start_time: u64,
    version: String,
    /// The process namespace, in which the pid is valid.
    namespace: String,
    machine: Machine,
}

impl Process {
    fn current() -> Process {
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        Process {
            pid: getpid(),
            start_time: start_time(getpid()).unwrap_or_default(),
            version: VERSION.to_owned(),
            namespace: namespace.to_string_lossy().into_owned(),
            machine: Machine::current(),
        }
    }

    /// Returns whether both are the same process. The name of its machine may have changed.
    fn is_same(&self, other: &Self) -> bool {
        (self.pid, self.start_time, &self.namespace) == (other.pid, other.start_time, &other.namespace)
            && self.machine.boot == other.machine.boot
    }

    /// Returns whether a signal to the pid reaches this process.
    pub(crate) fn is_in_our_namespace(&self) -> bool {
        self.namespace == Process::current().namespace
    }

    /// Returns whether the process runs. Only a process of this boot and this process namespace counts.
    fn runs(&self) -> bool {
        self.machine.is_same_boot(&Machine::current())
            && self.is_in_our_namespace()
            && start_time(self.pid) == Some(self.start_time)
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Process { pid, start_time, version, namespace, machine } = self;
        write!(f, "{pid} {start_time} {version} {namespace} {machine}")
    }
}

impl FromStr for Process {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.trim_end().splitn(5, ' ');
        let mut word = || words.next().ok_or(());
        let pid = word()?.parse().ok().and_then(Pid::from_raw).ok_or(())?;
        let start_time = word()?.parse().map_err(|_| ())?;
        let (version, namespace) = (word()?.to_owned(), word()?.to_owned());
        Ok(Process { pid, start_time, version, namespace, machine: word()?.parse()? })
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
}

/// Removes a file, if it is there.
fn remove(dir: &StateDir, name: &str) -> Result<(), Failure> {
    match std::fs::remove_file(dir.file(name)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(dir.failed("delete", name, &error)),
        _ => Ok(()),
    }
}

/// Returns the state of the server, without changing it.
///
/// # Errors
/// The directory belongs to another machine, or cannot be read.
pub(crate) fn server_state(dir: &StateDir) -> Result<State, Failure> {
    machine::check_machine(dir)?;
    let lock = match File::open(dir.file("lock")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::Absent),
        lock => lock.map_err(|error| dir.failed("open", "lock", &error))?,
    };
    match lock.try_lock_shared() {
        Ok(()) => return Ok(State::Absent),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(dir.failed("lock", "lock", &error)),
    }
    match recorded_server(dir) {
        None => Ok(State::Busy),
        Some(process) if process.machine.boot == Machine::current().boot => Ok(State::Listening(process)),
        Some(process) => Err(machine::belongs_to_another(dir, &process.machine)),
    }
}

/// Returns the process that the file `server` names.
fn recorded_server(dir: &StateDir) -> Option<Process> {
    std::fs::read_to_string(dir.file("server")).ok()?.parse().ok()
}

/// Returns the error for a server that runs although its lock is free, if there is one.
fn lock_is_broken(dir: &StateDir) -> Option<Failure> {
    let process =
        recorded_server(dir).filter(|process| process.runs() && !process.is_same(&Process::current()))?;
    Some(Failure::unavailable(format!(
        "process {} serves the state directory {} without its file lock; if the file `lock` was deleted, stop the process; if \
         the directory is mounted twice, set ZOOLOCK_STATE_DIR to a directory that is mounted once",
        process.pid,
        dir.path().display()
    )))
}

/// Replaces the content of a file. Readers see the old one or the new one. With `synced` that is so after a power cut, too.
fn replace_file(dir: &StateDir, name: &str, content: &str, synced: bool) -> Result<(), Failure> {
    let draft = dir.file(&format!("{name}.new"));
    let written = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| {
            writeln!(file, "{content}")?;
            if synced { file.sync_all() } else { Ok(()) }
        })
        .and_then(|()| std::fs::rename(&draft, dir.file(name)));
    written.map_err(|error| dir.failed("write", name, &error))
}

/// Returns the failure for a server that opens no session.
pub(crate) fn no_session(error: impl std::fmt::Display) -> Failure {
    let dir = match StateDir::open() {
        Ok(dir) => dir,
        Err(failure) => return failure,
    };
    let about = match server_state(&dir) {
        Ok(State::Listening(process)) if process.version != VERSION => format!(
            "this user's server is zoolock {}, and this is {VERSION}: if no lock is held, run: zoolock serve --stop",
            process.version
        ),
        Ok(State::Listening(process)) => {
            let place = if process.is_in_our_namespace() {
                format!("as process {}", process.pid)
            } else {
                "in another process namespace, such as a container".to_owned()
            };
            format!("this user's server runs {place}; see {}", dir.file("log").display())
        }
        Err(failure) => return failure,
        Ok(_) => match log::last_failure(&dir) {
            Some(why) => {
                let log = dir.file("log");
                return Failure::unavailable(format!(
                    "this user's server has failed: {why}; see {}",
                    log.display()
                ));
            }
            None => format!("this user's server has ended; see {}", dir.file("log").display()),
        },
    };
    Failure::unavailable(format!("{error}; {about}"))
}

/// Resolves when this user's server has ended.
pub(crate) async fn ended() {
    loop {
        tokio::time::sleep(LOOK).await;
        if StateDir::open().is_ok_and(|dir| server_state(&dir).ok() == Some(State::Absent)) {
            return;
        }
    }
}

/// Opens a file, and creates it if it is missing.
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

/// Returns the failure for an error of the file system, with a remedy.
fn storage_failure(mut message: String, error: &std::io::Error) -> Failure {
    message.push_str(match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; free space there, or set ZOOLOCK_STATE_DIR to a directory with free space"
        }
        ErrorKind::ReadOnlyFilesystem => "; set ZOOLOCK_STATE_DIR to a directory that can be written",
        ErrorKind::FileTooLarge => "; raise the limit on the size of files (ulimit -f)",
        _ => "",
    });
    let exit = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Exit::DENIED,
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
        for bad in [
            "",
            "42",
            "42 7 0.1.0 pid:[1] m boot",
            "0 7 0.1.0 pid:[1] m boot host",
            "42 x 0.1.0 pid:[1] m boot host",
        ] {
            assert_eq!(bad.parse::<Process>(), Err(()), "{bad:?}");
        }
    }

    #[test]
    fn server_of_another_machine_is_recognised() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        assert_eq!(server_state(&state).expect("readable"), State::Absent);
        let lock = open_lock(&state, "lock").expect("created");
        lock.lock().expect("locked");
        assert_eq!(server_state(&state).expect("readable"), State::Busy);
        let ours = Process::current();
        std::fs::write(state.file("server"), ours.to_string()).expect("file written");
        assert_eq!(server_state(&state).expect("readable"), State::Listening(ours.clone()));
        let machine = "m another build7".parse().expect("a machine");
        let other = Process { machine, ..ours };
        std::fs::write(state.file("server"), other.to_string()).expect("file written");
        assert!(server_state(&state).expect_err("another boot").to_string().contains("build7"));
    }

    #[test]
    fn running_server_without_its_lock_is_recognised() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        let ours = Process::current();
        let parent = rustix::process::getppid().expect("the test has a parent");
        let parent =
            Process { pid: parent, start_time: start_time(parent).expect("the parent runs"), ..ours.clone() };
        let later = Process { start_time: parent.start_time + 1, ..parent.clone() };
        for (process, broken) in [(&ours, false), (&parent, true), (&later, false)] {
            std::fs::write(state.file("server"), process.to_string()).expect("file written");
            assert_eq!(lock_is_broken(&state).is_some(), broken, "{process}");
        }
    }
}
