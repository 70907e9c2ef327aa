//! The events of a lock handle's acquisitions.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::broadcast;

use crate::base::error::LossReason;
use crate::base::sync::lock;
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
    /// The acquisition holds the lock.
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
    /// The lock was released, and the server has confirmed it.
    Released(Ticket),
    /// The acquisition ended without the lock: the lock was not free, the deadline passed, the caller
    /// cancelled, the server refused, or the session ended.
    GaveUp,
    /// The listener was too slow and has missed this many events.
    Missed(u64),
}

/// A stream of [`LockEvent`]s. It ends when the lock handle, its clones and their guards are dropped.
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

/// The listeners of the task that currently has the lock, if the tasks of a process share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenerSlot(Arc<Mutex<Listeners>>);

impl ListenerSlot {
    /// Replaces the listeners.
    pub(crate) fn set(&self, listeners: Listeners) {
        let before = std::mem::replace(&mut *lock(&self.0), listeners);
        // Drops the old listeners after the mutex is unlocked, because dropping the last sender of
        // a channel wakes its receivers.
        drop(before);
    }
}

/// Selects the events that listeners receive.
#[derive(Debug, Clone, Default)]
enum EventFilter {
    #[default]
    All,
    /// Loss and revocation only, for an additional acquisition of the same guard.
    LossAndRevocation,
    /// Passes events to the listeners of the task that currently has the lock. Leaves out
    /// `Acquired` and `GaveUp`, which the shared hold reports.
    Slot(ListenerSlot),
}

impl Listeners {
    /// Returns the same listeners with a filter: they get only loss and revocation.
    pub(crate) fn only_loss_and_revocation(&self) -> Listeners {
        Listeners { filter: EventFilter::LossAndRevocation, ..self.clone() }
    }

    /// Returns listeners that pass each event to the listeners that are in `slot` at that time.
    pub(crate) fn in_slot(slot: ListenerSlot) -> Listeners {
        Listeners { filter: EventFilter::Slot(slot), ..Listeners::default() }
    }

    pub(crate) fn tell(&self, event: LockEvent) {
        use LockEvent::{Acquired, GaveUp, Lost, Revoked};
        match &self.filter {
            EventFilter::All => self.send(event),
            EventFilter::LossAndRevocation if matches!(event, Lost(..) | Revoked(_)) => self.send(event),
            EventFilter::Slot(ListenerSlot(present)) if !matches!(event, Acquired(_) | GaveUp) => {
                lock(present).tell(event);
            }
            EventFilter::LossAndRevocation | EventFilter::Slot(_) => {}
        }
    }

    fn send(&self, event: LockEvent) {
        if let Some(sender) = self.sender.get() {
            // Fails if all listeners were dropped.
            let _ = sender.send(event);
        }
    }

    /// Returns whether there is a listener, or the next task that gets the lock may have one.
    pub(crate) fn may_have_listeners(&self) -> bool {
        matches!(self.filter, EventFilter::Slot(_)) || self.has_listeners()
    }

    /// Returns whether a listener that gets all events exists now.
    pub(crate) fn has_listeners(&self) -> bool {
        match &self.filter {
            EventFilter::All => self.sender.get().is_some_and(|sender| sender.receiver_count() > 0),
            EventFilter::LossAndRevocation => false,
            EventFilter::Slot(ListenerSlot(present)) => lock(present).has_listeners(),
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
