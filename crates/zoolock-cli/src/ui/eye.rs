//! One lock, looked at for as long as somebody has its page open, and read again as soon as something happens to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};
use zoolock::{Error, Snapshot, Zoolock};

use super::clock::now_ms;
use super::history::History;
use crate::pokes::{Poked, Pokes};

/// As many locks as people can have open; each is a watch and a reading now and then.
const MOST: usize = 64;
/// Reading takes one part, and pauses four.
const PAUSES: u32 = 4;
/// Several things happen at a hand-over.
const SHORTEST: Duration = Duration::from_millis(20);
/// Where nothing tells that something happened, and in case that something was missed.
const UNTOLD: Duration = Duration::from_millis(400);
const MISSED: Duration = Duration::from_secs(2);
/// A queue of which not everybody is read.
const LONG: usize = 500;
/// After the last look: the next page may be the same.
const LINGER: Duration = Duration::from_secs(5);

/// What was seen last.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Rises when there is news; 0 before the first look.
    pub(super) number: u64,
    pub(super) lock: Option<Snapshot>,
    /// When the look began.
    pub(super) begun: Option<Instant>,
    pub(super) begun_ms: u64,
    pub(super) cost: Duration,
    /// Why it came to nothing.
    pub(super) trouble: Option<String>,
}

/// Sees it.
type Sight = watch::Receiver<Arc<Seen>>;

/// All that are open.
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

    /// Looks at `path` from now on, for as long as somebody keeps what is returned; `None` where too many are looked at.
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

    /// What is to be seen now, or a moment ago.
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

    /// Looks no more, and leaves nothing on the service.
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
    /// Of a long queue only the beginning, and that the others are there: once that is known.
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
        // Every field, whatever is added to it.
        let told = |seen: &Seen| format!("{:?}{:?}", seen.lock, seen.trouble);
        told(self) != told(last)
    }
}

/// Looks until nobody has looked on for a while.
async fn look_on(shared: Arc<Shared>, path: String, sender: watch::Sender<Arc<Seen>>, asked: Arc<Notify>) {
    let mut poked: Option<Poked> = None;
    let mut wanted = Instant::now();
    loop {
        // Before the look, so that what comes after it is heard of.
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
        // One receiver is that of the list of all.
        if sender.receiver_count() > 1 {
            wanted = Instant::now();
        } else if wanted.elapsed() > LINGER {
            let mut open = shared.open();
            if sender.receiver_count() <= 1 {
                // Before the next one sets its watch: dropping ours removes all watches of the path.
                drop(poked.take());
                open.remove(&path);
                return;
            }
        }
    }
}
