//! Records the commands that run under a lock, so that the next server frees the locks of dead
//! commands.
//!
//! While a command runs, `zoolock run` has a file in the directory `holders`. The file names the
//! process of zoolock and the session. zoolock, its reaper, the command and the descendants of the
//! command all have the file open, and share its file lock. So the file lock is free only when the
//! last of these processes is dead, in any process namespace. The pid of zoolock would not show
//! that, because a reaper and a command outlive zoolock for a moment.
//!
//! All other sessions have no such file, and end only at their timeout. These are the sessions of
//! waiters, of the library, and of `zoolock hold`, which protects work of its caller.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zoolock_server::ServerHandle;

use super::machine::Machine;
use super::paths::StateDir;
use super::process::RecordedProcess;
use crate::plan::{ConnectionSettings, Endpoint};

/// The directory with a file for each command.
const HOLDERS: &str = "holders";

/// The file of a command. Dropping this value removes the file.
#[derive(Debug)]
pub(crate) struct HolderFile {
    path: PathBuf,
    file: File,
}

impl HolderFile {
    /// Creates the file in local mode. Returns `None` for another server, and if the file cannot be
    /// created. Without the file, the lock of a dead command is freed only at the session timeout.
    pub(crate) fn create_for(service: &ConnectionSettings, session: i64) -> Option<Self> {
        match service.endpoint {
            Endpoint::Local => Self::create(&StateDir::open().ok()?, session).ok(),
            Endpoint::Remote { .. } => None,
        }
    }

    fn create(dir: &StateDir, session: i64) -> io::Result<Self> {
        let holders = dir.file(HOLDERS);
        match DirBuilder::new().mode(0o700).create(&holders) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let path = holders.join(format!("{session:016x}"));
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)?;
        let created = Self { path, file };
        created.file.try_lock()?;
        (&created.file).write_all(format!("{}\n", RecordedProcess::current()).as_bytes())?;
        Ok(created)
    }

    /// Returns the file. Processes that inherit it hold its lock.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for HolderFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Ends the sessions of commands that have ended without a release. Returns the number of ended
/// sessions.
pub(super) fn expire_dead_commands(dir: &StateDir, server: &ServerHandle, has_rebooted: bool) -> usize {
    let files = std::fs::read_dir(dir.file(HOLDERS)).into_iter().flatten().flatten();
    let dead: Vec<PathBuf> =
        files.map(|file| file.path()).filter(|file| is_dead(file, has_rebooted)).collect();
    let mut ended = 0;
    for file in dead {
        let session = file.file_name().and_then(|name| i64::from_str_radix(name.to_str()?, 16).ok());
        ended += usize::from(session.is_some_and(|session| server.expire_session(session)));
        let _ = std::fs::remove_file(file);
    }
    ended
}

/// Returns whether all processes of a command are dead. A command of another boot is dead only if
/// this machine has rebooted. Otherwise that command may run on another machine.
fn is_dead(path: &Path, has_rebooted: bool) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
    let mut text = String::new();
    // The recorded process is checked, too. If it runs although the file lock is free, file locks
    // do not work here.
    file.try_lock().is_ok()
        && file.read_to_string(&mut text).is_ok()
        && text.parse::<RecordedProcess>().is_ok_and(|process| {
            !process.is_running() && (has_rebooted || process.machine.is_same_boot(&Machine::current()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_gone_when_its_file_lock_is_free() {
        let dir = tempfile::tempdir().expect("temporary directory is created");
        let state = StateDir::for_tests(dir.path());
        let ours = HolderFile::create(&state, 0x7b).expect("file created");
        assert!(!is_dead(&ours.path, false));
        // The copy stands for the file that the reaper and the command have open.
        let copy = ours.file.try_clone().expect("file duplicated");
        let path = ours.path.clone();
        drop(ours);
        assert!(!path.exists());
        drop(copy);
        let process = RecordedProcess::current();
        let dead = RecordedProcess { start_time: process.start_time + 1, ..process.clone() };
        for (text, is_dead_process) in
            [(dead.to_string(), true), (process.to_string(), false), (String::new(), false)]
        {
            std::fs::write(&path, &text).expect("file written");
            assert_eq!(is_dead(&path, false), is_dead_process, "{text:?}");
            let holder = File::open(&path).expect("file opened");
            holder.lock().expect("file locked");
            assert!(!is_dead(&path, false), "{text:?}");
        }
        let mut earlier = process;
        earlier.machine.boot = Some("earlier".to_owned());
        std::fs::write(&path, earlier.to_string()).expect("file written");
        assert_eq!([false, true].map(|has_rebooted| is_dead(&path, has_rebooted)), [false, true]);
    }
}
