//! The reader: a task that reads the list and the queue that the screen shows, and finds deadlocks.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use zoolock::observe::{Queue, ReadOutcome, ReadTime};
use zoolock::{Deadlock, Error, Snapshot, Zoolock};

use super::deadlocks::{DeadlockRow, waiters_to_read};
use super::lock::LockRow;
use super::model::{ReadPace, ReadResult, ReadScope};
use crate::base::rates::{HandOverRates, HolderRead};
use crate::plan::TopPlan;
use crate::plan::selection::natural_order;
use crate::render::history::{complete_previous, format_line};

/// Number of waiters that the first read of the list describes of each lock. Later reads adapt it to the number of all
/// waiters.
const FIRST_WAITERS: usize = 16;
/// Maximum duration of a read of the list that the reader makes in addition, to find deadlocks while the screen shows a
/// queue.
const CHEAP_READ: Duration = Duration::from_millis(200);

/// Maximum time to read the locks of deadlocks again, or the history of a lock.
const MAX_SEARCH: Duration = Duration::from_secs(1);

/// Instructions from the event loop to the reader.
#[derive(Debug, Clone)]
pub(super) struct Instructions {
    pub(super) subject: ReadScope,
    /// Counter of requests for an immediate read.
    pub(super) read_requests: u64,
}

/// The reader of the list or the queue that the screen shows.
pub(super) struct ScreenReader {
    pub(super) plan: TopPlan,
    pub(super) zoolock: Zoolock,
    pub(super) instructions: watch::Receiver<Instructions>,
    pub(super) results: mpsc::Sender<ReadResult>,
}

impl ScreenReader {
    /// Reads until the sender of instructions is dropped.
    pub(super) async fn run(mut self) {
        let (mut rates, started) = (HandOverRates::default(), Instant::now());
        let TopPlan { service, prefix, interval, .. } = &self.plan;
        let mut all = self.zoolock.observe(prefix.as_deref(), FIRST_WAITERS).every(*interval);
        let mut queue: Option<Queue> = None;
        let mut last = Instructions { subject: ReadScope::All, read_requests: 0 };
        loop {
            let new = self.instructions.borrow_and_update().clone();
            if new.subject != last.subject {
                // The screen shows another subject now, so the read in progress ends. The time at
                // which the list is read next does not change.
                all.cancel_read();
                queue = match &new.subject {
                    ReadScope::All => None,
                    ReadScope::One(path) => {
                        let poller = self.zoolock.mutex(path).poller(usize::MAX).with_rereads();
                        Some(Queue::polled(poller, *interval))
                    }
                };
            }
            if new.read_requests != last.read_requests {
                match &mut queue {
                    Some(queue) => queue.read_now(),
                    None => all.read_now(),
                }
            }
            last = new;
            let has_queue = queue.is_some();
            let is_cheap = all.read_time().took <= CHEAP_READ;
            let (contact, of_queue) = tokio::select! {
                contact = next(&mut queue), if has_queue => (contact, true),
                contact = all.next(), if !has_queue || is_cheap => (contact, false),
                changed = self.instructions.changed() => match changed {
                    // A read in progress continues, unless the subject has changed.
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            // While the screen shows a queue, only the reads of the queue tell about failures.
            if has_queue && !of_queue && !matches!(contact, Ok(ReadOutcome::Read)) {
                continue;
            }
            let mut found_deadlocks = None;
            let mut found = Vec::new();
            if matches!(contact, Ok(ReadOutcome::Read)) && !of_queue {
                found = all.take_locks();
                all.set_max_waiters(waiters_to_read(found.iter().map(|lock| lock.waiting)));
                // After a failure, the screen keeps the deadlocks of the last read.
                let among = timeout(MAX_SEARCH, self.zoolock.deadlocks_among(&found)).await;
                let rows = |deadlocks: Vec<Deadlock>| {
                    deadlocks.iter().map(|deadlock| DeadlockRow::of(deadlock, &service.root)).collect()
                };
                found_deadlocks = among.ok().and_then(Result::ok).map(rows);
            }
            let mut history = Vec::new();
            if let (Ok(ReadOutcome::Read), ReadScope::One(path), true) = (&contact, &last.subject, of_queue) {
                let events = timeout(MAX_SEARCH, self.zoolock.history(Some(path), 1)).await;
                history = events.ok().and_then(Result::ok).unwrap_or_default();
            }
            let result = match (contact, queue.as_ref().filter(|_| of_queue)) {
                (Ok(ReadOutcome::Read), None) => {
                    let locks = to_lock_rows(&mut rates, started.elapsed(), found, &service.root);
                    ReadResult::Locks(locks, pace(all.read_time()))
                }
                (Ok(ReadOutcome::Read), Some(queue)) => {
                    let mut seen = queue.lock().clone();
                    complete_previous(&mut seen, &history);
                    let last_event = history.first().map(format_line);
                    rates.record(started.elapsed(), HolderRead::of(&seen));
                    let rate = rates.of(&seen.path);
                    let lock = LockRow { rate, last_event, ..LockRow::of(seen, &service.root) };
                    ReadResult::Queue(Box::new(lock), pace(queue.read_time()))
                }
                (Ok(ReadOutcome::Slow), _) => ReadResult::Alive,
                (Ok(ReadOutcome::Silent(why) | ReadOutcome::Unreachable(why)), _) => {
                    ReadResult::NoAnswer(why)
                }
                (Err(error), _) => ReadResult::Refused(error.to_string()),
            };
            let deadlock_result = found_deadlocks.map(ReadResult::Deadlocks);
            for result in deadlock_result.into_iter().chain([result]) {
                if self.results.send(result).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Waits for the next event of the queue, for ever if no queue is shown.
async fn next(queue: &mut Option<Queue>) -> Result<ReadOutcome, Error> {
    match queue {
        Some(queue) => queue.next().await,
        None => std::future::pending().await,
    }
}

/// Returns the locks of the list, sorted by path, with their hand-over rates.
fn to_lock_rows(
    rates: &mut HandOverRates,
    now: Duration,
    mut seen: Vec<Snapshot>,
    root: &str,
) -> Vec<LockRow> {
    seen.sort_unstable_by(|a, b| natural_order(&a.path, &b.path));
    rates.record_all(now, seen.iter().map(HolderRead::of));
    let with_rate = |lock: Snapshot| LockRow { rate: rates.of(&lock.path), ..LockRow::of(lock, root) };
    seen.into_iter().map(with_rate).collect()
}

fn pace(time: ReadTime) -> ReadPace {
    ReadPace { took: time.took, every: time.took + time.pause }
}
