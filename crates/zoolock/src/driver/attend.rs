//! The session task: drives every acquisition of one session.
//!
//! Each session has one task for all its acquisitions, so thousands of acquisitions need no task of their own. It handles
//! their timers, and takes replies, watch events and changes of the connection from one queue. A step of a machine never runs
//! under the mutex of the session client.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;
use zoolock_core::Event;
use zoolock_core::contender::{self, Reply, RequestId, SessionEnd};

use super::requests::{Arrived, Expected, Meaning};
use super::{Acquisition, InFlight, State};
use crate::keeper::{Answer, Arrival, Arrivals, KeeperError, WatchNumber};
use crate::metrics;
use crate::session::{Connection, Session, lock};

/// Maximum number of events handled before the task yields to lease renewal and to the client.
const MAX_EVENTS_PER_TURN: usize = 64;

/// Number of timers below which timers of dropped acquisitions are not swept.
const MIN_TIMERS_TO_SWEEP: usize = 64;

/// Work queued for the session task.
pub(crate) struct SessionTask {
    arrivals: Arc<Arrivals>,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    /// Number of timers after the last sweep.
    left_by_sweep: usize,
}

/// A timer of an acquisition.
struct Timer {
    until: Instant,
    request: RequestId,
    acquisition: Weak<Acquisition>,
}

impl SessionTask {
    pub(crate) fn new(arrivals: Arc<Arrivals>) -> SessionTask {
        // The first connection is no change for an acquisition.
        drop(arrivals.take());
        SessionTask { arrivals, timers: Mutex::default() }
    }

    /// Makes the task end, after the session has ended.
    pub(crate) fn stop(&self) {
        self.arrivals.wake();
    }

    fn start_timer(&self, wait: Duration, request: RequestId, acquisition: Weak<Acquisition>) {
        let until = Instant::now() + wait;
        let Timers { heap, left_by_sweep } = &mut *lock(&self.timers);
        if heap.len() >= MIN_TIMERS_TO_SWEEP.max(2 * *left_by_sweep) {
            heap.retain(|Reverse(timer)| timer.acquisition.strong_count() > 0);
            *left_by_sweep = heap.len();
        }
        let is_first = heap.peek().is_none_or(|Reverse(first)| until < first.until);
        heap.push(Reverse(Timer { until, request, acquisition }));
        if is_first {
            self.arrivals.wake();
        }
    }

    /// Makes the timers of this acquisition due now.
    fn fire_timers_now(&self, acquisition: &Acquisition) {
        let now = Instant::now();
        let heap = &mut lock(&self.timers).heap;
        let mut timers = std::mem::take(heap).into_vec();
        for Reverse(timer) in &mut timers {
            if std::ptr::eq(timer.acquisition.as_ptr(), acquisition) {
                timer.until = timer.until.min(now);
            }
        }
        *heap = timers.into();
        self.arrivals.wake();
    }

    /// Removes and returns due timers, at most `MAX_EVENTS_PER_TURN`. Skips dropped acquisitions.
    fn take_due_timers(&self) -> Vec<(Arc<Acquisition>, RequestId)> {
        let now = Instant::now();
        let Timers { heap: timers, .. } = &mut *lock(&self.timers);
        let mut due = Vec::new();
        // Timers of dropped acquisitions are removed, and wake nothing.
        while due.len() < MAX_EVENTS_PER_TURN
            && let Some(Reverse(first)) = timers.peek()
            && (first.until <= now || first.acquisition.strong_count() == 0)
        {
            let Some(Reverse(Timer { request, acquisition, .. })) = timers.pop() else { break };
            due.extend(acquisition.upgrade().map(|acquisition| (acquisition, request)));
        }
        due
    }

    fn next_deadline(&self) -> Option<Instant> {
        lock(&self.timers).heap.peek().map(|Reverse(first)| first.until)
    }
}

/// Runs the session task until the session ends.
pub(crate) async fn run_session_task(session: Arc<Session>) {
    let _on_panic = OnPanic(session.clone());
    let session_task = session.session_task();
    loop {
        loop {
            let due = session_task.take_due_timers();
            let all_due_taken = due.len() < MAX_EVENTS_PER_TURN;
            for (acquisition, request) in due {
                acquisition.handle_event(Event::Answer(request, Ok(Reply::Done)));
            }
            if all_due_taken {
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut handled = 0;
        for arrival in session_task.arrivals.take() {
            session.handle_arrival(arrival);
            handled += 1;
            if handled % MAX_EVENTS_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        if session.end().is_some() {
            return;
        }
        let next = session_task.next_deadline();
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = session_task.arrivals.arrived() => {}
            () = sleep => {}
        }
    }
}

impl Acquisition {
    /// Starts a timer, and reports its end to the machine.
    pub(super) fn sleep(self: &Arc<Self>, request: RequestId, ms: u32) {
        let wait = Duration::from_millis(ms.into());
        self.session.session_task().start_timer(wait, request, Arc::downgrade(self));
    }

    /// Makes all timers of this acquisition due now.
    pub(super) fn fire_timers_now(&self) {
        self.session.session_task().fire_timers_now(self);
    }

    /// Records the answer to a request, and handles the answers that are next in the order of the requests.
    fn record(self: &Arc<Self>, request: RequestId, arrived: Arrived) {
        let mut arrived = Some(arrived);
        loop {
            let (id, meaning) = {
                let state = &mut *lock(&self.state);
                let mut waiting = state.in_flight.iter_mut().filter(|sent| sent.arrived.is_none());
                if let Some(sent) = waiting.find(|sent| arrived.is_some() && sent.id == request) {
                    sent.arrived = arrived.take();
                }
                // The request stays in flight until its answer is handled.
                let Some(first) = state.in_flight.front_mut() else { return };
                match first.arrived.take() {
                    Some(Arrived::Outcome { part, sent, outcome }) => {
                        first.sent = Some(sent);
                        let expected = std::mem::replace(&mut first.expected, Expected::Result);
                        (first.id, self.meaning(expected, part, outcome))
                    }
                    Some(Arrived::Result(result)) => (first.id, Meaning::Now(result)),
                    None => return,
                }
            };
            match meaning {
                Meaning::Now(result) => self.answered(id, result),
                Meaning::Later(answer) => return self.run(id, answer),
            }
        }
    }

    /// Awaits the result of a request that takes several calls, on a task of its own. The task continues after the end of the
    /// acquisition: it may create the directory, which other acquisitions need, too.
    pub(super) fn run(&self, request: RequestId, result: Answer<Reply>) {
        let (session, contender) = (self.session.clone(), self.id);
        self.session.tasks().spawn(async move {
            let mut connection = session.connection();
            tokio::select! {
                biased;
                _ = connection.wait_for(|now| *now == Connection::Over) => {}
                result = result => {
                    session.session_task().arrivals.push(Arrival::Result { contender, request, result });
                }
            }
        });
    }

    fn answered(self: &Arc<Self>, id: RequestId, result: Result<Reply, KeeperError>) {
        let sent = {
            let state = &*lock(&self.state);
            let first = state.in_flight.front().filter(|first| first.id == id);
            if let (Some(true), Err(error)) = (first.map(|first| first.departs), &result) {
                metrics::cleanup_failed(error.failure);
            }
            first.filter(|first| first.writes).and_then(|first| first.sent)
        };
        // The connected server may refuse a write by itself, so a refusal confirms nothing.
        if let Some(sent) = sent.filter(|_| result.is_ok()) {
            self.session.confirm(zoolock_core::Instant(sent.0));
        }
        let state = &mut *lock(&self.state);
        let Some(sent) = state.in_flight.pop_front() else { return };
        if sent.id != id {
            // The session has ended.
            return state.in_flight.push_front(sent);
        }
        state.answers += u64::from(result.as_ref().err().is_none_or(|error| error.failure.is_answer()));
        let result = result.map_err(|error| {
            if matches!(error.failure, contender::Failure::Refused(_)) {
                state.refusal_message = error.message;
            }
            error.failure
        });
        let created = match &result {
            Ok(Reply::Joined(node)) => std::slice::from_ref(node),
            // Also after lost replies: other acquisitions that search for their znodes must know the owner of these.
            Ok(Reply::AllJoined(nodes) | Reply::Mine(nodes)) => nodes,
            _ => &[],
        };
        created.iter().for_each(|node| self.session.own(node.czxid, self.id));
        let watch = sent.watch.filter(|_| result.is_ok());
        let number = watch.as_ref().map(|watch| watch.number);
        let early = watch.and_then(|watch| state.watches.add(watch));
        self.step(state, Event::Answer(id, result));
        if let (Some(number), Some(is_deleted)) = (number, early) {
            self.fired_in(state, number, is_deleted);
        }
        if state.in_flight.is_empty() {
            self.settled.notify_waiters();
        }
    }

    fn fired(self: &Arc<Self>, watch: WatchNumber, is_deleted: bool) {
        self.fired_in(&mut lock(&self.state), watch, is_deleted);
    }

    /// Handles an event of a watch. Ignores it if the machine has forgotten the watch.
    fn fired_in(self: &Arc<Self>, state: &mut State, number: WatchNumber, deleted: bool) {
        let sets = |sent: &InFlight| sent.watch.as_ref().is_some_and(|watch| watch.number == number);
        if let Some(watch) = state.watches.fired(number) {
            state.metrics.woken();
            self.step(state, Event::Fired { watch, deleted });
        } else if state.in_flight.iter().any(sets) {
            // The answer that set the watch waits for the answer to an earlier request.
            state.watches.fired_early(number, deleted);
        }
    }
}

impl Session {
    fn handle_arrival(&self, arrival: Arrival) {
        match arrival {
            Arrival::Reply { to, sent, outcome } => {
                if let Some(acquisition) = self.acquisition(to.contender) {
                    acquisition.record(to.request, Arrived::Outcome { part: to.part, sent, outcome });
                }
            }
            Arrival::Result { contender, request, result } => {
                if let Some(acquisition) = self.acquisition(contender) {
                    acquisition.record(request, Arrived::Result(result));
                }
            }
            Arrival::Fired { contender, watch, is_deleted } => {
                if let Some(acquisition) = self.acquisition(contender) {
                    acquisition.fired(watch, is_deleted);
                }
            }
            Arrival::Disconnected => self.tell_all(&Event::Disconnected),
            Arrival::Reconnected => self.tell_all(&Event::Reconnected),
        }
    }
}

/// A guard that closes the session if the session task panics. Without the task, no acquisition would get its replies.
struct OnPanic(Arc<Session>);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let session = self.0.clone();
            // Not while this thread unwinds: closing steps the machines.
            self.0.tasks().spawn(async move { session.finish(SessionEnd::Closed) });
        }
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.until.cmp(&other.until)
    }
}
