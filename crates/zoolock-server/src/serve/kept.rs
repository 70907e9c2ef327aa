//! The sink of the journal: the log, and a thread that takes snapshots of the running core.

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

/// Number of tree slots per chunk of a snapshot. Between chunks the core is free for other tasks.
const CHUNK: usize = 1024;
/// Interval at which a snapshot checks whether the log is synced up to it.
const PAUSE: Duration = Duration::from_millis(5);

/// A state of which snapshots are taken.
pub(super) trait Source: Send + 'static {
    /// Begins a snapshot. Returns its last transaction and its sessions.
    fn begin(&self) -> (Zxid, BTreeMap<SessionId, Session>);
    /// Returns the next znodes, possibly none, or `None` at the end.
    fn chunk(&self, max: usize) -> Option<Vec<NodeRecord>>;
    /// Abandons the snapshot.
    fn abandon(&self);
}

/// A log that snapshots keep short.
pub(super) struct Kept {
    log: Arc<Mutex<Log>>,
    asks: Option<SyncSender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Kept {
    /// Starts the snapshot thread of this log.
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
    /// Stops the snapshot thread, which abandons its snapshot. The next server that opens the directory must be the only
    /// writer.
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

    /// Takes a snapshot. Returns `None` if the thread is told to stop.
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
            // A snapshot must not contain transactions that a crash can undo, so it waits until they are synced.
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
