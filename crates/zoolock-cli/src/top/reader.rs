//! The reader: a task that reads the list or the queue that the screen shows.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use zoolock::observe::{All, Queue, ReadOutcome, ReadTime};
use zoolock::{Error, Snapshot, Zoolock};

use super::lock::LockRow;
use super::model::{ReadPace, ReadResult, ReadScope};
use crate::base::rates::{HandOverRates, HolderRead};
use crate::plan::TopPlan;

/// Number of waiters that are read of each lock in the list. One is enough, because the first
/// waiter has waited longest.
const WAITERS: usize = 1;

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
        let mut all = self.zoolock.observe(prefix.as_deref(), WAITERS).every(*interval);
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
            let contact = tokio::select! {
                contact = next(&mut all, &mut queue) => contact,
                changed = self.instructions.changed() => match changed {
                    // A read in progress continues, unless the subject has changed.
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let result = match (contact, &queue) {
                (Ok(ReadOutcome::Read), None) => {
                    let locks = to_lock_rows(&mut rates, started.elapsed(), all.take_locks(), &service.root);
                    ReadResult::Locks(locks, pace(all.read_time()))
                }
                (Ok(ReadOutcome::Read), Some(queue)) => {
                    let seen = queue.lock().clone();
                    rates.record(started.elapsed(), HolderRead::of(&seen));
                    let lock = LockRow { rate: rates.of(&seen.path), ..LockRow::of(seen, &service.root) };
                    ReadResult::Queue(Box::new(lock), pace(queue.read_time()))
                }
                (Ok(ReadOutcome::Slow), _) => ReadResult::Alive,
                (Ok(ReadOutcome::Silent(why) | ReadOutcome::Unreachable(why)), _) => {
                    ReadResult::NoAnswer(why)
                }
                (Err(error), _) => ReadResult::Refused(error.to_string()),
            };
            if self.results.send(result).await.is_err() {
                return;
            }
        }
    }
}

/// Waits for the next event of the queue, or of the list if no queue is shown.
async fn next(all: &mut All, queue: &mut Option<Queue>) -> Result<ReadOutcome, Error> {
    match queue {
        Some(queue) => queue.next().await,
        None => all.next().await,
    }
}

/// Returns the locks of the list, sorted by path, with their hand-over rates.
fn to_lock_rows(
    rates: &mut HandOverRates,
    now: Duration,
    mut seen: Vec<Snapshot>,
    root: &str,
) -> Vec<LockRow> {
    seen.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    rates.record_all(now, seen.iter().map(HolderRead::of));
    let with_rate = |lock: Snapshot| LockRow { rate: rates.of(&lock.path), ..LockRow::of(lock, root) };
    seen.into_iter().map(with_rate).collect()
}

fn pace(time: ReadTime) -> ReadPace {
    ReadPace { took: time.took, every: time.took + time.pause }
}
