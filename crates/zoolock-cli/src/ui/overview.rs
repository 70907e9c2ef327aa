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
use super::news::{News, next_number};
use super::read_failure::ReadFailure;
use crate::base::rates::{HandOverRates, HolderRead};
use crate::verbs::deadlocks::is_certain;

/// Number of waiters of each lock in a read of the heads. A few are enough for the longest wait.
const HEAD_WAITERS: usize = 4;
/// Maximum number of waiters of each lock in a read for pages.
const MAX_WAITERS: usize = 1_000;
/// Maximum number of waiters of all locks in a read for pages, beyond the heads. Each one costs a request.
const WAITER_BUDGET: usize = 5_000;
/// Usual maximum time between the starts of two reads, as a multiple of the duration of a read.
const MAX_CYCLE: u32 = 6;
/// Time for which reading goes on after a request. Clients without an event stream need this time:
/// monitors, and browsers without scripts.
const DEMAND_TIME: Duration = Duration::from_secs(10);
/// Maximum age of a list that is shown at once. The usual time between two reads is added to it.
const MAX_AGE: Duration = Duration::from_secs(3);

/// The waiters that a read of all locks includes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReadDepth {
    /// The first [`HEAD_WAITERS`] of each lock, for metrics.
    #[default]
    Heads,
    /// As many waiters of each lock as fit into [`WAITER_BUDGET`], for the list and the deadlocks.
    Budget,
}

/// All locks as of the last successful read, and the outcome of the last read.
#[derive(Debug, Clone, Default)]
pub(super) struct Overview {
    /// Rises with each read; see [`next_number`]. 0 before the first read.
    pub(super) number: u64,
    /// `None` before the first successful read.
    pub(super) locks: Option<Arc<LockList>>,
    /// Start of the last successful read.
    pub(super) seen_ms: u64,
    pub(super) cost: Duration,
    /// Depth of the last successful read.
    pub(super) depth: ReadDepth,
    /// The wait-for graph of the contenders that were read. `None` after a read of the heads.
    pub(super) waits: Option<Arc<WaitGraphRead>>,
    /// Start of the last read.
    pub(super) tried_ms: u64,
    /// Failure of the last read.
    pub(super) trouble: Option<ReadFailure>,
}

impl Overview {
    /// Returns the result of a failed read. The pages keep showing the last locks, with a warning that they are old.
    fn failed(self, failure: ReadFailure, begun_ms: u64) -> Overview {
        Overview { number: next_number(self.number), tried_ms: begun_ms, trouble: Some(failure), ..self }
    }

    /// Returns the data for the script of a page that shows this result.
    pub(super) fn news(&self) -> News {
        News { events: "/events".to_owned(), number: self.number, is_outage: self.trouble.is_some() }
    }

    /// Returns the number of waiters after which a queue was cut, if a queue was cut.
    pub(super) fn cut_at(&self) -> Option<usize> {
        let locks = self.locks.iter().flat_map(|list| &list.locks);
        locks.filter(|lock| is_cut(lock)).map(|lock| lock.waiters.len()).min()
    }

    /// Returns the number of locks with a part that cannot be read.
    pub(super) fn unread_locks(&self) -> usize {
        let locks = self.locks.iter().flat_map(|list| &list.locks);
        locks.filter(|lock| !lock.unread.is_empty()).count()
    }

    /// Returns whether the last read may lack contenders: a queue was cut, something could not be read, or a
    /// semaphore of another client library was only counted.
    pub(super) fn is_partial(&self) -> bool {
        let is_unread =
            |lock: &Snapshot| !lock.unread.is_empty() || lock.queue().any(|entry| entry.token.is_none());
        let mut locks = self.locks.iter().flat_map(|list| &list.locks);
        locks.any(|lock| is_cut(lock) || is_unread(lock) || lock.foreign_semaphore.is_some())
    }

    /// Returns the time of the last successful read if a later read has failed. Ages end at that time.
    pub(super) fn stopped_ms(&self) -> Option<u64> {
        self.trouble.as_ref().map(|_| self.seen_ms)
    }
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

impl SeenDeadlock {
    /// Returns whether this was a deadlock at the last read. Otherwise it is only possible.
    pub(super) fn is_sure(&self) -> bool {
        self.seen_twice && is_certain(&self.deadlock)
    }
}

/// The task that reads all locks, and its last result.
pub(super) struct OverviewReader {
    overview: watch::Receiver<Arc<Overview>>,
    demand: Arc<ReadDemand>,
    reading: JoinHandle<()>,
}

/// The demand for reads of each depth: open event streams, and recent requests.
#[derive(Default)]
struct ReadDemand {
    /// Number of event streams. Their pages need [`ReadDepth::Budget`].
    viewers: AtomicUsize,
    /// Time of the last request, by depth.
    requested: Mutex<[Option<Instant>; 2]>,
    woken: Notify,
}

/// A viewer with an open event stream. Dropping this value ends the viewer's demand for reads.
pub(super) struct ViewerGuard {
    demand: Arc<ReadDemand>,
}

impl OverviewReader {
    /// Starts the task. The task reads only while there is demand.
    pub(super) fn start(zoolock: Zoolock) -> Self {
        let (sender, overview) = watch::channel(Arc::default());
        let demand = Arc::<ReadDemand>::default();
        let reading = tokio::spawn(read_repeatedly(zoolock, sender, Arc::clone(&demand)));
        Self { overview, demand, reading }
    }

    /// Returns the last result if it is fresh and has at least this depth. Otherwise waits for such
    /// a result, at most for `limit`.
    pub(super) async fn recent_overview(&self, depth: ReadDepth, limit: Duration) -> Arc<Overview> {
        self.demand.record_request(depth);
        let oldest = now_ms().saturating_sub(MAX_AGE.as_millis() as u64);
        let mut overview = self.overview.clone();
        let good = |overview: &Arc<Overview>| {
            let between_reads = (overview.cost * MAX_CYCLE).as_millis() as u64;
            let fresh = overview.number > 0 && overview.tried_ms + between_reads >= oldest;
            fresh && (overview.trouble.is_some() || overview.depth >= depth)
        };
        let _ = timeout(limit, overview.wait_for(good)).await;
        Arc::clone(&overview.borrow())
    }

    /// Returns a receiver of all results. Reading continues at least until the [`ViewerGuard`] is dropped.
    pub(super) fn watch(&self) -> (watch::Receiver<Arc<Overview>>, ViewerGuard) {
        self.demand.record_request(ReadDepth::Budget);
        let demand = Arc::clone(&self.demand);
        demand.viewers.fetch_add(1, Ordering::Relaxed);
        (self.overview.clone(), ViewerGuard { demand })
    }
}

impl Drop for OverviewReader {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Drop for ViewerGuard {
    fn drop(&mut self) {
        self.demand.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ReadDemand {
    fn record_request(&self, depth: ReadDepth) {
        let mut requested = self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        requested[depth as usize] = Some(Instant::now());
        drop(requested);
        self.woken.notify_one();
    }

    /// Returns the depth of the next read. `None` if no read is wanted.
    fn wanted_depth(&self) -> Option<ReadDepth> {
        let requested = *self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        if self.viewers.load(Ordering::Relaxed) > 0 {
            return Some(ReadDepth::Budget);
        }
        let is_wanted =
            |depth: &ReadDepth| requested[*depth as usize].is_some_and(|at| at.elapsed() < DEMAND_TIME);
        [ReadDepth::Budget, ReadDepth::Heads].into_iter().find(is_wanted)
    }
}

async fn read_repeatedly(zoolock: Zoolock, sender: watch::Sender<Arc<Overview>>, demand: Arc<ReadDemand>) {
    let mut all = zoolock.observe(None, HEAD_WAITERS);
    let (mut rates, started) = (HandOverRates::default(), Instant::now());
    loop {
        let Some(depth) = demand.wanted_depth() else {
            demand.woken.notified().await;
            continue;
        };
        let last_locks = sender.borrow().locks.clone();
        all.set_max_waiters(max_waiters(depth, last_locks.as_ref().map(|list| &list.locks[..])));
        all.read_now();
        let begun_ms = now_ms();
        let found = loop {
            match all.next().await {
                Ok(ReadOutcome::Read) => break Ok(all.take_locks()),
                Ok(ReadOutcome::Unreachable(why)) => break Err(ReadFailure::Unreachable(why)),
                Err(error) => break Err(ReadFailure::Other(error.to_string())),
                // The read continues, but the pages already show the outage.
                Ok(ReadOutcome::Silent(why)) => {
                    let failure = ReadFailure::Unreachable(why);
                    let last = sender.borrow().as_ref().clone();
                    if last.trouble.as_ref() != Some(&failure) {
                        sender.send_replace(Arc::new(last.failed(failure, begun_ms)));
                    }
                }
                Ok(ReadOutcome::Slow) => {}
            }
        };
        let cost = all.read_time().took;
        let last = sender.borrow().as_ref().clone();
        let number = next_number(last.number);
        let overview = match found {
            Ok(locks) => {
                let waits = (depth > ReadDepth::Heads)
                    .then(|| Arc::new(WaitGraphRead::of(&locks, last.waits.as_deref())));
                let locks = Some(Arc::new(lock_list(locks, &mut rates, started.elapsed())));
                Overview {
                    number,
                    locks,
                    seen_ms: begun_ms,
                    cost,
                    depth,
                    waits,
                    tried_ms: begun_ms,
                    trouble: None,
                }
            }
            Err(failure) => last.failed(failure, begun_ms),
        };
        let depth = overview.depth.max(depth);
        sender.send_replace(Arc::new(overview));
        wait_for_next_read(&mut all, depth, &demand).await;
    }
}

/// Returns the maximum number of waiters of each lock that the next read includes. `last` are the locks of the last read.
fn max_waiters(depth: ReadDepth, last: Option<&[Snapshot]>) -> usize {
    let (ReadDepth::Budget, Some(last)) = (depth, last) else { return HEAD_WAITERS };
    let fits = |limit: usize| {
        let read = |lock: &Snapshot| lock.waiting.min(limit).saturating_sub(HEAD_WAITERS);
        last.iter().map(read).sum::<usize>() <= WAITER_BUDGET
    };
    if fits(MAX_WAITERS) {
        return MAX_WAITERS;
    }
    // `low` fits, and `high` does not.
    let (mut low, mut high) = (HEAD_WAITERS, MAX_WAITERS);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

/// Returns whether a read left out waiters of this lock. Those of a foreign semaphore are never read.
fn is_cut(lock: &Snapshot) -> bool {
    lock.foreign_semaphore.is_none() && lock.waiters.len() < lock.waiting
}

impl WaitGraphRead {
    /// Builds the graph of these locks. `last` is the graph of the previous read.
    pub(super) fn of(locks: &[Snapshot], last: Option<&WaitGraphRead>) -> Self {
        // A lock without waiters is part of no wait.
        let awaited: Vec<Snapshot> = locks.iter().filter(|lock| !lock.waiters.is_empty()).cloned().collect();
        let graph = WaitGraph::of(&awaited);
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

/// Waits until the next read. A request for a deeper read ends the pause.
async fn wait_for_next_read(all: &mut All, depth: ReadDepth, demand: &ReadDemand) {
    let sooner = async {
        while demand.wanted_depth() <= Some(depth) {
            demand.woken.notified().await;
        }
    };
    tokio::select! {
        () = all.wait() => {}
        () = sooner => {}
    }
}

/// Returns the list of these locks, and records the read in `rates`. `now` comes from a monotonic clock.
fn lock_list(mut locks: Vec<Snapshot>, rates: &mut HandOverRates, now: Duration) -> LockList {
    locks.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    rates.record_all(now, locks.iter().map(HolderRead::of));
    let rates_and_waits = locks.iter().map(|lock| (rates.of(&lock.path), waits_since(lock))).collect();
    LockList { locks, rates_and_waits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    fn waited_for(waiting: usize) -> Snapshot {
        let mut lock = lock("/locks/x", Some(entry("lock-0000000000", "0.1.0")), vec![]);
        lock.waiting = waiting;
        lock
    }

    #[test]
    fn list_reads_all_waiters_within_budget() {
        let of = |locks: &[Snapshot]| max_waiters(ReadDepth::Budget, Some(locks));
        assert_eq!(of(&[waited_for(3), waited_for(1_000)]), MAX_WAITERS);
        let many = vec![waited_for(1_000); 100];
        assert_eq!(of(&many), HEAD_WAITERS + WAITER_BUDGET / 100);
        assert_eq!(of(&vec![waited_for(1_000); 2 * WAITER_BUDGET]), HEAD_WAITERS);
    }

    #[test]
    fn demand_determines_read_depth() {
        let demand = Arc::<ReadDemand>::default();
        assert_eq!(demand.wanted_depth(), None);
        demand.record_request(ReadDepth::Heads);
        assert_eq!(demand.wanted_depth(), Some(ReadDepth::Heads));
        demand.viewers.fetch_add(1, Ordering::Relaxed);
        assert_eq!(demand.wanted_depth(), Some(ReadDepth::Budget));
        drop(ViewerGuard { demand: Arc::clone(&demand) });
        assert_eq!(demand.wanted_depth(), Some(ReadDepth::Heads));
        demand.record_request(ReadDepth::Budget);
        assert_eq!(demand.wanted_depth(), Some(ReadDepth::Budget));
    }

    #[test]
    fn cut_queue_is_reported() {
        let waiters = vec![entry("lock-0000000001", "0.2.0")];
        let mut cut = lock("/locks/x", None, waiters);
        let overview = |lock: &Snapshot| Overview {
            locks: Some(Arc::new(LockList::of(vec![(lock.clone(), None)]))),
            ..Overview::default()
        };
        assert!(overview(&cut).cut_at().is_none() && !overview(&cut).is_partial());
        cut.waiting = 2;
        assert!(overview(&cut).cut_at() == Some(1) && overview(&cut).is_partial());
    }
}
