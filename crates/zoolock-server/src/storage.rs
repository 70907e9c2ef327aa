//! What outlives the server: its directory, its log, and what they bring back at the start.

use std::path::Path;
use std::sync::Arc;

use crate::data_dir::DataDir;
use crate::error::Error;
use crate::log::{Disk, Log, Options};
use crate::state::State;

/// What a client that has its answer may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// What was answered is on disk, synced: it outlives the server and a power cut.
    Sync,
    /// Nothing is written: znodes and sessions end with the server. With a data directory the next one waits until
    /// the sessions are over; without, it cannot know of them.
    Memory,
}

/// A directory in use, and what was in it.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) dir: Option<DataDir>,
    pub(crate) log: Option<Log>,
    pub(crate) state: State,
    pub(crate) epoch: u32,
}

impl Storage {
    /// Has nothing to keep.
    pub(crate) fn none(resumed: Option<State>) -> Self {
        let state = resumed.unwrap_or_else(|| State::new(0));
        Storage { dir: None, log: None, epoch: state.zxid.epoch() + 1, state }
    }

    /// Takes the directory, brings back what is in it, and begins an epoch. It blocks, for as long as there is much
    /// to read.
    pub(crate) fn open(
        path: &Path,
        disk: Arc<dyn Disk>,
        durability: Durability,
        options: Options,
    ) -> Result<Self, Error> {
        let dir = DataDir::open(path)?;
        let owed = dir.owed()?;
        if !owed.is_zero() {
            // Sessions ended with the server that had them, but their owners do not know: they believe until their
            // timeout is over. Until then nothing may be promised to anybody else.
            tracing::warn!(
                ?owed,
                "the server before this one forgot its sessions; waiting until they are over"
            );
            std::thread::sleep(owed);
            dir.owe(0).map_err(|source| Error::DataDir {
                what: "delete the note of sessions in",
                path: path.to_owned(),
                source,
            })?;
        }
        if durability == Durability::Memory {
            if dir.has_log() {
                return Err(Error::Invalid {
                    what: format!(
                        "{} has a log of znodes, which a server in memory would neither bring back nor keep; \
                         choose the durability sync, or another data directory",
                        path.display()
                    ),
                });
            }
            let epoch = dir.next_epoch(0)?;
            return Ok(Storage { dir: Some(dir), log: None, state: State::new(0), epoch });
        }
        let (log, recovered) = Log::open(disk, options).map_err(|source| Error::Log { source })?;
        for error in &recovered.passed_over {
            tracing::warn!(%error, "a snapshot cannot be used; an older one, and the log, have all that is needed");
        }
        if let Some(torn) = &recovered.dropped {
            let (file, offset, bytes) = (&torn.file, torn.offset, torn.bytes);
            tracing::info!(
                file,
                offset,
                bytes,
                "a write that a crash cut short was dropped; nobody was told of it"
            );
        }
        let state = recovered.state;
        let (znodes, sessions, replayed) = (state.tree.len(), state.sessions.len(), recovered.replayed);
        tracing::info!(znodes, sessions, replayed, zxid = %state.zxid, "brought back");
        let epoch = dir.next_epoch(state.zxid.epoch())?;
        Ok(Storage { dir: Some(dir), log: Some(log), state, epoch })
    }
}
