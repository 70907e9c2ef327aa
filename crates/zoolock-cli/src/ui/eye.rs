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
use crate::service::pokes::{Poked, Pokes};

/// Maximum number of locks that are read. Each one costs a watch and repeated reads.
const MOST: usize = 64;
/// Minimum pause after a read, as a multiple of its duration: reading takes at most a fifth of the time.
const PAUSES: u32 = 4;
/// Minimum pause after a read, since a hand-over consists of several changes.
const SHORTEST: Duration = Duration::from_millis(20);
/// Interval between reads without a watch.
const UNTOLD: Duration = Duration::from_millis(400);
/// Interval between reads with a watch, in case an event was lost.
const MISSED: Duration = Duration::from_secs(2);
/// Maximum number of waiters that are read of a queue that is known to be longer.
const LONG: usize = 500;
/// Time for which reading goes on after the page is closed, since the next page may show the same lock.
const LINGER: Duration = Duration::from_secs(5);

/// The last read of a lock.
#[derive(Debug, Default)]
pub(super) struct Seen {
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
type Sight = watch::Receiver<Arc<Seen>>;

/// The pollers of all locks whose pages are open.
pub(super) struct Eyes {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

struct Shared {
    zoolock: Zoolock,
    history: Arc<Mutex<History>>,
    pokes: Pokes,
    open: Mutex<HashMap<String, Eye>>,
}

struct Eye {
    sight: Sight,
    asked: Arc<Notify>,
}

impl Eyes {
    pub(super) fn new(zoolock: Zoolock, history: Arc<Mutex<History>>, pokes: Pokes) -> Self {
        let shared = Arc::new(Shared { zoolock, history, pokes, open: Mutex::default() });
        Self { shared, tasks: Mutex::default() }
    }

    /// Reads the lock at `path` while the returned receiver exists. Returns `None` if too many locks are read.
    pub(super) fn watch(&self, path: &str) -> Option<Sight> {
        let mut open = self.shared.open();
        if let Some(eye) = open.get(path) {
            eye.asked.notify_one();
            return Some(eye.sight.clone());
        }
        if open.len() >= MOST {
            return None;
        }
        let (sender, sight) = watch::channel(Arc::default());
        let asked = Arc::<Notify>::default();
        open.insert(path.to_owned(), Eye { sight: sight.clone(), asked: Arc::clone(&asked) });
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(look_on(Arc::clone(&self.shared), path.to_owned(), sender, asked));
        Some(sight)
    }

    /// Returns a read that begins after this call, or the last read if none completes within `patience`.
    pub(super) async fn look(&self, path: &str, patience: Duration) -> Arc<Seen> {
        let now = Instant::now();
        let Some(mut sight) = self.watch(path) else {
            let trouble = "too many locks are looked at just now; try again".to_owned();
            return Arc::new(Seen { trouble: Some(trouble), ..Seen::default() });
        };
        let new = |seen: &Arc<Seen>| seen.begun.is_some_and(|begun| begun >= now);
        let _ = timeout(patience, sight.wait_for(new)).await;
        Arc::clone(&sight.borrow())
    }

    /// Stops all reads, and closes the session with the watches.
    pub(super) async fn close(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        self.shared.pokes.close().await;
    }
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, HashMap<String, Eye>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn look(&self, path: &str, last: &Seen) -> Seen {
        let (begun, begun_ms) = (Instant::now(), now_ms());
        let looked = self.read(path, last).await;
        let cost = begun.elapsed();
        let seen =
            Seen { number: last.number, lock: None, begun: Some(begun), begun_ms, cost, trouble: None };
        let mut seen = match looked {
            Ok(lock) => {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.note(&lock, begun_ms, now_ms());
                Seen { lock: Some(lock), ..seen }
            }
            Err(error) => Seen { trouble: Some(error.to_string()), ..seen },
        };
        if last.number == 0 || seen.is_news_after(last) {
            seen.number += 1;
        }
        seen
    }
}

impl Shared {
    /// Reads the lock. If the last read showed a long queue, reads its first waiters and counts the others.
    async fn read(&self, path: &str, last: &Seen) -> Result<Snapshot, Error> {
        if last.lock.as_ref().is_some_and(|lock| lock.waiting > LONG) {
            let found = self.zoolock.survey(Some(path), LONG).await?;
            if let Some(lock) = found.into_iter().find(|lock| lock.path == path) {
                return Ok(lock);
            }
        }
        self.zoolock.mutex(path).snapshot().await
    }
}

impl Seen {
    fn is_news_after(&self, last: &Seen) -> bool {
        // Compares all fields, including fields that are added later.
        let told = |seen: &Seen| format!("{:?}{:?}", seen.lock, seen.trouble);
        told(self) != told(last)
    }
}

/// Reads the lock until it has had no viewer for [`LINGER`].
async fn look_on(shared: Arc<Shared>, path: String, sender: watch::Sender<Arc<Seen>>, asked: Arc<Notify>) {
    let mut poked: Option<Poked> = None;
    let mut wanted = Instant::now();
    loop {
        // The watch is set before the read, so that no change after the read is missed.
        if poked.is_none() {
            poked = shared.pokes.at(&path).await;
        }
        let last = Arc::clone(&sender.borrow());
        let seen = shared.look(&path, &last).await;
        let done = Instant::now();
        let rest = (seen.cost * PAUSES).max(SHORTEST);
        sender.send_replace(Arc::new(seen));
        let untold = if poked.is_some() { MISSED } else { UNTOLD };
        tokio::select! {
            () = sleep(untold.max(rest)) => {}
            () = asked.notified() => {}
            () = Poked::told(&mut poked) => {}
        }
        sleep_until((done + rest).into()).await;
        // One receiver is in `Shared::open`.
        if sender.receiver_count() > 1 {
            wanted = Instant::now();
        } else if wanted.elapsed() > LINGER {
            let mut open = shared.open();
            if sender.receiver_count() <= 1 {
                // The watch is dropped before the next poller sets one: the drop removes all watches of the path.
                drop(poked.take());
                open.remove(&path);
                return;
            }
        }
    }
}
