//! How a thread hears that a lock is lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_io::Timer;
use futures_lite::future;

use super::wait;
use crate::error::LossReason;
use crate::session::lock;
use crate::tasks::Task;

/// The callbacks of one guard, which go with it.
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

/// The loss, if it comes in time.
pub(super) fn within(timeout: Duration, lost: impl Future<Output = LossReason>) -> Option<LossReason> {
    let late = async {
        Timer::after(timeout).await;
        None
    };
    wait(future::or(async { Some(lost.await) }, late))
}

/// Whether it happens in time.
pub(super) fn in_time(timeout: Duration, happens: impl Future<Output = ()>) -> bool {
    let late = async {
        Timer::after(timeout).await;
        false
    };
    let happens = async {
        happens.await;
        true
    };
    wait(future::or(happens, late))
}

/// The thread that hears of a loss renews the leases of all other locks, and must not run what may block.
pub(super) fn on_its_own_thread(
    callback: impl FnOnce(LossReason) + Send + 'static,
) -> impl FnOnce(LossReason) + Send + 'static {
    let callback = Arc::new(Mutex::new(Some(callback)));
    move |reason| {
        let call = {
            let callback = callback.clone();
            move || {
                // Not called with the lock held.
                let callback = lock(&callback).take();
                if let Some(callback) = callback {
                    callback(reason);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("zoolock-lost".to_owned()).spawn(call.clone()) {
            tracing::warn!(%error, "no thread to be had for what is to run when a lock is lost");
            // Where there are no more threads, better here than never.
            call();
        }
    }
}
