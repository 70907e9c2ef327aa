//! Reads single locks while their pages are open, and again as soon as they change.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use zoolock::Zoolock;
use zoolock::admin::Snapshot;
use zoolock::observe::{Queue, ReadOutcome};

use super::clock::now_ms;
use super::news::next_number;
use crate::observe::ReadFailure;

/// Maximum number of locks that are read. Each one costs a watch and repeated reads.
const MAX_LOCKS: usize = 64;
/// Maximum number of waiters that are read and listed. The page also shows the total number.
pub(super) const MAX_WAITERS: usize = 100;
/// Time for which reading goes on after the page is closed, since the next page may show the same lock.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// The last read of a lock.
#[derive(Debug, Default)]
pub(super) struct LockRead {
    /// Rises when the result changes; see [`next_number`]. 0 before the first read.
    pub(super) number: u64,
    pub(super) lock: Option<Snapshot>,
    /// Start of the read.
    pub(super) begun: Option<Instant>,
    pub(super) begun_ms: u64,
    pub(super) cost: Duration,
    /// Failure of the read.
    pub(super) trouble: Option<ReadFailure>,
}

/// A receiver of the reads of one lock.
type ReadReceiver = watch::Receiver<Arc<LockRead>>;

/// The pollers of all locks whose pages are open.
pub(super) struct LockPollers {
    shared: Arc<PollerState>,
    tasks: Mutex<JoinSet<()>>,
}

struct PollerState {
    zoolock: Zoolock,
    open: Mutex<HashMap<String, RunningPoller>>,
}

struct RunningPoller {
    reads: ReadReceiver,
    /// Notified when a page requests a read.
    requested: Arc<Notify>,
}

impl LockPollers {
    pub(super) fn new(zoolock: Zoolock) -> Self {
        let shared = Arc::new(PollerState { zoolock, open: Mutex::default() });
        Self { shared, tasks: Mutex::default() }
    }

    /// Returns a receiver of the reads of the lock at `path`. The lock is read while the receiver
    /// exists. Returns `None` if too many locks are read.
    pub(super) fn watch(&self, path: &str) -> Option<ReadReceiver> {
        let mut open = self.shared.lock_open_pollers();
        if let Some(poller) = open.get(path) {
            poller.requested.notify_one();
            return Some(poller.reads.clone());
        }
        if open.len() >= MAX_LOCKS {
            return None;
        }
        let (sender, reads) = watch::channel(Arc::default());
        let requested = Arc::<Notify>::default();
        open.insert(
            path.to_owned(),
            RunningPoller { reads: reads.clone(), requested: Arc::clone(&requested) },
        );
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
            let trouble = Some(ReadFailure::Refused(trouble));
            return Arc::new(LockRead { trouble, ..LockRead::default() });
        };
        let is_new = |read: &Arc<LockRead>| read.begun.is_some_and(|begun| begun >= now);
        let _ = timeout(limit, reads.wait_for(is_new)).await;
        Arc::clone(&reads.borrow())
    }

    /// Stops all reads.
    pub(super) fn stop(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}

impl PollerState {
    fn lock_open_pollers(&self) -> MutexGuard<'_, HashMap<String, RunningPoller>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LockRead {
    /// Returns the result of the read that follows `last`.
    fn after(last: &LockRead, result: Result<Snapshot, ReadFailure>, queue: &Queue) -> LockRead {
        let time = queue.read_time();
        let begun_ms = now_ms().saturating_sub(time.begun.elapsed().as_millis() as u64);
        let (lock, trouble) = match result {
            Ok(lock) => (Some(lock), None),
            Err(why) => (None, Some(why)),
        };
        let is_new = last.number == 0 || (&lock, &trouble) != (&last.lock, &last.trouble);
        let number = if is_new { next_number(last.number) } else { last.number };
        LockRead { number, lock, begun: Some(time.begun), begun_ms, cost: time.took, trouble }
    }
}

/// Reads the lock until it has had no viewer for [`LINGER_TIME`].
async fn poll_lock(
    shared: Arc<PollerState>,
    path: String,
    sender: watch::Sender<Arc<LockRead>>,
    requested: Arc<Notify>,
) {
    let mut queue = Queue::watched(shared.zoolock.admin().poller(&path, MAX_WAITERS).with_rereads());
    let mut last_viewed = Instant::now();
    let mut last_read_ended = Instant::now();
    loop {
        // Each call of `next` waits for the server anew. So during a read no request may interrupt the call: otherwise
        // frequent requests would hide an outage.
        let is_reading = queue.read_time().begun > last_read_ended;
        let contact = tokio::select! {
            contact = queue.next() => contact,
            () = requested.notified(), if !is_reading => {
                queue.read_soon();
                continue;
            }
        };
        if !matches!(contact, Ok(ReadOutcome::Slow | ReadOutcome::Silent(_))) {
            last_read_ended = Instant::now();
        }
        let result = match ReadFailure::of(&contact) {
            // A read without an answer continues, but the pages already show the outage.
            Some(failure) => Err(failure),
            // The pages show the last read until this read has ended.
            None if matches!(contact, Ok(ReadOutcome::Slow)) => continue,
            None => Ok(queue.lock().clone()),
        };
        let last = Arc::clone(&sender.borrow());
        sender.send_replace(Arc::new(LockRead::after(&last, result, &queue)));
        // One receiver is in `PollerState::open`. The others belong to viewers.
        if sender.receiver_count() > 1 {
            last_viewed = Instant::now();
        } else if last_viewed.elapsed() > LINGER_TIME {
            let mut open = shared.lock_open_pollers();
            if sender.receiver_count() <= 1 {
                open.remove(&path);
                return;
            }
        }
    }
}
