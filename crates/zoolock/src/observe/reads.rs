//! The reads of a view: one after the other, with pauses in between. If a read takes long, the view probes the server.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use crate::base::error::Error;
use crate::lock::context::Context;

/// Minimum pause after a read, as a multiple of the duration of the read. So reads take at most a
/// fifth of the time.
const PAUSE_FACTOR: u32 = 4;
/// Pause after a failed read.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Duration of a read after which the server is probed, and the maximum duration of the probe.
const PROBE_TIME: Duration = Duration::from_secs(2);

/// The outcome of one call of [`Queue::next`](super::Queue::next) or
/// [`All::next`](super::All::next).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadOutcome {
    /// A read is complete.
    Read,
    /// A read takes long, but the server answers. The next call continues the read.
    Slow,
    /// A read takes long, and the server does not answer the probe. The text is the reason. The
    /// next call continues the read.
    Silent(String),
    /// A read has failed because no server was reached. The text is the reason. The next call reads
    /// again.
    Unreachable(String),
}

/// The times of the last read.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ReadTime {
    /// The time at which the last read started.
    pub begun: Instant,
    /// Duration of the last complete read.
    pub took: Duration,
    /// Minimum pause after the last read.
    pub pause: Duration,
}

/// The reads of a view, one at a time.
pub(super) struct ReadLoop<T> {
    pub(super) context: Context,
    /// Minimum time from the start of a read to the start of the next one.
    pub(super) interval: Duration,
    /// Minimum pause after a read.
    pub(super) pause: Duration,
    /// The read in progress. It is kept when the caller drops the future that polls it, and the
    /// next call continues it.
    pub(super) reading: Option<BoxFuture<'static, T>>,
    pub(super) time: ReadTime,
    /// The time at which the pause after the last read ends.
    pub(super) due: Instant,
    /// Set if the next read does not wait for the end of the pause.
    pub(super) is_urgent: bool,
}

impl<T> ReadLoop<T> {
    pub(super) fn new(context: Context, interval: Duration, pause: Duration) -> ReadLoop<T> {
        let due = Instant::now();
        let time = ReadTime { begun: due, took: Duration::ZERO, pause: Duration::ZERO };
        ReadLoop { context, interval, pause, reading: None, time, due, is_urgent: false }
    }

    /// Waits for the end of the pause. Does not wait while a read is in progress.
    pub(super) async fn wait(&mut self) {
        if self.reading.is_none() && !self.is_urgent {
            self.context.alarm(self.due).await;
        }
    }

    /// Starts a read. [`ReadLoop::finish`] polls it.
    pub(super) fn start(&mut self, read: impl Future<Output = T> + Send + 'static) {
        self.reading = Some(Box::pin(read));
        self.time.begun = Instant::now();
        self.is_urgent = false;
    }

    /// Waits for the end of the read in progress. If the read takes long, probes the server and fails with the result
    /// of the probe.
    ///
    /// Cancel safe: the read continues in the next call.
    pub(super) async fn finish(&mut self) -> Result<T, ReadOutcome> {
        let reading = self.reading.as_mut().expect("a read was started");
        let context = &self.context;
        let probing = async {
            context.alarm(Instant::now() + PROBE_TIME).await;
            probe(context).await
        };
        let value = tokio::select! {
            biased;
            value = reading => value,
            contact = probing => return Err(contact),
        };
        self.reading = None;
        self.time.took = self.time.begun.elapsed();
        self.set_pause(pause_after(self.time.took, self.interval, self.pause));
        Ok(value)
    }

    /// Handles the error of the last read: sets the pause, and returns the outcome of the call.
    pub(super) fn fail(&mut self, error: Error) -> Result<ReadOutcome, Error> {
        self.set_pause(RETRY_AFTER);
        match error {
            Error::Unavailable { .. } => {
                Ok(ReadOutcome::Unreachable(reason(&self.context, error.to_string())))
            }
            error => Err(error),
        }
    }

    fn set_pause(&mut self, pause: Duration) {
        self.time.pause = pause;
        self.due = Instant::now() + pause;
    }
}

/// Returns the pause after a read that took this long.
fn pause_after(took: Duration, interval: Duration, pause: Duration) -> Duration {
    pause.max(interval.saturating_sub(took)).max(took.saturating_mul(PAUSE_FACTOR))
}

/// Asks the server whether the znode `/` exists, to see whether the server answers.
async fn probe(context: &Context) -> ReadOutcome {
    let asking = async {
        let zk = context.zk().await?;
        match zk.exists("/").await {
            Err(error) if !error.failure.is_answer() => {
                Err(Error::unavailable(context.endpoints(), error.message))
            }
            _ => Ok::<(), Error>(()),
        }
    };
    tokio::select! {
        biased;
        answer = asking => match answer {
            Ok(()) => ReadOutcome::Slow,
            Err(error) => ReadOutcome::Silent(reason(context, error.to_string())),
        },
        () = context.alarm(Instant::now() + PROBE_TIME) => ReadOutcome::Silent(reason(context, "no answer".to_owned())),
    }
}

/// Returns the reason why there is no connection. If there is one, returns `otherwise`. A request that was not sent
/// fails with an error that does not tell why, so the reason of the outage comes first.
fn reason(context: &Context, otherwise: String) -> String {
    context.outage_reason().unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_take_at_most_a_fifth_of_time() {
        let (second, zero) = (Duration::from_secs(1), Duration::ZERO);
        assert_eq!(pause_after(Duration::from_millis(10), second, zero), Duration::from_millis(990));
        assert_eq!(pause_after(Duration::from_millis(200), second, zero), Duration::from_millis(800));
        assert_eq!(pause_after(20 * second, second, zero), 80 * second);
        assert_eq!(pause_after(20 * second, 60 * second, zero), 80 * second);
        assert_eq!(pause_after(Duration::from_millis(10), zero, second), second);
    }
}
