//! The data directory. It is locked against a second server, and contains the epoch of the last start.
//!
//! Each start of the server increases the epoch on disk by one, before clients are served. So each
//! zxid of a run is above all zxids of earlier runs. This includes the zxids of transactions that
//! were never written.
//!
//! The lock is on the directory itself, and not on a file in it. So a second server cannot lock the
//! same directory even if all files are removed. If the directory itself is moved or removed, a
//! second server can create another one at its path. The first server checks the path at each tick,
//! and then stops.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::directory::Directory;
use crate::error::Error;
use crate::group::mode_of_others;
use crate::log::{END_RECORD, LogError, RealDisk, VERSION};

/// The highest epoch whose zxids are positive.
const MAX_EPOCH: u32 = i32::MAX as u32;

/// Name of the file with the epoch of the last start.
const EPOCH_FILE: &str = "epoch";
/// Name of the file with a copy of the epoch. The copy shows if the epoch file goes back to an older one.
const EPOCH_COPY: &str = "epoch.copy";
/// Text behind the epoch of a server without a log: one with durability memory.
const MEMORY_MARK: &str = " memory";

/// Name of the file with the format of the log and the version of zoolock. Only builds before its introduction write none.
const FORMAT_FILE: &str = "format";

/// Name of the file with the longest session timeout that the last server with a log could grant, in milliseconds.
const LONGEST_TIMEOUT_FILE: &str = "longest-session-timeout";

/// Name of the file that exists while there are sessions that a crash would lose. The file contains
/// the longest timeout of these sessions, in milliseconds.
const SESSION_TIMEOUT_FILE: &str = "owed";

/// A data directory, locked until this value and all its disks are dropped.
#[derive(Debug)]
pub(crate) struct DataDir {
    directory: Arc<Directory>,
    /// Set if this server has a log.
    keeps_log: bool,
}

/// The contents of the epoch file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Epoch {
    number: u32,
    /// Set if the server of this epoch had a log.
    has_log: bool,
}

impl DataDir {
    /// Creates the directory if it is missing, and locks it. Refuses a directory that another user
    /// could change. `keeps_log` says whether this server has a log.
    pub(crate) fn open(path: &Path, keeps_log: bool) -> Result<Self, Error> {
        // Without a slash at the end, which would make the system follow a link before the check.
        let path: &Path = &path.components().collect::<PathBuf>();
        let failed = |what| {
            let path = path.to_owned();
            move |source| Error::DataDir { what, path, source }
        };
        let is_new = !path.exists();
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(path).map_err(failed("create the data directory"))?;
        if is_new {
            // Without a sync, a power failure could remove the directory with its epoch, and epochs would start again.
            for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
                // An error is ignored: a directory that this user has no permission to open was not
                // created here.
                let _ = File::open(parent).and_then(|parent| parent.sync_all());
            }
        }
        let link = std::fs::symlink_metadata(path).map_err(failed("open the data directory"))?;
        if link.is_symlink() {
            refuse_foreign_link(path, link.uid())?;
        }
        let directory = Directory::open(path).map_err(failed("open the data directory"))?;
        let found = directory.handle().metadata().map_err(failed("open the data directory"))?;
        refuse_unsafe_directory(path, found.uid(), found.mode(), mode_of_others(directory.handle(), &found))?;
        match flock(directory.handle(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(DataDir { directory: Arc::new(directory), keeps_log }),
            Err(Errno::WOULDBLOCK) => Err(Error::Locked { path: path.to_owned() }),
            Err(errno) => Err(failed("lock the data directory")(errno.into())),
        }
    }

    /// Opens the directory of a server that may be running. The directory is not locked, so it must not be written to.
    pub(crate) fn open_to_read(path: &Path) -> Result<Self, Error> {
        let failed =
            |source| Error::DataDir { what: "open the data directory", path: path.to_owned(), source };
        Ok(DataDir { directory: Arc::new(Directory::open(path).map_err(failed)?), keeps_log: true })
    }

    /// Returns the disk for the log in this directory.
    pub(crate) fn disk(&self) -> RealDisk {
        RealDisk::from_directory(Arc::clone(&self.directory))
    }

    /// Returns an error if the path does not name this directory any more. Another server may then
    /// use the path.
    pub(crate) fn replacement_error(&self) -> Option<LogError> {
        let error = || LogError::Replaced { directory: self.directory.path().display().to_string() };
        (!self.directory.is_in_place()).then(error)
    }

    /// Records that there are sessions with at most this timeout. Zero means that there are no
    /// sessions.
    pub(crate) fn record_session_timeout(&self, timeout_ms: u32) -> io::Result<()> {
        if timeout_ms == 0 {
            return self.directory.remove_if_exists(SESSION_TIMEOUT_FILE);
        }
        self.directory.write_line(SESSION_TIMEOUT_FILE, &timeout_ms.to_string())
    }

    /// Returns the time for which clients of an earlier server may still rely on sessions that the
    /// server lost. An unreadable file is an error, because the existence of the file means that
    /// sessions were lost.
    pub(crate) fn lost_sessions_wait(&self) -> Result<Duration, Error> {
        self.read_timeout(SESSION_TIMEOUT_FILE).map(|ms| Duration::from_millis(ms.into()))
    }

    /// Records the longest timeout of the sessions that a server with a log has or can grant. A start seldom changes it, so
    /// it seldom costs a write.
    pub(crate) fn record_longest_timeout(&self, timeout_ms: u32) -> io::Result<()> {
        if self.read_timeout(LONGEST_TIMEOUT_FILE).is_ok_and(|recorded| recorded == timeout_ms) {
            return Ok(());
        }
        self.directory.write_line(LONGEST_TIMEOUT_FILE, &timeout_ms.to_string())
    }

    /// Returns the longest timeout that a session of an earlier server in this directory can have, in milliseconds, as far
    /// as its files say. The sessions may be missing in the log.
    pub(crate) fn longest_timeout(&self) -> Result<u32, Error> {
        Ok(self.read_timeout(LONGEST_TIMEOUT_FILE)?.max(self.read_timeout(SESSION_TIMEOUT_FILE)?))
    }

    fn read_timeout(&self, name: &str) -> Result<u32, Error> {
        let text = match self.directory.read_text(name) {
            Ok(None) => return Ok(0),
            text => text.map(Option::unwrap_or_default),
        };
        let ms = text.and_then(|text| text.trim_end().parse().map_err(io::Error::other));
        ms.map_err(|source| Error::SessionTimeoutFile { path: self.file(name), source })
    }

    /// Returns whether the directory has no files.
    pub(crate) fn is_empty(&self) -> io::Result<bool> {
        Ok(self.directory.list()?.is_empty())
    }

    /// Returns whether there is a log or a snapshot of an earlier server.
    pub(crate) fn has_log(&self) -> bool {
        let is_of_log = |name: &String| {
            name.starts_with("log.") || name.starts_with("snapshot.") || name.as_str() == END_RECORD
        };
        self.directory.list().unwrap_or_default().iter().any(is_of_log)
    }

    /// Records the format of the log.
    pub(crate) fn record_format(&self) -> io::Result<()> {
        match self.directory.read_text(FORMAT_FILE) {
            Ok(Some(text)) if text.trim_end() == our_format() => Ok(()),
            _ => self.directory.write_line(FORMAT_FILE, &our_format()),
        }
    }

    /// Returns the error for a log of another format. Also for a log without a record of its format that cannot be read
    /// (`problem`), because earlier builds recorded none.
    pub(crate) fn format_error(&self, problem: Option<&LogError>) -> Option<Error> {
        let found = self.directory.read_text(FORMAT_FILE).ok().flatten();
        let found = match (found, problem) {
            (Some(found), _) if found.starts_with(&format!("format {VERSION},")) => return None,
            (Some(found), _) => found.trim_end().to_owned(),
            (None, Some(problem)) if self.has_log() => {
                format!("a build that recorded no format ({})", problem.problem())
            }
            (None, _) => return None,
        };
        let what = format!(
            "{} was written by {found}, and this is {}; start the version that wrote it, or, when no lock is held, choose \
             an empty data directory and raise the token epoch",
            self.directory.path().display(),
            our_format()
        );
        Some(Error::Invalid { what })
    }

    /// Returns whether the last server in this directory had a log.
    pub(crate) fn had_log(&self) -> Result<bool, Error> {
        Ok(self.read_epoch()?.has_log)
    }

    /// Returns the epoch of the last start. `logged` is the epoch of the last transaction in the log.
    pub(crate) fn last_epoch(&self, logged: u32) -> Result<u32, Error> {
        let copy = self.directory.read_text(EPOCH_COPY).ok().flatten();
        let copy = copy.and_then(|copy| copy.trim_end().parse::<u32>().ok()).unwrap_or(0);
        let known = self.read_epoch()?.number;
        let used = copy.max(logged);
        if known < used {
            return Err(Error::CorruptEpoch {
                path: self.file(EPOCH_FILE),
                found: format!("it says {known}, but {used} was used"),
            });
        }
        Ok(known)
    }

    /// Advances the epoch on disk, and returns the new epoch. `logged` is the epoch of the last
    /// transaction in the log.
    pub(crate) fn start_next_epoch(&self, logged: u32) -> Result<u32, Error> {
        let epoch = self.last_epoch(logged)? + 1;
        let mark = if self.keeps_log { "" } else { MEMORY_MARK };
        self.directory
            .write_line(EPOCH_FILE, &format!("{epoch}{mark}"))
            .and_then(|()| self.directory.write_line(EPOCH_COPY, &epoch.to_string()))
            .map_err(|source| Error::DataDir {
                what: "write the epoch file",
                path: self.file(EPOCH_FILE),
                source,
            })?;
        Ok(epoch)
    }

    /// Records the last epoch and the longest session timeout of the server whose state is written to this directory. So a
    /// backup that was interrupted does not pass for a new directory.
    pub(crate) fn begin_backup(&self, epoch: u32, timeout_ms: u32) -> io::Result<()> {
        self.directory.write_line(EPOCH_FILE, &epoch.max(1).to_string())?;
        self.record_format()?;
        self.record_session_timeout(timeout_ms)
    }

    fn read_epoch(&self) -> Result<Epoch, Error> {
        let damaged = |found| Err(Error::CorruptEpoch { path: self.file(EPOCH_FILE), found });
        let text = match self.directory.read_text(EPOCH_FILE) {
            Ok(None) => return Ok(Epoch { number: 0, has_log: false }),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return damaged("it is not text".to_owned());
            }
            Err(source) => {
                return Err(Error::DataDir {
                    what: "read the epoch file",
                    path: self.file(EPOCH_FILE),
                    source,
                });
            }
            Ok(Some(text)) => text,
        };
        let text = text.trim_end();
        let number = text.strip_suffix(MEMORY_MARK).unwrap_or(text);
        match number.parse::<u32>() {
            Ok(epoch) if epoch < MAX_EPOCH => {
                Ok(Epoch { number: epoch, has_log: epoch > 0 && number.len() == text.len() })
            }
            _ => damaged(format!("it says {text:?}")),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Returns the format of the log and the version of this zoolock.
fn our_format() -> String {
    format!("format {VERSION}, zoolock {}", env!("CARGO_PKG_VERSION"))
}

/// Refuses a link in the place of the directory, unless this user or root has created it.
fn refuse_foreign_link(path: &Path, owner: u32) -> Result<(), Error> {
    if owner == 0 || owner == geteuid().as_raw() {
        return Ok(());
    }
    Err(Error::UnsafeDataDir {
        path: path.to_owned(),
        why: format!("is a symbolic link of user {owner}; give the path of the directory itself"),
    })
}

/// Refuses a directory of another user, and one that other users may write to. Accepts a directory of root that the group
/// of this user may write to, such as the mount point of a Kubernetes volume. `others` are the permissions of other users.
fn refuse_unsafe_directory(path: &Path, owner: u32, mode: u32, others: u32) -> Result<(), Error> {
    let user = geteuid().as_raw();
    let is_of_our_group = mode & 0o020 != 0 && others & 0o020 == 0;
    let why = if owner != user && !(owner == 0 && is_of_our_group) {
        format!(
            "belongs to user {owner}, and the server runs as user {user}; run the server as user {owner}, or choose \
             a directory that does not exist yet, which the server creates for its user alone; in Kubernetes, set \
             fsGroup"
        )
    } else if others & 0o022 != 0 {
        format!(
            "has mode {:04o}, so other users may write to it; run `chmod go-w {}`, or choose a directory that does \
             not exist yet, which the server creates for its user alone",
            mode & 0o7777,
            path.display()
        )
    } else {
        return Ok(());
    };
    Err(Error::UnsafeDataDir { path: path.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<DataDir, Error> {
        DataDir::open(path, true)
    }

    #[test]
    fn the_epoch_goes_up_with_every_start() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("deep/er");
        for epoch in 1..=3 {
            assert_eq!(
                open(&path).expect("directory not locked").start_next_epoch(0).expect("writable"),
                epoch
            );
        }
    }

    #[test]
    fn lower_or_missing_epoch_is_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let next = || open(dir.path()).expect("directory not locked").start_next_epoch(0);
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
            let error = open(&path).expect_err("a file").to_string();
            assert!(error.contains("a file has this name"), "{error}");
        }
    }

    #[test]
    fn a_second_server_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let _first = open(dir.path()).expect("directory not locked");
        assert!(matches!(open(dir.path()), Err(Error::Locked { .. })));
    }

    #[test]
    fn damaged_epoch_error_names_the_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let damaged: [&[u8]; 5] = [b"", b"seven\n", b"-1\n", b"2147483647\n", b"\xff\xfe"];
        for damaged in damaged {
            std::fs::write(dir.path().join("epoch"), damaged).expect("writable");
            let error =
                open(dir.path()).expect("directory not locked").start_next_epoch(0).expect_err("damaged");
            assert!(matches!(error, Error::CorruptEpoch { .. }), "{error}");
            assert!(error.to_string().contains("epoch"), "{error}");
        }
    }

    #[test]
    fn unreadable_session_timeout_file_is_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = open(dir.path()).expect("directory not locked");
        assert_eq!(data.lost_sessions_wait().expect("no file means no wait"), Duration::ZERO);
        data.record_session_timeout(40_000).expect("writable");
        assert_eq!(data.lost_sessions_wait().expect("a number"), Duration::from_secs(40));
        for damaged in [&b""[..], b"much", b"-1", b"\xff"] {
            std::fs::write(dir.path().join(SESSION_TIMEOUT_FILE), damaged).expect("writable");
            let error = data.lost_sessions_wait().expect_err("damaged").to_string();
            assert!(error.contains("owed"), "{error}");
        }
    }

    #[test]
    fn removed_files_do_not_free_the_directory() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = open(dir.path()).expect("directory not locked");
        first.start_next_epoch(0).expect("writable");
        for entry in std::fs::read_dir(dir.path()).expect("readable").flatten() {
            std::fs::remove_file(entry.path()).expect("writable");
        }
        assert!(matches!(open(dir.path()), Err(Error::Locked { .. })));
    }

    #[test]
    fn replaced_or_removed_directory_is_noticed() {
        let outer = tempfile::tempdir().expect("a temporary directory");
        let (path, moved) = (outer.path().join("data"), outer.path().join("moved"));
        let data = open(&path).expect("directory not locked");
        assert!(data.replacement_error().is_none(), "nothing has changed");
        std::fs::rename(&path, &moved).expect("writable");
        let error = data.replacement_error().expect("no directory has this path").to_string();
        assert!(error.contains("was replaced or removed"), "{error}");
        std::fs::create_dir(&path).expect("writable");
        assert!(data.replacement_error().is_some(), "another directory has this path");
        std::fs::remove_dir(&path).expect("empty");
        std::os::unix::fs::symlink(&moved, &path).expect("writable");
        assert!(data.replacement_error().is_none(), "the path leads to the directory again");
    }

    #[test]
    fn directory_open_to_other_users_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (mode, is_safe) in [(0o777, false), (0o1777, false), (0o707, false), (0o755, true), (0o700, true)]
        {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(dir.path(), permissions).expect("own directory");
            match open(dir.path()) {
                Ok(_) => assert!(is_safe, "{mode:o}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(!is_safe && text.contains("chmod go-w"), "{mode:o}: {text}");
                    assert!(text.contains(&dir.path().display().to_string()), "{text}");
                }
            }
        }
    }

    #[test]
    fn directory_or_link_of_another_user_is_refused() {
        let other = geteuid().as_raw() + 1;
        let error =
            refuse_unsafe_directory(Path::new("/data"), other, 0o700, 0).expect_err("of another user");
        assert!(error.to_string().contains(&format!("/data belongs to user {other}")), "{error}");
        let error = refuse_foreign_link(Path::new("/data"), other).expect_err("of another user");
        assert!(error.to_string().contains(&format!("symbolic link of user {other}")), "{error}");
    }

    #[test]
    fn directory_of_own_group_is_accepted() {
        let (us, other) = (geteuid().as_raw(), geteuid().as_raw() + 1);
        let check =
            |owner, mode, others| refuse_unsafe_directory(Path::new("/data"), owner, mode, others).is_ok();
        assert!(check(us, 0o2770, 0) && check(0, 0o2775, 0o005));
        // The group has other users, everyone may write, or the owner is neither this user nor root.
        assert!(!check(us, 0o2770, 0o070) && !check(0, 0o2777, 0o007) && !check(other, 0o2770, 0));
    }

    #[test]
    fn links_in_place_of_files_are_not_followed() {
        let outer = tempfile::tempdir().expect("a temporary directory");
        let (path, target) = (outer.path().join("data"), outer.path().join("target"));
        std::fs::write(&target, "kept").expect("writable");
        let data = open(&path).expect("directory not locked");
        for name in ["epoch.tmp", "epoch.copy", "epoch.copy.tmp", "owed.tmp"] {
            std::os::unix::fs::symlink(&target, path.join(name)).expect("writable");
        }
        assert_eq!(data.start_next_epoch(0).expect("links are replaced"), 1);
        data.record_session_timeout(1000).expect("links are replaced");
        std::fs::remove_file(path.join("epoch")).expect("it exists");
        std::os::unix::fs::symlink(&target, path.join("epoch")).expect("writable");
        let error = data.start_next_epoch(0).expect_err("a link").to_string();
        assert!(error.contains("a symbolic link"), "{error}");
        assert_eq!(std::fs::read_to_string(&target).expect("it exists"), "kept");
        assert!(std::fs::symlink_metadata(path.join("owed")).expect("it exists").is_file());
    }

    #[test]
    fn epoch_tells_whether_there_was_a_log() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (keeps_log, epoch) in [(false, 1), (false, 2), (true, 3)] {
            let data = DataDir::open(dir.path(), keeps_log).expect("directory not locked");
            assert!(!data.had_log().expect("readable"));
            assert_eq!(data.start_next_epoch(0).expect("writable"), epoch);
        }
        assert!(open(dir.path()).expect("directory not locked").had_log().expect("readable"));
    }
}
