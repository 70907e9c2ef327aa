//! The thread that writes decided transactions to the log, and the tasks that wait until
//! transactions are on disk.
//!
//! Connections append transactions in the order of their numbers while they hold the lock of the
//! core. The connections do not wait for the write. The thread takes all queued transactions,
//! writes and syncs them as one batch, and wakes the connections whose answers depend on these
//! transactions. Transactions that arrive during a sync form the next batch. An answer is sent when
//! all transactions whose effects the answer may show are on disk. This includes answers to reads:
//! a crash must not undo what a client has seen.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::acl::stored_bytes;
use crate::ids::Zxid;
use crate::txn::{Change, Create, Txn};

/// The server stops reading from connections while more than this many bytes are queued.
const MAX_WAITING: usize = 32 << 20;
/// Time without transactions after which the log is sealed (see [`JournalSink::seal`]).
const IDLE: Duration = Duration::from_millis(500);

/// Destination of the journal's writes.
pub(crate) trait JournalSink: Send + 'static {
    /// Error of a write.
    type Error: std::error::Error + Send + Sync + 'static;
    /// Adds a transaction to the next batch.
    fn append(&mut self, txn: &Txn) -> Result<(), Self::Error>;
    /// Writes the batch.
    fn write(&mut self) -> Result<(), Self::Error>;
    /// Syncs the written batches, so that they survive a crash.
    fn sync(&mut self) -> Result<(), Self::Error>;
    /// Seals the written batches: records on disk that they were synced. Called when no transaction
    /// has arrived for a while, and before the thread ends.
    fn seal(&mut self) -> Result<(), Self::Error>;
}

/// Queue of decided transactions, and the thread that writes them.
#[derive(Debug)]
pub(crate) struct Journal {
    shared: Arc<JournalState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct JournalState {
    queue: Mutex<JournalQueue>,
    wake: Condvar,
    /// Approximate number of queued bytes.
    bytes: AtomicUsize,
    synced: AtomicI64,
    failure: OnceLock<String>,
    failed: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct JournalQueue {
    txns: Vec<Txn>,
    waiting: Vec<(Zxid, Arc<Notify>)>,
    stop: bool,
}

impl Journal {
    /// Starts the thread. All transactions up to `synced` are on disk already.
    pub(crate) fn start(sink: impl JournalSink, synced: Zxid) -> std::io::Result<Self> {
        let shared = Arc::new(JournalState {
            queue: Mutex::default(),
            wake: Condvar::new(),
            bytes: AtomicUsize::new(0),
            synced: AtomicI64::new(synced.0),
            failure: OnceLock::new(),
            failed: watch::channel(false).0,
        });
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("zoolock-log".to_owned())
            .spawn(move || thread_shared.run(sink))?;
        Ok(Journal { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Queues transactions. The caller holds the lock of the core, so the transactions arrive in
    /// order.
    pub(crate) fn append(&self, txns: &mut Vec<Txn>) {
        if txns.is_empty() {
            return;
        }
        let mut queue = self.shared.lock();
        let bytes = txns.iter().map(|txn| approximate_bytes(&txn.change)).sum();
        self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        queue.txns.append(txns);
        drop(queue);
        self.shared.wake.notify_one();
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
        let full = || self.shared.bytes.load(Ordering::Relaxed) > MAX_WAITING;
        if !full() {
            return false;
        }
        // With zxid 0, `waker` is woken after the next batch, whatever the batch contains.
        let mut queue = self.shared.lock();
        let full = full();
        if full {
            queue.waiting.push((Zxid(0), Arc::clone(waker)));
        }
        full
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

    fn run<S: JournalSink>(&self, mut sink: S) {
        // This guard reports a failure however the thread ends, even by a panic, so that no task
        // waits forever.
        let _end = ThreadEnd(self);
        if let Err(error) = self.write_batches(&mut sink) {
            tracing::error!(
                %error,
                "cannot write the log; stopping the server, because further writes would not be durable"
            );
            let _ = self.failure.set(error.to_string());
        }
    }

    fn write_batches<S: JournalSink>(&self, sink: &mut S) -> Result<(), S::Error> {
        let mut batch = Vec::new();
        let mut sealed = true;
        loop {
            let stop = self.wait_for_txns(&mut batch, (!sealed).then_some(IDLE));
            if let Some(last) = batch.last().map(|txn: &Txn| txn.zxid) {
                batch.drain(..).try_for_each(|txn| sink.append(&txn))?;
                sink.write()?;
                sink.sync()?;
                if self.failure.get().is_some() {
                    return Ok(());
                }
                self.record_synced(last);
                sealed = false;
            } else {
                if !sealed {
                    sink.seal()?;
                    sealed = true;
                }
                if stop {
                    return Ok(());
                }
            }
        }
    }

    /// Waits for transactions and moves all of them to `batch`. `batch` stays empty if none arrives within `timeout`,
    /// or if the journal stops. Returns whether the journal stops.
    fn wait_for_txns(&self, batch: &mut Vec<Txn>, timeout: Option<Duration>) -> bool {
        let mut queue = self.lock();
        while queue.txns.is_empty() && !queue.stop {
            let poisoned = std::sync::PoisonError::into_inner;
            match timeout {
                None => queue = self.wake.wait(queue).unwrap_or_else(poisoned),
                Some(timeout) => {
                    let (taken, waited) =
                        self.wake.wait_timeout(queue, timeout).unwrap_or_else(|error| error.into_inner());
                    queue = taken;
                    if waited.timed_out() {
                        break;
                    }
                }
            }
        }
        std::mem::swap(&mut queue.txns, batch);
        self.bytes.store(0, Ordering::Relaxed);
        queue.stop
    }

    /// Records that all transactions up to `synced` are on disk, and wakes the tasks that waited
    /// for them.
    fn record_synced(&self, synced: Zxid) {
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
        drop(queue);
        due.iter().for_each(|waker| waker.notify_one());
    }
}

/// A guard that reports a failure when the thread ends.
struct ThreadEnd<'a>(&'a JournalState);

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.failure.set("a bug: the log's thread panicked".to_owned());
        }
        if self.0.failure.get().is_some() {
            self.0.failed.send_replace(true);
        }
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
mod tests {
    use std::io;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::ids::SessionId;

    /// A sink whose syncs wait for a result from the test.
    struct SlowSink {
        batch: Vec<i64>,
        batches: Sender<Vec<i64>>,
        word: Receiver<io::Result<()>>,
    }

    impl JournalSink for SlowSink {
        type Error = io::Error;
        fn append(&mut self, txn: &Txn) -> io::Result<()> {
            self.batch.push(txn.zxid.0);
            Ok(())
        }
        fn write(&mut self) -> io::Result<()> {
            self.batches.send(std::mem::take(&mut self.batch)).map_err(io::Error::other)
        }
        fn sync(&mut self) -> io::Result<()> {
            self.word.recv().unwrap_or(Ok(()))
        }
        fn seal(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Journal, Receiver<Vec<i64>>, Sender<io::Result<()>>) {
        let ((batches, written), (say, word)) = (channel(), channel());
        let sink = SlowSink { batch: Vec::new(), batches, word };
        (Journal::start(sink, zxid(0)).expect("a thread"), written, say)
    }

    fn zxid(number: i64) -> Zxid {
        Zxid(number)
    }

    fn txns(numbers: std::ops::RangeInclusive<i64>) -> Vec<Txn> {
        let txn = |number| Txn {
            zxid: zxid(number),
            session: SessionId::NONE,
            time: 0,
            change: Change::Delete { path: "/a".into() },
        };
        numbers.map(txn).collect()
    }

    #[tokio::test]
    async fn waiters_wake_only_after_sync() {
        let (journal, written, say) = slow();
        let (first, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        journal.append(&mut txns(1..=2));
        assert_eq!(written.recv().expect("a batch"), [1, 2]);
        // These transactions are queued during the sync.
        journal.append(&mut txns(3..=3));
        journal.append(&mut txns(4..=5));
        assert!(journal.register_waker(zxid(2), &first) && journal.register_waker(zxid(5), &second));
        assert!(!journal.is_synced(zxid(1)));
        say.send(Ok(())).expect("the sink waits for a result");
        first.notified().await;
        assert!(journal.is_synced(zxid(2)) && !journal.is_synced(zxid(3)));
        assert!(!journal.register_waker(zxid(2), &first));
        assert_eq!(written.recv().expect("one batch of all queued transactions"), [3, 4, 5]);
        say.send(Ok(())).expect("the sink waits for a result");
        second.notified().await;
        assert_eq!(journal.shared.synced(), zxid(5));
    }

    #[tokio::test]
    async fn failed_sync_ends_the_journal() {
        let (journal, written, say) = slow();
        journal.append(&mut txns(1..=1));
        written.recv().expect("a batch");
        say.send(Err(io::Error::other("the disk is gone"))).expect("the sink waits for a result");
        journal.subscribe_failure().wait_for(|failed| *failed).await.expect("the journal exists");
        assert_eq!(journal.failure(), Some("the disk is gone"));
        journal.append(&mut txns(2..=2));
        journal.stop();
        assert!(written.try_recv().is_err(), "a batch was written after the failure");
        assert!(!journal.is_synced(zxid(1)));
    }

    #[tokio::test]
    async fn nothing_counts_as_synced_after_an_outside_failure() {
        let (journal, written, say) = slow();
        journal.append(&mut txns(1..=1));
        written.recv().expect("a batch");
        journal.fail("the directory is gone".to_owned());
        say.send(Ok(())).expect("the sink waits for a result");
        journal.stop();
        assert!(!journal.is_synced(zxid(1)));
        assert_eq!(journal.failure(), Some("the directory is gone"));
        assert!(*journal.subscribe_failure().borrow());
    }

    #[test]
    fn stop_writes_queued_transactions() {
        let (journal, written, say) = slow();
        journal.append(&mut txns(1..=1));
        assert_eq!(written.recv().expect("a batch"), [1]);
        assert_eq!(journal.shared.synced(), zxid(0));
        drop(say);
        journal.stop();
        assert_eq!(journal.shared.synced(), zxid(1));
    }

    #[tokio::test]
    async fn queue_is_full_until_batch_is_taken() {
        let (journal, written, say) = slow();
        let waker = Arc::new(Notify::new());
        journal.append(&mut txns(1..=1));
        written.recv().expect("the thread has written the batch");
        assert!(!journal.register_if_full(&waker));
        let data = Some(bytes::Bytes::from(vec![0; MAX_WAITING]));
        let mut large = txns(2..=2);
        large[0].change = Change::SetData { path: "/a".into(), data, version: 1 };
        journal.append(&mut large);
        assert!(journal.register_if_full(&waker));
        say.send(Ok(())).expect("the sink waits for a result");
        waker.notified().await;
        written.recv().expect("the large transaction");
        assert!(!journal.register_if_full(&waker));
        drop(say);
    }

    #[test]
    fn access_lists_count_as_queued_bytes() {
        let list: crate::acl::AclList = [zoolock_wire::Acl {
            perms: 31,
            identity: zoolock_wire::Identity::new("digest", "u".repeat(100_000)),
        }]
        .into();
        let create = Change::Create(crate::txn::Create {
            path: "/a".into(),
            data: None,
            acl: list.clone(),
            owner: 0,
            parent_created: 1,
            with_stat: false,
        });
        let set = Change::SetAcl { path: "/a".into(), acl: list, version: 1 };
        let close = Change::CloseSession { ephemerals: vec!["/a".repeat(50_000).into()] };
        for change in [create, set, close] {
            assert!(approximate_bytes(&change) > 100_000, "{}", approximate_bytes(&change));
        }
    }
}
