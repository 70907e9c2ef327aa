//! Persistent state of the server: its directory, its log, and the state restored from them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::data_dir::DataDir;
use crate::error::Error;
use crate::ids::Zxid;
use crate::log::{Disk, Log, LogError, Options, Recovered, Salvage};
use crate::state::State;

/// Durability of acknowledged writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Writes are synced to disk before they are acknowledged. They survive a restart and a power failure.
    Sync,
    /// Writes are kept in memory only. Znodes and sessions are lost when the server ends. With a data directory, the
    /// next server waits until the lost sessions would have expired. Without a data directory, it does not wait.
    Memory,
}

/// The loss if a server starts from what is left of a damaged or incomplete log; see
/// [`Builder::restore_if_damaged`](crate::Builder::restore_if_damaged).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LogLoss {
    /// The file that is damaged or missing, and the evidence.
    pub cause: String,
    /// The last transaction that can be restored.
    pub restored: Zxid,
    /// Number of znodes that can be restored, besides those of an empty server.
    pub znodes: usize,
    /// Number of sessions that can be restored.
    pub sessions: usize,
    /// The last transaction that the files record.
    pub recorded: Zxid,
    /// The files that would be renamed to `NAME.damaged`.
    pub files: Vec<PathBuf>,
    /// Time before clients would be served.
    pub wait: Duration,
}

/// A function that decides whether a server starts from what is left of its log.
#[derive(Clone)]
pub(crate) struct ConfirmLoss(pub(crate) Arc<dyn Fn(&LogLoss) -> bool + Send + Sync>);

impl fmt::Debug for ConfirmLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConfirmLoss")
    }
}

/// Settings of the storage.
pub(crate) struct StorageSettings {
    pub(crate) path: PathBuf,
    /// Disk of the log; `None`: the data directory.
    pub(crate) disk: Option<Arc<dyn Disk>>,
    pub(crate) durability: Durability,
    pub(crate) options: Options,
    /// Asked if the log is damaged; `None`: a damaged log is an error.
    pub(crate) confirm_loss: Option<ConfirmLoss>,
    /// Longest session timeout that the server grants, in milliseconds.
    pub(crate) max_timeout_ms: u32,
}

/// The storage of a server: the locked data directory and the log, if there are any, and the
/// restored state.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) dir: Option<DataDir>,
    pub(crate) log: Option<Log>,
    pub(crate) state: State,
    pub(crate) epoch: u32,
    /// Messages about damaged files that recovery did not need.
    pub(crate) repairs: Vec<String>,
}

impl Storage {
    /// Creates storage without a data directory.
    pub(crate) fn without_directory(resumed: Option<State>) -> Self {
        let state = resumed.unwrap_or_else(|| State::new(0));
        Storage { dir: None, log: None, epoch: state.zxid.epoch() + 1, state, repairs: Vec::new() }
    }

    /// Locks the directory, restores its state, and begins an epoch. Blocks while it waits for lost sessions to expire
    /// and while it reads the log.
    pub(crate) fn open(settings: StorageSettings) -> Result<Self, Error> {
        let keeps_log = settings.durability == Durability::Sync;
        let dir = DataDir::open(&settings.path, keeps_log)?;
        wait_for_lost_sessions(&dir, &settings)?;
        if !keeps_log {
            if dir.has_log() {
                return Err(Error::Invalid {
                    what: format!(
                        "{} contains a log, which durability memory would ignore; use durability sync or another data \
                         directory",
                        settings.path.display()
                    ),
                });
            }
            let epoch = dir.start_next_epoch(0)?;
            return Ok(Storage {
                dir: Some(dir),
                log: None,
                state: State::new(0),
                epoch,
                repairs: Vec::new(),
            });
        }
        if let Some(error) = dir.format_error(None) {
            return Err(error);
        }
        let disk = settings.disk.clone().unwrap_or_else(|| Arc::new(dir.disk()));
        let open = |must_exist| Log::open_again(Arc::clone(&disk), settings.options.clone(), must_exist);
        let mut recorded = Zxid::start_of(0);
        let opened = match open(dir.had_log()?) {
            Err(cause) if cause.is_loss() => {
                recorded = restore_if_confirmed(&dir, &disk, &settings, cause)?;
                wait_for_lost_sessions(&dir, &settings)?;
                open(true)
            }
            opened => opened,
        };
        let (log, recovered) = opened.map_err(|source| Error::Log { source })?;
        let repairs = describe_repairs(&recovered);
        for repair in &repairs {
            tracing::warn!("{repair}");
        }
        if let Some(dropped) = &recovered.dropped_end {
            let (file, offset, bytes) = (&dropped.file, dropped.offset, dropped.bytes);
            tracing::info!(
                file,
                offset,
                bytes,
                "dropped a write that a crash interrupted; it was never acknowledged"
            );
        }
        let state = recovered.state;
        let (znodes, sessions, replayed) = (state.tree.len(), state.sessions.len(), recovered.replayed);
        tracing::info!(znodes, sessions, replayed, zxid = %state.zxid, "state restored");
        let longest = longest_timeout(&state, settings.max_timeout_ms);
        dir.record_longest_timeout(longest).map_err(cannot_write_timeout(&settings.path))?;
        dir.record_format().map_err(|source| Error::DataDir {
            what: "write the format in",
            path: settings.path,
            source,
        })?;
        let epoch = dir.start_next_epoch(state.zxid.max(recorded).epoch())?;
        Ok(Storage { dir: Some(dir), log: Some(log), state, epoch, repairs })
    }
}

/// Number of times that the files of a running server are read until they are from one time.
const BACKUP_ATTEMPTS: usize = 10;

/// Writes the state of the data directory `from`, which a server may be using, to a new data directory. The backup has each
/// transaction that was acknowledged before this call. Returns its last transaction.
pub(crate) fn back_up(from: &Path, to: &Path, max_timeout_ms: u32) -> Result<Zxid, Error> {
    let source = DataDir::open_to_read(from)?;
    // While the files are read, the server may begin a file, remove an old one, or cut off the end of a complete segment.
    // The record of the end is read before the log. So all that had been synced by then must be in the state.
    let must_exist = source.had_log()?;
    if let Some(error) = source.format_error(None) {
        return Err(error);
    }
    let read = || Log::read(&source.disk(), must_exist);
    let mut read_again = (1..BACKUP_ATTEMPTS).map(|_| read());
    let state = read().or_else(|error| read_again.find_map(Result::ok).ok_or(error));
    let Some(state) = state.map_err(|source| Error::Log { source })? else {
        let what = format!(
            "there is no log in {}; give the data directory of a server with durability sync",
            from.display()
        );
        return Err(Error::Invalid { what });
    };
    // Read after the log, so that the epoch is not below that of the state.
    let epoch = source.last_epoch(state.zxid.epoch())?;
    let longest = longest_timeout(&state, max_timeout_ms.max(source.longest_timeout()?));
    let dir = DataDir::open(to, true)?;
    let cannot_list = |source| Error::DataDir { what: "list the files in", path: to.to_owned(), source };
    if !dir.is_empty().map_err(cannot_list)? {
        let what = format!("{} is not empty; choose a new directory for the backup", to.display());
        return Err(Error::Invalid { what });
    }
    let cannot_write = |source| Error::DataDir {
        what: "write the epoch or the session timeout in",
        path: to.to_owned(),
        source,
    };
    dir.begin_backup(epoch, longest).map_err(cannot_write)?;
    let disk: Arc<dyn Disk> = Arc::new(dir.disk());
    let recorded = state.zxid;
    Salvage { state, recorded, files: Vec::new() }.write(&disk).map_err(|source| Error::Log { source })?;
    Ok(recorded)
}

/// Returns the longest session timeout: of a session in the state, or `other_ms`, in milliseconds.
fn longest_timeout(state: &State, other_ms: u32) -> u32 {
    state.sessions.values().map(|session| session.timeout_ms).fold(other_ms, u32::max)
}

/// Waits until the sessions that an earlier server lost have expired. The clients of these sessions
/// rely on their locks until then, so no other client may acquire these locks.
fn wait_for_lost_sessions(dir: &DataDir, settings: &StorageSettings) -> Result<(), Error> {
    let wait = dir.lost_sessions_wait()?;
    if wait.is_zero() {
        return Ok(());
    }
    tracing::warn!(?wait, "the previous server lost its sessions; waiting until their timeout has passed");
    std::thread::sleep(wait);
    record_lost_sessions(dir, settings, 0)
}

fn record_lost_sessions(dir: &DataDir, settings: &StorageSettings, timeout_ms: u32) -> Result<(), Error> {
    dir.record_session_timeout(timeout_ms).map_err(cannot_write_timeout(&settings.path))
}

fn cannot_write_timeout(dir: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = dir.to_owned();
    |source| Error::DataDir { what: "write the session timeout file in", path, source }
}

/// Starts a new log from what is left of the damaged one, if that is confirmed. Records that
/// sessions were lost, because the new state may lack the locks of clients that rely on them.
/// Returns the last transaction that the old files record.
fn restore_if_confirmed(
    dir: &DataDir,
    disk: &Arc<dyn Disk>,
    settings: &StorageSettings,
    cause: LogError,
) -> Result<Zxid, Error> {
    let Some(confirm) = &settings.confirm_loss else {
        return Err(dir.format_error(Some(&cause)).unwrap_or(Error::Log { source: cause }));
    };
    let salvage = Salvage::read(&**disk).map_err(|source| Error::Log { source })?;
    let longest = longest_timeout(&salvage.state, settings.max_timeout_ms.max(dir.longest_timeout()?));
    let loss = LogLoss {
        cause: cause.problem(),
        restored: salvage.state.zxid,
        znodes: salvage.state.tree.len().saturating_sub(State::new(0).tree.len()),
        sessions: salvage.state.sessions.len(),
        recorded: salvage.recorded,
        files: salvage.files.iter().map(|name| disk.describe(name).into()).collect(),
        wait: Duration::from_millis(longest.into()),
    };
    if !(confirm.0)(&loss) {
        return Err(Error::Log { source: cause });
    }
    record_lost_sessions(dir, settings, longest)?;
    salvage.write(disk).map_err(|source| Error::Log { source })?;
    tracing::warn!(restored = %loss.restored, recorded = %loss.recorded, "started a new log from the old one");
    Ok(salvage.recorded)
}

/// Describes the damaged files that recovery did not need.
fn describe_repairs(recovered: &Recovered) -> Vec<String> {
    let snapshots = recovered.unused_snapshot_errors.iter().map(|error| {
        format!("{}; it was not needed: an older snapshot and the log restored all znodes", error.problem())
    });
    let segments = recovered.removed_segment.iter();
    snapshots
        .chain(
            segments.map(|file| format!("{file} was empty and was removed; no acknowledged write was in it")),
        )
        .collect()
}
