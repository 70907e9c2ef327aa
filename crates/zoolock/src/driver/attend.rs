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
use zoolock_core::contender::{Reply, RequestId};

use super::{Acquisition, InFlight};
use crate::session::{Session, lock};

/// After how many the others on the thread have their turn: whoever renews the lease, and the client.
const IN_ONE_GO: usize = 64;

/// Who is to be attended to, and when.
pub(crate) struct Attendant {
    /// `None` once the session is over.
    called: Mutex<Option<Vec<Arc<Acquisition>>>>,
    sleepers: Mutex<BinaryHeap<Reverse<Sleeper>>>,
    news: Notify,
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
        let sleepers = &mut *lock(&self.sleepers);
        let is_first = sleepers.peek().is_none_or(|Reverse(first)| until < first.until);
        sleepers.push(Reverse(Sleeper { until, request, acquisition }));
        if is_first {
            self.news.notify_one();
        }
    }

    /// Those whose time has come.
    fn awake(&self) -> Vec<(Arc<Acquisition>, RequestId)> {
        let now = Instant::now();
        let sleepers = &mut *lock(&self.sleepers);
        let mut awake = Vec::new();
        // Whoever is gone is nobody to wake up for.
        while let Some(Reverse(first)) = sleepers.peek()
            && (first.until <= now || first.acquisition.strong_count() == 0)
        {
            let Some(Reverse(Sleeper { request, acquisition, .. })) = sleepers.pop() else { break };
            awake.extend(acquisition.upgrade().map(|acquisition| (acquisition, request)));
        }
        awake
    }

    fn next_awakening(&self) -> Option<Instant> {
        lock(&self.sleepers).peek().map(|Reverse(first)| first.until)
    }
}

/// Attends to all who stand on the session, until it is over.
pub(crate) async fn attend(session: Arc<Session>) {
    let attendant = session.attendant();
    loop {
        for (acquisition, request) in attendant.awake() {
            acquisition.happen(Event::Answer(request, Ok(Reply::Done)));
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

    /// Polls what it waits for.
    fn attend(self: &Arc<Self>) {
        // Before the polls: what is ready after them calls again.
        self.is_called.store(false, Ordering::Release);
        let waker = Waker::from(self.clone());
        let context = &mut Context::from_waker(&waker);
        while let Some(mut next) = self.next_in_flight() {
            // Not under the mutex: an answer that takes several requests looks at the other acquisitions in between.
            match next.answer.as_mut().poll(context) {
                Poll::Pending => {
                    let state = &mut *lock(&self.state);
                    state.in_flight.push_front(next);
                    state.is_polled = false;
                    break;
                }
                Poll::Ready(outcome) => {
                    let InFlight { id, confirms, .. } = next;
                    if let (Ok(_), Some(sent)) = (&outcome, confirms) {
                        self.session.confirm(sent);
                    }
                    self.answered(id, outcome);
                }
            }
        }
        self.look_at_watches(context);
    }

    fn look_at_watches(self: &Arc<Self>, context: &mut Context<'_>) {
        let state = &mut *lock(&self.state);
        let mut fired = Vec::new();
        state.watches.retain_mut(|(id, watch)| match watch.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(deleted) => {
                fired.push((*id, deleted));
                false
            }
        });
        for (watch, deleted) in fired {
            self.step(state, Event::Fired { watch, deleted });
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
        if !self.is_called.load(Ordering::Acquire) {
            self.clone().wake();
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
