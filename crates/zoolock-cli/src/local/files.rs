//! The files in the state directory, and their locks.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use super::paths::StateDir;
use crate::base::exit::Failure;

/// Maximum number of attempts to take the server's lock. One attempt is not enough, because a
/// command that checks whether the server runs holds the lock for a moment.
const LOCK_ATTEMPTS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// Removes a file, if it exists.
pub(super) fn remove(dir: &StateDir, name: &str) -> Result<(), Failure> {
    match std::fs::remove_file(dir.file(name)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(dir.file_failure("delete", name, &error)),
        _ => Ok(()),
    }
}

/// Replaces the content of a file. Readers see either the old or the new content. With `synced`,
/// they do so even after a power failure.
pub(super) fn replace_file(dir: &StateDir, name: &str, content: &str, synced: bool) -> Result<(), Failure> {
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
    written.map_err(|error| dir.file_failure("write", name, &error))
}

/// Opens a lock file, and creates it if it is missing.
pub(super) fn open_or_create(dir: &StateDir, name: &str) -> Result<File, Failure> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(dir.file(name))
        .map_err(|error| dir.file_failure("open", name, &error))
}

/// Takes the server's lock. Returns `None` if a server holds it.
pub(super) async fn take_server_lock(dir: &StateDir) -> Result<Option<File>, Failure> {
    let lock = open_or_create(dir, "lock")?;
    for _ in 0..LOCK_ATTEMPTS {
        match lock.try_lock() {
            Ok(()) => return Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(PAUSE).await,
            Err(TryLockError::Error(error)) => return Err(dir.file_failure("lock", "lock", &error)),
        }
    }
    Ok(None)
}
