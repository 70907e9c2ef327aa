//! Runs the state machine of one acquisition over one session: sends the machine's requests, and reports every answer
//! to the machine, once and in order.
//!
//! The machine is behind a mutex. Steps of the machine are run by the caller (start, claim of the grant, downgrade,
//! cancel, release), by the driver of the session (answers, watch events and timers), by the session (a renewed lease,
//! the end of the lease or of the session), and by the task that waits for the caller's time limit. A thread that asks
//! whether the lock is held also reports the end of the lease. Requests are sent inside the step, under that mutex, so
//! their order on the wire is the machine's order.
//!
//! The release of a dropped guard is deferred. The session sends the release before its next
//! request, or as soon as the runtime has a thread for it. Only renewals of the lease can overtake
//! the release. If the next request acquires in the same directory, the server commits the release
//! and the new znode in one transaction.
//!
//! The machine relies on the order of the server's messages. Replies and watch events of a session
//! are in one queue (`zk/session/inbox.rs`), and are handled in the order of the queue. The answers
//! of one acquisition also keep the order of its requests. So if one request of the machine needs
//! several rounds of ZooKeeper requests, the answers to later requests wait.
//!
//! * `callers.rs`: the waits of callers: for the grant, the end of the hold, the release.
//! * `crashes.rs`: the crashes of previous holders that the machine has found.
//! * `expected.rs`: the replies that a request expects.
//! * `foreign_contender_monitor.rs`: detects contenders that ignore a holder's znode.
//! * `replies.rs`: handles the replies and watch events of one acquisition.
//! * `requests.rs`: translates the machine's requests into requests of the ZooKeeper session.
//! * `routines.rs`: the machine's requests that take several rounds of requests to the server.
//! * `watches.rs`: the watches of an acquisition.

mod callers;
pub(crate) mod crashes;
pub(crate) mod data;
mod expected;
mod foreign_contender_monitor;
pub(crate) mod gather;
pub(crate) mod reader;
mod replies;
mod requests;
mod routines;
mod watches;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use zoolock_core::acquisition::{
    Grant, Loss, Mode, Node, Previous, Reason, ReleaseOutcome, Reply, Request, RequestId,
};
use zoolock_core::record::HolderState;
use zoolock_core::{Action, Config, ContenderId, Event, Machine};

use crate::base::error::LossReason;
use crate::base::events::{Listeners, LockEvent};
use crate::base::metrics::AcquireMetrics;
use crate::base::owner_id::OwnerId;
use crate::base::path::LockPath;
use crate::base::sync::lock;
use crate::base::tasks::Task;
use crate::base::telemetry::log_event;
use crate::base::ticket::Ticket;
use crate::engine::crashes::FoundCrashes;
use crate::engine::data::NodeData;
use crate::session::LockSession;
use crate::zk::session::ZkError;

use expected::{ArrivedReply, ExpectedReply};
use watches::{KnownWatches, SetWatch};

/// One acquisition, from the first request to the last clean-up.
pub(crate) struct Acquisition {
    session: Arc<LockSession>,
    id: ContenderId,
    /// The lock directories, one per lock.
    directories: Arc<[LockPath]>,
    config: Config,
    data: NodeData,
    reserved: usize,
    listeners: Listeners,
    /// Epoch of the tickets.
    epoch: u32,
    pub(crate) crashes: FoundCrashes,
    state: Mutex<AcquisitionState>,
    changed: Notify,
    /// Notified when the last request in flight is answered.
    settled: Notify,
}

struct AcquisitionState {
    machine: Box<Machine>,
    /// The buffer for the actions of a step. The next step uses the same buffer.
    actions: Vec<Action>,
    /// The requests whose answers have not been handled, in the order in which they were sent.
    in_flight: VecDeque<SentRequest>,
    watches: KnownWatches,
    tasks: Vec<Task>,
    progress: Progress,
    /// The end of the hold: the release or the loss, whichever comes first.
    hold_end: Option<HoldEnd>,
    departed: Option<ReleaseOutcome>,
    revoked: bool,
    downgraded: Option<Node>,
    /// The way in which the previous holder left, if this was read after the grant.
    previous: Option<Previous>,
    ticket: Option<Ticket>,
    /// Set once [`LockEvent::Queued`] was reported.
    queued: bool,
    /// Set if the last read of the directory on this connection has shown that the lock is not free.
    is_busy: bool,
    /// Set if the lock was busy when the acquisition failed.
    was_busy: bool,
    /// Set while a background release sends its requests. No caller waits for these requests.
    in_background: bool,
    has_ended: bool,
    /// Set while the session counts this acquisition as one that needs the lease.
    needs_lease: bool,
    /// The message of the server's last refusal.
    refusal_message: String,
    metrics: AcquireMetrics,
}

/// The end of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldEnd {
    /// The holder has begun to release the lock.
    Released,
    Lost(Loss),
}

impl AcquisitionState {
    /// Returns whether the caller still waits, as far as it knows: the acquisition is not decided, or the caller has not
    /// taken the grant, which may have been given back.
    fn caller_waits(&self) -> bool {
        matches!(self.progress, Progress::Pending | Progress::Unclaimed) || self.machine.is_unclaimed()
    }

    fn loss(&self) -> Option<Loss> {
        match self.hold_end {
            Some(HoldEnd::Lost(loss)) => Some(loss),
            Some(HoldEnd::Released) | None => None,
        }
    }
}

/// A request that was sent.
struct SentRequest {
    id: RequestId,
    expected: ExpectedReply,
    /// Set if a success proves that a quorum has confirmed a write of the session.
    writes: bool,
    /// Set if the request creates a znode of this acquisition.
    creates_own_znode: bool,
    /// Set if the request deletes a znode of this acquisition.
    deletes_own_znode: bool,
    /// The watch that the request sets.
    watch: Option<SetWatch>,
    /// The time at which the request was written to the connection, or the first of its requests. Known only after the
    /// reply has arrived.
    sent: Option<zoolock_client::Instant>,
    /// The replies that have arrived and are not translated yet.
    replies: Vec<ArrivedReply>,
    /// The answer for the machine, while the answers to earlier requests are missing.
    answer: Option<Result<Reply, ZkError>>,
}

impl SentRequest {
    /// Takes the replies, if all that the request expects have arrived.
    fn take_replies(&mut self) -> Option<(ExpectedReply, Vec<ArrivedReply>)> {
        let is_complete = self.replies.len() == self.expected.replies();
        is_complete.then(|| {
            (std::mem::replace(&mut self.expected, ExpectedReply::Taken), std::mem::take(&mut self.replies))
        })
    }
}

/// The progress of an acquisition.
#[derive(Debug, Clone)]
pub(crate) enum Progress {
    Pending,
    Granted(Grant),
    /// The grant was given back before the caller took it.
    Unclaimed,
    Failed(Reason),
}

impl Acquisition {
    /// Starts an acquisition. Sends its first requests, and returns at once.
    pub(crate) fn start(
        session: Arc<LockSession>,
        directories: Arc<[LockPath]>,
        id: ContenderId,
        config: Config,
        data: NodeData,
        reserved: usize,
        (listeners, epoch, metrics): (Listeners, u32, AcquireMetrics),
    ) -> Arc<Acquisition> {
        let machine = Box::new(Machine::new(config.clone(), directories.len()));
        let acquisition = Arc::new(Acquisition {
            session,
            id,
            directories,
            config,
            data,
            reserved,
            listeners,
            epoch,
            crashes: FoundCrashes::default(),
            state: Mutex::new(AcquisitionState {
                machine,
                actions: Vec::with_capacity(4),
                in_flight: VecDeque::new(),
                watches: KnownWatches::default(),
                tasks: Vec::new(),
                progress: Progress::Pending,
                hold_end: None,
                departed: None,
                revoked: false,
                downgraded: None,
                previous: None,
                ticket: None,
                queued: false,
                is_busy: false,
                was_busy: false,
                in_background: false,
                has_ended: false,
                needs_lease: false,
                refusal_message: String::new(),
                metrics,
            }),
            changed: Notify::new(),
            settled: Notify::new(),
        });
        acquisition.session.register(acquisition.clone());
        acquisition.step(&mut lock(&acquisition.state), Event::Start);
        if let Some(end) = acquisition.session.end() {
            // Reports the end here, because a session that ended before the acquisition was registered has
            // not reported its end to it.
            acquisition.handle_event(Event::SessionOver(end));
        }
        acquisition
    }

    pub(crate) fn id(&self) -> ContenderId {
        self.id
    }

    /// Returns the owner of this acquisition.
    pub(crate) fn owner_id(&self) -> OwnerId {
        self.data.owner_id()
    }

    pub(crate) fn session(&self) -> &Arc<LockSession> {
        &self.session
    }

    /// Returns the directories of the acquisition's locks; there is at least one.
    pub(crate) fn directories(&self) -> &[LockPath] {
        &self.directories
    }

    /// Returns the acquisition's znode in the first directory, if there is one.
    pub(crate) fn node(&self) -> Option<Node> {
        lock(&self.state).machine.node(0)
    }

    /// Returns the message of the server's last refusal.
    pub(crate) fn refusal_message(&self) -> String {
        lock(&self.state).refusal_message.clone()
    }

    /// Returns whether the acquisition has failed, and at that time the lock was known to be busy.
    pub(crate) fn was_busy(&self) -> bool {
        lock(&self.state).was_busy
    }

    /// Returns whether only clean-up is left.
    pub(crate) fn is_leaving(&self) -> bool {
        lock(&self.state).machine.is_leaving()
    }

    /// Steps the machine with an event, and runs the actions.
    pub(crate) fn handle_event(self: &Arc<Self>, event: Event) {
        self.handle_event_in(&mut lock(&self.state), event);
    }

    fn handle_event_in(self: &Arc<Self>, state: &mut AcquisitionState, event: Event) {
        let ends = matches!(event, Event::Release(_) | Event::Cancel | Event::TimedOut | Event::Downgrade);
        if ends && !self.session.zk().is_some_and(|zk| zk.is_connected()) {
            // Reports the disconnect now, because the session may not have reported it yet, and without a
            // connection the machine must check its znode before it deletes the znode.
            self.step(state, Event::Disconnected);
        }
        let gave_up = event == Event::Cancel && state.caller_waits();
        let is_end = matches!(event, Event::SessionOver(_));
        let is_release = matches!(event, Event::Release(_) | Event::Cancel);
        if is_release && matches!(state.progress, Progress::Granted(_)) && state.hold_end.is_none() {
            state.hold_end = Some(HoldEnd::Released);
            self.changed.notify_waiters();
        }
        self.step(state, event);
        if is_end {
            self.drop_in_flight(state);
        }
        if gave_up {
            state.metrics.record_cancellation();
            self.listeners.tell(LockEvent::GaveUp);
        }
    }

    /// Starts a task that makes this acquisition time out after `max_wait`. The server then has `answer_time` to show
    /// whether the lock is busy, unless it has shown this before, and to answer one more request. Then the task reports the
    /// timeout to the machine, unless the acquisition is decided. The caller may abort the task.
    pub(crate) fn give_up_after(self: &Arc<Self>, max_wait: Duration, answer_time: Duration) -> Task {
        let acquisition = self.clone();
        self.session.tasks().spawn(async move {
            tokio::time::sleep(max_wait).await;
            let left = acquisition.wait_until_known(answer_time).await;
            if matches!(lock(&acquisition.state).progress, Progress::Pending) {
                let answers = match left {
                    Some(left) => acquisition.probe_server(left).await,
                    None => false,
                };
                lock(&acquisition.state).is_busy = answers;
                acquisition.handle_event(Event::TimedOut);
            }
        })
    }

    /// Waits until the server has shown that the lock is busy, or the acquisition is decided: granted or failed. Returns
    /// what is left of `answer_time` then; `None` if it has passed. The configured delay before a grant is added, because no
    /// answers are expected during the delay.
    async fn wait_until_known(&self, answer_time: Duration) -> Option<Duration> {
        // Looks for a busy lock only if the acquisition waits in the queue, because any other acquisition fails
        // by itself then.
        let waits = self.config.mode == Mode::Wait;
        let is_known = |state: &AcquisitionState| {
            (waits && (state.is_busy || state.machine.is_waiting()))
                || !matches!(state.progress, Progress::Pending)
        };
        let known = self.wait(|state| is_known(state).then_some(()));
        let limit = answer_time + Duration::from_millis(self.config.delay.into());
        let began = tokio::time::Instant::now();
        tokio::time::timeout(limit, known).await.ok()?;
        Some(answer_time.min(limit.saturating_sub(began.elapsed())))
    }

    /// Sends one more request. Returns whether the server answers this and all earlier requests within `answer_time`.
    /// On success, the answers to the earlier requests have been handled.
    async fn probe_server(&self, answer_time: Duration) -> bool {
        let (Some(zk), Some(path)) = (self.session.zk(), self.directories.first()) else {
            return false;
        };
        let answered = async {
            if zk.exists(path.as_str()).await.is_err_and(|error| !error.failure.is_answer()) {
                return false;
            }
            loop {
                let settled = self.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                let is_settled = |state: &AcquisitionState| {
                    state.in_flight.is_empty() || !matches!(state.progress, Progress::Pending)
                };
                if is_settled(&lock(&self.state)) {
                    break;
                }
                settled.await;
            }
            true
        };
        tokio::time::timeout(answer_time, answered).await.unwrap_or(false)
    }

    // ---- the machine ----

    fn step(self: &Arc<Self>, state: &mut AcquisitionState, event: Event) {
        let was_busy = state.is_busy;
        let children = children_in(&event);
        let others = children.map(|children| children.saturating_sub(1));
        match children {
            Some(children) => {
                let own = u32::from(state.machine.node(0).is_some());
                // With several locks, the acquisition stays busy, because this answer is about one directory.
                let is_busy_elsewhere = self.directories.len() > 1 && state.is_busy;
                // With a configured delay, the lock counts as busy even without other contenders, because
                // the acquisition may wait for the delay.
                state.is_busy = children > own || self.config.delay > 0 || is_busy_elsewhere;
            }
            None if event == Event::Disconnected => state.is_busy = false,
            None => {}
        }
        let mut actions = std::mem::take(&mut state.actions);
        state.machine.step(event, self.session.lease_valid(), &mut actions);
        let needs_lease = state.machine.needs_lease();
        if std::mem::replace(&mut state.needs_lease, needs_lease) != needs_lease {
            self.session.count_lease_user(needs_lease, state.machine.node(0).is_some());
        }
        // Callers do not wait for these two actions. They wait for every other action, and for the
        // watch on the holder's own znode.
        let is_news = |action: &Action| !matches!(action, Action::Send(..) | Action::Unwatch(_));
        let learns = state.is_busy && !was_busy;
        let wakes = learns || state.machine.watches_own() || actions.iter().any(is_news);
        let sends = actions.iter().filter(|action| matches!(action, Action::Send(..))).count();
        // Several requests of one step are sent as one packet, for example the first requests of an acquisition.
        let _batch = self.session.zk().filter(|_| sends > 1).map(|zk| zk.begin_batch());
        for action in actions.drain(..) {
            match action {
                Action::Send(id, Request::Sleep(ms)) => {
                    if let Some(zk) = self.session.zk() {
                        zk.start_timer(Duration::from_millis(ms.into()), self.id, id);
                    }
                }
                Action::Send(id, request) => self.send(state, id, request),
                Action::Unwatch(watch) => {
                    if let Some(watch) = state.watches.forget(watch) {
                        self.remove_watch(watch);
                    }
                }
                Action::Granted(grant) => {
                    state.progress = Progress::Granted(grant);
                    state.ticket = Some(Ticket::new(self.epoch, grant.node.czxid));
                    state.metrics.record_grant();
                }
                Action::Unclaimed(loss) => self.handle_unclaimed(state, loss),
                Action::Previous(previous) => state.previous = Some(previous),
                Action::CrashFound { lock_index, marker } => self.crashes.add(lock_index, marker),
                Action::Failed(reason) => {
                    state.was_busy = state.is_busy && self.session.is_up();
                    state.progress = Progress::Failed(reason.clone());
                    state.metrics.record_failure(reason, state.was_busy);
                    self.listeners.tell(LockEvent::GaveUp);
                }
                Action::Lost(loss) => {
                    state.hold_end.get_or_insert(HoldEnd::Lost(loss));
                    state.metrics.record_loss(loss);
                    let reason = LossReason::of(loss);
                    self.report(state, |ticket| LockEvent::Lost(ticket, reason));
                    let directories = self.directories.clone();
                    log_event!(WARN, lock = directories[0].as_str(), %reason, "the lock is lost");
                }
                Action::Released(how) => {
                    state.departed = Some(how);
                    state.metrics.record_release();
                    if how == ReleaseOutcome::Clean {
                        self.report(state, LockEvent::Released);
                    }
                }
                Action::Revoked => {
                    state.revoked = true;
                    state.metrics.count_revocation();
                    self.report(state, LockEvent::Revoked);
                    let directories = self.directories.clone();
                    log_event!(INFO, lock = directories[0].as_str(), "asked to release the lock");
                }
                Action::Downgraded(node) => {
                    state.downgraded = Some(node);
                    state.metrics.change_kind("reader");
                    state.ticket = Some(Ticket::new(self.epoch, node.czxid));
                }
                Action::Finished => self.finish(state),
            }
        }
        state.actions = actions;
        if let Some(others) = others.filter(|_| state.machine.node(0).is_some()) {
            state.metrics.record_queue(others);
        }
        if let Some(ahead) = others.filter(|&ahead| ahead > 0)
            && !state.queued
            && matches!(state.progress, Progress::Pending)
            && state.machine.node(0).is_some()
        {
            state.queued = true;
            self.listeners.tell(LockEvent::Queued { ahead });
        }
        if wakes {
            self.changed.notify_waiters();
        }
    }

    /// Records that a grant was given back, because the caller has not taken it in time, or because of a loss.
    fn handle_unclaimed(&self, state: &mut AcquisitionState, loss: Option<Loss>) {
        state.metrics.record_release();
        state.progress = Progress::Unclaimed;
        match loss {
            // Fails as a waiter fails whose znode another client deletes.
            Some(Loss::Broken) => {
                state.progress = Progress::Failed(Reason::Broken);
                self.listeners.tell(LockEvent::GaveUp);
            }
            Some(Loss::Unreachable | Loss::SessionOver(_)) => {}
            None => {
                let (directories, limit_ms) = (self.directories.clone(), self.config.claim_timeout);
                log_event!(
                    WARN,
                    lock = directories[0].as_str(),
                    limit_ms,
                    "the grant is given back, because its future was not polled in time"
                );
            }
        }
    }

    /// Starts to check for contenders that ignore the holder's znode, if there is a listener.
    fn start_foreign_contender_monitor(self: &Arc<Self>, state: &mut AcquisitionState) {
        if self.listeners.has_listeners() {
            let monitor =
                foreign_contender_monitor::monitor_queue(Arc::downgrade(self), self.directories.len());
            state.tasks.push(self.session.tasks().spawn(monitor));
        }
    }

    /// Tells the listeners of an event of a holder. They hear nothing of a grant that the caller has not taken.
    fn report(&self, state: &AcquisitionState, event: impl FnOnce(Ticket) -> LockEvent) {
        if let Some(ticket) = state.ticket.filter(|_| !state.machine.is_unclaimed()) {
            self.listeners.tell(event(ticket));
        }
    }

    fn finish(&self, state: &mut AcquisitionState) {
        state.has_ended = true;
        state.tasks.drain(..).for_each(|task| task.abort());
        self.drop_in_flight(state);
        while let Some(watch) = state.watches.pop() {
            self.remove_watch(watch);
        }
        self.session.unregister(self.id, self.reserved);
    }

    fn drop_in_flight(&self, state: &mut AcquisitionState) {
        state.in_flight.drain(..).for_each(|sent| self.continue_alone(sent.expected));
        self.settled.notify_waiters();
    }

    fn remove_watch(&self, watch: SetWatch) {
        if let Some(zk) = self.session.zk() {
            zk.forget(watch.key, self.id, watch.number);
        }
    }
}

/// Returns the number of children of the directory, if the event is the answer to a read of the directory.
fn children_in(event: &Event) -> Option<u32> {
    match event {
        Event::Answer(_, Ok(Reply::Directory(directory))) => Some(directory.children),
        _ => None,
    }
}

/// Returns the state that a release by this thread records: `Panicked` if the thread unwinds from a panic, or else
/// `Released`.
pub(crate) fn release_state_of_this_thread() -> HolderState {
    if std::thread::panicking() { HolderState::Panicked } else { HolderState::Released }
}
