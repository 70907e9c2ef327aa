//! All locks, read again and again while somebody looks, and never for more than a fifth of the time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zoolock::{Deadlock, Snapshot, WaitGraph, Zoolock};

use super::clock::now_ms;
use super::history::History;

/// Of each lock so many waiters are read for the list: the first tells how long somebody has waited.
const FEW: usize = 4;
/// And so many for pages that tell who waits for whom.
pub(super) const MANY: usize = 1_000;
/// Between two readings of a short list.
const PAUSE: Duration = Duration::from_secs(1);
/// Reading takes one part, and pauses four.
const PAUSES: u32 = 4;
/// Whoever has looked may look again without being connected meanwhile: a browser without scripts, a monitor.
const INTEREST: Duration = Duration::from_secs(10);
/// An older list is not shown where a newer one can be had soon.
const STALE: Duration = Duration::from_secs(3);

/// All locks as they were read.
#[derive(Debug, Clone, Default)]
pub(super) struct Board {
    /// Rises with each reading; 0 before the first.
    pub(super) number: u64,
    /// None before they were read.
    pub(super) locks: Option<Arc<Listed>>,
    /// When the reading of these began.
    pub(super) seen_ms: u64,
    pub(super) cost: Duration,
    /// Waiters were read, too, up to [`MANY`] of each lock.
    pub(super) deep: bool,
    /// Who waits for whom, where it is deep.
    pub(super) waits: Option<Arc<Waits>>,
    /// When the last reading began.
    pub(super) tried_ms: u64,
    /// Why that one came to nothing.
    pub(super) trouble: Option<String>,
}

/// Them, with what is known from earlier readings.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// By path.
    pub(super) locks: Vec<Snapshot>,
    /// Of each how many get it in a second, and since when somebody waits.
    figures: Vec<(Option<f64>, Option<u64>)>,
}

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) lock: &'a Snapshot,
    pub(super) rate: Option<f64>,
    pub(super) waits_since_ms: Option<u64>,
}

impl Listed {
    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let figures = self.figures.iter();
        self.locks.iter().zip(figures).map(|(lock, &(rate, waits_since_ms))| Row {
            lock,
            rate,
            waits_since_ms,
        })
    }

    /// These, with such rates.
    #[cfg(test)]
    pub(super) fn of(locks: Vec<(Snapshot, Option<f64>)>) -> Self {
        let (locks, rates): (Vec<_>, Vec<_>) = locks.into_iter().unzip();
        let figures = locks.iter().zip(rates).map(|(lock, rate)| (rate, waits_since(lock))).collect();
        Self { locks, figures }
    }
}

fn waits_since(lock: &Snapshot) -> Option<u64> {
    lock.waiters.iter().filter_map(|waiter| waiter.since_ms).min()
}

/// Who waits for whom.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) graph: WaitGraph,
    pub(super) deadlocks: Vec<Known>,
}

/// A deadlock.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) deadlock: Deadlock,
    /// It was there at the reading before: while locks are read one after the other they change hands, and a circle of what
    /// was never there at once does not last.
    pub(super) seen_twice: bool,
}

/// Reads them.
pub(super) struct Boards {
    board: watch::Receiver<Arc<Board>>,
    interest: Arc<Interest>,
    reading: JoinHandle<()>,
}

/// Who looks.
#[derive(Default)]
struct Interest {
    viewers: AtomicUsize,
    deep_viewers: AtomicUsize,
    /// When a page was last asked for, and one that needs more.
    asked: Mutex<(Option<Instant>, Option<Instant>)>,
    woken: Notify,
}

/// Somebody who looks on.
pub(super) struct Looking {
    interest: Arc<Interest>,
    deep: bool,
}

impl Boards {
    /// Begins when somebody looks.
    pub(super) fn start(zoolock: Zoolock, history: Arc<Mutex<History>>) -> Self {
        let (sender, board) = watch::channel(Arc::default());
        let interest = Arc::<Interest>::default();
        let reading = tokio::spawn(read(zoolock, history, sender, Arc::clone(&interest)));
        Self { board, interest, reading }
    }

    /// The newest, or a newer one if that comes within `patience`.
    pub(super) async fn look(&self, deep: bool, patience: Duration) -> Arc<Board> {
        self.interest.ask(deep);
        let oldest = now_ms().saturating_sub(STALE.as_millis() as u64);
        let mut board = self.board.clone();
        let good = |board: &Arc<Board>| {
            let patience = (board.cost * (PAUSES + 2)).as_millis() as u64;
            let fresh = board.number > 0 && board.tried_ms + patience >= oldest;
            fresh && (board.trouble.is_some() || board.deep || !deep)
        };
        let _ = timeout(patience, board.wait_for(good)).await;
        Arc::clone(&board.borrow())
    }

    /// Each as it is read, for as long as `Looking` is kept.
    pub(super) fn watch(&self, deep: bool) -> (watch::Receiver<Arc<Board>>, Looking) {
        self.interest.ask(deep);
        let interest = Arc::clone(&self.interest);
        interest.viewers(deep).fetch_add(1, Ordering::Relaxed);
        (self.board.clone(), Looking { interest, deep })
    }
}

impl Drop for Boards {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        self.interest.viewers(self.deep).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Interest {
    fn viewers(&self, deep: bool) -> &AtomicUsize {
        if deep { &self.deep_viewers } else { &self.viewers }
    }

    fn ask(&self, deep: bool) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.0 = Some(Instant::now());
        if deep {
            asked.1 = asked.0;
        }
        drop(asked);
        self.woken.notify_one();
    }

    /// Whether somebody looks, and at a page that needs more.
    fn wanted(&self) -> (bool, bool) {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let lately = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < INTEREST);
        let deep = lately(asked.1) || self.deep_viewers.load(Ordering::Relaxed) > 0;
        (deep || lately(asked.0) || self.viewers.load(Ordering::Relaxed) > 0, deep)
    }
}

async fn read(
    zoolock: Zoolock,
    history: Arc<Mutex<History>>,
    sender: watch::Sender<Arc<Board>>,
    interest: Arc<Interest>,
) {
    loop {
        let (wanted, deep) = interest.wanted();
        if !wanted {
            interest.woken.notified().await;
            continue;
        }
        let (begun, begun_ms) = (Instant::now(), now_ms());
        let found = zoolock.survey(None, if deep { MANY } else { FEW }).await;
        let cost = begun.elapsed();
        let last = sender.borrow().as_ref().clone();
        let number = last.number + 1;
        let board = match found {
            Ok(locks) => {
                let waits = deep.then(|| Arc::new(Waits::of(&locks, last.waits.as_deref())));
                let locks = Some(Arc::new(listed(locks, &history, begun_ms)));
                Board {
                    number,
                    locks,
                    seen_ms: begun_ms,
                    cost,
                    deep,
                    waits,
                    tried_ms: begun_ms,
                    trouble: None,
                }
            }
            // What was seen is shown on, with a word that it is old.
            Err(error) => Board { number, tried_ms: begun_ms, trouble: Some(error.to_string()), ..last },
        };
        sender.send_replace(Arc::new(board));
        pause(PAUSE.max(cost * PAUSES), deep, &interest).await;
    }
}

impl Waits {
    fn of(locks: &[Snapshot], last: Option<&Waits>) -> Self {
        let graph = WaitGraph::of(locks);
        let known = |deadlock: Deadlock| {
            let edges = edges(&deadlock);
            let seen_twice =
                last.is_some_and(|last| last.deadlocks.iter().any(|l| self::edges(&l.deadlock) == edges));
            Known { deadlock, seen_twice }
        };
        let deadlocks = graph.deadlocks().into_iter().map(known).collect();
        Self { graph, deadlocks }
    }
}

/// The tokens that make a circle.
fn edges(deadlock: &Deadlock) -> HashSet<(&str, Option<&str>)> {
    let places = deadlock.edges.iter().flat_map(|edge| [&edge.holds, &edge.waits_for]);
    places.map(|place| (place.lock.as_str(), place.entry.token.as_deref())).collect()
}

/// Whoever opens a page that needs more does not wait for the next turn.
async fn pause(time: Duration, deep: bool, interest: &Interest) {
    let sooner = async {
        while deep || !interest.wanted().1 {
            interest.woken.notified().await;
        }
    };
    tokio::select! {
        () = sleep(time) => {}
        () = sooner => {}
    }
}

fn listed(mut locks: Vec<Snapshot>, history: &Mutex<History>, begun_ms: u64) -> Listed {
    locks.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let now = now_ms();
    let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
    let present: HashSet<&str> = locks.iter().map(|lock| lock.path.as_str()).collect();
    history.only(&present, begun_ms, now);
    for lock in &locks {
        history.note(lock, begun_ms, now);
    }
    let figures = locks.iter().map(|lock| (history.rate(&lock.path, now), waits_since(lock))).collect();
    drop(history);
    Listed { locks, figures }
}
