//! Waits for futures in programs without async.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Blocks the calling thread until a future of this library is ready: the whole API, for programs without async.
///
/// ```no_run
/// use std::time::Duration;
/// use zoolock::{Wait, Zoolock};
///
/// # fn main() -> Result<(), zoolock::Error> {
/// let zl = Zoolock::connect("zk1:2181,zk2:2181,zk3:2181").wait()?;
/// let guard = zl.mutex("nightly").lock_timeout(Duration::from_secs(30)).wait()?;
/// for part in 0..100 {
///     if !guard.is_valid() {
///         break; // another holder may be granted the lock soon
///     }
///     work(part, guard.token());
/// }
/// guard.release().wait()?; // fails if the lock was lost before
/// zl.close().wait();
/// # Ok(()) }
/// # fn work(_: u32, _: zoolock::FencingToken) {}
/// ```
///
/// The library's own thread renews the leases and releases dropped guards, so these calls need no runtime. They also work
/// on the threads of a runtime, and do not panic there. But they block the thread, and all tasks that it would run. If one
/// of these tasks holds the lock, the call waits for ever. So in async code, use `await`, or move the call to a thread of
/// its own (`spawn_blocking`).
///
/// # Noticing a loss
/// A lock can be lost while the thread is busy, and nothing interrupts the thread. Until the thread notices the loss, the
/// fencing token protects the resource. There are three ways to notice it:
///
/// * **Ask** [`Held::is_valid`](crate::Held::is_valid) before each important step. It reads a clock and sends nothing.
/// * **Be called**: the callback of [`Lease::on_lost`](crate::Lease::on_lost) runs on a thread of its own. It can set a flag
///   that the work checks, shut down a socket that blocks the work, or kill a child process.
/// * **Wait**: if a child process or another thread does the work, call `guard.lost().wait_timeout(…)`.
pub trait Wait: Future + Sized {
    /// Blocks until the future is ready.
    fn wait(self) -> Self::Output {
        block_on(self, None).expect("a wait without a deadline ends with the result")
    }

    /// Blocks until the future is ready, for `timeout` at most. Then drops the future and returns `None`.
    ///
    /// For an acquisition with a time limit, prefer a method such as [`Mutex::lock_timeout`](crate::Mutex::lock_timeout),
    /// which tells a busy lock from an outage.
    fn wait_timeout(self, timeout: Duration) -> Option<Self::Output> {
        // A time that is too long for the clock is no limit.
        block_on(self, Instant::now().checked_add(timeout))
    }
}

impl<F: Future> Wait for F {}

/// Blocks until the future is ready, or until `deadline`. Uses no timer of a runtime, and so works in a forked process.
fn block_on<F: Future>(future: F, deadline: Option<Instant>) -> Option<F::Output> {
    // In a tokio task, the cooperative budget of that task would apply to the future. Once the budget is used up, tokio's
    // channels return `Pending` until the thread returns to the scheduler. This call keeps the thread, so with the budget
    // it could block for ever.
    let mut future = pin!(tokio::task::unconstrained(future));
    // Has a parker of its own, because a call inside the future may block, too, and would take the wake-up of this call.
    let (parker, unparker) = parking::pair();
    let waker = Waker::from(unparker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(value);
        }
        match deadline {
            None => parker.park(),
            Some(deadline) if Instant::now() >= deadline => return None,
            Some(deadline) => _ = parker.park_deadline(deadline),
        }
    }
}
