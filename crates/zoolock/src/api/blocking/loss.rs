//! Reports the loss of a lock to callbacks and to blocked threads.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::base::error::LossReason;
use crate::base::sync::lock;
use crate::base::tasks::Task;
use crate::base::telemetry::log_event;

/// The pending loss callbacks of one guard. Dropping this aborts them.
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

/// A waker that unparks a thread.
struct ThreadUnparker(Thread);

impl Wake for ThreadUnparker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until the future is ready, for `timeout` at most. Uses no timer of a runtime, and so works in a forked
/// process.
pub(super) fn block_on_timeout<T>(timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
    let deadline = Instant::now().checked_add(timeout);
    let waker = Waker::from(Arc::new(ThreadUnparker(std::thread::current())));
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

/// Wraps a callback so that it runs on a thread of its own. The session thread, which reports the loss, also renews the
/// leases of all other locks, and must not block.
pub(super) fn on_its_own_thread(
    callback: impl FnOnce(LossReason) + Send + 'static,
) -> impl FnOnce(LossReason) + Send + 'static {
    let callback = Arc::new(Mutex::new(Some(callback)));
    move |reason| {
        let call = {
            let callback = callback.clone();
            move || {
                // The mutex is unlocked before the callback runs.
                let callback = lock(&callback).take();
                if let Some(callback) = callback {
                    callback(reason);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("zoolock-lost".to_owned()).spawn(call.clone()) {
            log_event!(WARN, %error, "cannot start a thread for the callback of a lost lock; it runs here");
            call();
        }
    }
}
