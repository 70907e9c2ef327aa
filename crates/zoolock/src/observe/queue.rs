//! A view of one queue.

use std::time::Duration;

use super::diff::{Diff, ReadEnd, Tracker};
use super::reads::{ReadLoop, ReadOutcome, ReadTime};
use super::watch::LockWatch;
use crate::admin::snapshot::{LockPoller, PolledSnapshot, Snapshot};
use crate::base::error::Error;

/// Minimum pause after a read of a watched queue. A hand-over changes several znodes, and one read then covers all
/// these changes.
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Pause between two reads of a watched queue as long as the watch cannot be set, or is not set
/// yet.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// Pause between two reads of a watched queue while the watch is set and has no event. The read
/// after the pause finds a change whose event was lost.
const WATCHED_INTERVAL: Duration = Duration::from_secs(2);

/// A live view of one queue.
pub struct Queue {
    /// `None` while a read is in progress, because the read owns the poller.
    poller: Option<LockPoller>,
    reads: ReadLoop<(LockPoller, Result<PolledSnapshot, Error>)>,
    /// `None` if the queue is not watched.
    watch: Option<LockWatch>,
    /// Set if the lock may have changed since the start of the last read.
    is_changed: bool,
    tracker: Tracker,
    diffs: Vec<Diff>,
}

impl Queue {
    /// Returns a view that reads after each watch event, and at least every two seconds. On a
    /// server before ZooKeeper 3.6, and until the watch is set, the view reads every 400 ms.
    pub fn watched(poller: LockPoller) -> Queue {
        let watch = poller.lock().directory().ok().map(LockWatch::new);
        Queue::new(poller, Duration::ZERO, MIN_PAUSE, watch)
    }

    /// Returns a view that begins a read every `interval`. The pause after a read is still at least four times as long
    /// as the read.
    pub fn polled(poller: LockPoller, interval: Duration) -> Queue {
        Queue::new(poller, interval, Duration::ZERO, None)
    }

    fn new(poller: LockPoller, interval: Duration, pause: Duration, watch: Option<LockWatch>) -> Queue {
        let reads = ReadLoop::new(poller.lock().context.clone(), interval, pause);
        let tracker = Tracker::new(poller.lock().path());
        Queue { poller: Some(poller), reads, watch, is_changed: true, tracker, diffs: Vec::new() }
    }

    /// Waits until the next read is due, and reads. Dropping the future does not end a read in progress: the next call
    /// continues it.
    ///
    /// # Errors
    /// Fails as [`Admin::snapshot`](crate::Admin::snapshot) does, but never with
    /// [`Error::Unavailable`]: an outage is [`ReadOutcome::Unreachable`] instead. The view can be used
    /// after an error.
    pub async fn next(&mut self) -> Result<ReadOutcome, Error> {
        if self.reads.reading.is_none() {
            self.wait().await;
            let mut poller = self.poller.take().expect("no read is in progress");
            self.is_changed = false;
            self.reads.start(async move {
                let snapshot = poller.snapshot().await;
                (poller, snapshot)
            });
        }
        let outcome = match self.reads.finish().await {
            Err(contact) => Ok(contact),
            Ok((poller, snapshot)) => {
                self.poller = Some(poller);
                match snapshot {
                    Ok(PolledSnapshot { lock, made, .. }) => {
                        self.diffs = self.tracker.update(lock, made, ReadEnd::now());
                        Ok(ReadOutcome::Read)
                    }
                    Err(error) => {
                        // Does not wait for a watch event, because this change is still unread.
                        self.is_changed = true;
                        self.reads.fail(error)
                    }
                }
            }
        };
        if let Ok(ReadOutcome::Silent(why) | ReadOutcome::Unreachable(why)) = &outcome {
            self.diffs = self.tracker.record_failed_read(why, ReadEnd::now()).into_iter().collect();
        }
        outcome
    }

    async fn wait(&mut self) {
        if !self.is_changed && !self.reads.is_urgent {
            let interval = match &self.watch {
                Some(watch) if watch.is_set() => WATCHED_INTERVAL,
                Some(_) => POLL_INTERVAL,
                None => Duration::ZERO,
            };
            let ended = self.reads.time.begun + self.reads.time.took;
            let (context, watch) = (&self.reads.context, &mut self.watch);
            let change = async {
                match watch {
                    Some(watch) => watch.changed(context).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = context.alarm(self.reads.due.max(ended + interval)) => {}
                () = change => {}
            }
            self.is_changed = true;
        }
        self.reads.wait().await;
    }

    /// Returns the lock as of the last read.
    pub fn lock(&self) -> &Snapshot {
        self.tracker.lock()
    }

    /// Takes the changes that the last call of [`Queue::next`] found, in their order. The first
    /// read yields a change for each contender.
    pub fn take_diffs(&mut self) -> Vec<Diff> {
        std::mem::take(&mut self.diffs)
    }

    /// Returns the times of the last read.
    pub fn read_time(&self) -> ReadTime {
        self.reads.time
    }

    /// Lets the next read begin at once.
    pub fn read_now(&mut self) {
        self.reads.is_urgent = true;
    }

    /// Lets the next read begin as soon as the minimum pause has ended, without a watch event.
    pub fn read_soon(&mut self) {
        self.is_changed = true;
    }
}
