//! Runs one machine over one session: sends what it asks for, reports every answer, once and in order.
//!
//! The machine sits behind a mutex and is stepped by whoever has news: the caller (start, cancel, release), the task
//! that awaits answers and watches, the session. Requests are put on the wire inside the step,
//! under that mutex, so their order on the wire is the machine's order. The release of a guard that is dropped goes out
//! before anything else that its session sends, or as soon as the runtime has a thread for it: the same task often asks
//! again at once, and both cost the service one commit then.
//!
//! Answers are awaited in the order of the requests: the machine relies on the order that the service gives. A session has
//! one task for that.
//!
//! * `attend.rs`: that task.
//! * `guard.rs`: what has to be known of our own node before anything else is told.
//! * `lookout.rs`: a holder that looks who else stands in its queue.
//! * `machine.rs`: one lock or several.
//! * `requests.rs`: what the machine asks for, in the words of the port.

mod attend;
mod guard;
mod lookout;
mod machine;
mod requests;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use zoolock_core::contender::{
    Departed, Failure, Grant, Loss, Node, Previous, Reason, Reply, Request, RequestId, WatchId,
};
use zoolock_core::record::Left;
use zoolock_core::{Action, Config, ContenderId, Event, Instant};

use crate::asker::Asker;
use crate::clock;
use crate::data::NodeData;
use crate::events::{Listeners, LockEvent};
use crate::keeper::{KeeperError, Watch};
use crate::metrics::Course;
use crate::path::LockPath;
use crate::session::{Session, lock};
use crate::tasks::Task;
use crate::ticket::Ticket;

use guard::NodeGuard;
use machine::Machine;

pub(crate) use attend::{Attendant, attend};

/// One acquisition, from the first request to the last clean-up.
pub(crate) struct Acquisition {
    session: Arc<Session>,
    id: ContenderId,
    /// One for each lock.
    directories: Vec<LockPath>,
    config: Config,
    data: NodeData,
    reserved: usize,
    listeners: Listeners,
    /// Of the tickets.
    epoch: u32,
    state: Mutex<State>,
    changed: Notify,
    /// The task of the session knows that something is ready.
    is_called: AtomicBool,
}

struct State {
    machine: Machine,
    /// Without the first one while that is polled.
    in_flight: VecDeque<InFlight>,
    is_polled: bool,
    watches: Vec<(WatchId, Watch)>,
    guard: Option<NodeGuard>,
    tasks: Vec<Task>,
    progress: Progress,
    lost: Option<Loss>,
    departed: Option<Departed>,
    revoked: bool,
    downgraded: Option<Node>,
    /// How the last holder left, if that was read after the grant.
    previous: Option<Previous>,
    ticket: Option<Ticket>,
    /// The listeners know that it stands in the queue.
    queued: bool,
    /// Nobody waits for what is sent now.
    in_no_hurry: bool,
    over: bool,
    /// Whether it ever stood in the queue.
    stood: bool,
    /// The words of the last refusal.
    words: String,
    course: Course,
}

/// An answer that is to come.
type Pending = Pin<Box<dyn Future<Output = Result<News, KeeperError>> + Send>>;

struct InFlight {
    id: RequestId,
    answer: Pending,
    /// When it was sent, if its answer may prove that the leader knows our session.
    confirms: Option<Instant>,
    /// Whether it deletes a node of ours.
    departs: bool,
}

struct News {
    reply: Reply,
    watch: Option<(WatchId, Watch)>,
}

/// How far the acquisition has come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Progress {
    Pending,
    Granted(Grant),
    Failed(Reason),
}

impl Acquisition {
    /// Sends the first flight and returns at once.
    pub(crate) fn start(
        session: Arc<Session>,
        directories: Vec<LockPath>,
        id: ContenderId,
        config: Config,
        data: NodeData,
        reserved: usize,
        (listeners, epoch, course): (Listeners, u32, Course),
    ) -> Arc<Acquisition> {
        let machine = Machine::new(config.clone(), directories.len());
        let acquisition = Arc::new(Acquisition {
            session,
            id,
            directories,
            config,
            data,
            reserved,
            listeners,
            epoch,
            state: Mutex::new(State {
                machine,
                in_flight: VecDeque::new(),
                is_polled: false,
                watches: Vec::new(),
                guard: None,
                tasks: Vec::new(),
                progress: Progress::Pending,
                lost: None,
                departed: None,
                revoked: false,
                downgraded: None,
                previous: None,
                ticket: None,
                queued: false,
                in_no_hurry: false,
                over: false,
                stood: false,
                words: String::new(),
                course,
            }),
            changed: Notify::new(),
            is_called: AtomicBool::new(false),
        });
        acquisition.session.enter(&acquisition);
        acquisition.happen(Event::Start);
        if let Some(end) = acquisition.session.end() {
            // It ended before we were on its list.
            acquisition.happen(Event::SessionOver(end));
        }
        acquisition
    }

    pub(crate) fn id(&self) -> ContenderId {
        self.id
    }

    /// Who asked for it.
    pub(crate) fn asker(&self) -> Asker {
        self.data.asker()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The directories of its locks; there is at least one.
    pub(crate) fn directories(&self) -> &[LockPath] {
        &self.directories
    }

    /// The node of the first lock, where there is one.
    pub(crate) fn node(&self) -> Option<Node> {
        lock(&self.state).machine.node(0)
    }

    /// The words in which the service last refused something.
    pub(crate) fn words(&self) -> String {
        lock(&self.state).words.clone()
    }

    /// Whether it ever stood in the queue, as far as we know.
    pub(crate) fn has_stood(&self) -> bool {
        lock(&self.state).stood
    }

    /// Whether only clean-up is left.
    pub(crate) fn is_leaving(&self) -> bool {
        lock(&self.state).machine.is_leaving()
    }

    /// Whether it stands in this directory without a node that we know of.
    fn is_nodeless_in(&self, directory: &LockPath) -> bool {
        let place = self.directories.iter().position(|own| own == directory);
        place.is_some_and(|place| lock(&self.state).machine.node(place).is_none())
    }

    /// Tells the machine that something happened, and does what it says.
    pub(crate) fn happen(self: &Arc<Self>, event: Event) {
        self.happen_in(&mut lock(&self.state), event);
    }

    fn happen_in(self: &Arc<Self>, state: &mut State, event: Event) {
        let ends = matches!(event, Event::Release(_) | Event::Cancel | Event::TimedOut | Event::Downgrade);
        if ends && !self.session.keeper().is_some_and(|keeper| keeper.is_connected()) {
            // Sooner than the session would say it: a delete must not wait in the client's queue.
            self.step(state, Event::Disconnected);
        }
        let gave_up = event == Event::Cancel && matches!(state.progress, Progress::Pending);
        let is_end = matches!(event, Event::SessionOver(_));
        self.step(state, event);
        if is_end {
            // Nobody polls them any more, and as long as they are there the client does not close the session.
            state.in_flight.clear();
        }
        if gave_up {
            state.course.cancelled();
            self.listeners.tell(LockEvent::GaveUp);
        }
    }

    /// Says that the deadline has passed, after `patience`. Aborting the task is fine.
    pub(crate) fn give_up_after(self: &Arc<Self>, patience: Duration) -> Task {
        let acquisition = self.clone();
        self.session.tasks().spawn(async move {
            tokio::time::sleep(patience).await;
            acquisition.happen(Event::TimedOut);
        })
    }

    // ---- what callers wait for ----

    /// Waits for the grant or the failure.
    pub(crate) async fn outcome(&self) -> Progress {
        self.wait(|state| match state.progress {
            Progress::Pending => None,
            progress => Some(progress),
        })
        .await
    }

    /// Waits until the lock is lost.
    pub(crate) async fn lost(&self) -> Loss {
        self.wait(|state| state.lost).await
    }

    pub(crate) fn is_lost(&self) -> Option<Loss> {
        lock(&self.state).lost
    }

    /// Waits until somebody asks to let go.
    pub(crate) async fn revoked(&self) {
        self.wait(|state| state.revoked.then_some(())).await;
    }

    pub(crate) fn is_revoked(&self) -> bool {
        lock(&self.state).revoked
    }

    /// Waits until a holder knows what its own node says, or has lost the lock, and makes the first look there one that
    /// does not wait.
    pub(crate) async fn looked(&self) {
        let knows = |state: &State| state.revoked || state.lost.is_some() || state.machine.watches_own();
        if knows(&lock(&self.state)) {
            return;
        }
        // For one that is granted it is all that sleeps, but for what is tried again.
        self.wake_now();
        self.wait(|state| knows(state).then_some(())).await;
    }

    /// How the last holder left, as far as it has been read since the grant.
    pub(crate) fn previous(&self) -> Option<Previous> {
        lock(&self.state).previous
    }

    /// Goes on as a reader; the node that stands for it from then on, or how it was lost on the way.
    pub(crate) async fn downgrade(self: &Arc<Self>) -> Result<Node, Loss> {
        self.happen(Event::Downgrade);
        self.wait(|state| state.downgraded.map(Ok).or(state.lost.map(Err))).await
    }

    /// Whether the release is done.
    pub(crate) fn has_departed(&self) -> bool {
        lock(&self.state).departed.is_some()
    }

    /// Waits until the release is done.
    pub(crate) async fn departed(&self) -> Departed {
        self.wait(|state| state.departed).await
    }

    pub(crate) async fn over(&self) {
        self.wait(|state| state.over.then_some(())).await;
    }

    /// Lets go, and nobody waits for it.
    pub(crate) fn release(self: &Arc<Self>) {
        let left = left_by_this_thread();
        let state = &mut *lock(&self.state);
        state.in_no_hurry = true;
        self.happen_in(state, Event::Release(left));
        state.in_no_hurry = false;
    }

    async fn wait<T>(&self, ready: impl Fn(&State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = ready(&lock(&self.state)) {
                return value;
            }
            changed.await;
        }
    }

    // ---- the machine ----

    fn step(self: &Arc<Self>, state: &mut State, event: Event) {
        let others = others_in(&event);
        let actions = state.machine.step(event, self.session.lease_valid());
        // Whoever waits for something waits for one of the others, or for the watch on our node.
        let is_news = |action: &Action| !matches!(action, Action::Send(..) | Action::Unwatch(_));
        let wakes = state.machine.watches_own() || actions.iter().any(is_news);
        for action in actions {
            match action {
                Action::Send(id, Request::Sleep(ms)) => self.sleep(id, ms),
                Action::Send(id, request) => self.send(state, id, request),
                Action::Unwatch(watch) => {
                    state.guard.take_if(|guard| guard.is(watch));
                    state.watches.retain(|(id, _)| *id != watch);
                }
                Action::Granted(grant) => {
                    state.progress = Progress::Granted(grant);
                    state.ticket = Some(Ticket::new(self.epoch, grant.node.czxid));
                    state.course.granted();
                    self.relieve_guard(state);
                    self.tell(state, LockEvent::Acquired);
                    self.look_out(state);
                }
                Action::Previous(previous) => state.previous = Some(previous),
                Action::Failed(reason) => {
                    state.progress = Progress::Failed(reason);
                    state.course.failed(reason);
                    self.listeners.tell(LockEvent::GaveUp);
                }
                Action::Lost(loss) => {
                    state.lost = Some(loss);
                    state.course.lost(loss);
                    self.tell(state, |ticket| LockEvent::Lost(ticket, loss.into()));
                }
                Action::Released(how) => {
                    state.departed = Some(how);
                    state.course.released();
                    if how == Departed::Clean {
                        self.tell(state, LockEvent::Released);
                    }
                }
                Action::Revoked => {
                    state.revoked = true;
                    state.course.revoked();
                    self.tell(state, LockEvent::Revoked);
                }
                Action::Downgraded(node) => {
                    state.downgraded = Some(node);
                    state.course.becomes("reader");
                    state.ticket = Some(Ticket::new(self.epoch, node.czxid));
                }
                Action::Over => self.finish(state),
            }
        }
        if let Some(others) = others.filter(|_| state.machine.node(0).is_some()) {
            state.course.sees(others);
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

    /// Looks who else stands in the queue, if anybody wants to know.
    fn look_out(self: &Arc<Self>, state: &mut State) {
        if self.listeners.may_be_heard() {
            let looking = lookout::look_out(Arc::downgrade(self), self.directories.len());
            state.tasks.push(self.session.tasks().spawn(looking));
        }
    }

    fn tell(&self, state: &State, event: impl FnOnce(Ticket) -> LockEvent) {
        if let Some(ticket) = state.ticket {
            self.listeners.tell(event(ticket));
        }
    }

    /// The service is late, or has confirmed again.
    pub(crate) fn connection_is(&self, suspect: bool) {
        let state = lock(&self.state);
        if state.lost.is_none() && state.departed.is_none() && !state.machine.is_leaving() {
            self.tell(&state, if suspect { LockEvent::Suspect } else { LockEvent::Confirmed });
        }
    }

    fn finish(&self, state: &mut State) {
        state.over = true;
        state.tasks.drain(..).for_each(|task| task.abort());
        state.watches.clear();
        state.guard = None;
        let begun = std::mem::take(&mut state.in_flight);
        self.see_through(begun.into_iter().map(|InFlight { answer, .. }| answer).collect());
        self.session.leave(self.id, self.reserved);
    }

    fn send(self: &Arc<Self>, state: &mut State, id: RequestId, request: Request) {
        // Once the session is over nothing is answered any more; the machine hears of that instead.
        let Some(keeper) = self.session.keeper().filter(|_| self.session.end().is_none()) else { return };
        // It looks at the other acquisitions: not under our mutex.
        let is_inward = matches!(request, Request::FindMine);
        let confirms = requests::is_write(&request).then(clock::now);
        let departs = requests::is_departure(&request);
        let place = machine::place(&self.directories, id);
        if let Request::WatchOwn { watch, .. } = request {
            state.guard = Some(NodeGuard::new(watch, &*keeper));
        }
        let answer = match request {
            Request::Delete(node) if state.in_no_hurry => self.leave_soon(&*keeper, place, node, None),
            Request::Release { node, marker, version }
                if state.in_no_hurry && marker.left != Left::Panicked =>
            {
                self.leave_soon(&*keeper, place, node, Some((marker, version)))
            }
            request => self.call(keeper, place, request),
        };
        let mut sent = InFlight { id, answer, confirms, departs };
        if state.in_flight.is_empty() && !state.is_polled {
            let waker = Waker::from(self.clone());
            if is_inward {
                waker.wake();
            } else if let Poll::Ready(outcome) = sent.answer.as_mut().poll(&mut Context::from_waker(&waker)) {
                // Not here, in the middle of a step.
                sent.answer = Box::pin(std::future::ready(outcome));
                waker.wake();
            }
        }
        state.in_flight.push_back(sent);
    }

    fn answered(self: &Arc<Self>, id: RequestId, outcome: Result<News, KeeperError>) {
        let state = &mut *lock(&self.state);
        if state.over {
            return;
        }
        match outcome {
            Err(error) => {
                if matches!(error.failure, Failure::Refused(_)) {
                    state.words = error.message;
                }
                self.ask_guard(state);
                self.step(state, Event::Answer(id, Err(error.failure)));
            }
            Ok(News { reply, watch }) => {
                match &reply {
                    Reply::Joined(node) => {
                        state.stood = true;
                        self.session.own(node.czxid, self.id);
                    }
                    Reply::AllJoined(nodes) => {
                        state.stood = true;
                        nodes.iter().for_each(|node| self.session.own(node.czxid, self.id));
                    }
                    // Found after lost replies: others who search must know that they are taken.
                    Reply::Mine(nodes) => nodes.iter().for_each(|node| self.session.own(node.czxid, self.id)),
                    _ => {}
                }
                let watch = watch.and_then(|(id, watch)| NodeGuard::take(&mut state.guard, id, watch));
                state.watches.extend(watch);
                self.ask_guard(state);
                self.step(state, Event::Answer(id, Ok(reply)));
            }
        }
    }
}

/// How many others a reading shows that went out with our create, or soon after it.
fn others_in(event: &Event) -> Option<u32> {
    match event {
        Event::Answer(_, Ok(Reply::Directory(directory))) => Some(directory.children.saturating_sub(1)),
        _ => None,
    }
}

/// How a lock is let go that goes now.
pub(crate) fn left_by_this_thread() -> Left {
    if std::thread::panicking() { Left::Panicked } else { Left::Released }
}
