//! A view of all locks.

use std::time::Duration;

use super::reads::{ReadLoop, ReadOutcome, ReadTime};
use crate::admin::snapshot::{self, Snapshot};
use crate::base::error::Error;
use crate::lock::context::Context;

/// A live view of all locks under the root, or under a prefix.
///
/// The pause after a read is four times as long as the read, and at least one second.
pub struct All {
    prefix: Option<String>,
    waiters: usize,
    reads: ReadLoop<Result<Vec<Snapshot>, Error>>,
    locks: Vec<Snapshot>,
}

impl All {
    pub(crate) fn new(context: Context, prefix: Option<&str>, waiters: usize) -> All {
        let reads = ReadLoop::new(context, Duration::ZERO, Duration::from_secs(1));
        All { prefix: prefix.map(str::to_owned), waiters, reads, locks: Vec::new() }
    }

    /// Begins a read every `interval`. The pause after a read is still at least four times as long as the read.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> All {
        (self.reads.interval, self.reads.pause) = (interval, Duration::ZERO);
        self
    }

    /// Sets the number of waiters per lock that later reads describe.
    pub fn set_max_waiters(&mut self, waiters: usize) {
        self.waiters = waiters;
    }

    /// Waits until the next read is due, and reads. Dropping the future does not end a read in progress: the next call
    /// continues it.
    ///
    /// # Errors
    /// Fails as [`Admin::locks`](crate::Admin::locks) does, but never with
    /// [`Error::Unavailable`]: an outage is [`ReadOutcome::Unreachable`] instead. The view can be used
    /// after an error.
    pub async fn next(&mut self) -> Result<ReadOutcome, Error> {
        self.wait().await;
        if self.reads.reading.is_none() {
            let (context, prefix, waiters) = (self.reads.context.clone(), self.prefix.clone(), self.waiters);
            self.reads.start(async move { snapshot::survey(&context, prefix.as_deref(), waiters).await });
        }
        match self.reads.finish().await {
            Ok(Ok(locks)) => {
                self.locks = locks;
                Ok(ReadOutcome::Read)
            }
            Ok(Err(error)) => self.reads.fail(error),
            Err(contact) => Ok(contact),
        }
    }

    /// Waits until the next read is due.
    pub async fn wait(&mut self) {
        self.reads.wait().await;
    }

    /// Lets the next read begin at once.
    pub fn read_now(&mut self) {
        self.reads.is_urgent = true;
    }

    /// Drops the read in progress, if there is one.
    pub fn cancel_read(&mut self) {
        self.reads.reading = None;
    }

    /// Takes the locks of the last read, in the order of their paths.
    pub fn take_locks(&mut self) -> Vec<Snapshot> {
        std::mem::take(&mut self.locks)
    }

    /// Returns the times of the last read.
    pub fn read_time(&self) -> ReadTime {
        self.reads.time
    }
}
