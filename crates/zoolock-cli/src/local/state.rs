//! The state of this user's server.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;

use super::machine::{self, Machine};
use super::paths::StateDir;
use super::process::RecordedProcess;
use crate::base::exit::Failure;

/// The state of this user's server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LocalState {
    /// No server runs.
    Absent,
    /// A server is starting or exiting.
    Busy,
    /// This server runs and accepts connections.
    Listening(RecordedProcess),
}

/// Returns the state of the server, without changing it.
///
/// # Errors
/// Fails if the directory belongs to another machine, or cannot be read.
pub(crate) fn server_state(dir: &StateDir) -> Result<LocalState, Failure> {
    machine::check_machine(dir)?;
    let lock = match File::open(dir.file("lock")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(LocalState::Absent),
        lock => lock.map_err(|error| dir.file_failure("open", "lock", &error))?,
    };
    match lock.try_lock_shared() {
        Ok(()) => return Ok(LocalState::Absent),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(dir.file_failure("lock", "lock", &error)),
    }
    match recorded_server(dir) {
        None => Ok(LocalState::Busy),
        Some(process) if process.machine.boot == Machine::current().boot => {
            Ok(LocalState::Listening(process))
        }
        Some(process) => Err(machine::other_machine_failure(dir, &process.machine)),
    }
}

/// Returns the process that the file `server` names.
pub(super) fn recorded_server(dir: &StateDir) -> Option<RecordedProcess> {
    std::fs::read_to_string(dir.file("server")).ok()?.parse().ok()
}

/// Returns an error if a server runs although its file lock is free. Such a server does not exclude
/// another server.
pub(super) fn unlocked_server_failure(dir: &StateDir) -> Option<Failure> {
    let process = recorded_server(dir)
        .filter(|process| process.is_running() && !process.is_same(&RecordedProcess::current()))?;
    Some(Failure::unavailable(format!(
        "process {} serves the state directory {} without its file lock; if the file `lock` was deleted, stop the process; if \
         the directory is mounted twice, set ZOOLOCK_STATE_DIR to a directory that is mounted once",
        process.pid,
        dir.path().display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::files::open_or_create;
    use crate::reaper::table::start_time;

    #[test]
    fn server_of_another_machine_is_recognised() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        assert_eq!(server_state(&state).expect("readable"), LocalState::Absent);
        let lock = open_or_create(&state, "lock").expect("created");
        lock.lock().expect("locked");
        assert_eq!(server_state(&state).expect("readable"), LocalState::Busy);
        let ours = RecordedProcess::current();
        std::fs::write(state.file("server"), ours.to_string()).expect("file written");
        assert_eq!(server_state(&state).expect("readable"), LocalState::Listening(ours.clone()));
        let machine = "m another build7".parse().expect("a machine");
        let other = RecordedProcess { machine, ..ours };
        std::fs::write(state.file("server"), other.to_string()).expect("file written");
        assert!(server_state(&state).expect_err("another boot").to_string().contains("build7"));
    }

    #[test]
    fn running_server_without_its_lock_is_recognised() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        let ours = RecordedProcess::current();
        let parent = rustix::process::getppid().expect("the test has a parent");
        let parent = RecordedProcess {
            pid: parent,
            start_time: start_time(parent).expect("the parent runs"),
            ..ours.clone()
        };
        let later = RecordedProcess { start_time: parent.start_time + 1, ..parent.clone() };
        for (process, broken) in [(&ours, false), (&parent, true), (&later, false)] {
            std::fs::write(state.file("server"), process.to_string()).expect("file written");
            assert_eq!(unlocked_server_failure(&state).is_some(), broken, "{process}");
        }
    }
}
