//! What happens to a lock handle's acquisitions, for those who want to be told.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};

use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::broadcast;

use crate::error::LossReason;
use crate::session::lock;
use crate::ticket::Ticket;

/// How many events wait for a listener that does not keep up.
const CAPACITY: usize = 256;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEvent {
    /// It stands in the queue.
    Queued {
        /// How many contenders there were before it. Seen once, when it came; nobody counts after that.
        ahead: u32,
    },
    /// It holds the lock.
    Acquired(Ticket),
    /// The service is late with its confirmation. Not lost: see [`Connection::Suspect`](crate::Connection::Suspect).
    Suspect(Ticket),
    /// The service has confirmed again what was suspect.
    Confirmed(Ticket),
    /// Somebody asks the holder to let go.
    Revoked(Ticket),
    /// Somebody of another make stands in the queue who does not see us, or whom another one there does not see: there
    /// may be two holders now. Says who, and what to do. Looked for by those who hold for a second and more, if
    /// somebody listened when they acquired the lock.
    Neighbour(Ticket, String),
    /// The lock is lost.
    Lost(Ticket, LossReason),
    /// The lock was released, and the service has confirmed it.
    Released(Ticket),
    /// The acquisition ended without the lock: not free, too late, given up, refused, or the session ended.
    GaveUp,
    /// The listener was too slow, and has missed so many events.
    Missed(u64),
}

/// A stream of [`LockEvent`]s. It ends when the lock handle and its clones are gone.
pub struct LockEvents {
    stream: Pin<Box<dyn Stream<Item = LockEvent> + Send>>,
}

impl LockEvents {
    /// The next event; `None` at the end.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
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

/// Who listens to a handle.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listeners {
    /// Made for the first who listens: most handles have none, and the channel is larger than all the rest of them.
    sender: Arc<OnceLock<broadcast::Sender<LockEvent>>>,
    hears: Hears,
}

/// Whose listeners hear what happens to a lock that passes among the tasks of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Relay(Arc<Mutex<Listeners>>);

impl Relay {
    /// These, from now on.
    pub(crate) fn set(&self, listeners: Listeners) {
        let before = std::mem::replace(&mut *lock(&self.0), listeners);
        // Not under the mutex: with the last of a channel its receivers wake.
        drop(before);
    }
}

/// What listeners are told.
#[derive(Debug, Clone, Default)]
enum Hears {
    #[default]
    All,
    /// Loss and revocation: of what somebody holds besides.
    Bad,
    /// The lock passes among tasks: the listeners of the task that has it hear of it, except that it is granted or given
    /// up. The tenure tells that.
    Relayed(Relay),
}

impl Listeners {
    /// The same listeners, told only of loss and revocation.
    pub(crate) fn quietly(&self) -> Listeners {
        Listeners { hears: Hears::Bad, ..self.clone() }
    }

    /// Those that are set there at the time.
    pub(crate) fn relayed(relay: Relay) -> Listeners {
        Listeners { hears: Hears::Relayed(relay), ..Listeners::default() }
    }

    pub(crate) fn tell(&self, event: LockEvent) {
        use LockEvent::{Acquired, GaveUp, Lost, Revoked};
        match &self.hears {
            Hears::All => self.send(event),
            Hears::Bad if matches!(event, Lost(..) | Revoked(_)) => self.send(event),
            Hears::Relayed(Relay(present)) if !matches!(event, Acquired(_) | GaveUp) => {
                lock(present).tell(event);
            }
            Hears::Bad | Hears::Relayed(_) => {}
        }
    }

    fn send(&self, event: LockEvent) {
        if let Some(sender) = self.sender.get() {
            // Whoever listened may have gone.
            let _ = sender.send(event);
        }
    }

    /// Whether anybody listens, or may later: whoever has it next.
    pub(crate) fn may_be_heard(&self) -> bool {
        matches!(self.hears, Hears::Relayed(_)) || self.is_anybody_there()
    }

    /// Whether anybody listens to all of it now.
    pub(crate) fn is_anybody_there(&self) -> bool {
        match &self.hears {
            Hears::All => self.sender.get().is_some_and(|sender| sender.receiver_count() > 0),
            Hears::Bad => false,
            Hears::Relayed(Relay(present)) => lock(present).is_anybody_there(),
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
