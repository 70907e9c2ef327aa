//! Shared holds: the tasks of one client wait in memory in front of one hold of a mutex, and pass it on to each other.
//!
//! A [`TaskQueue`] makes all decisions. A [`Hold`] has what this state machine lacks: the clock, the waiting tasks and the
//! acquisition. Each acquisition has one background task, the driver. The driver acquires the lock. Then it reports other
//! contenders, the end of the idle time, grants that are not taken, requests to release, and the loss.
//!
//! A test runs this file in many thread interleavings (`zoolock-tests/tests/orders`).

use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use zoolock_core::acquisition::{Loss, SessionEnd};
use zoolock_core::record::HolderState;
use zoolock_core::shared_hold::{HoldAction, HoldLimits, ReleaseKind, TaskId, TaskQueue};
use zoolock_core::{Instant, Kind};

use crate::base::clock;
use crate::base::error::Error;
use crate::base::events::{Listeners, LockEvent};
use crate::base::options::Options;
use crate::base::sync::{Mutex, lock};
use crate::base::tasks::Task;
use crate::engine::Acquisition;
use crate::lock::acquire::{FirstSession, Lock, WaitLimit};
use crate::lock::held::Held;
use crate::session::{Connection, WatchReservation};

/// Minimum time between two checks of a hold. It bounds the wake-ups of a hold with a very small limit.
const MIN_CHECK_TIME: Duration = Duration::from_millis(10);

/// The way to answer a waiting task.
type Answer = oneshot::Sender<Result<Held, Error>>;

/// A hold of a mutex, with the tasks of this client in front of it.
pub(crate) struct Hold {
    /// The lock, with the options of the acquisition.
    lock: Lock,
    /// The listeners of the handle. They get the events of each task.
    listeners: Listeners,
    state: Mutex<HoldState>,
}

struct HoldState {
    queue: TaskQueue<Answer>,
    held: Option<Held>,
    /// The last id that was given to a task.
    last_task: u64,
    /// Number of the current acquisition. It distinguishes the events of this acquisition from those of earlier ones.
    number: u64,
    /// The background task of the current acquisition.
    driver: Option<Task>,
    /// Set from the first hold on, until no task holds or waits. An acquisition in between continues the wait of its tasks.
    has_held: bool,
}

impl Hold {
    pub(crate) fn new(handle: &Lock, limits: HoldLimits) -> Hold {
        let options = Options {
            listeners: handle.options.listeners.without_outcome(),
            // The owner is the shared hold and no task, because the hold passes from task to task without a request to
            // the server.
            owner_mode: handle.context.owner_ids().new_shared_hold(),
            ..handle.options.clone()
        };
        Hold {
            lock: Lock { options, ..handle.clone() },
            listeners: handle.options.listeners.clone(),
            state: Mutex::new(HoldState {
                queue: TaskQueue::new(limits),
                held: None,
                last_task: 0,
                number: 0,
                driver: None,
                has_held: false,
            }),
        }
    }

    /// Acquires the lock for a task. Returns `None` if the lock is busy at the end of the wait.
    pub(crate) async fn acquire(self: &Arc<Self>, mut wait_limit: WaitLimit) -> Result<Option<Held>, Error> {
        loop {
            self.lock.context.process().check_not_forked()?;
            let held = match (self.ask(wait_limit), wait_limit) {
                (None, _) => self.try_alone().await?,
                (Some(mut task), WaitLimit::Try) => task.granted_now().transpose()?,
                (Some(mut task), _) => self.lock.wait_within(wait_limit, task.granted()).await.transpose()?,
            };
            match held {
                // If the task may not have the lock any more, it asks again, at least once.
                Some(held) => match held.claim() {
                    Some(held) => return Ok(Some(held)),
                    None => wait_limit = wait_limit.or_try_if_passed(),
                },
                None if !self.is_held() && !self.lock.context.server_answers().await => {
                    return Err(self.lock.no_answer());
                }
                None => return Ok(None),
            }
        }
    }

    /// Returns whether a task of this client holds the lock.
    fn is_held(&self) -> bool {
        lock(&self.state).queue.holder().is_some()
    }

    /// Returns whether this process is a fork of the process that made the handle.
    fn is_forked(&self) -> bool {
        self.lock.context.process().is_forked()
    }

    /// Adds a task to the queue. Returns `None` if the task only tries, and the client neither holds the lock nor queues
    /// for it. Such a task must send a request of its own.
    fn ask(self: &Arc<Self>, wait_limit: WaitLimit) -> Option<WaitingTask> {
        let state = &mut *lock(&self.state);
        let only_tries = matches!(wait_limit, WaitLimit::Try);
        if state.queue.is_idle() {
            if only_tries {
                return None;
            }
            state.has_held = false;
        }
        // Reports how many tasks of this client are ahead.
        let ahead = u32::try_from(state.queue.len()).unwrap_or(u32::MAX);
        if ahead > 0 && !only_tries {
            self.listeners.tell(LockEvent::Queued { ahead });
        }
        let (task, action) = self.add_task(state);
        self.act(state, action);
        Some(task)
    }

    fn add_task(self: &Arc<Self>, state: &mut HoldState) -> (WaitingTask, HoldAction<Answer>) {
        state.last_task += 1;
        let task = TaskId(state.last_task);
        let (sender, answer) = oneshot::channel();
        let action = state.queue.ask(task, sender, clock::now(), state.is_lease_valid());
        (WaitingTask { hold: self.clone(), task, answer, is_answered: false }, action)
    }

    /// Acquires the lock for one task with a request of its own, if the lock is free. Then shares the hold with the other
    /// tasks, unless another task has asked for it meanwhile.
    async fn try_alone(self: &Arc<Self>) -> Result<Option<Held>, Error> {
        let held = match self.lock.acquire_in_span(Kind::Mutex, WaitLimit::Try, FirstSession::New).await {
            Ok(Some(held)) => held,
            outcome => {
                self.listeners.tell(LockEvent::GaveUp);
                return outcome;
            }
        };
        let mut task = {
            let state = &mut *lock(&self.state);
            if !state.queue.is_idle() {
                self.listeners.tell(LockEvent::Acquired(held.ticket()));
                return Ok(Some(held));
            }
            // Ignores the action `Acquire`, because the acquisition exists already.
            let (task, _) = self.add_task(state);
            state.number += 1;
            let watching = watch(Arc::downgrade(self), held.acquisition().clone(), state.number);
            state.driver = Some(self.lock.context.tasks().spawn(watching));
            self.begin_hold(state, held);
            task
        };
        match task.granted_now() {
            Some(answer) => answer.map(Some),
            // The queue grants nothing, because the lease has ended just now.
            None => Err(self.lock.no_answer()),
        }
    }

    fn begin_hold(self: &Arc<Self>, state: &mut HoldState, held: Held) {
        state.held = Some(held);
        state.has_held = true;
        let action = state.queue.begin_hold(clock::now(), state.is_lease_valid());
        self.act(state, action);
    }

    /// Carries out an action of the queue.
    fn act(self: &Arc<Self>, state: &mut HoldState, action: HoldAction<Answer>) {
        match action {
            HoldAction::None => {}
            HoldAction::Acquire => self.start_driver(state),
            HoldAction::Cancel => state.end_hold(ReleaseKind::Untouched),
            HoldAction::Release { how, acquires_again } => {
                state.end_hold(how);
                if acquires_again {
                    self.start_driver(state);
                }
            }
            HoldAction::Grant { task, waiter, pass } => {
                let held = state.held.as_ref().expect("the queue grants only a lock that is held");
                let held = held.share_with(TaskHold::new(self.clone(), task, pass), state.queue.has_worked());
                // Cannot fail, because a task that gives up leaves the queue first, under this mutex.
                let _ = waiter.send(Ok(held));
            }
        }
    }

    fn start_driver(self: &Arc<Self>, state: &mut HoldState) {
        state.number += 1;
        let first_session = if state.has_held { FirstSession::Replacement } else { FirstSession::New };
        let driving = self.clone().drive(state.number, first_session);
        state.driver = Some(self.lock.context.tasks().spawn(driving));
    }

    /// Acquires the lock, and then watches the hold.
    async fn drive(self: Arc<Self>, number: u64, first_session: FirstSession) {
        let outcome = self.lock.acquire_in_span(Kind::Mutex, WaitLimit::ForEver, first_session).await;
        let acquisition = {
            let state = &mut *lock(&self.state);
            match outcome {
                Ok(Some(held)) if state.number == number => {
                    let acquisition = held.acquisition().clone();
                    self.begin_hold(state, held);
                    acquisition
                }
                // Releases the grant, because this acquisition is not the current one any more, and no task wants it.
                Ok(held) => return held.iter().for_each(Held::release_untouched),
                Err(error) if state.number == number => return self.fail(state, &error),
                Err(_) => return,
            }
        };
        let hold = Arc::downgrade(&self);
        // Drops the hold, because its driver must not keep it alive.
        drop(self);
        watch(hold, acquisition, number).await;
    }

    /// Passes an event of acquisition `number` to the queue, if that acquisition is current.
    fn handle(
        self: &Arc<Self>,
        number: u64,
        event: impl FnOnce(&mut TaskQueue<Answer>, Instant, bool) -> HoldAction<Answer>,
    ) {
        let state = &mut *lock(&self.state);
        if state.number == number {
            let is_lease_valid = state.is_lease_valid();
            let action = event(&mut state.queue, clock::now(), is_lease_valid);
            self.act(state, action);
        }
    }

    /// Handles the loss of acquisition `number`, of which the server has no znode any more. `end`: set if the session has
    /// ended.
    fn lose(self: &Arc<Self>, number: u64, end: Option<SessionEnd>) {
        let state = &mut *lock(&self.state);
        if state.number != number {
            return;
        }
        if let Some(error) = end.and_then(|end| self.session_error(end)) {
            return self.fail(state, &error);
        }
        state.end_hold(ReleaseKind::Released);
        let action = state.queue.lose();
        self.act(state, action);
    }

    /// Returns the error of the tasks that wait when the session ends; `None` if another session can replace it.
    fn session_error(&self, end: SessionEnd) -> Option<Error> {
        match end {
            SessionEnd::Closed => Some(Error::Closed),
            SessionEnd::AuthFailed => Some(Error::lock_denied(&self.lock.path())),
            SessionEnd::Expired => None,
        }
    }

    /// Ends the hold and fails all waiting tasks.
    fn fail(&self, state: &mut HoldState, error: &Error) {
        state.end_hold(ReleaseKind::Released);
        for (_, answer) in state.queue.fail() {
            self.listeners.tell(LockEvent::GaveUp);
            let _ = answer.send(Err(error.clone()));
        }
    }

    /// Ends the hold of a task, and records this in `task_end`. `is_seen`: set if the task has taken its grant.
    fn end_task_hold(self: &Arc<Self>, task: TaskId, how: ReleaseKind, is_seen: bool, task_end: &TaskEnd) {
        let state = &mut *lock(&self.state);
        let held = state.held.as_ref().filter(|_| state.queue.holder() == Some(task));
        // Does nothing for a task without the lock, because it has lost the lock.
        let Some(held) = held else { return task_end.record(TaskHoldEnd::Released) };
        let (ticket, end) = (held.ticket(), held.acquisition().session().end());
        // Handles the end of the session before it is reported, because otherwise a waiting task could cause a new
        // acquisition on a new session.
        if let Some(error) = end.and_then(|end| self.session_error(end)) {
            self.fail(state, &error);
            return task_end.record(TaskHoldEnd::Released);
        }
        let action = state.queue.release(task, how, clock::now(), state.is_lease_valid());
        // Records and reports the release before the next task gets the lock.
        if matches!(action, HoldAction::Release { .. }) {
            task_end.record(TaskHoldEnd::Released);
        } else {
            task_end.record(TaskHoldEnd::PassedOn);
            if is_seen {
                self.listeners.tell(LockEvent::Released(ticket));
            }
        }
        self.act(state, action);
    }
}

impl HoldState {
    fn is_lease_valid(&self) -> bool {
        self.held.as_ref().is_some_and(Held::is_valid)
    }

    /// Ends the current acquisition, and releases the lock if it is held.
    fn end_hold(&mut self, how: ReleaseKind) {
        self.number += 1;
        if let Some(driver) = self.driver.take() {
            driver.abort();
        }
        let Some(held) = self.held.take() else { return };
        match how {
            // Does not call `release_state_of_this_thread`, because this thread may unwind for another reason.
            ReleaseKind::Released => held.release_as(HolderState::Released),
            ReleaseKind::Panicked => held.release_as(HolderState::Panicked),
            ReleaseKind::Untouched => held.release_untouched(),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        // Releases a lock that this client still keeps. No handle is left that could acquire the lock again.
        let state = &mut *lock(&self.state);
        let worked = state.queue.has_worked();
        state.end_hold(if worked { ReleaseKind::Released } else { ReleaseKind::Untouched });
    }
}

/// Reports other contenders, the end of the idle time, grants that are not taken, requests to release, and the loss of
/// acquisition `number`, until the hold ends: this aborts the task.
async fn watch(hold: Weak<Hold>, acquisition: Arc<Acquisition>, number: u64) {
    let report = |event: fn(&mut TaskQueue<Answer>, Instant, bool) -> HoldAction<Answer>| {
        if let Some(hold) = hold.upgrade() {
            hold.handle(number, event);
        }
    };
    let contended = async {
        wait_for_other_contender(&acquisition, || report(TaskQueue::find_alone)).await;
        report(TaskQueue::find_contended);
    };
    let times = async {
        loop {
            let alarm = hold.upgrade().map(|hold| {
                let left = lock(&hold.state).queue.time_to_check(clock::now());
                hold.lock.context.alarm(clock::deadline_after(left.max(MIN_CHECK_TIME)))
            });
            let Some(alarm) = alarm else { return };
            alarm.await;
            report(TaskQueue::check);
        }
    };
    let revoked = async {
        acquisition.revoked().await;
        report(TaskQueue::end_soon);
    };
    let events = async {
        tokio::join!(contended, times, revoked);
        pending().await
    };
    let loss = tokio::select! {
        biased;
        loss = acquisition.lost() => loss,
        () = events => return,
    };
    if loss == Loss::Unreachable {
        // Ends the hold soon, and then waits for the end of the session, because the znode stays until the lock is
        // released or the session has ended.
        report(TaskQueue::end_soon);
        let mut connection = acquisition.session().connection();
        // Ignores a failure of the wait, because the session is dropped then, and has ended, too.
        let _ = connection.wait_for(|connection| *connection == Connection::Ended).await;
    }
    if let Some(hold) = hold.upgrade() {
        hold.lose(number, acquisition.session().end());
    }
}

/// Waits until the queue has another contender, or may have one. Calls `find_alone` when a listing under a watch shows that
/// it has none.
async fn wait_for_other_contender(acquisition: &Acquisition, find_alone: impl FnOnce()) {
    let session = acquisition.session().clone();
    let Some(zk) = session.zk() else { return };
    let directory = acquisition.directories()[0].as_str();
    // Lists and watches the children only if there is one child, because their number is cheaper to read.
    if !matches!(zk.exists(directory).await, Ok(Some(stat)) if stat.children == 1) {
        return;
    }
    session.reserve_anyway(directory.len());
    let _reservation = WatchReservation::of(session, directory.len());
    if let Ok((names, _, watch)) = zk.watch_children(directory).await
        && names.len() == 1
    {
        find_alone();
        // `watch` also resolves if the session loses the watch. Another contender may then have queued unnoticed.
        watch.await;
    }
}

/// A task that waits for the lock. Dropping this gives up the request.
struct WaitingTask {
    hold: Arc<Hold>,
    task: TaskId,
    answer: oneshot::Receiver<Result<Held, Error>>,
    /// Set once the task has received its answer.
    is_answered: bool,
}

impl WaitingTask {
    async fn granted(&mut self) -> Result<Held, Error> {
        let answer = (&mut self.answer).await;
        self.is_answered = true;
        answer.unwrap_or_else(|_| Err(Error::Closed))
    }

    /// Returns the answer, if the task has one already.
    fn granted_now(&mut self) -> Option<Result<Held, Error>> {
        let answer = self.answer.try_recv().ok();
        self.is_answered = answer.is_some();
        answer
    }
}

impl Drop for WaitingTask {
    fn drop(&mut self) {
        if self.is_answered || self.hold.is_forked() {
            return;
        }
        let gives_up = {
            let state = &mut *lock(&self.hold.state);
            let action = state.queue.give_up(self.task);
            let gives_up = action.is_some();
            action.into_iter().for_each(|action| self.hold.act(state, action));
            gives_up
        };
        // A grant that was sent and not received is dropped here, which passes the hold on.
        if gives_up || matches!(self.answer.try_recv(), Ok(Ok(_))) {
            self.hold.listeners.tell(LockEvent::GaveUp);
        }
    }
}

/// The hold of one task, from its grant to its release.
pub(crate) struct TaskHold {
    hold: Arc<Hold>,
    task: TaskId,
    pass: u32,
    /// Set once the task has taken the grant.
    seen: bool,
    end: Arc<TaskEnd>,
}

/// The end of a task's hold. Empty until the task has released the lock.
#[derive(Default)]
pub(crate) struct TaskEnd {
    how: OnceLock<TaskHoldEnd>,
    ended: Notify,
}

/// The state of the lock after a task has released it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TaskHoldEnd {
    /// The client still has the lock.
    PassedOn,
    /// The client has released the lock, too, or had lost it.
    Released,
}

impl TaskEnd {
    fn record(&self, how: TaskHoldEnd) {
        self.how.get_or_init(|| how);
        self.ended.notify_waiters();
    }

    /// Returns whether the task has released the lock.
    pub(crate) fn has_ended(&self) -> bool {
        self.how.get().is_some()
    }

    /// Returns whether the task has released the lock, and the client still had it then.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.how.get() == Some(&TaskHoldEnd::PassedOn)
    }

    /// Waits until the task has released a lock that the client still has. Waits for ever if the client has not.
    pub(crate) async fn wait_until_passed_on(&self) {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if self.is_passed_on() {
                return;
            }
            ended.await;
        }
    }
}

impl TaskHold {
    fn new(hold: Arc<Hold>, task: TaskId, pass: u32) -> TaskHold {
        TaskHold { hold, task, pass, seen: false, end: Arc::default() }
    }

    /// Returns the number of earlier grants with the same znode.
    pub(crate) fn pass(&self) -> u32 {
        self.pass
    }

    /// Takes the grant for the task. Returns false if the next task has the lock, or the lease has ended.
    pub(crate) fn claim(&mut self) -> bool {
        if self.hold.is_forked() {
            return false;
        }
        let state = &mut *lock(&self.hold.state);
        let is_lease_valid = state.is_lease_valid();
        self.seen = state.queue.claim(self.task, is_lease_valid);
        if let Some(held) = state.held.as_ref().filter(|_| self.seen) {
            self.hold.listeners.tell(LockEvent::Acquired(held.ticket()));
        }
        self.seen
    }

    /// Returns the end of this hold. Callers that wait for the release of the guard read it.
    pub(crate) fn end(&self) -> Arc<TaskEnd> {
        self.end.clone()
    }

    /// Releases the lock, unless this task has released it already.
    pub(crate) fn release(&self, how: ReleaseKind) {
        let how = if self.seen { how } else { ReleaseKind::Untouched };
        if !self.end.has_ended() {
            self.hold.end_task_hold(self.task, how, self.seen, &self.end);
        }
    }
}
