//! The thread that writes decided transactions to the log, and the tasks that wait until
//! transactions are on disk.
//!
//! Connections append transactions in the order of their numbers while they hold the lock of the
//! core. The connections do not wait for the write. The thread takes all queued transactions,
//! writes and syncs them as one batch, and wakes the connections whose answers depend on these
//! transactions. Transactions that arrive during a sync form the next batch. An answer is sent when
//! all transactions whose effects the answer may show are on disk. This includes answers to reads:
//! a crash must not undo what a client has seen.
//!
//! A connection that has the server for itself, with one request under way, writes and syncs its
//! transaction itself ([`Journal::write_here`]). This saves two wake-ups of threads: of the
//! journal's, and of the connection's. docs/design/work.md says why other connections do not suffer.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};

use crate::acl::stored_bytes;
use crate::ids::Zxid;
use crate::txn::{Change, Create, Txn};

/// The server stops reading from connections while more than this many bytes are queued.
const MAX_WAITING: usize = 32 << 20;
/// Time without transactions after which the log is sealed (see [`JournalSink::seal`]).
const IDLE: Duration = Duration::from_millis(500);

/// Size in bytes above which a connection leaves its transactions to the thread.
const MAX_WRITTEN_HERE: usize = 64 << 10;
/// A batch that took longer is slow. After a slow batch, connections leave the next one to the thread.
const SLOW: Duration = Duration::from_millis(2);
/// Interval at which the thread looks for a connection whose write takes long, while the log is not
/// sealed.
const WATCH: Duration = Duration::from_millis(10);

/// Error of a [`JournalSink`].
pub(crate) type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Destination of the journal's writes.
pub(crate) trait JournalSink: Send + 'static {
    /// Adds a transaction to the next batch.
    fn append(&mut self, txn: &Txn) -> Result<(), SinkError>;
    /// Writes the batch.
    fn write(&mut self) -> Result<(), SinkError>;
    /// Syncs the written batches, so that they survive a crash.
    fn sync(&mut self) -> Result<(), SinkError>;
    /// Seals the written batches: records on disk that they were synced. Called when no transaction
    /// has arrived for a while, and before the journal ends.
    fn seal(&mut self) -> Result<(), SinkError>;
}

/// Queue of decided transactions, and the thread that writes them.
#[derive(Debug)]
pub(crate) struct Journal {
    shared: Arc<JournalState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct JournalState {
    /// Locked before `queue`. So batches are written in the order in which they were queued.
    writer: Mutex<Option<Writer>>,
    queue: Mutex<JournalQueue>,
    /// Wakes the thread.
    wake: Condvar,
    /// The runtime of the connections.
    runtime: Option<Handle>,
    /// Approximate number of queued bytes.
    bytes: AtomicUsize,
    synced: AtomicI64,
    failure: OnceLock<String>,
    failed: watch::Sender<bool>,
}

/// The sink, which is dropped when the thread ends.
struct Writer {
    sink: Box<dyn JournalSink>,
    /// The batch that is being written. Kept for its capacity.
    batch: Vec<Txn>,
}

#[derive(Debug)]
struct JournalQueue {
    txns: Vec<Txn>,
    waiting: Vec<(Zxid, Arc<Notify>)>,
    stop: bool,
    /// Set if the last batch was not slow.
    fast: bool,
    /// Number of batches written so far.
    batches: u64,
    /// Set if all written batches are sealed.
    sealed: bool,
    /// Start of the write of a connection.
    writing_since: Option<Instant>,
}

/// The next action of the thread.
enum Task {
    Write,
    Seal,
    Stop,
}

impl Journal {
    /// Starts the thread. All transactions up to `synced` are on disk already.
    pub(crate) fn start(sink: impl JournalSink, synced: Zxid) -> std::io::Result<Self> {
        let shared = Arc::new(JournalState {
            writer: Mutex::new(Some(Writer { sink: Box::new(sink), batch: Vec::new() })),
            queue: Mutex::new(JournalQueue {
                txns: Vec::new(),
                waiting: Vec::new(),
                stop: false,
                fast: false,
                batches: 0,
                sealed: true,
                writing_since: None,
            }),
            wake: Condvar::new(),
            runtime: Handle::try_current().ok(),
            bytes: AtomicUsize::new(0),
            synced: AtomicI64::new(synced.0),
            failure: OnceLock::new(),
            failed: watch::channel(false).0,
        });
        let thread_shared = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("zoolock-log".to_owned()).spawn(move || thread_shared.run())?;
        Ok(Journal { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Queues transactions. The caller holds the lock of the core, so the transactions arrive in
    /// order. `alone` is set if the caller is a connection that could write them itself.
    ///
    /// Returns whether the caller must do so: it must call [`Journal::write_here`] when it has
    /// released the core.
    #[must_use]
    pub(crate) fn append(&self, txns: &mut Vec<Txn>, alone: bool) -> bool {
        if txns.is_empty() {
            return false;
        }
        let mut queue = self.shared.lock();
        let bytes: usize = txns.iter().map(|txn| approximate_bytes(&txn.change)).sum();
        self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        // While the log is sealed, the thread sleeps, and would not notice that the write takes long.
        let write_here =
            alone && queue.fast && !queue.sealed && queue.txns.is_empty() && bytes <= MAX_WRITTEN_HERE;
        queue.txns.append(txns);
        drop(queue);
        if !write_here {
            self.shared.wake.notify_one();
        }
        write_here
    }

    /// Writes and syncs the queued transactions on this thread. If a write is under way, leaves them
    /// to the journal's thread. Blocks.
    pub(crate) fn write_here(&self) {
        match self.shared.writer.try_lock() {
            Ok(mut writer) => {
                let _report = FailureReport(&self.shared);
                self.shared.lock().writing_since = Some(Instant::now());
                self.shared.write_batch(&mut writer);
                let mut queue = self.shared.lock();
                queue.writing_since = None;
                if !queue.txns.is_empty() {
                    self.shared.wake.notify_one();
                }
            }
            Err(_) => self.shared.wake.notify_one(),
        }
    }

    /// Returns whether this transaction is on disk, so that answers that depend on it may be sent.
    pub(crate) fn is_synced(&self, zxid: Zxid) -> bool {
        self.shared.synced() >= zxid
    }

    /// Registers `waker`, which is woken when this transaction is on disk. Returns false, without
    /// registering it, if the transaction is on disk already.
    pub(crate) fn register_waker(&self, zxid: Zxid, waker: &Arc<Notify>) -> bool {
        if self.is_synced(zxid) {
            return false;
        }
        let mut queue = self.shared.lock();
        // The thread first raises `synced`, and then locks the queue to wake the registered tasks.
        // So if `synced` is still lower under this lock, the thread has not looked for tasks yet,
        // and will wake this task.
        let waits = self.shared.synced() < zxid;
        if waits {
            queue.waiting.push((zxid, Arc::clone(waker)));
        }
        waits
    }

    /// Returns whether the queue is full. If so, no requests should be handled for now, and `waker`
    /// is woken when it is time to check again.
    pub(crate) fn register_if_full(&self, waker: &Arc<Notify>) -> bool {
        if !self.is_full() {
            return false;
        }
        // With zxid 0, `waker` is woken after the next batch, whatever the batch contains.
        let mut queue = self.shared.lock();
        let full = self.is_full();
        if full {
            queue.waiting.push((Zxid(0), Arc::clone(waker)));
        }
        full
    }

    /// Returns whether the queue is full.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.bytes.load(Ordering::Relaxed) > MAX_WAITING
    }

    /// Returns whether the task of a connection writes, and takes long.
    pub(crate) fn is_blocking_a_connection(&self) -> bool {
        self.shared.lock().writing_since.is_some_and(|since| since.elapsed() >= WATCH)
    }

    /// Returns the error, if the log has failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// Returns a receiver of a flag that is set when the log has failed.
    pub(crate) fn subscribe_failure(&self) -> watch::Receiver<bool> {
        self.shared.failed.subscribe()
    }

    /// Fails the log for a reason outside of it. No further transaction counts as synced.
    pub(crate) fn fail(&self, why: String) {
        let _ = self.shared.failure.set(why);
        self.shared.failed.send_replace(true);
    }

    /// Writes all queued transactions and ends the thread. Blocks.
    pub(crate) fn stop(&self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_one();
        let thread = self.thread.lock().map(|mut thread| thread.take()).unwrap_or_default();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the log's thread panicked");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop();
    }
}

impl JournalState {
    fn lock(&self) -> MutexGuard<'_, JournalQueue> {
        self.queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn synced(&self) -> Zxid {
        Zxid(self.synced.load(Ordering::Acquire))
    }

    fn lock_writer(&self) -> MutexGuard<'_, Option<Writer>> {
        self.writer.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Runs the thread.
    fn run(&self) {
        // This guard reports a failure however the thread ends, even by a panic, so that no task
        // waits forever.
        let _report = FailureReport(self);
        while self.failure.get().is_none() {
            let task = self.wait_for_task();
            let mut writer = match self.writer.try_lock() {
                Ok(writer) => writer,
                Err(_) if matches!(task, Task::Stop) => self.lock_writer(),
                // A connection writes. It is watched until its end.
                Err(_) => {
                    drop(self.wake.wait_timeout(self.lock(), WATCH));
                    continue;
                }
            };
            match task {
                Task::Write => self.write_batch(&mut writer),
                Task::Seal => self.seal(&mut writer),
                Task::Stop => {
                    self.write_batch(&mut writer);
                    self.seal(&mut writer);
                    break;
                }
            }
        }
        *self.lock_writer() = None;
    }

    /// Waits until there are transactions, or none have arrived for a while, or the journal stops.
    fn wait_for_task(&self) -> Task {
        let poisoned = std::sync::PoisonError::into_inner;
        let mut queue = self.lock();
        let (mut batches, mut idle_since) = (queue.batches, Instant::now());
        loop {
            if queue.stop {
                return Task::Stop;
            }
            // A connection that writes wakes this thread if there are more transactions at the end.
            if !queue.txns.is_empty() && queue.writing_since.is_none() || self.failure.get().is_some() {
                return Task::Write;
            }
            if queue.sealed {
                queue = self.wake.wait(queue).unwrap_or_else(poisoned);
                continue;
            }
            queue = self.wake.wait_timeout(queue, WATCH).unwrap_or_else(|error| error.into_inner()).0;
            if queue.batches != batches {
                (batches, idle_since) = (queue.batches, Instant::now());
            }
            if queue.writing_since.is_some_and(|since| since.elapsed() >= WATCH) {
                self.wake_runtime();
            } else if idle_since.elapsed() >= IDLE && queue.txns.is_empty() && queue.writing_since.is_none() {
                return Task::Seal;
            }
        }
    }

    /// Wakes a worker of the runtime. If a connection blocks its worker, and all others sleep, no
    /// worker waits for sockets and timers. The worker that this function wakes does so when it has
    /// no more tasks.
    fn wake_runtime(&self) {
        if let Some(runtime) = &self.runtime {
            drop(runtime.spawn(std::future::ready(())));
        }
    }

    /// Writes and syncs the queued transactions.
    fn write_batch(&self, writer: &mut Option<Writer>) {
        let Some(Writer { sink, batch }) = writer.as_mut().filter(|_| self.failure.get().is_none()) else {
            return;
        };
        let mut queue = self.lock();
        std::mem::swap(&mut queue.txns, batch);
        self.bytes.store(0, Ordering::Relaxed);
        drop(queue);
        let Some(last) = batch.last().map(|txn: &Txn| txn.zxid) else { return };
        let started = Instant::now();
        let written = batch
            .drain(..)
            .try_for_each(|txn| sink.append(&txn))
            .and_then(|()| sink.write())
            .and_then(|()| sink.sync());
        self.record_failure(written);
        if self.failure.get().is_none() {
            self.record_synced(last, started.elapsed() <= SLOW);
        }
    }

    fn seal(&self, writer: &mut Option<Writer>) {
        let Some(writer) = writer.as_mut().filter(|_| self.failure.get().is_none()) else { return };
        if !self.lock().sealed {
            self.record_failure(writer.sink.seal());
            self.lock().sealed = true;
        }
    }

    fn record_failure(&self, result: Result<(), SinkError>) {
        if let Err(error) = result {
            tracing::error!(
                %error,
                "cannot write the log; stopping the server, because further writes would not be durable"
            );
            let _ = self.failure.set(error.to_string());
            self.failed.send_replace(true);
        }
    }

    /// Records that all transactions up to `synced` are on disk, and wakes the tasks that waited
    /// for them. `fast` says whether their batch was not slow.
    fn record_synced(&self, synced: Zxid, fast: bool) {
        self.synced.store(synced.0, Ordering::Release);
        let mut queue = self.lock();
        let mut due = Vec::new();
        queue.waiting.retain(|(zxid, waker)| {
            let waits = *zxid > synced;
            if !waits {
                due.push(Arc::clone(waker));
            }
            waits
        });
        queue.batches += 1;
        queue.fast = fast;
        let was_sealed = std::mem::take(&mut queue.sealed);
        drop(queue);
        if was_sealed {
            // The thread must look for connections that write, and for a time without transactions.
            self.wake.notify_one();
        }
        due.iter().for_each(|waker| waker.notify_one());
    }
}

/// A guard that reports a failure when a write ends, even by a panic.
struct FailureReport<'a>(&'a JournalState);

impl Drop for FailureReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.failure.set("a bug: a write of the log panicked".to_owned());
        }
        if self.0.failure.get().is_some() {
            self.0.failed.send_replace(true);
            self.0.wake.notify_one();
        }
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

/// Estimates the memory of a queued change in bytes.
fn approximate_bytes(change: &Change) -> usize {
    const SMALL: usize = 128;
    SMALL
        + match change {
            Change::Create(Create { path, data, acl, .. }) => {
                path.len() + data.as_ref().map_or(0, bytes::Bytes::len) + stored_bytes(acl)
            }
            Change::SetData { path, data, .. } => path.len() + data.as_ref().map_or(0, bytes::Bytes::len),
            Change::SetAcl { path, acl, .. } => path.len() + stored_bytes(acl),
            Change::Multi(changes) => changes.iter().map(approximate_bytes).sum(),
            Change::CloseSession { ephemerals } | Change::ClosePart { ephemerals } => {
                ephemerals.iter().map(|path| 16 + path.len()).sum()
            }
            _ => 0,
        }
}

#[cfg(test)]
mod tests;
