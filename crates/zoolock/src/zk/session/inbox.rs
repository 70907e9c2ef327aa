//! The inbox of a session: passes each reply and each watch event on, in the order in which the
//! server sent them.
//!
//! A message to an acquisition becomes an [`Arrival`]. The driver of the session hands the arrivals of all acquisitions over
//! to the [`Receiver`], after it has unlocked the session client. So each acquisition handles replies, events and changes of
//! the connection in the order in which they happened. The grant of a lock depends on that order.
//! Callers other than acquisitions await a future for their reply.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_channel::oneshot;
use tokio::sync::watch;
use zoolock_client::{DialError, End, Endpoint, Handler, Instant, RequestError, SessionState, Work};
use zoolock_core::ContenderId;
use zoolock_core::acquisition::{RequestId, SessionEnd};
use zoolock_wire::{Code, EventKind, Reply, Request, WatchEvent};

use super::connection_log::ConnectionLog;
use super::{ConnectionState, Watch};
use crate::base::sync::lock;

/// The request of an acquisition that a reply answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyAddress {
    pub(crate) contender: ContenderId,
    pub(crate) request: RequestId,
    /// The part of the transaction that belongs to this request.
    pub(crate) part: TransactionPart,
}

/// The part of a transaction that belongs to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionPart {
    All,
    /// The operations before this index: a release, in one transaction with a later create.
    Before(usize),
    /// The operation with this index: that create.
    Only(usize),
}

/// The outcome of a request: the reply, or the error code if the server refused the request. `None`
/// if the outcome is unknown.
pub(crate) type ReplyOutcome = Option<Result<Reply, Code>>;

/// A message to an acquisition.
pub(crate) enum Arrival {
    /// The reply to a request that was written at `sent`.
    Reply { to: ReplyAddress, sent: Instant, outcome: ReplyOutcome },
    /// A watch fired.
    Fired { contender: ContenderId, watch: WatchNumber, is_deleted: bool },
    /// The connection was lost. This message is for all acquisitions.
    Disconnected,
    /// There is a connection again. This message is for all acquisitions.
    Reconnected,
    /// The timer of a request is due.
    Timer { contender: ContenderId, request: RequestId },
}

/// The receiver of the messages of a session.
pub(crate) trait Receiver: Send + Sync {
    /// Handles an attach of the session. `sent`: the time at which it was requested. `timeout`: the shortest session timeout
    /// that was granted so far. Called under the mutex of the session client, so this method must not send requests.
    fn record_attach(&self, sent: Instant, timeout: Duration);

    /// Handles messages to acquisitions, on the task of the driver.
    fn receive(self: Arc<Self>, arrivals: Vec<Arrival>);
}

/// Maximum number of arrivals that the receiver gets at once. If there are more, other tasks of the runtime run first, for
/// example the task that renews the lease.
const MAX_ARRIVALS: usize = 64;

/// The receiver of a reply.
pub(super) enum ReplyTo {
    /// A caller that awaits the reply.
    Caller(oneshot::Sender<CallerReply>),
    /// An acquisition, and the watch that the request sets.
    Acquisition(ReplyAddress, Option<WatchNumber>),
    /// A release, and the create that joined its transaction.
    Both(ReplyAddress, ReplyAddress),
}

/// The reply for a caller that awaits it.
pub(super) struct CallerReply {
    pub(super) reply: Result<Reply, Code>,
    /// The watch that the request set.
    pub(super) watch: Option<Watch>,
}

/// The kind of a watch: on the data of a znode, or on its children. The deletion of the znode fires both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WatchKind {
    Data,
    Children,
}

/// The path and the kind of a watch.
pub(crate) type WatchKey = (String, WatchKind);

/// The number of a watch of an acquisition.
///
/// The acquisition's state machine uses the id of a watch again after it has forgotten the watch.
/// An event of the old watch may still arrive. It must not count as an event of the new watch,
/// because it may report the deletion of another znode. So a number is never used again.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchNumber(pub(crate) u64);

/// Identifies a watch of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watcher {
    Acquisition(ContenderId, WatchNumber),
    Caller(u64),
}

/// A watch, and the caller that awaits it if there is one.
type WatchEntry = (Watcher, Option<oneshot::Sender<bool>>);

/// The watches that acquisitions or callers have dropped, and that the inbox has not removed yet.
pub(super) type DroppedWatches = Mutex<Vec<(WatchKey, Watcher)>>;

/// The inbox removes dropped watches when there are at least this many.
const MAX_DROPPED: usize = 64;

/// The pending requests and the watches of a session. The maps are ordered, so that a simulation with the same seed
/// runs in the same way.
pub(crate) struct Inbox {
    pending: BTreeMap<zoolock_client::RequestNumber, (ReplyTo, Option<WatchKey>)>,
    watches: BTreeMap<WatchKey, Vec<WatchEntry>>,
    last_watch: u64,
    /// The dropped watches. They have a mutex of their own, because a watch may be dropped while the session client is
    /// locked.
    pub(super) dropped: Arc<DroppedWatches>,
    arrivals: VecDeque<Arrival>,
    /// The timers of requests: when, which acquisition, and which of its requests.
    timers: BinaryHeap<Reverse<(Instant, ContenderId, u16)>>,
    /// The receiver of the arrivals. Arrivals without a receiver are dropped.
    receiver: Option<Weak<dyn Receiver>>,
    connection_states: watch::Sender<ConnectionState>,
    /// The time at which the last attach was requested.
    pub(super) attached: Instant,
    /// The server of the newest connection.
    pub(super) server: Option<Endpoint>,
    /// The last session timeout that a server granted.
    granted: Option<Duration>,
    log: Arc<ConnectionLog>,
}

impl Inbox {
    pub(super) fn new(connection_states: watch::Sender<ConnectionState>, log: Arc<ConnectionLog>) -> Inbox {
        Inbox {
            pending: BTreeMap::new(),
            watches: BTreeMap::new(),
            last_watch: 0,
            dropped: Arc::default(),
            arrivals: VecDeque::new(),
            timers: BinaryHeap::new(),
            receiver: None,
            connection_states,
            attached: Instant::default(),
            server: None,
            granted: None,
            log,
        }
    }

    fn receiver(&self) -> Option<Arc<dyn Receiver>> {
        self.receiver.as_ref()?.upgrade()
    }

    /// Sets the receiver of the arrivals from now on.
    pub(super) fn set_receiver(&mut self, receiver: Weak<dyn Receiver>) {
        self.arrivals.clear();
        self.receiver = Some(receiver);
    }

    /// Starts the timer of a request.
    pub(super) fn start_timer(&mut self, due: Instant, contender: ContenderId, request: RequestId) {
        self.timers.push(Reverse((due, contender, request.0)));
    }

    /// Makes all timers of an acquisition due at `now`.
    pub(super) fn fire_timers(&mut self, of: ContenderId, now: Instant) {
        let timers = std::mem::take(&mut self.timers).into_iter();
        let earlier = timers.map(|Reverse((due, contender, request))| {
            let due = if contender == of { due.min(now) } else { due };
            Reverse((due, contender, request))
        });
        self.timers = earlier.collect();
    }

    /// Registers the receiver of the reply to a request. If `accepted` is an error, no reply will
    /// come. The receiver then gets the error at once.
    pub(super) fn register_receiver(
        &mut self,
        request: &Request,
        to: ReplyTo,
        accepted: Result<zoolock_client::RequestNumber, RequestError>,
        now: Instant,
    ) {
        if lock(&self.dropped).len() >= MAX_DROPPED {
            self.forget_dropped();
        }
        match accepted {
            Ok(id) => drop(self.pending.insert(id, (to, watch_key(request)))),
            Err(error) => self.deliver(to, None, now, to_reply_outcome(Err(error))),
        }
    }

    fn deliver(&mut self, to: ReplyTo, key: Option<WatchKey>, sent: Instant, outcome: ReplyOutcome) {
        let key = key.filter(|_| matches!(outcome, Some(Ok(_))));
        let reply = |to, outcome| Arrival::Reply { to, sent, outcome };
        match to {
            ReplyTo::Caller(caller) => {
                // If the outcome is unknown, the sender is dropped without a reply.
                let Some(reply) = outcome else { return };
                let watch = key.map(|key| self.register_watch(key));
                let _ = caller.send(CallerReply { reply, watch });
            }
            ReplyTo::Acquisition(to, watch) => {
                if let (Some(key), Some(watch)) = (key, watch) {
                    self.forget_dropped();
                    let watching = (Watcher::Acquisition(to.contender, watch), None);
                    self.watches.entry(key).or_default().push(watching);
                }
                self.arrivals.push_back(reply(to, outcome));
            }
            ReplyTo::Both(release, create) => {
                self.arrivals.push_back(reply(release, outcome.clone()));
                self.arrivals.push_back(reply(create, outcome));
            }
        }
    }

    /// Registers a watch that the server has set for a caller.
    fn register_watch(&mut self, key: WatchKey) -> Watch {
        self.forget_dropped();
        let (sender, fired) = oneshot::channel();
        self.last_watch += 1;
        let watcher = Watcher::Caller(self.last_watch);
        self.watches.entry(key.clone()).or_default().push((watcher, Some(sender)));
        let guard = WatchGuard { key: Some(key), watcher, dropped: self.dropped.clone() };
        Box::pin(async move {
            let is_deleted = fired.await.unwrap_or(false);
            drop(guard);
            is_deleted
        })
    }

    fn forget_dropped(&mut self) {
        let dropped = std::mem::take(&mut *lock(&self.dropped));
        for (key, watcher) in dropped {
            if let Some(watches) = self.watches.get_mut(&key) {
                watches.retain(|(other, _)| *other != watcher);
                if watches.is_empty() {
                    self.watches.remove(&key);
                }
            }
        }
    }

    fn fire(&mut self, key: &WatchKey, is_deleted: bool) {
        for (watcher, caller) in self.watches.remove(key).into_iter().flatten() {
            match (watcher, caller) {
                (Watcher::Acquisition(contender, watch), _) => {
                    self.arrivals.push_back(Arrival::Fired { contender, watch, is_deleted });
                }
                (Watcher::Caller(_), Some(caller)) => drop(caller.send(is_deleted)),
                (Watcher::Caller(_), None) => {}
            }
        }
    }
}

impl Handler for Inbox {
    fn handle_reply(
        &mut self,
        request: zoolock_client::RequestNumber,
        sent: Instant,
        result: Result<Reply, RequestError>,
    ) {
        if let Some((to, key)) = self.pending.remove(&request) {
            self.deliver(to, key, sent, to_reply_outcome(result));
        }
    }

    fn handle_event(&mut self, event: WatchEvent) {
        let is_deleted = event.kind == EventKind::Deleted;
        if event.kind != EventKind::ChildrenChanged {
            self.fire(&(event.path.clone(), WatchKind::Data), is_deleted);
        }
        if is_deleted || event.kind == EventKind::ChildrenChanged {
            self.fire(&(event.path, WatchKind::Children), is_deleted);
        }
    }

    fn handle_granted_timeout(&mut self, timeout: Duration, sent: Instant) {
        self.attached = sent;
        let before = self.granted.replace(timeout);
        if let Some(server) = self.server.as_ref().filter(|_| before.is_some_and(|before| timeout < before)) {
            self.log.record_shorter_timeout(server, timeout);
        }
        if let Some(receiver) = self.receiver() {
            receiver.record_attach(sent, timeout);
        }
    }

    fn handle_dial(&mut self, endpoint: &Endpoint) {
        self.server = Some(endpoint.clone());
    }

    fn handle_failed_dial(&mut self, errors: &[DialError]) {
        let is_connected = matches!(*self.connection_states.borrow(), ConnectionState::Up);
        self.log.record_failed_dial(errors, is_connected);
    }

    fn handle_state_change(&mut self, state: SessionState) {
        match (&state, &self.server) {
            (SessionState::Connected { .. }, Some(server)) => self.log.record_connect(server),
            (SessionState::Disconnected(reason), Some(server)) => {
                self.log.record_disconnect(server, reason.clone());
            }
            // Ends the outage, because a server has answered if the session ends for these reasons.
            (
                SessionState::Ended(end @ (End::Expired | End::Replaced | End::WentBack | End::AuthFailed)),
                Some(server),
            ) => self.log.record_end(server, *end),
            (SessionState::Ended(End::Closed), _) => self.log.record_close(),
            _ => {}
        }
        let connection_state = match state {
            SessionState::Connected { .. } => {
                self.arrivals.push_back(Arrival::Reconnected);
                // Fires all watches of the last connection, because the server has forgotten them, and every
                // watched znode may have changed.
                let lost: Vec<WatchKey> = self.watches.keys().cloned().collect();
                lost.iter().for_each(|key| self.fire(key, false));
                ConnectionState::Up
            }
            SessionState::Disconnected(_) => {
                self.arrivals.push_back(Arrival::Disconnected);
                ConnectionState::Down
            }
            SessionState::Ended(end) => {
                self.watches.clear();
                ConnectionState::Ended(match end {
                    End::Closed | End::Abandoned => SessionEnd::Closed,
                    End::AuthFailed => SessionEnd::AuthFailed,
                    _ => SessionEnd::Expired,
                })
            }
        };
        self.connection_states.send_replace(connection_state);
    }

    fn has_work(&self) -> bool {
        !self.arrivals.is_empty()
    }

    fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((due, ..))| *due)
    }

    fn take_work(&mut self, now: Instant) -> Option<Work> {
        while let Some(Reverse((due, contender, request))) = self.timers.peek().copied()
            && due <= now
        {
            self.timers.pop();
            self.arrivals.push_back(Arrival::Timer { contender, request: RequestId(request) });
        }
        if self.arrivals.is_empty() {
            return None;
        }
        let Some(receiver) = self.receiver() else {
            self.arrivals.clear();
            return None;
        };
        let part: Vec<Arrival> = self.arrivals.drain(..self.arrivals.len().min(MAX_ARRIVALS)).collect();
        Some(Box::new(move || receiver.receive(part)))
    }
}

/// A guard that reports to the inbox that a watch was dropped.
struct WatchGuard {
    key: Option<WatchKey>,
    watcher: Watcher,
    dropped: Arc<DroppedWatches>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            lock(&self.dropped).push((key, self.watcher));
        }
    }
}

fn to_reply_outcome(result: Result<Reply, RequestError>) -> ReplyOutcome {
    match result {
        Ok(reply) => Some(Ok(reply)),
        // An error that ZooKeeper does not define leaves the outcome unknown.
        Err(RequestError::Refused(number)) => Code::from_number(number).map(Err),
        // The request was not sent, so it can be repeated, as after `Throttled`.
        Err(RequestError::NotSent) => Some(Err(Code::Throttled)),
        Err(_) => None,
    }
}

/// Returns the watch that a request sets.
pub(super) fn watch_key(request: &Request) -> Option<WatchKey> {
    match request {
        Request::GetData { path, watch: true } => Some((path.clone(), WatchKind::Data)),
        Request::GetChildren2 { path, watch: true } => Some((path.clone(), WatchKind::Children)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use zoolock_client::DisconnectReason;
    use zoolock_wire::OpResult;

    use super::*;

    const WATCH: WatchNumber = WatchNumber(7);

    fn inbox() -> Inbox {
        Inbox::new(watch::channel(ConnectionState::Up).0, Arc::default())
    }

    fn address(number: u16) -> ReplyAddress {
        ReplyAddress { contender: ContenderId(1), request: RequestId(number), part: TransactionPart::All }
    }

    fn key() -> WatchKey {
        ("/locks/x".to_owned(), WatchKind::Data)
    }

    fn deleted() -> WatchEvent {
        WatchEvent { kind: EventKind::Deleted, path: key().0 }
    }

    fn done() -> ReplyOutcome {
        Some(Ok(Reply::Multi(vec![OpResult::Check])))
    }

    /// Passes on the reply to a request that sets a watch.
    fn watching(inbox: &mut Inbox, request: u16, outcome: ReplyOutcome) {
        inbox.deliver(
            ReplyTo::Acquisition(address(request), Some(WATCH)),
            Some(key()),
            Instant::default(),
            outcome,
        );
    }

    fn arrived(inbox: &mut Inbox) -> Vec<String> {
        let description = |arrival| match arrival {
            Arrival::Reply { to, outcome, .. } => format!("reply {} {}", to.request.0, outcome.is_some()),
            Arrival::Fired { watch, is_deleted, .. } => format!("fired {} {is_deleted}", watch.0),
            Arrival::Disconnected => "disconnected".to_owned(),
            Arrival::Reconnected => "reconnected".to_owned(),
            Arrival::Timer { request, .. } => format!("timer {}", request.0),
        };
        inbox.arrivals.drain(..).map(description).collect()
    }

    #[tokio::test]
    async fn arrivals_keep_the_order_of_the_server() {
        let mut inbox = inbox();
        watching(&mut inbox, 1, done());
        inbox.handle_event(deleted());
        inbox.deliver(ReplyTo::Acquisition(address(2), None), None, Instant::default(), done());
        inbox.handle_state_change(SessionState::Disconnected(DisconnectReason::Closed));
        inbox.deliver(ReplyTo::Acquisition(address(3), None), None, Instant::default(), None);
        assert_eq!(
            arrived(&mut inbox),
            ["reply 1 true", "fired 7 true", "reply 2 true", "disconnected", "reply 3 false"]
        );
    }

    #[tokio::test]
    async fn watch_of_an_old_connection_fires_after_the_reconnect() {
        let mut inbox = inbox();
        watching(&mut inbox, 1, done());
        inbox.handle_state_change(SessionState::Disconnected(DisconnectReason::Closed));
        let (session, timeout, sent) = (1, Duration::from_secs(30), Instant::default());
        inbox.handle_state_change(SessionState::Connected { session, timeout, sent });
        assert_eq!(arrived(&mut inbox), ["reply 1 true", "disconnected", "reconnected", "fired 7 false"]);
        inbox.handle_event(deleted());
        assert!(arrived(&mut inbox).is_empty(), "a watch fires once");
    }

    #[tokio::test]
    async fn refused_request_and_forgotten_watch_do_not_fire() {
        let mut inbox = inbox();
        watching(&mut inbox, 1, Some(Err(Code::NoNode)));
        inbox.handle_event(deleted());
        assert_eq!(arrived(&mut inbox), ["reply 1 true"]);
        watching(&mut inbox, 2, done());
        lock(&inbox.dropped).push((key(), Watcher::Acquisition(ContenderId(1), WATCH)));
        inbox.forget_dropped();
        inbox.handle_event(deleted());
        assert_eq!(arrived(&mut inbox), ["reply 2 true"]);
    }

    #[tokio::test]
    async fn shared_transaction_answers_the_release_before_the_create() {
        let mut inbox = inbox();
        inbox.deliver(ReplyTo::Both(address(1), address(2)), None, Instant::default(), done());
        assert_eq!(arrived(&mut inbox), ["reply 1 true", "reply 2 true"]);
    }

    #[tokio::test]
    async fn watch_of_a_caller_resolves_once() {
        let mut inbox = inbox();
        let (sender, mut reply) = oneshot::channel();
        inbox.deliver(ReplyTo::Caller(sender), Some(key()), Instant::default(), done());
        let reply = reply.try_recv().expect("it was sent").expect("a reply");
        let mut watch = reply.watch.expect("a watch");
        assert_eq!((&mut watch).now_or_never(), None);
        inbox.handle_event(deleted());
        assert_eq!(watch.now_or_never(), Some(true));
        assert!(arrived(&mut inbox).is_empty());
    }
}
