//! Writes the log events and the metrics of this library on a thread of its own.
//!
//! The program's log subscriber and metrics recorder may block or panic. The session thread renews the leases of all
//! sessions, so it never calls them. It queues what they get, and the thread `zoolock-log` passes it on. Callers'
//! threads queue their events, too, because they may have locked state that the session thread needs. The queue has a
//! limit. Events above the limit are dropped and counted.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tracing::Level;
use tracing::subscriber::NoSubscriber;
use zoolock_client::start_thread;

use crate::base::sync::lock;

/// Maximum number of events that wait for the thread.
const MAX_EVENTS: usize = 8192;

/// Time for which the thread collects events before it writes them. It limits how often the thread wakes up.
const COLLECT_TIME: Duration = Duration::from_millis(10);

static STATE: Mutex<Telemetry> = Mutex::new(EMPTY);
static CHANGED: Condvar = Condvar::new();

struct Telemetry {
    events: VecDeque<Box<dyn FnOnce() + Send>>,
    /// Number of events that were dropped since the last report of dropped events.
    dropped: u64,
    /// Set if the events must be written at once.
    is_urgent: bool,
    /// The id of the process that has the thread; 0 before the first start. A fork does not copy the thread.
    process: u32,
}

const EMPTY: Telemetry = Telemetry { events: VecDeque::new(), dropped: 0, is_urgent: false, process: 0 };

/// Starts the thread, unless this process has it already.
///
/// # Errors
/// The system refuses the thread.
pub(crate) fn start() -> io::Result<()> {
    let state = &mut *lock(&STATE);
    if state.process != std::process::id() {
        start_thread("zoolock-log", write_events)?;
        *state = Telemetry { process: std::process::id(), ..EMPTY };
    }
    Ok(())
}

/// Queues an event, also above the limit. For rare events that must not be dropped.
pub(crate) fn queue(event: impl FnOnce() + Send + 'static) {
    push(Box::new(event), usize::MAX, false);
}

/// Queues an event. Drops and counts it if the queue is full.
pub(crate) fn queue_or_drop(event: impl FnOnce() + Send + 'static) {
    push(Box::new(event), MAX_EVENTS, false);
}

fn push(event: Box<dyn FnOnce() + Send>, limit: usize, is_urgent: bool) {
    let state = &mut *lock(&STATE);
    if state.events.len() >= limit {
        state.dropped += 1;
    } else if state.process != 0 {
        state.events.push_back(event);
        state.is_urgent |= is_urgent;
        // The thread waits for the first event. It then collects further events without a wake-up for each.
        if state.events.len() == 1 || state.is_urgent {
            CHANGED.notify_one();
        }
    }
}

/// Queues a log event for the subscriber of the calling thread. Without a subscriber, tracing may pass the event to the
/// crate `log`. Warnings and errors are written at once, because the program may exit soon after a loss.
pub(crate) fn queue_log_event(level: Level, event: impl FnOnce() + Send + 'static) {
    let subscriber = tracing::dispatcher::get_default(Clone::clone);
    let event = move || match subscriber.is::<NoSubscriber>() {
        true => event(),
        false => tracing::dispatcher::with_default(&subscriber, event),
    };
    push(Box::new(event), MAX_EVENTS, level <= Level::WARN);
}

/// Emits a log event on the thread of this module. Takes a level and the arguments of [`tracing::event`], whose values
/// it moves to that thread. Costs one atomic read if no subscriber wants the level.
macro_rules! log_event {
    ($level:ident, $($event:tt)+) => {
        // Asks only for the highest level of all subscribers, because `tracing::enabled` may call the subscriber.
        let max_level = tracing::level_filters::LevelFilter::current();
        if max_level >= tracing::Level::$level || max_level == tracing::level_filters::LevelFilter::OFF {
            let level = tracing::Level::$level;
            $crate::base::telemetry::queue_log_event(level, move || tracing::event!(tracing::Level::$level, $($event)+));
        }
    };
}
pub(crate) use log_event;

/// Returns a receiver that resolves when the events that are queued now are written.
pub(crate) fn flush() -> oneshot::Receiver<()> {
    let (done, written) = oneshot::channel::<()>();
    push(Box::new(move || drop(done)), usize::MAX, true);
    written
}

/// Calls the program's subscriber or recorder. Its panics must not end the thread.
pub(crate) fn call(what: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(what));
}

/// Writes the events, for ever.
fn write_events() {
    loop {
        let state = lock(&STATE);
        let state = CHANGED
            .wait_while(state, |state| state.events.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        let collected = CHANGED.wait_timeout_while(state, COLLECT_TIME, |state| !state.is_urgent);
        let mut state = collected.unwrap_or_else(PoisonError::into_inner).0;
        state.is_urgent = false;
        let events = std::mem::take(&mut state.events);
        let dropped = std::mem::take(&mut state.dropped);
        drop(state);
        // Before the events, because one of them may tell a program that is about to exit that all are written.
        if dropped > 0 {
            call(|| {
                tracing::warn!(
                    dropped,
                    "log events and metrics were dropped, because the log subscriber or the metrics recorder is slow"
                );
            });
        }
        events.into_iter().for_each(call);
    }
}
