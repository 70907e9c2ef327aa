//! Reports of a loss to threads.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::base::error::LossReason;
use crate::base::sync::lock;
use crate::base::tasks::Task;

/// The callbacks of one guard. They end with it.
#[derive(Default)]
pub(super) struct Callbacks {
    waiting: Mutex<Vec<Task>>,
}

impl Callbacks {
    pub(super) fn keep(&self, callback: Task) {
        lock(&self.waiting).push(callback);
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        lock(&self.waiting).iter().for_each(Task::abort);
    }
}

/// Blocks until something happens, for `timeout` at most. Returns whether it happened.
pub(super) fn resolves_within(timeout: Duration, happens: impl Future<Output = ()>) -> bool {
    block_on_timeout(timeout, happens).is_some()
}

/// A waker of a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until the future is ready, for `timeout` at most. It needs no timer of a runtime, and so works in a forked process.
pub(super) fn block_on_timeout<T>(timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
    let deadline = Instant::now().checked_add(timeout);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(tokio::task::unconstrained(future));
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
            None => std::thread::park(),
        }
    }
}

/// Makes a callback run on a thread of its own: the thread that reports a loss renews the leases of all other locks, and must
/// not block.
pub(super) fn on_its_own_thread(
    callback: impl FnOnce(LossReason) + Send + 'static,
) -> impl FnOnce(LossReason) + Send + 'static {
    let callback = Arc::new(Mutex::new(Some(callback)));
    move |reason| {
        let call = {
            let callback = callback.clone();
            move || {
                // Called without the mutex.
                let callback = lock(&callback).take();
                if let Some(callback) = callback {
                    callback(reason);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("zoolock-lost".to_owned()).spawn(call.clone()) {
            tracing::warn!(%error, "cannot start a thread for the callback of a lost lock; it runs here");
            call();
        }
    }
}
