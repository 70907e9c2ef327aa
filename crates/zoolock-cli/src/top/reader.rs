//! The reader: one read at a time, at most a fifth of the time, and again after every failure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until, timeout};
use zoolock::{Error, Snapshot, Zoolock};

use super::lock::Lock;
use super::model::{Pace, ReadResult, Subject};
use crate::base::rates::{HolderRead, Rates};
use crate::base::reporter::Reporter;
use crate::plan::Top;
use crate::service::connect::found_again;

/// Duration of a read after which the reader probes whether the server still answers.
const PROBE_AFTER: Duration = Duration::from_secs(2);
/// Number of waiters read of each lock in the list. The first one has waited longest.
const WAITERS: usize = 1;
/// Pause after a failed read.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Minimum pause after a read, as a multiple of its duration: reading takes at most a fifth of the time.
const PAUSE_FACTOR: u32 = 4;
/// Name of a lock that nothing uses, read to probe the server.
const PROBE: &str = "zoolock-top-asks";

/// Instructions to the reader.
#[derive(Debug, Clone)]
pub(super) struct Instructions {
    pub(super) subject: Subject,
    /// Counter of requests for an immediate read.
    pub(super) read_requests: u64,
}

/// Reads what the screen shows.
pub(super) struct Reader {
    pub(super) plan: Top,
    pub(super) reporter: Arc<Reporter>,
    /// The current client. The reader replaces it when it connects again.
    pub(super) zoolock: watch::Sender<Zoolock>,
    pub(super) instructions: watch::Receiver<Instructions>,
    pub(super) results: mpsc::Sender<ReadResult>,
}

impl Reader {
    /// Reads until the sender of instructions is dropped.
    pub(super) async fn read(mut self) {
        let mut rates = Rates::default();
        let started = Instant::now();
        let mut last = self.instructions.borrow().clone();
        // Times of the next read of the list and of the shown queue. Opening and leaving a queue does not change the
        // time of the next read of the list.
        let (mut all_due, mut one_due) = (started, started);
        loop {
            let new = self.instructions.borrow_and_update().clone();
            if new.subject != last.subject {
                one_due = Instant::now();
            }
            let read_now = new.read_requests != last.read_requests;
            last = new;
            let subject = &last.subject;
            let due = if *subject == Subject::All { &mut all_due } else { &mut one_due };
            if !read_now && Instant::now() < *due {
                tokio::select! {
                    () = sleep_until((*due).into()) => {}
                    changed = self.instructions.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                }
            }
            let begun = Instant::now();
            let seen = tokio::select! {
                seen = self.read_once(subject) => seen,
                // The screen shows something else: the read is cancelled. Answers to requests already sent are ignored.
                changed = self.changed_from(subject) => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let took = begun.elapsed();
            let result = match seen {
                Ok(seen) => {
                    let pause = pause_after(self.plan.interval, took);
                    *due = Instant::now() + pause;
                    let pace = Pace { took, every: took + pause };
                    read_result(&mut rates, started.elapsed(), seen, subject, pace, &self.plan.service.root)
                }
                Err(error) => {
                    *due = Instant::now() + RETRY_AFTER;
                    if matches!(error, Error::Unavailable { .. })
                        && let Some(zoolock) = found_again(&self.plan.service, &self.reporter).await
                    {
                        self.zoolock.send_replace(zoolock);
                    }
                    failure_result(&error)
                }
            };
            if self.results.send(result).await.is_err() {
                return;
            }
        }
    }

    async fn changed_from(&self, subject: &Subject) -> Result<(), watch::error::RecvError> {
        self.instructions.clone().wait_for(|new| new.subject != *subject).await.map(drop)
    }

    /// Reads once. If it takes long, also reports whether the server answers.
    async fn read_once(&self, subject: &Subject) -> Result<Vec<Snapshot>, Error> {
        let zoolock = self.zoolock.borrow().clone();
        let reading = async {
            match subject {
                Subject::All => zoolock.survey(self.plan.prefix.as_deref(), WAITERS).await,
                Subject::One(path) => Ok(vec![zoolock.mutex(path).snapshot().await?]),
            }
        };
        let probing = async {
            loop {
                sleep(PROBE_AFTER).await;
                let result = match timeout(PROBE_AFTER, zoolock.mutex(PROBE).snapshot()).await {
                    Ok(Ok(_) | Err(Error::Denied { .. })) => ReadResult::Alive,
                    Ok(Err(error)) => failure_result(&error),
                    Err(_) => ReadResult::NoAnswer("no answer".to_owned()),
                };
                let _ = self.results.send(result).await;
            }
        };
        tokio::select! {
            seen = reading => seen,
            never = probing => never,
        }
    }
}

fn failure_result(error: &Error) -> ReadResult {
    match error {
        Error::Unavailable { .. } => ReadResult::NoAnswer(error.to_string()),
        _ => ReadResult::Refused(error.to_string()),
    }
}

/// Converts what was read, and adds hand-over rates.
fn read_result(
    rates: &mut Rates,
    now: Duration,
    mut seen: Vec<Snapshot>,
    subject: &Subject,
    pace: Pace,
    root: &str,
) -> ReadResult {
    seen.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    match subject {
        Subject::All => rates.record_all(now, seen.iter().map(HolderRead::of)),
        Subject::One(_) => seen.iter().for_each(|lock| rates.record(now, HolderRead::of(lock))),
    }
    let converted = |lock: Snapshot| {
        let rate = rates.of(&lock.path);
        Lock { rate, ..Lock::of(lock, root) }
    };
    let mut locks: Vec<Lock> = seen.into_iter().map(converted).collect();
    match subject {
        Subject::All => ReadResult::Locks(locks, pace),
        Subject::One(_) => ReadResult::Queue(Box::new(locks.pop().unwrap_or_default()), pace),
    }
}

/// Returns the pause after a read that took this long.
fn pause_after(interval: Duration, took: Duration) -> Duration {
    interval.saturating_sub(took).max(took.saturating_mul(PAUSE_FACTOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_takes_at_most_a_fifth() {
        let second = Duration::from_secs(1);
        assert_eq!(pause_after(second, Duration::from_millis(10)), Duration::from_millis(990));
        assert_eq!(pause_after(second, Duration::from_millis(200)), Duration::from_millis(800));
        assert_eq!(pause_after(second, 20 * second), 80 * second);
        assert_eq!(pause_after(Duration::from_secs(60), 20 * second), 80 * second);
    }
}
