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
use zoolock_core::contender::{Reply, RequestId, SessionEnd};

use super::Session;
use super::member::Member;
use crate::base::sync::lock;
use crate::zk::session::{Arrival, Arrivals};

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
    member: Weak<dyn Member>,
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

    pub(crate) fn start_timer(&self, wait: Duration, request: RequestId, member: Weak<dyn Member>) {
        let until = Instant::now() + wait;
        let Timers { heap, left_by_sweep } = &mut *lock(&self.timers);
        if heap.len() >= MIN_TIMERS_TO_SWEEP.max(2 * *left_by_sweep) {
            heap.retain(|Reverse(timer)| timer.member.strong_count() > 0);
            *left_by_sweep = heap.len();
        }
        let is_first = heap.peek().is_none_or(|Reverse(first)| until < first.until);
        heap.push(Reverse(Timer { until, request, member }));
        if is_first {
            self.arrivals.wake();
        }
    }

    /// Makes the timers of this acquisition due now.
    pub(crate) fn fire_timers_now<M: Member>(&self, member: &M) {
        let now = Instant::now();
        let heap = &mut lock(&self.timers).heap;
        let mut timers = std::mem::take(heap).into_vec();
        for Reverse(timer) in &mut timers {
            if std::ptr::addr_eq(timer.member.as_ptr(), member) {
                timer.until = timer.until.min(now);
            }
        }
        *heap = timers.into();
        self.arrivals.wake();
    }

    /// Removes and returns due timers, at most `MAX_EVENTS_PER_TURN`. Skips dropped acquisitions.
    fn take_due_timers(&self) -> Vec<(Arc<dyn Member>, RequestId)> {
        let now = Instant::now();
        let Timers { heap: timers, .. } = &mut *lock(&self.timers);
        let mut due = Vec::new();
        // Timers of dropped acquisitions are removed, and wake nothing.
        while due.len() < MAX_EVENTS_PER_TURN
            && let Some(Reverse(first)) = timers.peek()
            && (first.until <= now || first.member.strong_count() == 0)
        {
            let Some(Reverse(Timer { request, member, .. })) = timers.pop() else { break };
            due.extend(member.upgrade().map(|member| (member, request)));
        }
        due
    }

    /// Queues the result of a request that takes several calls.
    pub(crate) fn push(&self, result: Arrival) {
        self.arrivals.push(result);
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
            for (member, request) in due {
                member.tell(Event::Answer(request, Ok(Reply::Done)));
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

impl Session {
    fn handle_arrival(&self, arrival: Arrival) {
        let contender = match &arrival {
            Arrival::Reply { to, .. } => to.contender,
            Arrival::Result { contender, .. } | Arrival::Fired { contender, .. } => *contender,
            Arrival::Disconnected => return self.tell_all(&Event::Disconnected),
            Arrival::Reconnected => return self.tell_all(&Event::Reconnected),
        };
        if let Some(member) = self.member(contender) {
            member.receive(arrival);
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
