//! One task of a session awaits whatever its acquisitions wait for: answers, watches, time.
//!
//! An acquisition is the waker of its own futures: when one of them is ready it is put on a list, and the task polls what
//! it has. So thousands of locks need no tasks, and what arrives together is dealt with in one go.

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

/// After how many the others on the thread have their turn: whoever renews the lease, and the client.
const IN_ONE_GO: usize = 64;

/// How many sleepers there may be before those are sent away who sleep in vain.
const FEW: usize = 64;

/// Who is to be attended to, and when.
pub(crate) struct Attendant {
    /// `None` once the session is over.
    called: Mutex<Option<Vec<Arc<Acquisition>>>>,
    sleepers: Mutex<Sleepers>,
    news: Notify,
}

#[derive(Default)]
struct Sleepers {
    heap: BinaryHeap<Reverse<Sleeper>>,
    /// How many were left the last time that somebody looked who is gone.
    left: usize,
}

/// Who wants to be told when a while is over, unless it is gone by then.
struct Sleeper {
    until: Instant,
    request: RequestId,
    acquisition: Weak<Acquisition>,
}

impl Attendant {
    pub(crate) fn new() -> Attendant {
        Attendant { called: Mutex::new(Some(Vec::new())), sleepers: Mutex::default(), news: Notify::new() }
    }

    fn call(&self, acquisition: Arc<Acquisition>) {
        if let Some(called) = &mut *lock(&self.called) {
            called.push(acquisition);
            self.news.notify_one();
        }
    }

    /// The session is over: its machines hear of that, and of nothing else any more.
    pub(crate) fn dismiss(&self) {
        let called = lock(&self.called).take();
        drop(called);
        self.news.notify_one();
    }

    fn wake_after(&self, wait: Duration, request: RequestId, acquisition: Weak<Acquisition>) {
        let until = Instant::now() + wait;
        let Sleepers { heap, left } = &mut *lock(&self.sleepers);
        if heap.len() >= FEW.max(2 * *left) {
            heap.retain(|Reverse(sleeper)| sleeper.acquisition.strong_count() > 0);
            *left = heap.len();
        }
        let is_first = heap.peek().is_none_or(|Reverse(first)| until < first.until);
        heap.push(Reverse(Sleeper { until, request, acquisition }));
        if is_first {
            self.news.notify_one();
        }
    }

    /// Wakes now those who sleep for this acquisition.
    fn wake_now(&self, acquisition: &Acquisition) {
        let now = Instant::now();
        let heap = &mut lock(&self.sleepers).heap;
        let mut sleepers = std::mem::take(heap).into_vec();
        for Reverse(sleeper) in &mut sleepers {
            if std::ptr::eq(sleeper.acquisition.as_ptr(), acquisition) {
                sleeper.until = sleeper.until.min(now);
            }
        }
        *heap = sleepers.into();
        self.news.notify_one();
    }

    /// Those whose time has come, and not too many of them.
    fn awake(&self) -> Vec<(Arc<Acquisition>, RequestId)> {
        let now = Instant::now();
        let Sleepers { heap: sleepers, .. } = &mut *lock(&self.sleepers);
        let mut awake = Vec::new();
        // Whoever is gone is nobody to wake up for.
        while awake.len() < IN_ONE_GO
            && let Some(Reverse(first)) = sleepers.peek()
            && (first.until <= now || first.acquisition.strong_count() == 0)
        {
            let Some(Reverse(Sleeper { request, acquisition, .. })) = sleepers.pop() else { break };
            awake.extend(acquisition.upgrade().map(|acquisition| (acquisition, request)));
        }
        awake
    }

    fn next_awakening(&self) -> Option<Instant> {
        lock(&self.sleepers).heap.peek().map(|Reverse(first)| first.until)
    }
}

/// Attends to all who stand on the session, until it is over.
pub(crate) async fn attend(session: Arc<Session>) {
    let _on_panic = OnPanic(session.clone());
    let attendant = session.attendant();
    loop {
        loop {
            let awake = attendant.awake();
            let were_all = awake.len() < IN_ONE_GO;
            for (acquisition, request) in awake {
                acquisition.happen(Event::Answer(request, Ok(Reply::Done)));
            }
            if were_all {
                break;
            }
            tokio::task::yield_now().await;
        }
        let Some(called) = lock(&attendant.called).as_mut().map(std::mem::take) else { return };
        for some in called.chunks(IN_ONE_GO) {
            some.iter().for_each(Acquisition::attend);
            if some.len() == IN_ONE_GO {
                tokio::task::yield_now().await;
            }
        }
        let next = attendant.next_awakening();
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = attendant.news.notified() => {}
            () = sleep => {}
        }
    }
}

impl Acquisition {
    /// Tells the machine when a while is over.
    pub(super) fn sleep(self: &Arc<Self>, request: RequestId, ms: u32) {
        let wait = Duration::from_millis(ms.into());
        self.session.attendant().wake_after(wait, request, Arc::downgrade(self));
    }

    /// Says that every while is over.
    pub(super) fn wake_now(&self) {
        self.session.attendant().wake_now(self);
    }

    /// Polls what it waits for.
    fn attend(self: &Arc<Self>) {
        // Before the polls: what is ready after them calls again. A swap, like that of the waker: of the two one comes
        // after the other, and sees what that one has done.
        self.is_called.swap(false, Ordering::AcqRel);
        let waker = Waker::from(self.clone());
        let context = &mut Context::from_waker(&waker);
        while let Some(mut next) = self.next_in_flight() {
            // Not under the mutex: an answer that takes several requests looks at the other acquisitions in between.
            match next.answer.as_mut().poll(context) {
                Poll::Pending => {
                    let state = &mut *lock(&self.state);
                    state.is_polled = false;
                    if state.over {
                        self.see_through(vec![next.answer]);
                    } else if self.session.end().is_none() {
                        state.in_flight.push_front(next);
                    }
                    // Else nobody would poll it any more, and it would keep the client, and us.
                    break;
                }
                Poll::Ready(outcome) => {
                    let InFlight { id, confirms, departs, .. } = next;
                    if let (true, Err(error)) = (departs, &outcome) {
                        metrics::cleanup_failed(error.failure);
                    }
                    if let Some(sent) = confirms {
                        self.session.confirm_write(sent, &outcome);
                    }
                    self.answered(id, outcome);
                }
            }
        }
        self.look_at_watches(context);
    }

    /// Carries on what takes several requests, and does somebody else good: it makes the directory.
    pub(super) fn see_through(&self, begun: Vec<Pending>) {
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

    fn look_at_watches(self: &Arc<Self>, context: &mut Context<'_>) {
        let state = &mut *lock(&self.state);
        self.ask_guard(state);
        // One after the other: what one has done may end the others.
        let mut at = 0;
        while let Some((id, watch)) = state.watches.get_mut(at) {
            match watch.as_mut().poll(context) {
                Poll::Pending => at += 1,
                Poll::Ready(deleted) => {
                    let watch = *id;
                    drop(state.watches.remove(at));
                    state.course.woken();
                    self.ask_guard(state);
                    self.step(state, Event::Fired { watch, deleted });
                    at = 0;
                }
            }
        }
    }

    /// The one that is to be answered first; there is none, or nobody else polls it.
    fn next_in_flight(&self) -> Option<InFlight> {
        let state = &mut *lock(&self.state);
        let next = state.in_flight.pop_front();
        state.is_polled = next.is_some();
        next
    }
}

impl Wake for Acquisition {
    fn wake(self: Arc<Self>) {
        if !self.is_called.swap(true, Ordering::AcqRel) {
            self.session.clone().attendant().call(self);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_called.swap(true, Ordering::AcqRel) {
            self.session.attendant().call(self.clone());
        }
    }
}

/// A session that nobody attends to any more is worse than none.
struct OnPanic(Arc<Session>);

impl Drop for OnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let session = self.0.clone();
            // Not while this thread unwinds: the machines hear of it.
            self.0.tasks().spawn(async move { session.finish(SessionEnd::Closed) });
        }
    }
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.until == other.until
    }
}

impl Eq for Sleeper {}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.until.cmp(&other.until)
    }
}
