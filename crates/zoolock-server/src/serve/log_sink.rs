//! The sink of the journal: the log, and a thread that takes snapshots of the running core.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::journal::{JournalSink, SinkError};
use crate::core::SnapshotStart;
use crate::log::{Log, LogError, SnapshotFile, SnapshotWriter};
use crate::tree::NodeRecord;
use crate::txn::Txn;

/// Number of slots of the tree that one chunk of a snapshot covers. A slot holds at most one znode.
/// Between chunks the core is free for other tasks.
const CHUNK: usize = 1024;
/// Interval at which the snapshot thread checks whether the log is synced up to the last
/// transaction of the snapshot.
const PAUSE: Duration = Duration::from_millis(5);

/// A source of snapshots. The server's source is its running core.
pub(super) trait SnapshotSource: Send + 'static {
    /// Begins a snapshot.
    fn begin(&self) -> SnapshotStart;
    /// Returns the next znodes, or `None` at the end. The vector may be empty before the end.
    fn chunk(&self, max: usize) -> Option<Vec<NodeRecord>>;
    /// Abandons the snapshot.
    fn abandon(&self);
}

/// A log, and the thread that takes snapshots of the core to keep the log short.
pub(super) struct LogSink {
    log: Arc<Mutex<Log>>,
    snapshot_requests: Option<SyncSender<()>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LogSink {
    /// Starts the snapshot thread of this log.
    pub(super) fn new(log: Log, source: impl SnapshotSource) -> std::io::Result<Self> {
        let log = Arc::new(Mutex::new(log));
        let (snapshot_requests, requests) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let snapshots = Snapshots { log: Arc::clone(&log), source, stop: Arc::clone(&stop) };
        let thread = std::thread::Builder::new()
            .name("zoolock-snapshot".to_owned())
            .spawn(move || snapshots.run(&requests))?;
        Ok(LogSink { log, snapshot_requests: Some(snapshot_requests), stop, thread: Some(thread) })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }
}

impl JournalSink for LogSink {
    fn append(&mut self, txn: &Txn) -> Result<(), SinkError> {
        Ok(self.log().append(txn)?)
    }

    fn write(&mut self) -> Result<(), SinkError> {
        Ok(self.log().write()?)
    }

    fn sync(&mut self) -> Result<(), SinkError> {
        let mut log = self.log();
        log.sync()?;
        if log.is_snapshot_due() {
            log.record_snapshot_start();
            if let Some(snapshot_requests) = &self.snapshot_requests {
                let _ = snapshot_requests.try_send(());
            }
        }
        Ok(())
    }

    fn seal(&mut self) -> Result<(), SinkError> {
        Ok(self.log().seal_when_idle()?)
    }
}

impl Drop for LogSink {
    /// Stops the snapshot thread, which abandons its snapshot. The thread must not write to the directory when the next
    /// server opens it.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.snapshot_requests = None;
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

impl<S: SnapshotSource> Snapshots<S> {
    fn run(&self, requests: &Receiver<()>) {
        while requests.recv().is_ok() {
            let taken = self.take_snapshot();
            if !matches!(taken, Ok(Some(_))) {
                self.source.abandon();
            }
            let mut log = lock(&self.log);
            match taken {
                Ok(Some(snapshot)) => {
                    tracing::info!(zxid = %snapshot.zxid, bytes = snapshot.bytes, "snapshot taken");
                    log.record_snapshot_end(Some(snapshot));
                    if let Err(error) = log.remove_old_files() {
                        tracing::warn!(%error, "cannot delete old log segments and snapshots");
                    }
                }
                Ok(None) => log.record_snapshot_end(None),
                Err(error) => {
                    tracing::warn!(%error, "cannot take a snapshot; the log grows until a snapshot succeeds");
                    log.record_snapshot_end(None);
                }
            }
        }
    }

    /// Takes a snapshot. Returns `None` if the flag `stop` is set meanwhile.
    fn take_snapshot(&self) -> Result<Option<SnapshotFile>, LogError> {
        let disk = lock(&self.log).disk();
        let SnapshotStart { zxid, sessions, ending } = self.source.begin();
        let mut writer = SnapshotWriter::begin(disk, zxid, &sessions, &ending)?;
        while let Some(records) = self.source.chunk(CHUNK) {
            writer.add(records)?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
        }
        loop {
            // A snapshot must not contain transactions that a crash can undo, so the thread waits
            // until they are synced.
            let position = lock(&self.log).synced();
            if position.zxid >= zxid {
                return writer.finish(position).map(Some);
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
