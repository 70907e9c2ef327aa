//! Persistent state of the server: its directory, its log, and the state restored from them.

use std::path::Path;
use std::sync::Arc;

use crate::data_dir::DataDir;
use crate::error::Error;
use crate::log::{Disk, Log, LogError, Options, Recovered};
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
    pub(crate) fn open(
        path: &Path,
        disk: Arc<dyn Disk>,
        durability: Durability,
        options: Options,
    ) -> Result<Self, Error> {
        let dir = DataDir::open(path)?;
        let wait = dir.lost_sessions_wait()?;
        if !wait.is_zero() {
            // The previous server lost its sessions. But the clients of these sessions rely on
            // their locks until the session timeout has passed. Until then no other client may
            // acquire these locks.
            tracing::warn!(
                ?wait,
                "the previous server lost its sessions; waiting until their timeout has passed"
            );
            std::thread::sleep(wait);
            dir.record_session_timeout(0).map_err(|source| Error::DataDir {
                what: "delete the session timeout file in",
                path: path.to_owned(),
                source,
            })?;
        }
        if durability == Durability::Memory {
            if dir.has_log() {
                return Err(Error::Invalid {
                    what: format!(
                        "{} contains a log, which durability memory would ignore; use durability sync or another data \
                         directory",
                        path.display()
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
        let (log, recovered) = Log::open(disk, options).map_err(|source| Error::Log { source })?;
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
        let epoch = dir.start_next_epoch(state.zxid.epoch())?;
        Ok(Storage { dir: Some(dir), log: Some(log), state, epoch, repairs })
    }
}

/// Describes the damaged files that recovery did not need.
fn describe_repairs(recovered: &Recovered) -> Vec<String> {
    let snapshots = recovered.unused_snapshot_errors.iter().map(|error| {
        let cause = match error {
            LogError::Damaged { file, offset, what } => {
                format!("{file} is damaged at byte {offset} ({what})")
            }
            other => other.to_string(),
        };
        format!("{cause}; it was not needed: an older snapshot and the log restored all znodes")
    });
    let segments = recovered.removed_segment.iter();
    snapshots
        .chain(
            segments.map(|file| format!("{file} was empty and was removed; no acknowledged write was in it")),
        )
        .collect()
}
