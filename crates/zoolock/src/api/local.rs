//! Locks inside one process, for tests of code that works under a lock.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_io::Timer;
use tokio::sync::watch;
use zoolock_core::{FencingToken, Zxid};

use crate::api::locker::{ExclusiveGuard, Locker};
use crate::base::error::{Error, LossReason};
use crate::base::path::{DEFAULT_ROOT, LockPath};
use crate::base::sync::lock;

/// An in-memory [`Locker`], for tests of code that works under a lock. It needs neither a server nor a runtime. It
/// grants each lock in the order of the requests, as [`Zoolock`](crate::Zoolock) does. Clones share their locks.
///
/// It reads keys as names below the root `/locks`: the key `nightly` is the lock
/// `/locks/nightly`. Timeouts use the clock of the machine, even if the clock of a runtime is
/// paused.
///
/// A lock is lost only if the test calls [`LocalLocker::expire`].
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use zoolock::{Error, ExclusiveGuard, LocalLocker, Locker, LossReason};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let locker = LocalLocker::new();
/// let outcome = locker.with_lock("nightly", Duration::from_secs(1), |guard| {
///     assert!(locker.expire("nightly"));
///     async move {
///         // Your program has lost its lock here: test its reaction.
///         assert_eq!(guard.lost().await, LossReason::SessionExpired);
///         assert!(!guard.is_valid());
///     }
/// });
/// assert!(matches!(outcome.await, Err(Error::Lost { .. })));
/// # }
/// ```
#[derive(Clone, Default)]
pub struct LocalLocker {
    queues: Arc<Mutex<Queues>>,
}

#[derive(Default)]
struct Queues {
    /// Number of contenders that have ever queued, for all locks.
    joined: u64,
    /// The contenders of each lock in queue order: the first one is the holder. A lock without contenders has no entry.
    by_path: HashMap<LockPath, VecDeque<LocalContender>>,
}

struct LocalContender {
    number: u64,
    state: watch::Sender<ContenderState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ContenderState {
    Waiting,
    Holding,
    Released,
    Lost(LossReason),
}

impl LocalLocker {
    /// Creates a locker without contenders.
    pub fn new() -> LocalLocker {
        LocalLocker::default()
    }

    /// Takes the lock away from its holder, as an expired session would. The holder's [`lost`](ExclusiveGuard::lost) resolves with
    /// [`LossReason::SessionExpired`], and the next waiter gets the lock. Returns false if the lock has no holder.
    pub fn expire(&self, key: &str) -> bool {
        let Ok(path) = parse(key) else { return false };
        let queues = &mut *lock(&self.queues);
        let Some(holder) = queues.by_path.get(&path).and_then(VecDeque::front).map(|c| c.number) else {
            return false;
        };
        queues.leave(&path, holder, ContenderState::Lost(LossReason::SessionExpired));
        true
    }

    /// Returns the number of contenders of the lock `key`: its holder and its waiters.
    pub fn queued(&self, key: &str) -> usize {
        let Ok(path) = parse(key) else { return 0 };
        lock(&self.queues).by_path.get(&path).map_or(0, VecDeque::len)
    }

    fn join(&self, path: LockPath) -> LocalGuard {
        let queues = &mut *lock(&self.queues);
        queues.joined += 1;
        let number = queues.joined;
        let queue = queues.by_path.entry(path.clone()).or_default();
        let first = if queue.is_empty() { ContenderState::Holding } else { ContenderState::Waiting };
        let (sender, state) = watch::channel(first);
        queue.push_back(LocalContender { number, state: sender });
        LocalGuard { locker: self.clone(), path, number, state, alive: Arc::default() }
    }
}

impl Locker for LocalLocker {
    type Guard = LocalGuard;

    async fn with_lock<T, F, Fut>(&self, key: &str, timeout: Duration, work: F) -> Result<T, Error>
    where
        T: Send,
        F: FnOnce(LocalGuard) -> Fut + Send,
        Fut: Future<Output = T> + Send,
    {
        let path = parse(key)?;
        LockPath::check_new(key, DEFAULT_ROOT)?;
        let began = Instant::now();
        let mut guard = self.join(path.clone());
        tokio::select! {
            biased;
            () = guard.wait_until_granted() => {}
            _ = Timer::after(timeout) => {
                let waited = began.elapsed();
                return Err(Error::Timeout { path: path.to_string(), waited, held_here: true });
            }
        }
        if let ContenderState::Lost(reason) = guard.state() {
            // `expire` took the lock away before this future was polled.
            return Err(Error::Lost { path: path.to_string(), reason });
        }
        let (state, alive) = (guard.state.clone(), Arc::downgrade(&guard.alive));
        let work = work(guard);
        if alive.strong_count() == 0 {
            return Err(crate::api::locker::guard_dropped_early(path.as_str()));
        }
        let value = work.await;
        match *state.borrow() {
            // If the work returned the guard with its value, the guard belongs to the caller.
            ContenderState::Lost(reason) if alive.strong_count() == 0 => {
                Err(Error::Lost { path: path.to_string(), reason })
            }
            _ => Ok(value),
        }
    }
}

impl std::fmt::Debug for LocalLocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Every lock in the map has a holder.
        let locks = lock(&self.queues).by_path.len();
        f.debug_struct("LocalLocker").field("locks", &locks).finish_non_exhaustive()
    }
}

/// A guard of a lock of a [`LocalLocker`]. Dropping it releases the lock.
#[must_use = "the lock is released when the guard is dropped"]
pub struct LocalGuard {
    locker: LocalLocker,
    path: LockPath,
    number: u64,
    state: watch::Receiver<ContenderState>,
    /// Dropped with the guard, so that `with_lock` sees whether the guard still exists.
    alive: Arc<()>,
}

impl LocalGuard {
    async fn wait_until_granted(&mut self) {
        // An error means that the contender has left the queue and dropped its sender. The receiver keeps the last
        // state.
        let _ = self.state.wait_for(|state| *state != ContenderState::Waiting).await;
    }

    fn state(&self) -> ContenderState {
        *self.state.borrow()
    }
}

impl ExclusiveGuard for LocalGuard {
    fn token(&self) -> FencingToken {
        FencingToken::new(0, Zxid(self.number as i64), 0)
    }

    fn is_valid(&self) -> bool {
        self.state() == ContenderState::Holding
    }

    async fn lost(&self) -> LossReason {
        let mut state = self.state.clone();
        let known = state.wait_for(|state| matches!(state, ContenderState::Lost(_))).await;
        match known.as_deref() {
            Ok(ContenderState::Lost(reason)) => *reason,
            _ => unreachable!("a guard leaves the queue only when it is dropped or lost"),
        }
    }
}

impl Drop for LocalGuard {
    fn drop(&mut self) {
        lock(&self.locker.queues).leave(&self.path, self.number, ContenderState::Released);
    }
}

impl std::fmt::Debug for LocalGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalGuard")
            .field("path", &self.path)
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

impl Queues {
    /// Removes contender `number` from the queue, if it is there, and sets its state to `last`. Then grants the lock to
    /// the first remaining contender.
    fn leave(&mut self, path: &LockPath, number: u64, last: ContenderState) {
        let Some(queue) = self.by_path.get_mut(path) else { return };
        let Ok(at) = queue.binary_search_by_key(&number, |contender| contender.number) else { return };
        if let Some(contender) = queue.remove(at) {
            contender.state.send_replace(last);
        }
        match queue.front() {
            Some(next) => {
                next.state.send_if_modified(|state| {
                    std::mem::replace(state, ContenderState::Holding) == ContenderState::Waiting
                });
            }
            None => drop(self.by_path.remove(path)),
        }
    }
}

fn parse(key: &str) -> Result<LockPath, Error> {
    LockPath::parse(key, DEFAULT_ROOT)
}
