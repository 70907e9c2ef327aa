//! The data directory. It is locked against a second server, and contains the epoch of the last start.
//!
//! Each start of the server increases the epoch on disk by one, before clients are served. So each
//! zxid of a run is above all zxids of earlier runs. This includes the zxids of transactions that
//! were never written.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::Error;

/// The highest epoch whose zxids are positive.
const MAX_EPOCH: u32 = i32::MAX as u32;

/// Name of the file that exists while there are sessions that a crash would lose. The file contains
/// the longest timeout of these sessions, in milliseconds.
const SESSION_TIMEOUT_FILE: &str = "owed";

/// A data directory, locked until this value is dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    /// The lock file. It contains the last epoch.
    lock: File,
}

impl DataDir {
    /// Creates the directory if it is missing, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| Error::DataDir { what, path, source }
        };
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let is_new = !path.exists();
        builder.create(path).map_err(failed("create the data directory", path))?;
        if is_new {
            // Without a sync, a power failure could remove the directory with its epoch, and epochs would start again.
            for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
                // An error is ignored: a directory that this user has no permission to open was not
                // created here.
                let _ = File::open(parent).and_then(|parent| parent.sync_all());
            }
        }
        let file = path.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&file);
        let lock = lock.map_err(failed("open the lock file", &file))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(DataDir { path: path.to_owned(), lock }),
            Err(Errno::WOULDBLOCK) => Err(Error::Locked { path: path.to_owned() }),
            Err(errno) => Err(failed("lock", &file)(errno.into())),
        }
    }

    /// Records that there are sessions with at most this timeout. Zero means that there are no
    /// sessions.
    pub(crate) fn record_session_timeout(&self, timeout_ms: u32) -> io::Result<()> {
        let file = self.path.join(SESSION_TIMEOUT_FILE);
        if timeout_ms == 0 {
            return match std::fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        write_number(&self.path, &file, timeout_ms)
    }

    /// Returns the time for which clients of an earlier server may still rely on sessions that the
    /// server lost. An unreadable file is an error, because the existence of the file means that
    /// sessions were lost.
    pub(crate) fn lost_sessions_wait(&self) -> Result<Duration, Error> {
        let path = self.path.join(SESSION_TIMEOUT_FILE);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Duration::ZERO),
            text => text,
        };
        let ms = text.and_then(|text| text.trim_end().parse().map_err(io::Error::other));
        ms.map(Duration::from_millis).map_err(|source| Error::SessionTimeoutFile { path, source })
    }

    /// Returns whether there is a log or a snapshot of an earlier server.
    pub(crate) fn has_log(&self) -> bool {
        let ours = |name: &str| name.starts_with("log.") || name.starts_with("snapshot.");
        let names = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        names.into_iter().any(|entry| entry.file_name().to_str().is_some_and(ours))
    }

    /// Advances the epoch on disk, and returns the new epoch. `logged` is the epoch of the last
    /// transaction in the log.
    pub(crate) fn start_next_epoch(&self, logged: u32) -> Result<u32, Error> {
        let file = self.path.join("epoch");
        let mut noted = String::new();
        let read = (&self.lock).rewind().and_then(|()| (&self.lock).take(64).read_to_string(&mut noted));
        let noted = read.ok().and_then(|_| noted.trim_end().parse::<u32>().ok()).unwrap_or(0);
        let known = read_epoch(&file)?;
        let noted = noted.max(logged);
        if known < noted {
            return Err(Error::CorruptEpoch {
                path: file,
                found: format!("it says {known}, but {noted} was used"),
            });
        }
        let epoch = known + 1;
        let written = write_number(&self.path, &file, epoch).and_then(|()| {
            self.lock.set_len(0)?;
            (&self.lock).rewind()?;
            (&self.lock).write_all(format!("{epoch}\n").as_bytes())?;
            self.lock.sync_all()
        });
        written.map_err(|source| Error::DataDir { what: "write the epoch file", path: file, source })?;
        Ok(epoch)
    }
}

fn read_epoch(file: &Path) -> Result<u32, Error> {
    let mut text = String::new();
    let read = File::open(file).and_then(|file| file.take(64).read_to_string(&mut text));
    let damaged = |found| Err(Error::CorruptEpoch { path: file.to_owned(), found });
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => damaged("it is not text".to_owned()),
        Err(source) => Err(Error::DataDir { what: "read the epoch file", path: file.to_owned(), source }),
        Ok(_) => match text.trim_end().parse::<u32>() {
            Ok(epoch) if epoch < MAX_EPOCH => Ok(epoch),
            _ => damaged(format!("it says {:?}", text.trim_end())),
        },
    }
}

/// Writes a number to a file. A crash leaves the old file or the new one, because the new file is complete on disk
/// before it gets its name.
fn write_number(dir: &Path, file: &Path, number: u32) -> io::Result<()> {
    let tmp = file.with_extension("tmp");
    let mut out = File::create(&tmp)?;
    out.write_all(format!("{number}\n").as_bytes())?;
    out.sync_all()?;
    std::fs::rename(&tmp, file)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_goes_up_with_every_start() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("deep/er");
        for epoch in 1..=3 {
            assert_eq!(
                DataDir::open(&path).expect("directory not locked").start_next_epoch(0).expect("writable"),
                epoch
            );
        }
    }

    #[test]
    fn lower_or_missing_epoch_is_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let next = || DataDir::open(dir.path()).expect("directory not locked").start_next_epoch(0);
        assert_eq!((next().expect("first"), next().expect("second")), (1, 2));
        std::fs::write(dir.path().join("epoch"), "1\n").expect("writable");
        assert!(matches!(next(), Err(Error::CorruptEpoch { .. })));
        std::fs::remove_file(dir.path().join("epoch")).expect("epoch file exists");
        assert!(matches!(next(), Err(Error::CorruptEpoch { .. })));
        std::fs::write(dir.path().join("epoch"), "7\n").expect("writable");
        assert_eq!(next().expect("raised by hand"), 8);
    }

    #[test]
    fn file_at_directory_path_is_reported() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("writable");
        for path in [file.clone(), file.join("below")] {
            let error = DataDir::open(&path).expect_err("a file").to_string();
            assert!(error.contains("a file has this name"), "{error}");
        }
    }

    #[test]
    fn a_second_server_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let _first = DataDir::open(dir.path()).expect("directory not locked");
        assert!(matches!(DataDir::open(dir.path()), Err(Error::Locked { .. })));
    }

    #[test]
    fn damaged_epoch_error_names_the_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let damaged: [&[u8]; 5] = [b"", b"seven\n", b"-1\n", b"2147483647\n", b"\xff\xfe"];
        for damaged in damaged {
            std::fs::write(dir.path().join("epoch"), damaged).expect("writable");
            let error = DataDir::open(dir.path())
                .expect("directory not locked")
                .start_next_epoch(0)
                .expect_err("damaged");
            assert!(matches!(error, Error::CorruptEpoch { .. }), "{error}");
            assert!(error.to_string().contains("epoch"), "{error}");
        }
    }

    #[test]
    fn unreadable_session_timeout_file_is_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = DataDir::open(dir.path()).expect("directory not locked");
        assert_eq!(data.lost_sessions_wait().expect("no file means no wait"), Duration::ZERO);
        data.record_session_timeout(40_000).expect("writable");
        assert_eq!(data.lost_sessions_wait().expect("a number"), Duration::from_secs(40));
        for damaged in [&b""[..], b"much", b"-1", b"\xff"] {
            std::fs::write(dir.path().join(SESSION_TIMEOUT_FILE), damaged).expect("writable");
            let error = data.lost_sessions_wait().expect_err("damaged").to_string();
            assert!(error.contains("owed"), "{error}");
        }
    }
}
