//! Reads single locks while their pages are open, and again as soon as they change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};
use zoolock::{Error, Snapshot, Zoolock};

use super::clock::now_ms;
use super::history::History;
use crate::service::lock_watches::{LockSubscription, LockWatches};

/// Maximum number of locks that are read. Each one costs a watch and repeated reads.
const MAX_LOCKS: usize = 64;
/// Minimum pause after a read, as a multiple of its duration: reading takes at most a fifth of the time.
const PAUSE_FACTOR: u32 = 4;
/// Minimum pause after a read, since a hand-over consists of several changes.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Interval between reads without a watch.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// Interval between reads with a watch, in case an event was lost.
const WATCHED_INTERVAL: Duration = Duration::from_secs(2);
/// Maximum number of waiters that are read of a queue that is known to be longer.
const LONG_QUEUE: usize = 500;
/// Time for which reading goes on after the page is closed, since the next page may show the same lock.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// The last read of a lock.
#[derive(Debug, Default)]
pub(super) struct LockRead {
    /// Rises when the result changes; 0 before the first read.
    pub(super) number: u64,
    pub(super) lock: Option<Snapshot>,
    /// Start of the read.
    pub(super) begun: Option<Instant>,
    pub(super) begun_ms: u64,
    pub(super) cost: Duration,
    /// Error of the read, if it failed.
    pub(super) trouble: Option<String>,
}

/// A receiver of the reads of one lock.
type ReadReceiver = watch::Receiver<Arc<LockRead>>;

/// The pollers of all locks whose pages are open.
pub(super) struct LockPollers {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

struct Shared {
    zoolock: Zoolock,
    history: Arc<Mutex<History>>,
    watches: LockWatches,
    open: Mutex<HashMap<String, LockPoller>>,
}

struct LockPoller {
    reads: ReadReceiver,
    /// Notified when a page requests a read.
    requested: Arc<Notify>,
}

impl LockPollers {
    pub(super) fn new(zoolock: Zoolock, history: Arc<Mutex<History>>, watches: LockWatches) -> Self {
        let shared = Arc::new(Shared { zoolock, history, watches, open: Mutex::default() });
        Self { shared, tasks: Mutex::default() }
    }

    /// Reads the lock at `path` while the returned receiver exists. Returns `None` if too many locks are read.
    pub(super) fn watch(&self, path: &str) -> Option<ReadReceiver> {
        let mut open = self.shared.open();
        if let Some(poller) = open.get(path) {
            poller.requested.notify_one();
            return Some(poller.reads.clone());
        }
        if open.len() >= MAX_LOCKS {
            return None;
        }
        let (sender, reads) = watch::channel(Arc::default());
        let requested = Arc::<Notify>::default();
        open.insert(path.to_owned(), LockPoller { reads: reads.clone(), requested: Arc::clone(&requested) });
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(poll_lock(Arc::clone(&self.shared), path.to_owned(), sender, requested));
        Some(reads)
    }

    /// Returns a read that begins after this call, or the last read if none completes within `limit`.
    pub(super) async fn new_read(&self, path: &str, limit: Duration) -> Arc<LockRead> {
        let now = Instant::now();
        let Some(mut reads) = self.watch(path) else {
            let trouble = "too many lock pages are open; try again in a few seconds".to_owned();
            return Arc::new(LockRead { trouble: Some(trouble), ..LockRead::default() });
        };
        let is_new = |read: &Arc<LockRead>| read.begun.is_some_and(|begun| begun >= now);
        let _ = timeout(limit, reads.wait_for(is_new)).await;
        Arc::clone(&reads.borrow())
    }

    /// Stops all reads, and closes the session with the watches.
    pub(super) async fn close(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.shared.watches.close().await;
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<String, LockPoller>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_and_record(&self, path: &str, last: &LockRead) -> LockRead {
        let (begun, begun_ms) = (Instant::now(), now_ms());
        let result = self.read(path, last).await;
        let cost = begun.elapsed();
        let read =
            LockRead { number: last.number, lock: None, begun: Some(begun), begun_ms, cost, trouble: None };
        let mut read = match result {
            Ok(lock) => {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.record(&lock, begun_ms, now_ms());
                LockRead { lock: Some(lock), ..read }
            }
            Err(error) => LockRead { trouble: Some(error.to_string()), ..read },
        };
        if last.number == 0 || read.differs_from(last) {
            read.number += 1;
        }
        read
    }
}

impl Shared {
    /// Reads the lock. If the last read showed a long queue, reads its first waiters and counts the others.
    async fn read(&self, path: &str, last: &LockRead) -> Result<Snapshot, Error> {
        if last.lock.as_ref().is_some_and(|lock| lock.waiting > LONG_QUEUE) {
            let found = self.zoolock.survey(Some(path), LONG_QUEUE).await?;
            if let Some(lock) = found.into_iter().find(|lock| lock.path == path) {
                return Ok(lock);
            }
        }
        self.zoolock.mutex(path).snapshot().await
    }
}

impl LockRead {
    fn differs_from(&self, last: &LockRead) -> bool {
        // Compares all fields, including fields that are added later.
        let content = |read: &LockRead| format!("{:?}{:?}", read.lock, read.trouble);
        content(self) != content(last)
    }
}

/// Reads the lock until it has had no viewer for [`LINGER_TIME`].
async fn poll_lock(
    shared: Arc<Shared>,
    path: String,
    sender: watch::Sender<Arc<LockRead>>,
    requested: Arc<Notify>,
) {
    let mut subscription: Option<LockSubscription> = None;
    let mut last_viewed = Instant::now();
    loop {
        // The watch is set before the read, so that no change after the read is missed.
        if subscription.is_none() {
            subscription = shared.watches.subscribe(&path).await;
        }
        let last = Arc::clone(&sender.borrow());
        let read = shared.read_and_record(&path, &last).await;
        let done = Instant::now();
        let pause = (read.cost * PAUSE_FACTOR).max(MIN_PAUSE);
        sender.send_replace(Arc::new(read));
        let interval = if subscription.is_some() { WATCHED_INTERVAL } else { POLL_INTERVAL };
        tokio::select! {
            () = sleep(interval.max(pause)) => {}
            () = requested.notified() => {}
            () = LockSubscription::wait_for_change(&mut subscription) => {}
        }
        sleep_until((done + pause).into()).await;
        // One receiver is in `Shared::open`.
        if sender.receiver_count() > 1 {
            last_viewed = Instant::now();
        } else if last_viewed.elapsed() > LINGER_TIME {
            let mut open = shared.open();
            if sender.receiver_count() <= 1 {
                // The watch is dropped before the next poller sets one: the drop removes all watches of the path.
                drop(subscription.take());
                open.remove(&path);
                return;
            }
        }
    }
}
