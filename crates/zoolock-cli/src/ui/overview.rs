//! Reads all locks repeatedly while a page is viewed. The reads take at most a fifth of the time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zoolock::observe::{All, ReadOutcome};
use zoolock::{Deadlock, Snapshot, WaitGraph, Zoolock};

use super::clock::now_ms;
use super::history::HoldHistory;

/// Number of waiters that are read of each lock for the list. A few are enough, because the list
/// shows only the longest wait.
const LIST_WAITERS: usize = 4;
/// Maximum number of waiters of each lock in a deep read, which the wait-for graph and the sessions
/// page need.
pub(super) const DEEP_WAITERS: usize = 1_000;
/// Usual maximum time between the starts of two reads, as a multiple of the duration of a read.
const MAX_CYCLE: u32 = 6;
/// Time for which reading goes on after a request. Clients without an event stream need this time:
/// monitors, and browsers without scripts.
const DEMAND_TIME: Duration = Duration::from_secs(10);
/// Maximum age of a list that is shown at once. The usual time between two reads is added to it.
const MAX_AGE: Duration = Duration::from_secs(3);

/// All locks as of the last successful read, and the outcome of the last read.
#[derive(Debug, Clone, Default)]
pub(super) struct Overview {
    /// Number of reads so far.
    pub(super) number: u64,
    /// `None` before the first successful read.
    pub(super) locks: Option<Arc<LockList>>,
    /// Start of the last successful read.
    pub(super) seen_ms: u64,
    pub(super) cost: Duration,
    /// True if up to [`DEEP_WAITERS`] waiters of each lock were read.
    pub(super) deep: bool,
    /// The wait-for graph, if the read was deep.
    pub(super) waits: Option<Arc<WaitGraphRead>>,
    /// Start of the last read.
    pub(super) tried_ms: u64,
    /// Error of the last read, if it failed.
    pub(super) trouble: Option<String>,
}

/// All locks, with their hand-over rates.
#[derive(Debug, Default)]
pub(super) struct LockList {
    /// Sorted by path.
    pub(super) locks: Vec<Snapshot>,
    /// Hand-overs per second of each lock, and the time at which its longest waiter joined the
    /// queue. The order is that of `locks`.
    rates_and_waits: Vec<(Option<f64>, Option<u64>)>,
}

/// A lock of the list.
#[derive(Debug, Clone, Copy)]
pub(super) struct LockListRow<'a> {
    pub(super) lock: &'a Snapshot,
    pub(super) rate: Option<f64>,
    pub(super) waits_since_ms: Option<u64>,
}

impl LockList {
    pub(super) fn rows(&self) -> impl Iterator<Item = LockListRow<'_>> {
        let rates_and_waits = self.rates_and_waits.iter();
        self.locks.iter().zip(rates_and_waits).map(|(lock, &(rate, waits_since_ms))| LockListRow {
            lock,
            rate,
            waits_since_ms,
        })
    }

    /// Returns a list of locks with these rates.
    #[cfg(test)]
    pub(super) fn of(locks: Vec<(Snapshot, Option<f64>)>) -> Self {
        let (locks, rates): (Vec<_>, Vec<_>) = locks.into_iter().unzip();
        let rates_and_waits = locks.iter().zip(rates).map(|(lock, rate)| (rate, waits_since(lock))).collect();
        Self { locks, rates_and_waits }
    }
}

fn waits_since(lock: &Snapshot) -> Option<u64> {
    lock.waiters.iter().filter_map(|waiter| waiter.since_ms).min()
}

/// The wait-for graph and its deadlocks.
#[derive(Debug)]
pub(super) struct WaitGraphRead {
    pub(super) graph: WaitGraph,
    pub(super) deadlocks: Vec<SeenDeadlock>,
}

/// A deadlock in the last read.
#[derive(Debug)]
pub(super) struct SeenDeadlock {
    pub(super) deadlock: Deadlock,
    /// True if the previous read showed this deadlock, too. Locks change hands while they are read
    /// one after another. So one read may show a cycle that never existed, but the next read does
    /// not show it again.
    pub(super) seen_twice: bool,
}

/// The task that reads all locks, and its last result.
pub(super) struct OverviewReader {
    overview: watch::Receiver<Arc<Overview>>,
    demand: Arc<ReadDemand>,
    reading: JoinHandle<()>,
}

/// The demand for reads: open event streams, and recent requests.
#[derive(Default)]
struct ReadDemand {
    viewers: AtomicUsize,
    deep_viewers: AtomicUsize,
    /// Times of the last request, and of the last request for a deep read.
    requested: Mutex<(Option<Instant>, Option<Instant>)>,
    woken: Notify,
}

/// A viewer with an open event stream. Dropping this value ends the viewer's demand for reads.
pub(super) struct ViewerGuard {
    demand: Arc<ReadDemand>,
    deep: bool,
}

impl OverviewReader {
    /// Starts the task. The task reads only while there is demand.
    pub(super) fn start(zoolock: Zoolock, history: Arc<Mutex<HoldHistory>>) -> Self {
        let (sender, overview) = watch::channel(Arc::default());
        let demand = Arc::<ReadDemand>::default();
        let reading = tokio::spawn(read_repeatedly(zoolock, history, sender, Arc::clone(&demand)));
        Self { overview, demand, reading }
    }

    /// Returns the last result if it is fresh, and deep if `deep` is set. Otherwise waits for such
    /// a result, at most for `limit`.
    pub(super) async fn recent_overview(&self, deep: bool, limit: Duration) -> Arc<Overview> {
        self.demand.record_request(deep);
        let oldest = now_ms().saturating_sub(MAX_AGE.as_millis() as u64);
        let mut overview = self.overview.clone();
        let good = |overview: &Arc<Overview>| {
            let between_reads = (overview.cost * MAX_CYCLE).as_millis() as u64;
            let fresh = overview.number > 0 && overview.tried_ms + between_reads >= oldest;
            fresh && (overview.trouble.is_some() || overview.deep || !deep)
        };
        let _ = timeout(limit, overview.wait_for(good)).await;
        Arc::clone(&overview.borrow())
    }

    /// Returns a receiver of all results. Reading continues at least until the [`ViewerGuard`] is dropped.
    pub(super) fn watch(&self, deep: bool) -> (watch::Receiver<Arc<Overview>>, ViewerGuard) {
        self.demand.record_request(deep);
        let demand = Arc::clone(&self.demand);
        demand.viewers(deep).fetch_add(1, Ordering::Relaxed);
        (self.overview.clone(), ViewerGuard { demand, deep })
    }
}

impl Drop for OverviewReader {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Drop for ViewerGuard {
    fn drop(&mut self) {
        self.demand.viewers(self.deep).fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReadDemand {
    fn viewers(&self, deep: bool) -> &AtomicUsize {
        if deep { &self.deep_viewers } else { &self.viewers }
    }

    fn record_request(&self, deep: bool) {
        let mut requested = self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        requested.0 = Some(Instant::now());
        if deep {
            requested.1 = requested.0;
        }
        drop(requested);
        self.woken.notify_one();
    }

    /// Returns whether a read is wanted, and whether a deep read is wanted.
    fn wanted_reads(&self) -> (bool, bool) {
        let requested = *self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < DEMAND_TIME);
        let deep = is_recent(requested.1) || self.deep_viewers.load(Ordering::Relaxed) > 0;
        (deep || is_recent(requested.0) || self.viewers.load(Ordering::Relaxed) > 0, deep)
    }
}

async fn read_repeatedly(
    zoolock: Zoolock,
    history: Arc<Mutex<HoldHistory>>,
    sender: watch::Sender<Arc<Overview>>,
    demand: Arc<ReadDemand>,
) {
    let mut all = zoolock.observe(None, LIST_WAITERS);
    loop {
        let (is_wanted, deep) = demand.wanted_reads();
        if !is_wanted {
            demand.woken.notified().await;
            continue;
        }
        all.set_max_waiters(if deep { DEEP_WAITERS } else { LIST_WAITERS });
        all.read_now();
        let begun_ms = now_ms();
        let found = loop {
            match all.next().await {
                Ok(ReadOutcome::Read) => break Ok(all.take_locks()),
                Ok(ReadOutcome::Unreachable(why)) => break Err(why),
                Err(error) => break Err(error.to_string()),
                Ok(ReadOutcome::Slow | ReadOutcome::Silent(_)) => {}
            }
        };
        let cost = all.read_time().took;
        let last = sender.borrow().as_ref().clone();
        let number = last.number + 1;
        let overview = match found {
            Ok(locks) => {
                let waits = deep.then(|| Arc::new(WaitGraphRead::of(&locks, last.waits.as_deref())));
                let locks = Some(Arc::new(lock_list(locks, &history, begun_ms)));
                Overview {
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
            Err(why) => Overview { number, tried_ms: begun_ms, trouble: Some(why), ..last },
        };
        sender.send_replace(Arc::new(overview));
        wait_for_next_read(&mut all, deep, &demand).await;
    }
}

impl WaitGraphRead {
    fn of(locks: &[Snapshot], last: Option<&WaitGraphRead>) -> Self {
        let graph = WaitGraph::of(locks);
        let seen = |deadlock: Deadlock| {
            let edges = edges(&deadlock);
            let seen_twice =
                last.is_some_and(|last| last.deadlocks.iter().any(|l| self::edges(&l.deadlock) == edges));
            SeenDeadlock { deadlock, seen_twice }
        };
        let deadlocks = graph.deadlocks().into_iter().map(seen).collect();
        Self { graph, deadlocks }
    }
}

/// Returns the locks and tokens of the contenders in a cycle. The caller compares them to find the
/// same cycle in two reads.
fn edges(deadlock: &Deadlock) -> HashSet<(&str, Option<&str>)> {
    let places = deadlock.edges.iter().flat_map(|edge| [&edge.holds, &edge.waits_for]);
    places.map(|place| (place.lock.as_str(), place.entry.token.as_deref())).collect()
}

/// Waits until the next read. A request for a deep read ends the pause after a read that was not deep.
async fn wait_for_next_read(all: &mut All, deep: bool, demand: &ReadDemand) {
    let sooner = async {
        while deep || !demand.wanted_reads().1 {
            demand.woken.notified().await;
        }
    };
    tokio::select! {
        () = all.wait() => {}
        () = sooner => {}
    }
}

fn lock_list(mut locks: Vec<Snapshot>, history: &Mutex<HoldHistory>, begun_ms: u64) -> LockList {
    locks.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let now = now_ms();
    let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
    let present: HashSet<&str> = locks.iter().map(|lock| lock.path.as_str()).collect();
    history.end_missing(&present, begun_ms, now);
    for lock in &locks {
        history.record(lock, begun_ms, now);
    }
    let rates_and_waits =
        locks.iter().map(|lock| (history.rate(&lock.path, now), waits_since(lock))).collect();
    drop(history);
    LockList { locks, rates_and_waits }
}
