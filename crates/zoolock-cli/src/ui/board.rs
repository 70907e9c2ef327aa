//! Reads all locks repeatedly while a page is viewed, at most a fifth of the time.

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

/// Number of waiters read of each lock for the list. The first one has waited longest.
const FEW: usize = 4;
/// Maximum number of waiters read of each lock for the wait-for graph and the sessions page.
pub(super) const MANY: usize = 1_000;
/// Minimum pause after a read.
const PAUSE: Duration = Duration::from_secs(1);
/// Minimum pause after a read, as a multiple of its duration: reading takes at most a fifth of the time.
const PAUSES: u32 = 4;
/// Time for which reading goes on after a request. It serves clients without an event stream, such as browsers without
/// scripts and monitors.
const INTEREST: Duration = Duration::from_secs(10);
/// Maximum age of a list that is shown at once. The usual time between two reads is added to it.
const STALE: Duration = Duration::from_secs(3);

/// All locks as of the last successful read, and the outcome of the last read.
#[derive(Debug, Clone, Default)]
pub(super) struct Board {
    /// Number of reads so far.
    pub(super) number: u64,
    /// `None` before the first successful read.
    pub(super) locks: Option<Arc<Listed>>,
    /// Start of the last successful read.
    pub(super) seen_ms: u64,
    pub(super) cost: Duration,
    /// True if up to [`MANY`] waiters of each lock were read.
    pub(super) deep: bool,
    /// The wait-for graph, if the read was deep.
    pub(super) waits: Option<Arc<Waits>>,
    /// Start of the last read.
    pub(super) tried_ms: u64,
    /// Error of the last read, if it failed.
    pub(super) trouble: Option<String>,
}

/// All locks, with their hand-over rates.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Sorted by path.
    pub(super) locks: Vec<Snapshot>,
    /// Hand-overs per second of each lock, and the arrival time of its longest waiter.
    figures: Vec<(Option<f64>, Option<u64>)>,
}

/// A lock of the list.
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

    /// Returns a list of locks with these rates.
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

/// The wait-for graph and its deadlocks.
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) graph: WaitGraph,
    pub(super) deadlocks: Vec<Known>,
}

/// A deadlock.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) deadlock: Deadlock,
    /// True if the previous read showed it, too. Locks change hands while they are read one after another, so one read may
    /// show a cycle that never existed. Such a cycle does not last.
    pub(super) seen_twice: bool,
}

/// The task that reads all locks, and its last result.
pub(super) struct Boards {
    board: watch::Receiver<Arc<Board>>,
    interest: Arc<Interest>,
    reading: JoinHandle<()>,
}

/// The demand for reads.
#[derive(Default)]
struct Interest {
    viewers: AtomicUsize,
    deep_viewers: AtomicUsize,
    /// Times of the last request, and of the last request for a deep read.
    asked: Mutex<(Option<Instant>, Option<Instant>)>,
    woken: Notify,
}

/// A viewer with an open event stream. Dropping it ends its demand for reads.
pub(super) struct Looking {
    interest: Arc<Interest>,
    deep: bool,
}

impl Boards {
    /// Starts the task. It reads only while there is demand.
    pub(super) fn start(zoolock: Zoolock, history: Arc<Mutex<History>>) -> Self {
        let (sender, board) = watch::channel(Arc::default());
        let interest = Arc::<Interest>::default();
        let reading = tokio::spawn(read(zoolock, history, sender, Arc::clone(&interest)));
        Self { board, interest, reading }
    }

    /// Returns the last result if it is fresh, and deep if requested. Otherwise waits for a newer one, at most for `patience`.
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

    /// Returns a receiver of all results. Reading goes on at least until the [`Looking`] is dropped.
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

    /// Returns whether a read is wanted, and whether a deep read is wanted.
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
            // The pages keep showing the last locks, with a warning that they are old.
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

/// Returns the tokens of a cycle, with their locks.
fn edges(deadlock: &Deadlock) -> HashSet<(&str, Option<&str>)> {
    let places = deadlock.edges.iter().flat_map(|edge| [&edge.holds, &edge.waits_for]);
    places.map(|place| (place.lock.as_str(), place.entry.token.as_deref())).collect()
}

/// Waits until the next read. A request for a deep read ends the pause after a read that was not deep.
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
