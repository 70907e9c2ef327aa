//! Reading: one look at a time, no more than a fifth of the time, and on again after any silence.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, sleep_until, timeout};
use zoolock::{Error, Snapshot, Zoolock};

use super::lock::Lock;
use super::model::{News, Pace, Subject};
use crate::connect::found_again;
use crate::plan::Top;
use crate::rates::{Look, Rates};
use crate::talk::Talk;

/// A look that takes longer than this may be one that nobody answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many who wait are read of each lock in the list: the first of them has waited longest.
const NEXT: usize = 1;
/// Between two tries to get an answer.
const AGAIN: Duration = Duration::from_secs(1);
/// Of five parts of the time, one is spent on reading at most.
const REST: u32 = 4;
/// What is asked to hear whether anybody answers: a lock that nobody has.
const NOBODYS: &str = "zoolock-top-asks";

/// What the reader is told.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) subject: Subject,
    /// Counts how often somebody wanted to see news at once.
    pub(super) now: u64,
}

/// Reads what is shown, for as long as somebody listens.
pub(super) struct Reader {
    pub(super) plan: Top,
    pub(super) talk: Arc<Talk>,
    /// Where others find the connection, which may be another one later.
    pub(super) zoolock: watch::Sender<Zoolock>,
    pub(super) orders: watch::Receiver<Order>,
    pub(super) news: mpsc::Sender<News>,
}

impl Reader {
    /// Never returns while anybody gives orders.
    pub(super) async fn read(mut self) {
        let mut rates = Rates::default();
        let begun = Instant::now();
        let mut last = self.orders.borrow().clone();
        // When the next look is due: at all locks, and at the one whose queue is shown. Who comes back from a queue waits
        // for the list as if he had never left.
        let (mut all_due, mut one_due) = (begun, begun);
        loop {
            let order = self.orders.borrow_and_update().clone();
            if order.subject != last.subject {
                one_due = Instant::now();
            }
            let asked = order.now != last.now;
            last = order;
            let subject = &last.subject;
            let due = if *subject == Subject::All { &mut all_due } else { &mut one_due };
            if !asked && Instant::now() < *due {
                tokio::select! {
                    () = sleep_until((*due).into()) => {}
                    changed = self.orders.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                }
            }
            let look = Instant::now();
            let seen = tokio::select! {
                seen = self.look(subject) => seen,
                // What is being read is not shown any more. Of what was asked for, only the answers are to come.
                changed = self.changed_from(subject) => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let took = look.elapsed();
            let news = match seen {
                Ok(seen) => {
                    let rest = rest(self.plan.interval, took);
                    *due = Instant::now() + rest;
                    let pace = Pace { took, every: took + rest };
                    news(&mut rates, begun.elapsed(), seen, subject, pace, &self.plan.service.root)
                }
                Err(error) => {
                    *due = Instant::now() + AGAIN;
                    if matches!(error, Error::Unavailable { .. })
                        && let Some(zoolock) = found_again(&self.plan.service, &self.talk).await
                    {
                        self.zoolock.send_replace(zoolock);
                    }
                    no_news(&error)
                }
            };
            if self.news.send(news).await.is_err() {
                return;
            }
        }
    }

    async fn changed_from(&self, subject: &Subject) -> Result<(), watch::error::RecvError> {
        self.orders.clone().wait_for(|order| order.subject != *subject).await.map(drop)
    }

    /// One look. Where it takes long, whoever listens hears whether anybody answers at all.
    async fn look(&self, subject: &Subject) -> Result<Vec<Snapshot>, Error> {
        let zoolock = self.zoolock.borrow().clone();
        let reading = async {
            match subject {
                Subject::All => zoolock.survey(self.plan.prefix.as_deref(), NEXT).await,
                Subject::One(path) => Ok(vec![zoolock.mutex(path).snapshot().await?]),
            }
        };
        let asking = async {
            loop {
                sleep(PATIENCE).await;
                let news = match timeout(PATIENCE, zoolock.mutex(NOBODYS).snapshot()).await {
                    Ok(Ok(_) | Err(Error::Denied { .. })) => News::Alive,
                    Ok(Err(error)) => no_news(&error),
                    Err(_) => News::Silence("no answer".to_owned()),
                };
                let _ = self.news.send(news).await;
            }
        };
        tokio::select! {
            seen = reading => seen,
            never = asking => never,
        }
    }
}

fn no_news(error: &Error) -> News {
    match error {
        Error::Unavailable { .. } => News::Silence(error.to_string()),
        _ => News::Refused(error.to_string()),
    }
}

/// What was read, with what it says about hand-overs.
fn news(
    rates: &mut Rates,
    now: Duration,
    mut seen: Vec<Snapshot>,
    subject: &Subject,
    pace: Pace,
    root: &str,
) -> News {
    seen.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    match subject {
        Subject::All => rates.survey(now, seen.iter().map(Look::of)),
        Subject::One(_) => seen.iter().for_each(|lock| rates.look(now, Look::of(lock))),
    }
    let told = |lock: Snapshot| {
        let rate = rates.of(&lock.path);
        Lock { rate, ..Lock::of(lock, root) }
    };
    let mut locks: Vec<Lock> = seen.into_iter().map(told).collect();
    match subject {
        Subject::All => News::Locks(locks, pace),
        Subject::One(_) => News::Queue(Box::new(locks.pop().unwrap_or_default()), pace),
    }
}

/// How long not to read after a look that took so long.
fn rest(interval: Duration, took: Duration) -> Duration {
    interval.saturating_sub(took).max(took.saturating_mul(REST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_a_fifth_of_the_time_is_spent_on_reading() {
        let second = Duration::from_secs(1);
        assert_eq!(rest(second, Duration::from_millis(10)), Duration::from_millis(990));
        assert_eq!(rest(second, Duration::from_millis(200)), Duration::from_millis(800));
        assert_eq!(rest(second, 20 * second), 80 * second);
        assert_eq!(rest(Duration::from_secs(60), 20 * second), 80 * second);
    }
}
