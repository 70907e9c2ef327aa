//! The log as the journal's thread writes it, and the snapshots that a thread beside it takes of the running core.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::journal::Sink;
use crate::ids::{SessionId, Zxid};
use crate::log::{Log, LogError, Snapshot, SnapshotWriter};
use crate::state::Session;
use crate::tree::NodeRecord;
use crate::txn::Txn;

/// How many slots of the tree are looked at before others get at the core.
const CHUNK: usize = 1024;
/// How often the snapshot looks whether the log has come as far.
const PAUSE: Duration = Duration::from_millis(5);

/// What snapshots are taken of.
pub(super) trait Source: Send + 'static {
    /// Begins one: as of which transaction, and with which sessions.
    fn begin(&self) -> (Zxid, BTreeMap<SessionId, Session>);
    /// Some more of its znodes; `None` at the end.
    fn chunk(&self, max: usize) -> Option<Vec<NodeRecord>>;
    /// Gives it up.
    fn abandon(&self);
}

/// A log that is kept short by snapshots.
pub(super) struct Kept {
    log: Arc<Mutex<Log>>,
    asks: Option<SyncSender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    /// Takes the log over, and starts the thread for its snapshots.
    pub(super) fn new(log: Log, source: impl Source) -> std::io::Result<Self> {
        let log = Arc::new(Mutex::new(log));
        let (asks, asked) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let snapshots = Snapshots { log: Arc::clone(&log), source, stop: Arc::clone(&stop) };
        let thread = std::thread::Builder::new()
            .name("zoolock-snapshot".to_owned())
            .spawn(move || snapshots.run(&asked))?;
        Ok(Kept { log, asks: Some(asks), stop, thread: Some(thread) })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }
}

impl Sink for Kept {
    type Error = LogError;

    fn append(&mut self, txn: &Txn) -> Result<(), LogError> {
        self.log().append(txn)
    }

    fn write(&mut self) -> Result<(), LogError> {
        self.log().write()
    }

    fn sync(&mut self) -> Result<(), LogError> {
        let mut log = self.log();
        log.sync()?;
        if log.wants_snapshot() {
            log.snapshot_begins();
            if let Some(asks) = &self.asks {
                let _ = asks.try_send(());
            }
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), LogError> {
        self.log().idle_seal()
    }
}

impl Drop for Kept {
    /// Waits for the snapshot's thread, which gives up: whoever opens the directory next must be alone with it.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.asks = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the snapshot's thread panicked");
        }
    }
}

struct Snapshots<S> {
    log: Arc<Mutex<Log>>,
    source: S,
    stop: Arc<AtomicBool>,
}

impl<S: Source> Snapshots<S> {
    fn run(&self, asked: &Receiver<()>) {
        while asked.recv().is_ok() {
            let taken = self.take();
            if !matches!(taken, Ok(Some(_))) {
                self.source.abandon();
            }
            let mut log = lock(&self.log);
            match taken {
                Ok(Some(snapshot)) => {
                    tracing::info!(zxid = %snapshot.zxid, bytes = snapshot.bytes, "snapshot taken");
                    log.snapshot_done(Some(snapshot));
                    if let Err(error) = log.clean() {
                        tracing::warn!(%error, "cannot remove what is no longer needed of the log");
                    }
                }
                Ok(None) => log.snapshot_done(None),
                Err(error) => {
                    tracing::warn!(%error, "no snapshot was taken; the log grows until one is");
                    log.snapshot_done(None);
                }
            }
        }
    }

    /// `None` when it is time to stop.
    fn take(&self) -> Result<Option<Snapshot>, LogError> {
        let disk = lock(&self.log).disk();
        let (zxid, sessions) = self.source.begin();
        let mut writer = SnapshotWriter::begin(disk, zxid, &sessions)?;
        while let Some(records) = self.source.chunk(CHUNK) {
            writer.add(records)?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        loop {
            // What a crash would undo must not come back by way of the snapshot.
            let mark = lock(&self.log).synced();
            if mark.zxid >= zxid {
                return writer.finish(mark).map(Some);
            }
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}
