//! The work of the session task: the timers of the session's acquisitions, and the messages to
//! these acquisitions that have arrived.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;
use zoolock_core::acquisition::RequestId;

use super::member::SessionAcquisition;
use crate::base::sync::lock;
use crate::zk::session::Arrivals;

/// Maximum number of events that the session task handles before it yields. Other tasks of the
/// session then run, for example the task that renews the lease.
pub(super) const MAX_EVENTS_PER_TURN: usize = 64;

/// The timers of dropped acquisitions are removed only if there are at least this many timers.
const MIN_TIMERS_TO_SWEEP: usize = 64;

/// Work queued for the session task.
pub(crate) struct SessionTask {
    pub(super) arrivals: Arc<Arrivals>,
    timers: Mutex<Timers>,
}

#[derive(Default)]
struct Timers {
    heap: BinaryHeap<Reverse<RequestTimer>>,
    /// Number of timers that were left when timers of dropped acquisitions were last removed.
    left_by_sweep: usize,
}

/// A timer of an acquisition.
struct RequestTimer {
    until: Instant,
    request: RequestId,
    member: Weak<dyn SessionAcquisition>,
}

impl SessionTask {
    pub(crate) fn new(arrivals: Arc<Arrivals>) -> SessionTask {
        // Drops the `Reconnected` that the inbox reports for the first connection of the session, because
        // no acquisition exists yet.
        drop(arrivals.take());
        SessionTask { arrivals, timers: Mutex::default() }
    }

    /// Wakes the task after the session has ended, so that the task ends, too.
    pub(crate) fn stop(&self) {
        self.arrivals.wake();
    }

    pub(crate) fn start_timer(
        &self,
        wait: Duration,
        request: RequestId,
        member: Weak<dyn SessionAcquisition>,
    ) {
        let until = Instant::now() + wait;
        let Timers { heap, left_by_sweep } = &mut *lock(&self.timers);
        if heap.len() >= MIN_TIMERS_TO_SWEEP.max(2 * *left_by_sweep) {
            heap.retain(|Reverse(timer)| timer.member.strong_count() > 0);
            *left_by_sweep = heap.len();
        }
        let is_first = heap.peek().is_none_or(|Reverse(first)| until < first.until);
        heap.push(Reverse(RequestTimer { until, request, member }));
        if is_first {
            self.arrivals.wake();
        }
    }

    /// Makes the timers of this acquisition due now.
    pub(crate) fn fire_timers_now<M: SessionAcquisition>(&self, member: &M) {
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

    /// Removes and returns due timers, at most `MAX_EVENTS_PER_TURN`. Discards the timers of
    /// dropped acquisitions.
    pub(super) fn take_due_timers(&self) -> Vec<(Arc<dyn SessionAcquisition>, RequestId)> {
        let now = Instant::now();
        let Timers { heap: timers, .. } = &mut *lock(&self.timers);
        let mut due = Vec::new();
        // Removes the first timer before it is due if its acquisition was dropped, because it would wake the
        // task for nothing.
        while due.len() < MAX_EVENTS_PER_TURN
            && let Some(Reverse(first)) = timers.peek()
            && (first.until <= now || first.member.strong_count() == 0)
        {
            let Some(Reverse(RequestTimer { request, member, .. })) = timers.pop() else { break };
            due.extend(member.upgrade().map(|member| (member, request)));
        }
        due
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        lock(&self.timers).heap.peek().map(|Reverse(first)| first.until)
    }
}

impl PartialEq for RequestTimer {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for RequestTimer {}

impl PartialOrd for RequestTimer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RequestTimer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.until.cmp(&other.until)
    }
}
