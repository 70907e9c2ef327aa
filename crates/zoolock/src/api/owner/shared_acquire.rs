//! The acquisitions of an owner. All calls of the owner for the same lock share one acquisition.
//!
//! One map under one mutex has all locks that an owner holds or waits for. A value that may own a
//! guard is never dropped while the mutex is locked: dropping the guard locks the mutex again.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex, Weak};

use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::sync::Notify;

use super::guard::{OwnerHold, ReentrantGuard, too_deep};
use crate::api::mutex::Mutex;
use crate::base::error::Error;
use crate::base::owner_id::OwnerMode;
use crate::base::path::LockPath;
use crate::base::sync::lock;

/// The locks of one owner.
pub(super) struct OwnedLocks {
    limit: u32,
    owner_mode: OwnerMode,
    locks: StdMutex<HashMap<OwnedLockKey, LockState>>,
}

/// The key of a lock: its client and its path.
#[derive(Clone, PartialEq, Eq, Hash)]
struct OwnedLockKey {
    client: usize,
    path: LockPath,
}

/// The state of a lock for an owner.
enum LockState {
    Pending(SharedAcquire),
    Held(Weak<OwnerHold>),
}

/// An acquisition under way, shared by all calls of this owner.
struct SharedAcquire {
    answer: Shared<AcquireFuture>,
    callers: usize,
    /// Notified when a call is dropped. The address of this `Notify` distinguishes the acquisition from later ones.
    caller_dropped: Arc<Notify>,
    /// Set if the calls make one attempt and do not wait.
    trying: bool,
}

type AcquireFuture = Pin<Box<dyn Future<Output = AcquireResult> + Send>>;
/// The result of an acquisition. `None` if the lock is busy and the calls do not wait.
type AcquireResult = Result<Option<AcquiredHold>, Error>;

/// The lock that a shared acquisition got. A call that is not polled any more keeps this result, so the result does not
/// keep the lock: the call that completes the acquisition takes the only owning reference in the same poll.
#[derive(Clone)]
struct AcquiredHold {
    untaken: Arc<StdMutex<Option<Arc<OwnerHold>>>>,
    hold: Weak<OwnerHold>,
}

impl AcquiredHold {
    fn new(hold: Arc<OwnerHold>) -> AcquiredHold {
        AcquiredHold { hold: Arc::downgrade(&hold), untaken: Arc::new(StdMutex::new(Some(hold))) }
    }

    /// Returns the hold; `None` if the owner has released the lock since.
    fn get(&self) -> Option<Arc<OwnerHold>> {
        let untaken = lock(&self.untaken).take();
        untaken.or_else(|| self.hold.upgrade())
    }
}

impl OwnedLocks {
    pub(super) fn new(limit: u32, owner_mode: OwnerMode) -> OwnedLocks {
        OwnedLocks { limit, owner_mode, locks: StdMutex::default() }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the number of locks that the owner holds or waits for.
    pub(super) fn count(&self) -> usize {
        lock(&self.locks).len()
    }

    /// Acquires the lock, or returns another guard if the owner already holds it. Returns `None` if
    /// the lock is busy and the call does not wait (`trying`).
    pub(super) async fn acquire_or_reenter(
        self: &Arc<Self>,
        mutex: &Mutex,
        trying: bool,
    ) -> Result<Option<ReentrantGuard>, Error> {
        mutex.context().process().check_not_forked()?;
        let path = mutex.context().path(mutex.name())?;
        if self.limit == 0 {
            return Err(too_deep(&mutex.path(), 0));
        }
        let key = OwnedLockKey { client: mutex.context().id(), path };
        loop {
            let mut caller = match self.join_or_start_acquire(&key, mutex, trying) {
                LockAtCall::Held(held) => return held.new_guard().map(Some),
                LockAtCall::Busy => return Ok(None),
                LockAtCall::Pending(caller) => caller,
            };
            match caller.wait_for_answer().await? {
                Some(acquired) => {
                    if let Some(held) = acquired.get() {
                        return held.new_guard().map(Some);
                    }
                    // The owner's other calls have released the lock before this call was polled, so this call
                    // acquires again.
                }
                None if trying => return Ok(None),
                // The shared acquisition was begun by a call that makes one attempt, and the lock
                // was busy. This call waits, so it begins a new acquisition.
                None => {}
            }
        }
    }

    fn join_or_start_acquire(
        self: &Arc<Self>,
        key: &OwnedLockKey,
        mutex: &Mutex,
        trying: bool,
    ) -> LockAtCall {
        let locks = &mut *lock(&self.locks);
        let caller = |acquire: &SharedAcquire| {
            LockAtCall::Pending(Caller {
                owner: self.clone(),
                key: key.clone(),
                answer: acquire.answer.clone(),
                caller_dropped: acquire.caller_dropped.clone(),
            })
        };
        match locks.get_mut(key) {
            Some(LockState::Held(held)) => {
                if let Some(held) = held.upgrade() {
                    return LockAtCall::Held(held);
                }
            }
            Some(LockState::Pending(acquire)) if trying && !acquire.trying => return LockAtCall::Busy,
            Some(LockState::Pending(acquire)) => {
                acquire.callers += 1;
                return caller(acquire);
            }
            None => {}
        }
        let mut mutex = mutex.clone();
        mutex.lock.options.owner_mode = self.owner_mode.clone();
        let answer: AcquireFuture = Box::pin(self.clone().acquire(key.clone(), mutex, trying));
        let acquire =
            SharedAcquire { answer: answer.shared(), callers: 1, caller_dropped: Arc::default(), trying };
        let found = caller(&acquire);
        locks.insert(key.clone(), LockState::Pending(acquire));
        found
    }

    /// Acquires the lock once, for all calls that share the acquisition.
    async fn acquire(self: Arc<Self>, key: OwnedLockKey, mutex: Mutex, trying: bool) -> AcquireResult {
        let answer = if trying { mutex.try_lock().await } else { mutex.lock().await.map(Some) };
        let answer = answer.map(|guard| {
            guard.map(|guard| {
                let entry = MapEntry { owner: self.clone(), key: key.clone() };
                AcquiredHold::new(Arc::new(OwnerHold::new(guard, self.limit, entry)))
            })
        });
        // Replaces or removes the completed acquisition in the map, because a later call must not
        // get its failure. The old entry is dropped after the mutex is unlocked.
        let _acquire = {
            let mut locks = lock(&self.locks);
            match &answer {
                Ok(Some(acquired)) => locks.insert(key, LockState::Held(acquired.hold.clone())),
                Ok(None) | Err(_) => locks.remove(&key),
            }
        };
        answer
    }
}

/// The entry of a held lock in its owner's map. Dropping this removes the entry, unless the map has a newer one.
pub(super) struct MapEntry {
    owner: Arc<OwnedLocks>,
    key: OwnedLockKey,
}

impl Drop for MapEntry {
    fn drop(&mut self) {
        let mut locks = lock(&self.owner.locks);
        if matches!(locks.get(&self.key), Some(LockState::Held(held)) if held.strong_count() == 0) {
            locks.remove(&self.key);
        }
    }
}

/// A call that waits for the shared acquisition.
struct Caller {
    owner: Arc<OwnedLocks>,
    key: OwnedLockKey,
    answer: Shared<AcquireFuture>,
    caller_dropped: Arc<Notify>,
}

impl Caller {
    async fn wait_for_answer(&mut self) -> AcquireResult {
        loop {
            let caller_dropped = self.caller_dropped.clone();
            let caller_dropped = caller_dropped.notified();
            tokio::pin!(caller_dropped);
            caller_dropped.as_mut().enable();
            tokio::select! {
                biased;
                answer = &mut self.answer => return answer,
                // Another call was dropped. It may have got the wake-up of the acquisition, so this call must poll.
                () = caller_dropped => {}
            }
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // The last call removes the acquisition from the map. Dropping the acquisition gives up the
        // queue position. This happens after the mutex is unlocked.
        let _acquire = {
            let mut locks = lock(&self.owner.locks);
            match locks.get_mut(&self.key) {
                Some(LockState::Pending(acquire))
                    if Arc::ptr_eq(&acquire.caller_dropped, &self.caller_dropped) =>
                {
                    acquire.callers -= 1;
                    if acquire.callers == 0 { locks.remove(&self.key) } else { None }
                }
                _ => None,
            }
        };
        self.caller_dropped.notify_waiters();
    }
}

/// The state of a lock when a call begins.
enum LockAtCall {
    Held(Arc<OwnerHold>),
    Pending(Caller),
    /// Another call of this owner waits in the queue, and this call does not wait.
    Busy,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct WakeFlag(AtomicBool);

    impl Wake for WakeFlag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Polls the future once. A later wake-up sets `woken`.
    fn poll<F: Future + ?Sized>(future: Pin<&mut F>, woken: &Arc<WakeFlag>) -> Poll<F::Output> {
        woken.0.store(false, Ordering::SeqCst);
        future.poll(&mut Context::from_waker(&Waker::from(woken.clone())))
    }

    #[test]
    fn dropping_a_woken_call_wakes_another() {
        let owner = Arc::new(OwnedLocks::new(1, OwnerMode::Caller));
        let woken = Arc::new(WakeFlag::default());
        let other: Arc<StdMutex<Option<AcquireFuture>>> = Arc::default();
        // The first poll wakes all calls and returns `Pending`, as if the result had arrived just
        // after the poll looked for it. Within that poll, the other call finds that the acquisition
        // is being polled, and stays pending.
        let mut came = false;
        let acquire: AcquireFuture = Box::pin(std::future::poll_fn({
            let (other, woken) = (other.clone(), woken.clone());
            move |context: &mut Context<'_>| {
                if std::mem::replace(&mut came, true) {
                    return Poll::Ready(Ok(None));
                }
                context.waker().wake_by_ref();
                let mut other = lock(&other);
                let other = other.as_mut().expect("the other call exists");
                assert!(poll(other.as_mut(), &woken).is_pending());
                Poll::Pending
            }
        }));
        let (answer, caller_dropped) = (acquire.shared(), Arc::new(Notify::new()));
        let caller = || {
            let key = OwnedLockKey { client: 0, path: LockPath::from_server("/locks/x".to_owned()) };
            let mut caller = Caller {
                owner: owner.clone(),
                key,
                answer: answer.clone(),
                caller_dropped: caller_dropped.clone(),
            };
            let answer: AcquireFuture = Box::pin(async move { caller.wait_for_answer().await });
            answer
        };
        let mut first = caller();
        *lock(&other) = Some(caller());
        assert!(poll(first.as_mut(), &Arc::default()).is_pending());
        assert!(!woken.0.load(Ordering::SeqCst), "only the first call has been woken");
        drop(first);
        assert!(woken.0.load(Ordering::SeqCst), "dropping the first call wakes the other");
        let mut other = lock(&other);
        let other = other.as_mut().expect("the other call exists");
        assert!(matches!(poll(other.as_mut(), &woken), Poll::Ready(Ok(None))));
    }
}
