//! The session task: drives every acquisition of one session.
//!
//! Each session has one task. It waits for answers, watches and timers on behalf of all its acquisitions, so
//! thousands of acquisitions need no task of their own. An [`Acquisition`] is the waker of its own futures:
//! waking it adds it to the ready list, and the task then polls those futures. Events that arrive together
//! are handled in one turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use zoolock_core::Event;
use zoolock_core::contender::{Reply, RequestId, SessionEnd};

use super::{Acquisition, InFlight, Pending};
use crate::metrics;
use crate::session::{Connection, Session, lock};

/// Maximum number of acquisitions polled before the task yields to lease renewal and to the client.
const MAX_POLLS_PER_TURN: usize = 64;

/// Number of timers below which timers of dropped acquisitions are not swept.
const MIN_TIMERS_TO_SWEEP: usize = 64;

/// Work queued for the session task.
pub(crate) struct SessionTask {
    /// Acquisitions with a ready future. `None` after the session ended.
    ready: Mutex<Option<Vec<Arc<Acquisition>>>>,
    timers: Mutex<Timers>,
    wake: Notify,
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
    pub(crate) fn new() -> SessionTask {
        SessionTask { ready: Mutex::new(Some(Vec::new())), timers: Mutex::default(), wake: Notify::new() }
    }

    fn schedule(&self, acquisition: Arc<Acquisition>) {
        if let Some(ready) = &mut *lock(&self.ready) {
            ready.push(acquisition);
            self.wake.notify_one();
        }
    }

    /// Drops all queued work. Called when the session ends.
    pub(crate) fn stop(&self) {
        let ready = lock(&self.ready).take();
        drop(ready);
        self.wake.notify_one();
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
            self.wake.notify_one();
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
        self.wake.notify_one();
    }

    /// Removes and returns due timers, at most `MAX_POLLS_PER_TURN`. Skips dropped acquisitions.
    fn take_due_timers(&self) -> Vec<(Arc<Acquisition>, RequestId)> {
        let now = Instant::now();
        let Timers { heap: timers, .. } = &mut *lock(&self.timers);
        let mut due = Vec::new();
        // Timers of dropped acquisitions are removed, and wake nothing.
        while due.len() < MAX_POLLS_PER_TURN
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
            let all_due_taken = due.len() < MAX_POLLS_PER_TURN;
            for (acquisition, request) in due {
                acquisition.handle_event(Event::Answer(request, Ok(Reply::Done)));
            }
            if all_due_taken {
                break;
            }
            tokio::task::yield_now().await;
        }
        let Some(ready) = lock(&session_task.ready).as_mut().map(std::mem::take) else { return };
        for some in ready.chunks(MAX_POLLS_PER_TURN) {
            some.iter().for_each(Acquisition::poll_pending);
            if some.len() == MAX_POLLS_PER_TURN {
                tokio::task::yield_now().await;
            }
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
            () = session_task.wake.notified() => {}
            () = sleep => {}
        }
    }
}

impl Acquisition {
    /// Starts a timer whose end is reported to the machine.
    pub(super) fn sleep(self: &Arc<Self>, request: RequestId, ms: u32) {
        let wait = Duration::from_millis(ms.into());
        self.session.session_task().start_timer(wait, request, Arc::downgrade(self));
    }

    /// Makes all timers of this acquisition due now.
    pub(super) fn fire_timers_now(&self) {
        self.session.session_task().fire_timers_now(self);
    }

    /// Polls its pending answers and watches.
    fn poll_pending(self: &Arc<Self>) {
        // Before the polls: a future that becomes ready after them schedules this acquisition again. A swap
        // here and in the waker: the later of the two sees the effects of the earlier one.
        self.is_scheduled.swap(false, Ordering::AcqRel);
        let waker = Waker::from(self.clone());
        let context = &mut Context::from_waker(&waker);
        while let Some(mut next) = self.next_in_flight() {
            // Not under the mutex: an answer that takes several requests reads the state of other
            // acquisitions in between.
            match next.answer.as_mut().poll(context) {
                Poll::Pending => {
                    let state = &mut *lock(&self.state);
                    state.is_polled = false;
                    if state.over {
                        self.finish_in_background(vec![next.answer]);
                    } else if self.session.end().is_none() {
                        state.in_flight.push_front(next);
                    }
                    // Otherwise the answer is dropped. It would not be polled any more, and would keep the
                    // client and this acquisition alive.
                    break;
                }
                Poll::Ready(outcome) => {
                    let InFlight { id, confirms, departs, .. } = next;
                    if let (true, Err(error)) = (departs, &outcome) {
                        metrics::cleanup_failed(error.failure);
                    }
                    // The connected server alone may refuse a write, so a refusal confirms nothing.
                    if let Some(sent) = confirms.filter(|_| outcome.is_ok()) {
                        self.session.confirm(sent);
                    }
                    self.answered(id, outcome);
                }
            }
        }
        self.poll_watches(context);
    }

    /// Finishes pending answers in the background. An answer that takes several requests helps others: it
    /// creates the directory.
    pub(super) fn finish_in_background(&self, begun: Vec<Pending>) {
        if begun.is_empty() || self.session.end().is_some() {
            return;
        }
        let mut connection = self.session.connection();
        self.session.tasks().spawn(async move {
            let all = async {
                for answer in begun {
                    let _ = answer.await;
                }
            };
            tokio::select! {
                biased;
                _ = connection.wait_for(|now| *now == Connection::Over) => {}
                () = all => {}
            }
        });
    }

    fn poll_watches(self: &Arc<Self>, context: &mut Context<'_>) {
        let state = &mut *lock(&self.state);
        self.ask_guard(state);
        // One at a time: handling a watch event may remove other watches.
        let mut at = 0;
        while let Some((id, watch)) = state.watches.get_mut(at) {
            match watch.as_mut().poll(context) {
                Poll::Pending => at += 1,
                Poll::Ready(deleted) => {
                    let watch = *id;
                    drop(state.watches.remove(at));
                    state.metrics.woken();
                    self.ask_guard(state);
                    self.step(state, Event::Fired { watch, deleted });
                    at = 0;
                }
            }
        }
    }

    /// Removes and returns the first pending answer. `None` if there is none, or while it is polled
    /// elsewhere.
    fn next_in_flight(&self) -> Option<InFlight> {
        let state = &mut *lock(&self.state);
        let next = state.in_flight.pop_front();
        state.is_polled = next.is_some();
        next
    }
}

impl Wake for Acquisition {
    fn wake(self: Arc<Self>) {
        if !self.is_scheduled.swap(true, Ordering::AcqRel) {
            self.session.clone().session_task().schedule(self);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_scheduled.swap(true, Ordering::AcqRel) {
            self.session.session_task().schedule(self.clone());
        }
    }
}

/// Closes the session if the session task panics. A session without its task is worse than none.
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
