//! Reads all locks repeatedly, and finds the deadlocks among them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::timeout;
use zoolock::Zoolock;
use zoolock::admin::{Deadlock, Snapshot};
use zoolock::observe::All;

use super::lock::ListedLock;
use super::order::natural_order;
use super::rates::HandOverRates;

/// Number of waiters that the first read describes of each lock. Later reads adapt it to the number of all waiters.
const FIRST_WAITERS: usize = 16;
/// Maximum number of waiters that one read describes. If more locks have waiters, the read describes one waiter of each
/// lock.
const MAX_WAITERS_READ: usize = 2_000;
/// Maximum number of waiters that a read describes of one lock.
const MAX_WAITERS_OF_LOCK: usize = 1_000;
/// Maximum time to read the locks of suspected deadlocks again.
const MAX_SEARCH: Duration = Duration::from_secs(1);

/// All locks as of one read, with their hand-over rates, and the deadlocks among them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LockList {
    /// Sorted by path; numbers in paths are compared as numbers.
    pub(crate) locks: Vec<ListedLock>,
    /// Shared, because a read that could not search repeats those of the read before.
    pub(crate) deadlocks: Arc<[Deadlock]>,
}

impl LockList {
    /// Returns the list of these locks, without rates and deadlocks.
    pub(crate) fn of(mut locks: Vec<Snapshot>) -> LockList {
        locks.sort_unstable_by(|a, b| natural_order(&a.path, &b.path));
        let locks = locks.into_iter().map(|lock| ListedLock { lock, rate: None }).collect();
        LockList { locks, deadlocks: Arc::default() }
    }

    /// Returns the locks without their rates.
    pub(crate) fn snapshots(&self) -> impl Iterator<Item = &Snapshot> {
        self.locks.iter().map(|listed| &listed.lock)
    }

    /// Returns the index of the deadlock that the lock at `path` is part of, if there is one.
    #[cfg(feature = "ui")]
    pub(crate) fn deadlock_at(&self, path: &str) -> Option<usize> {
        self.deadlocks.iter().position(|found| {
            found
                .edges
                .iter()
                .any(|edge| [&edge.holds, &edge.waits_for].iter().any(|place| place.lock == path))
        })
    }

    /// Returns the number of locks with a holder.
    pub(crate) fn held(&self) -> usize {
        self.snapshots().filter(|lock| lock.is_held()).count()
    }

    /// Returns the number of all waiters.
    pub(crate) fn waiting(&self) -> usize {
        self.snapshots().map(|lock| lock.waiting).sum()
    }
}

/// Reads all locks under the root, or under a prefix.
pub(crate) struct ListReader {
    zoolock: Zoolock,
    /// The reads. [`ListReader::take_list`] takes their locks.
    pub(crate) reads: All,
    rates: HandOverRates,
    started: Instant,
    /// The deadlocks of the last search.
    deadlocks: Arc<[Deadlock]>,
}

impl ListReader {
    pub(crate) fn new(zoolock: Zoolock, prefix: Option<&str>) -> ListReader {
        let reads = zoolock.admin().observe(prefix, FIRST_WAITERS);
        let rates = HandOverRates::default();
        ListReader { zoolock, reads, rates, started: Instant::now(), deadlocks: Arc::default() }
    }

    /// Takes the locks of the last read, and searches for deadlocks among them. The search reads the locks of suspected
    /// deadlocks again.
    pub(crate) async fn take_list(&mut self) -> LockList {
        let locks = self.reads.take_locks();
        self.reads.set_max_waiters(waiters_to_read(locks.iter().map(|lock| lock.waiting)));
        if let Ok(Ok(found)) = timeout(MAX_SEARCH, self.zoolock.admin().deadlocks_among(&locks)).await {
            self.deadlocks = found.into();
        }
        self.rates.record_all(self.started.elapsed(), &locks);
        let mut list = LockList { deadlocks: Arc::clone(&self.deadlocks), ..LockList::of(locks) };
        for listed in &mut list.locks {
            listed.rate = self.rates.of(&listed.lock.path);
        }
        list
    }

    /// Records a read of one lock, and returns the lock with its hand-over rate.
    pub(crate) fn record(&mut self, lock: Snapshot) -> ListedLock {
        ListedLock { rate: self.rates.record(self.started.elapsed(), &lock), lock }
    }
}

/// Returns the number of waiters per lock that the next read describes. The search for deadlocks needs all waiters, and
/// each waiter costs a request. `waiting` is the number of waiters of each lock at the last read.
fn waiters_to_read(waiting: impl Iterator<Item = usize> + Clone) -> usize {
    let fits =
        |limit: usize| waiting.clone().map(|count| count.min(limit)).sum::<usize>() <= MAX_WAITERS_READ;
    let (mut low, mut high) = (1, MAX_WAITERS_OF_LOCK);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_to_read_are_limited() {
        let of = |waiting: &[usize]| waiters_to_read(waiting.iter().copied());
        assert_eq!(of(&[]), 1_000);
        assert_eq!(of(&[0, 3, 700]), 1_000);
        assert_eq!(of(&[100_000]), 1_000);
        assert_eq!(of(&[5_000, 5_000, 5_000, 200]), 600);
        assert_eq!(of(&[9; 100_000]), 1);
    }
}
