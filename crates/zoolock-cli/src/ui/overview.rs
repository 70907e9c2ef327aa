//! Reads all locks while a page is viewed. The reads take at most a fifth of the time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zoolock::Zoolock;
use zoolock::admin::Snapshot;
use zoolock::observe::ReadOutcome;

use super::clock::now_ms;
use super::news::{News, next_number};
use crate::observe::{ListReader, LockList, ReadFailure};

/// Usual maximum time between the starts of two reads, as a multiple of the duration of a read.
const MAX_CYCLE: u32 = 6;
/// Maximum age of a list that is shown at once. The usual time between two reads is added to it.
const MAX_AGE: Duration = Duration::from_secs(3);

/// All locks as of the last successful read, and the outcome of the last read.
#[derive(Debug, Clone, Default)]
pub(super) struct Overview {
    /// Rises with each read; see [`next_number`]. 0 before the first read.
    pub(super) number: u64,
    /// `None` before the first successful read.
    pub(super) list: Option<Arc<LockList>>,
    /// Start of the last successful read.
    pub(super) seen_ms: u64,
    pub(super) cost: Duration,
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

    /// Returns whether the last read is new enough for a page.
    pub(super) fn is_fresh(&self) -> bool {
        let oldest = now_ms().saturating_sub(MAX_AGE.as_millis() as u64);
        let between_reads = (self.cost * MAX_CYCLE).as_millis() as u64;
        self.number > 0 && self.tried_ms + between_reads >= oldest
    }

    fn snapshots(&self) -> impl Iterator<Item = &Snapshot> {
        self.list.iter().flat_map(|list| list.snapshots())
    }

    /// Returns the number of waiters after which a queue was cut, if a queue was cut.
    pub(super) fn cut_at(&self) -> Option<usize> {
        self.snapshots().filter(|lock| is_cut(lock)).map(|lock| lock.waiters.len()).min()
    }

    /// Returns the number of locks with a part that cannot be read.
    pub(super) fn unread_locks(&self) -> usize {
        self.snapshots().filter(|lock| !lock.unread.is_empty()).count()
    }

    /// Returns whether there is a semaphore of another client library, whose contenders are only counted.
    pub(super) fn has_foreign_semaphore(&self) -> bool {
        self.snapshots().any(|lock| lock.foreign_semaphore.is_some())
    }

    /// Returns whether the last read may lack contenders: a queue was cut, something could not be read, or a
    /// semaphore of another client library was only counted.
    pub(super) fn is_partial(&self) -> bool {
        let is_unread =
            |lock: &Snapshot| !lock.unread.is_empty() || lock.queue().any(|entry| entry.token.is_none());
        self.has_foreign_semaphore() || self.snapshots().any(|lock| is_cut(lock) || is_unread(lock))
    }

    /// Returns the time of the last successful read if a later read has failed. Ages end at that time.
    pub(super) fn stopped_ms(&self) -> Option<u64> {
        self.trouble.as_ref().map(|_| self.seen_ms)
    }
}

/// Returns whether a read left out waiters of this lock. Those of a foreign semaphore are never read.
fn is_cut(lock: &Snapshot) -> bool {
    lock.foreign_semaphore.is_none() && lock.waiters.len() < lock.waiting
}

/// The task that reads all locks, and its last result.
pub(super) struct OverviewReader {
    overview: watch::Receiver<Arc<Overview>>,
    /// Notified by a request for one read, and by a new event stream.
    requested: Arc<Notify>,
    reading: JoinHandle<()>,
}

impl OverviewReader {
    /// Starts the task. The task reads only while there is demand.
    pub(super) fn start(zoolock: Zoolock) -> Self {
        let (sender, overview) = watch::channel(Arc::default());
        let requested = Arc::<Notify>::default();
        let reader = ListReader::new(zoolock, None);
        let reading = tokio::spawn(read_repeatedly(reader, sender, Arc::clone(&requested)));
        Self { overview, requested, reading }
    }

    /// Returns the last result if it is fresh. Otherwise requests a read, and waits for it, at most for `limit`. Monitors
    /// and browsers without scripts have no event stream, so each of their requests costs at most one read.
    pub(super) async fn recent_overview(&self, limit: Duration) -> Arc<Overview> {
        let mut overview = self.overview.clone();
        if !overview.borrow().is_fresh() {
            self.requested.notify_one();
            let _ = timeout(limit, overview.wait_for(|overview| overview.is_fresh())).await;
        }
        Arc::clone(&overview.borrow())
    }

    /// Returns a receiver of all results. Reading goes on while it exists.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<Overview>> {
        let viewer = self.overview.clone();
        self.requested.notify_one();
        viewer
    }
}

impl Drop for OverviewReader {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read_repeatedly(
    mut reader: ListReader,
    sender: watch::Sender<Arc<Overview>>,
    requested: Arc<Notify>,
) {
    loop {
        reader.reads.wait().await;
        // One receiver is in `OverviewReader`. The others belong to viewers.
        if sender.receiver_count() == 1 {
            requested.notified().await;
        }
        let begun_ms = now_ms();
        let failure = loop {
            let outcome = reader.reads.next().await;
            match (&outcome, ReadFailure::of(&outcome)) {
                (Ok(ReadOutcome::Slow), _) => {}
                // The read continues, but the pages already show the outage.
                (Ok(ReadOutcome::Silent(_)), Some(failure)) => {
                    let last = sender.borrow().as_ref().clone();
                    if last.trouble.as_ref() != Some(&failure) {
                        sender.send_replace(Arc::new(last.failed(failure, begun_ms)));
                    }
                }
                (_, failure) => break failure,
            }
        };
        let last = sender.borrow().as_ref().clone();
        let overview = match failure {
            None => Overview {
                number: next_number(last.number),
                list: Some(Arc::new(reader.take_list().await)),
                seen_ms: begun_ms,
                cost: reader.reads.read_time().took,
                tried_ms: begun_ms,
                trouble: None,
            },
            Some(failure) => last.failed(failure, begun_ms),
        };
        sender.send_replace(Arc::new(overview));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    #[test]
    fn cut_queue_is_reported() {
        let waiters = vec![entry("lock-0000000001", "0.2.0")];
        let mut cut = lock("/locks/x", None, waiters);
        let overview = |lock: &Snapshot| Overview {
            list: Some(Arc::new(LockList::of(vec![lock.clone()]))),
            ..Overview::default()
        };
        assert!(overview(&cut).cut_at().is_none() && !overview(&cut).is_partial());
        cut.waiting = 2;
        assert!(overview(&cut).cut_at() == Some(1) && overview(&cut).is_partial());
    }
}
