//! The reader: a task that reads the list and the queue that the screen shows, and finds deadlocks.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use zoolock::observe::{Queue, ReadOutcome, ReadTime};
use zoolock::{Error, Zoolock};

use super::model::{ReadPace, ReadResult, ReadScope};
use crate::args::TopArgs;
use crate::observe::{ListReader, ReadFailure};
use crate::render::history::{complete_previous, format_line};

/// Maximum duration of a read of the list that the reader makes in addition, to find deadlocks while the screen shows a
/// queue.
const CHEAP_READ: Duration = Duration::from_millis(200);

/// Maximum time to read the history of a lock.
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
    pub(super) args: TopArgs,
    pub(super) zoolock: Zoolock,
    pub(super) instructions: watch::Receiver<Instructions>,
    pub(super) results: mpsc::Sender<ReadResult>,
}

impl ScreenReader {
    /// Reads until the sender of instructions is dropped.
    pub(super) async fn run(mut self) {
        let TopArgs { prefix, interval, .. } = &self.args;
        let mut all = ListReader::new(self.zoolock.clone(), prefix.as_deref());
        all.reads = all.reads.every(*interval);
        let mut queue: Option<Queue> = None;
        let mut last = Instructions { subject: ReadScope::All, read_requests: 0 };
        loop {
            let new = self.instructions.borrow_and_update().clone();
            if new.subject != last.subject {
                // The screen shows another subject now, so the read in progress ends. The time at
                // which the list is read next does not change.
                all.reads.cancel_read();
                queue = match &new.subject {
                    ReadScope::All => None,
                    ReadScope::One(path) => {
                        let poller = self.zoolock.admin().poller(path, usize::MAX).with_rereads();
                        Some(Queue::polled(poller, *interval))
                    }
                };
            }
            if new.read_requests != last.read_requests {
                match &mut queue {
                    Some(queue) => queue.read_now(),
                    None => all.reads.read_now(),
                }
            }
            last = new;
            let has_queue = queue.is_some();
            let is_cheap = all.reads.read_time().took <= CHEAP_READ;
            let (contact, of_queue) = tokio::select! {
                contact = next(&mut queue), if has_queue => (contact, true),
                contact = all.reads.next(), if !has_queue || is_cheap => (contact, false),
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
            let seen =
                queue.as_ref().filter(|_| of_queue).map(|queue| (queue.lock().clone(), queue.read_time()));
            let result = match (ReadFailure::of(&contact), seen) {
                (Some(failure), _) => ReadResult::Failed(failure),
                (None, _) if matches!(contact, Ok(ReadOutcome::Slow)) => ReadResult::Alive,
                (None, None) => ReadResult::Locks(all.take_list().await, pace(all.reads.read_time())),
                (None, Some((mut lock, time))) => {
                    let events = timeout(MAX_SEARCH, self.zoolock.admin().history(Some(&lock.path), 1)).await;
                    let history = events.ok().and_then(Result::ok).unwrap_or_default();
                    complete_previous(&mut lock, &history);
                    let last_event = history.first().map(format_line);
                    ReadResult::Queue(Box::new(all.record(lock)), last_event, pace(time))
                }
            };
            if self.results.send(result).await.is_err() {
                return;
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

fn pace(time: ReadTime) -> ReadPace {
    ReadPace { took: time.took, every: time.took + time.pause }
}
