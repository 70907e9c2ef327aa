//! The events of a lock handle's acquisitions.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::broadcast;

use crate::base::error::LossReason;
use crate::base::ticket::Ticket;

/// Number of events kept for a listener that is too slow.
const CAPACITY: usize = 256;

/// An event in the life of an acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEvent {
    /// The acquisition has a position in the queue.
    Queued {
        /// Number of contenders ahead of it when it queued. Later changes are not reported.
        ahead: u32,
    },
    /// The caller has taken the lock that the acquisition was granted.
    Acquired(Ticket),
    /// The connection is lost, or a confirmation by the server is late. The lock is not lost: see
    /// [`Connection::Suspect`](crate::Connection::Suspect).
    Suspect(Ticket),
    /// The server has confirmed the lock after [`LockEvent::Suspect`].
    Confirmed(Ticket),
    /// Another client asks the holder to release the lock.
    Revoked(Ticket),
    /// A contender of another client library is in the queue. It ignores the znode of another
    /// contender, or another contender ignores its znode. Or the path of the lock is also a
    /// semaphore of another client library. In each case, there may be two holders now. The text
    /// names the contenders and the remedy. Holders check for such contenders from one second after
    /// the grant on, if there was a listener when they acquired the lock.
    ForeignContender(Ticket, String),
    /// The lock is lost.
    Lost(Ticket, LossReason),
    /// The lock was released, and the server has confirmed it. A task of a shared hold that passes the lock on or keeps it
    /// for the next task sends no request. The end of a hold that no task had is told once more.
    Released(Ticket),
    /// The acquisition ended without the lock: the lock was not free, the deadline passed, the caller cancelled, the server
    /// refused, the session ended, or the caller did not poll its grant in time. In the last two cases, a call that waits
    /// begins another acquisition.
    GaveUp,
    /// The listener was too slow and has missed this many events.
    Missed(u64),
}

/// A stream of [`LockEvent`]s. It ends when the lock handle, its clones, and their guards and leases are dropped.
pub struct LockEvents {
    stream: Pin<Box<dyn Stream<Item = LockEvent> + Send>>,
}

impl LockEvents {
    /// Returns the next event; `None` at the end.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<LockEvent> {
        self.stream.next().await
    }
}

impl Stream for LockEvents {
    type Item = LockEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<LockEvent>> {
        self.stream.as_mut().poll_next(cx)
    }
}

impl std::fmt::Debug for LockEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LockEvents")
    }
}

/// The listeners of a lock handle.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listeners {
    /// Created for the first listener. Most handles have no listener, and the channel is larger than the rest of the
    /// handle.
    sender: Arc<OnceLock<broadcast::Sender<LockEvent>>>,
    filter: EventFilter,
}

/// Selects the events that listeners receive.
#[derive(Debug, Clone, Copy, Default)]
enum EventFilter {
    #[default]
    All,
    /// Loss and revocation only, for an additional acquisition of the same guard.
    LossAndRevocation,
    /// All but `Acquired` and `GaveUp`, for the acquisition of a shared hold. The shared hold reports these for each task.
    WithoutOutcome,
}

impl Listeners {
    /// Returns the same listeners with a filter: they get only loss and revocation.
    pub(crate) fn only_loss_and_revocation(&self) -> Listeners {
        Listeners { filter: EventFilter::LossAndRevocation, ..self.clone() }
    }

    /// Returns the same listeners with a filter: they do not get `Acquired` and `GaveUp`.
    pub(crate) fn without_outcome(&self) -> Listeners {
        Listeners { filter: EventFilter::WithoutOutcome, ..self.clone() }
    }

    pub(crate) fn tell(&self, event: LockEvent) {
        use LockEvent::{Acquired, GaveUp, Lost, Revoked};
        let passes = match self.filter {
            EventFilter::All => true,
            EventFilter::LossAndRevocation => matches!(event, Lost(..) | Revoked(_)),
            EventFilter::WithoutOutcome => !matches!(event, Acquired(_) | GaveUp),
        };
        if let Some(sender) = self.sender.get().filter(|_| passes) {
            // Fails if all listeners were dropped.
            let _ = sender.send(event);
        }
    }

    /// Returns whether a listener exists now that gets the warning of a foreign contender.
    pub(crate) fn has_listeners(&self) -> bool {
        match self.filter {
            EventFilter::All | EventFilter::WithoutOutcome => {
                self.sender.get().is_some_and(|sender| sender.receiver_count() > 0)
            }
            EventFilter::LossAndRevocation => false,
        }
    }

    pub(crate) fn subscribe(&self) -> LockEvents {
        let sender = self.sender.get_or_init(|| broadcast::Sender::new(CAPACITY));
        let events = stream::unfold(sender.subscribe(), |mut receiver| async move {
            match receiver.recv().await {
                Ok(event) => Some((event, receiver)),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    Some((LockEvent::Missed(missed), receiver))
                }
                Err(broadcast::error::RecvError::Closed) => None,
            }
        });
        LockEvents { stream: Box::pin(events) }
    }
}
