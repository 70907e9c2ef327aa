//! A handle of a mutex whose tasks share one queue position.

use std::time::{Duration, Instant};

use tracing::Instrument as _;
use zoolock_core::Kind;
use zoolock_core::tenure::TenureLimits;

use crate::api::guard::Guard;
use crate::api::mutex::Mutex;
use crate::base::clock;
use crate::base::error::Error;
use crate::lock::acquire::WaitLimit;
use crate::lock::held::Held;
use crate::lock::shared_hold::{self, CachedHold};

/// A handle of a [`Mutex`] that shares one queue position among the tasks of this process. [`Mutex::batching`] and
/// [`Mutex::linger`] return it.
///
/// The tasks queue in memory, and the lock passes from one task to the next without a request to the server. Handles of
/// one client with the same name and settings share a position. Other handles queue by themselves.
///
/// Each task has a fencing token of its own, higher than the token before. A request to release the lock reaches the
/// task that holds it. Observers see these tasks as one contender, whose owner neither holds nor waits for another lock
/// ([`Entry::owner_kind`](crate::Entry::owner_kind)). [`Guard::release`] waits for the server only if the client
/// releases the lock. So if the client loses the lock just before a task releases it, the lock may still pass to the
/// next task until the client notices the loss.
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// use std::time::Duration;
/// let mutex = zl.mutex("counter").batching(100, Duration::from_millis(50)).linger(Duration::from_secs(1));
/// for _ in 0..1_000 {
///     let guard = mutex.lock().await?; // only the first one sends a request to the server
///     drop(guard);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Batching {
    mutex: Mutex,
    limits: TenureLimits,
    hold: CachedHold,
}

impl Batching {
    pub(super) fn new(mutex: Mutex, limits: TenureLimits) -> Batching {
        Batching { mutex, limits, hold: CachedHold::default() }
    }

    /// Keeps the lock for this time after a task has released it, in case a task of this process wants it again. The
    /// lock is kept only while no other contender waits, and while the handle that acquired it, or a clone of that
    /// handle, exists. Acquiring it again costs no round trip. The lock is released as soon as another contender
    /// queues. Cannot be combined with [`crash_detection`](Mutex::crash_detection): a lock that is kept while no task
    /// works would look like a crash.
    #[must_use = "the option applies to the returned handle"]
    pub fn linger(self, keep: Duration) -> Batching {
        Batching::new(self.mutex, TenureLimits { linger: keep, ..self.limits })
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

    /// Acquires the lock if it is free, or if this process keeps it and no task holds it. Returns `None` if it is busy.
    /// May also return `None` for a round trip or two after the client got the lock, until the client knows whether
    /// another contender waits. Errors and cancel safety: see [`Mutex::try_lock`].
    pub async fn try_lock(&self) -> Result<Option<Guard>, Error> {
        Ok(self.acquire(WaitLimit::Try).await?.map(Guard::new))
    }

    /// Acquires the lock. Waits for `timeout` at most. A timeout of zero makes one attempt. Errors and cancel safety:
    /// see [`Mutex::lock_timeout`].
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Guard, Error> {
        self.lock_deadline(clock::deadline_after(timeout)).await
    }

    /// Acquires the lock. Waits until `deadline` at most. Errors and cancel safety: see [`Mutex::lock_timeout`].
    pub async fn lock_deadline(&self, deadline: Instant) -> Result<Guard, Error> {
        let began = clock::monotonic();
        // The task waits in this process. With no time to wait, it would give up before it tries the lock. So it makes
        // one attempt instead.
        let wait_limit = if deadline <= began { WaitLimit::Try } else { WaitLimit::Until(deadline) };
        let held = self.acquire(wait_limit).await?;
        held.map(Guard::new).ok_or_else(|| self.mutex.lock.timed_out(Kind::Mutex, began))
    }

    async fn acquire(&self, wait_limit: WaitLimit) -> Result<Option<Held>, Error> {
        let lock = &self.mutex.lock;
        shared_hold::acquire(lock, &self.hold, self.limits, wait_limit)
            .instrument(lock.span(Kind::Mutex))
            .await
    }
}

impl std::fmt::Debug for Batching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batching")
            .field("mutex", &self.mutex)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
