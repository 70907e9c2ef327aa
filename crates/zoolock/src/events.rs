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
    by_way_of: Way,
}

/// How a listener comes to hear of an acquisition.
#[derive(Debug, Clone, Default)]
enum Way {
    #[default]
    Directly,
    /// It is a part of this.
    Whole(Arc<Mutex<Whole>>),
    /// It stands for tasks that have it in turn: those of the one that has it at present hear it.
    Relay(Relay),
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Hears {
    #[default]
    All,
    /// Loss and revocation: of what somebody holds besides.
    Bad,
    /// That it stands in a queue: of what somebody takes to get at something else.
    Queue,
    /// All but that it is got, or not: that is told once, by whoever knows.
    Course,
    /// What may be news of the whole: of the others.
    Another,
}

impl Hears {
    fn of(self, event: &LockEvent) -> bool {
        use LockEvent::{Acquired, GaveUp, Lost, Queued, Released, Revoked};
        match self {
            Hears::All => true,
            Hears::Bad => matches!(event, Lost(..) | Revoked(_)),
            Hears::Queue => matches!(event, Queued { .. }),
            Hears::Course => !matches!(event, Acquired(_) | GaveUp),
            Hears::Another => matches!(event, Queued { .. } | Lost(..) | Revoked(_) | Released(_)),
        }
    }
}

impl Listeners {
    /// The same listeners, told only of loss and revocation.
    pub(crate) fn quietly(&self) -> Listeners {
        Listeners { hears: Hears::Bad, ..self.clone() }
    }

    /// The same listeners, who will hear of several acquisitions as of one: see [`Listeners::queueing`],
    /// [`Listeners::first`], [`Listeners::another`] and [`Listeners::acquired`].
    pub(crate) fn of_a_whole(&self) -> Listeners {
        Listeners { by_way_of: Way::Whole(Arc::default()), ..self.clone() }
    }

    /// For what is only taken to get at the others.
    pub(crate) fn queueing(&self) -> Listeners {
        Listeners { hears: Hears::Queue, ..self.clone() }
    }

    /// For the first, which speaks for all of them.
    pub(crate) fn first(&self) -> Listeners {
        Listeners { hears: Hears::Course, ..self.clone() }
    }

    /// For another one.
    pub(crate) fn another(&self) -> Listeners {
        Listeners { hears: Hears::Another, ..self.clone() }
    }

    /// Those that are set there at the time.
    pub(crate) fn relayed(relay: Relay) -> Listeners {
        Listeners { hears: Hears::Course, by_way_of: Way::Relay(relay), ..Listeners::default() }
    }

    /// All `parts` of it are held, under the first one's ticket.
    pub(crate) fn acquired(&self, ticket: Ticket, parts: usize) {
        let Way::Whole(whole) = &self.by_way_of else { return };
        let whole = &mut *lock(whole);
        (whole.ticket, whole.left) = (Some(ticket), parts);
        self.send(LockEvent::Acquired(ticket));
        for event in std::mem::take(&mut whole.early) {
            whole.hear(event).into_iter().for_each(|event| self.send(event));
        }
    }

    pub(crate) fn tell(&self, event: LockEvent) {
        if !self.hears.of(&event) {
            return;
        }
        match &self.by_way_of {
            Way::Directly => self.send(event),
            Way::Relay(Relay(present)) => lock(present).tell(event),
            // Sent under the lock, so that they hear it in this order.
            Way::Whole(whole) => {
                let whole = &mut *lock(whole);
                whole.hear(event).into_iter().for_each(|event| self.send(event));
            }
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
        matches!(self.by_way_of, Way::Relay(_)) || self.is_anybody_there()
    }

    /// Whether anybody listens to all of it now.
    pub(crate) fn is_anybody_there(&self) -> bool {
        if let Way::Relay(Relay(present)) = &self.by_way_of {
            return lock(present).is_anybody_there();
        }
        matches!(self.hears, Hears::All | Hears::Course)
            && self.sender.get().is_some_and(|sender| sender.receiver_count() > 0)
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

/// Several acquisitions that count only together, as listeners know them.
#[derive(Debug, Default)]
struct Whole {
    /// That of the first, once all are held.
    ticket: Option<Ticket>,
    /// How many of them are not released.
    left: usize,
    /// What came before all were held, and means something only after that.
    early: Vec<LockEvent>,
    queued: bool,
    revoked: bool,
    lost: bool,
}

impl Whole {
    /// What a part's event is for the whole, if it is news.
    fn hear(&mut self, event: LockEvent) -> Option<LockEvent> {
        if let LockEvent::Queued { .. } = event {
            return (!std::mem::replace(&mut self.queued, true)).then_some(event);
        }
        let Some(ticket) = self.ticket else {
            use LockEvent::{Lost, Neighbour, Revoked};
            if matches!(event, Lost(..) | Revoked(_) | Neighbour(..)) {
                self.early.push(event);
            }
            return None;
        };
        if self.lost {
            return None;
        }
        match event {
            LockEvent::Lost(_, reason) => {
                self.lost = true;
                Some(LockEvent::Lost(ticket, reason))
            }
            LockEvent::Revoked(_) => {
                (!std::mem::replace(&mut self.revoked, true)).then_some(LockEvent::Revoked(ticket))
            }
            LockEvent::Released(_) => {
                self.left = self.left.saturating_sub(1);
                (self.left == 0).then_some(LockEvent::Released(ticket))
            }
            event => Some(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use zoolock_core::Zxid;

    use super::*;

    fn ticket(number: i64) -> Ticket {
        Ticket::new(0, Zxid(number))
    }

    /// What is heard of a whole with two parts, whose events are told in between.
    fn heard(before: &[(usize, LockEvent)], after: &[(usize, LockEvent)]) -> Vec<LockEvent> {
        let listeners = Listeners::default();
        let mut events = listeners.subscribe();
        let whole = listeners.of_a_whole();
        let parts = [whole.queueing(), whole.first(), whole.another()];
        before.iter().for_each(|(part, event)| parts[*part].tell(event.clone()));
        whole.acquired(ticket(1), 2);
        after.iter().for_each(|(part, event)| parts[*part].tell(event.clone()));
        drop((listeners, whole, parts));
        let mut heard = Vec::new();
        while let Some(event) = futures_lite::future::block_on(events.next()) {
            heard.push(event);
        }
        heard
    }

    #[test]
    fn several_are_one_to_those_who_listen() {
        use LockEvent::{Acquired, Lost, Queued, Released, Revoked, Suspect};
        let broken = |number| Lost(ticket(number), LossReason::Broken);
        let queued = (0..3).map(|part| (part, Queued { ahead: 3 })).collect::<Vec<_>>();
        let granted = [(0, Acquired(ticket(9))), (1, Acquired(ticket(1))), (2, Acquired(ticket(2)))];
        let came = [&queued[..], &granted, &[(0, Released(ticket(9)))]].concat();
        let left = [(2, Released(ticket(2))), (1, Suspect(ticket(1))), (1, Released(ticket(1)))];
        let all = [Queued { ahead: 3 }, Acquired(ticket(1)), Suspect(ticket(1)), Released(ticket(1))];
        assert_eq!(heard(&came, &left), all);
        let asked = [(2, Revoked(ticket(2))), (1, Revoked(ticket(1)))];
        let lost = [(2, broken(2)), (1, Suspect(ticket(1))), (1, broken(1)), (1, Released(ticket(1)))];
        let all = [Acquired(ticket(1)), Revoked(ticket(1)), broken(1)];
        assert_eq!(heard(&[], &[&asked[..], &lost].concat()), all);
        // Whoever is not told that it holds is not told that it lost either, but not the other way round.
        assert_eq!(heard(&asked, &lost), all);
        assert_eq!(heard(&lost[..3], &[]), [Acquired(ticket(1)), broken(1)]);
    }
}
