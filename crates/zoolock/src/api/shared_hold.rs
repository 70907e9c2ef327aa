//! A handle of a mutex whose tasks share one hold of the lock.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument as _;
use zoolock_core::Kind;
use zoolock_core::shared_hold::HoldLimits;

use crate::api::mutex::{Guard, Mutex};
use crate::base::clock;
use crate::base::error::Error;
use crate::lock::acquire::WaitLimit;
use crate::lock::held::Held;
use crate::lock::shared_hold::Hold;

/// A handle of a [`Mutex`] whose tasks share one hold of the lock. [`Mutex::shared_hold`] returns it.
///
/// The tasks that use this handle and its clones queue in memory, first in, first out. The lock passes from one task to the
/// next without a request to the server. Other handles, also of the same name, queue by themselves.
///
/// Each task has a fencing token of its own, higher than the token before. A request to release the lock reaches the
/// task that holds it. The events of the handle are those of all its tasks. Observers see these tasks as one contender,
/// whose owner neither holds nor waits for another lock ([`Entry::owner_kind`](crate::admin::Entry::owner_kind)).
/// [`Guard::release`] waits for the server only if the client releases the lock. So if the client loses the lock just before
/// a task releases it, the lock may still pass to the next task until the client notices the loss.
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// use std::time::Duration;
/// let mutex = zl.mutex("counter").shared_hold(Duration::from_millis(50));
/// for _ in 0..1_000 {
///     let guard = mutex.lock().await?; // only the first one sends a request to the server
///     drop(guard);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SharedHold {
    mutex: Mutex,
    hold: Arc<Hold>,
}

impl SharedHold {
    pub(super) fn new(mutex: Mutex, limit: Duration) -> SharedHold {
        // A lock that is kept while no task works would look like a crash.
        let max_idle = if mutex.lock.options.crash_detection { Duration::ZERO } else { limit };
        let claim_timeout = mutex.context().claim_timeout();
        let limits = HoldLimits { max_hold: limit, max_idle, claim_timeout };
        let hold = Arc::new(Hold::new(&mutex.lock, limits));
        SharedHold { mutex, hold }
    }

    /// Returns the handle of the mutex, for its events and for operators. An acquisition with that handle has a queue
    /// position of its own.
    pub fn mutex(&self) -> &Mutex {
        &self.mutex
    }

    /// Acquires the lock. Waits without a time limit. Errors and cancel safety: see [`Mutex::lock`].
    pub async fn lock(&self) -> Result<Guard, Error> {
        self.acquire(WaitLimit::ForEver).await.map(Guard::expect_granted)
    }

    /// Acquires the lock if it is free, or if this client keeps it and no task holds it. Returns `None` if it is busy.
    /// Errors and cancel safety: see [`Mutex::try_lock`].
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(self.acquire(WaitLimit::Try).await?.map(Guard::new))
    }

    /// Acquires the lock. Waits for `timeout` at most. A timeout of zero makes one attempt. Errors and cancel safety:
    /// see [`Mutex::lock_timeout`].
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        let began = clock::monotonic();
        // The task waits in this process. With no time to wait, it would give up before it tries the lock. So it makes
        // one attempt instead.
        let wait_limit = if timeout.is_zero() { WaitLimit::Try } else { WaitLimit::timeout(timeout) };
        let held = self.acquire(wait_limit).await?;
        held.map(Guard::new).ok_or_else(|| self.mutex.lock.timed_out(Kind::Mutex, began))
    }

    async fn acquire(&self, wait_limit: WaitLimit) -> Result<Option<Held>, Error> {
        self.hold.acquire(wait_limit).instrument(self.mutex.lock.span(Kind::Mutex)).await
    }
}

impl std::fmt::Debug for SharedHold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedHold").field("mutex", &self.mutex).finish_non_exhaustive()
    }
}
