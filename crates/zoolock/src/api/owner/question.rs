//! The acquisitions of an owner, each shared by all its calls for the same lock.
//!
//! One map under one mutex has all locks that an owner holds or waits for. Nothing that may own a guard is dropped
//! while the mutex is locked: the drop would lock it again.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex as StdMutex, Weak};

use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::sync::Notify;

use super::guard::{Held, ReentrantGuard, too_deep};
use crate::api::mutex::Mutex;
use crate::base::asker::AskAs;
use crate::base::error::Error;
use crate::base::path::LockPath;
use crate::base::sync::lock;

/// The locks of one owner.
pub(super) struct Locks {
    limit: u32,
    ask_as: AskAs,
    places: StdMutex<HashMap<Key, Place>>,
}

/// One lock of one client.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    client: usize,
    path: LockPath,
}

/// The state of a lock for an owner.
enum Place {
    Asked(Question),
    Held(Weak<Held>),
}

/// An acquisition under way, shared by all calls of this owner.
struct Question {
    answer: Shared<Asking>,
    asking: usize,
    /// Notified when a call is dropped. Its address tells this acquisition from later ones.
    left: Arc<Notify>,
    trying: bool,
}

type Asking = Pin<Box<dyn Future<Output = Answer> + Send>>;
/// `None` if the lock is busy, for calls that only try.
type Answer = Result<Option<Arc<Held>>, Error>;

impl Locks {
    pub(super) fn new(limit: u32, ask_as: AskAs) -> Locks {
        Locks { limit, ask_as, places: StdMutex::default() }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the number of locks that are held or waited for.
    pub(super) fn count(&self) -> usize {
        lock(&self.places).len()
    }

    /// Acquires the lock, or enters it again. Returns `None` if it is busy and the call only tries.
    pub(super) async fn enter(
        self: &Arc<Self>,
        mutex: &Mutex,
        trying: bool,
    ) -> Result<Option<ReentrantGuard>, Error> {
        mutex.context().process().check()?;
        let path = mutex.context().path(mutex.name())?;
        if self.limit == 0 {
            return Err(too_deep(&mutex.path(), 0));
        }
        let key = Key { client: mutex.context().id(), path };
        loop {
            let mut asker = match self.find(&key, mutex, trying) {
                Found::Held(held) => return held.enter().map(Some),
                Found::Waiting => return Ok(None),
                Found::Question(asker) => asker,
            };
            match asker.answer().await? {
                Some(held) => return held.enter().map(Some),
                None if trying => return Ok(None),
                // It was the attempt of another call. This call waits.
                None => {}
            }
        }
    }

    fn find(self: &Arc<Self>, key: &Key, mutex: &Mutex, trying: bool) -> Found {
        let places = &mut *lock(&self.places);
        let asker = |question: &Question| {
            Found::Question(Asker {
                owner: self.clone(),
                key: key.clone(),
                answer: question.answer.clone(),
                left: question.left.clone(),
            })
        };
        match places.get_mut(key) {
            Some(Place::Held(held)) => {
                if let Some(held) = held.upgrade() {
                    return Found::Held(held);
                }
            }
            Some(Place::Asked(question)) if trying && !question.trying => return Found::Waiting,
            Some(Place::Asked(question)) => {
                question.asking += 1;
                return asker(question);
            }
            None => {}
        }
        let mut mutex = mutex.clone();
        mutex.lock.options.ask_as = self.ask_as.clone();
        let answer: Asking = Box::pin(self.clone().ask(key.clone(), mutex, trying));
        let question = Question { answer: answer.shared(), asking: 1, left: Arc::default(), trying };
        let found = asker(&question);
        places.insert(key.clone(), Place::Asked(question));
        found
    }

    /// Queues once for all calls.
    async fn ask(self: Arc<Self>, key: Key, mutex: Mutex, trying: bool) -> Answer {
        let answer = if trying { mutex.try_lock().await } else { mutex.lock().await.map(Some) };
        let answer = answer.map(|guard| {
            guard.map(|guard| {
                let entry = Entry { owner: self.clone(), key: key.clone() };
                Arc::new(Held::new(guard, self.limit, entry))
            })
        });
        // Drops the completed acquisition from the map: a later call must not get its failure again.
        let _question = {
            let mut places = lock(&self.places);
            match &answer {
                Ok(Some(held)) => places.insert(key, Place::Held(Arc::downgrade(held))),
                Ok(None) | Err(_) => places.remove(&key),
            }
        };
        answer
    }
}

/// The entry of a lock in its owner's map. Dropping it removes the lock, unless the map has a newer entry.
pub(super) struct Entry {
    owner: Arc<Locks>,
    key: Key,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut places = lock(&self.owner.places);
        if matches!(places.get(&self.key), Some(Place::Held(held)) if held.strong_count() == 0) {
            places.remove(&self.key);
        }
    }
}

/// A call that waits for the shared acquisition.
struct Asker {
    owner: Arc<Locks>,
    key: Key,
    answer: Shared<Asking>,
    left: Arc<Notify>,
}

impl Asker {
    async fn answer(&mut self) -> Answer {
        loop {
            let left = self.left.clone();
            let left = left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            tokio::select! {
                biased;
                answer = &mut self.answer => return answer,
                // The call that polled the acquisition was dropped, perhaps with a wake-up for it: poll again.
                () = left => {}
            }
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // Kept until the map is unlocked: the last call drops the queue position.
        let _question = {
            let mut places = lock(&self.owner.places);
            match places.get_mut(&self.key) {
                Some(Place::Asked(question)) if Arc::ptr_eq(&question.left, &self.left) => {
                    question.asking -= 1;
                    if question.asking == 0 { places.remove(&self.key) } else { None }
                }
                _ => None,
            }
        };
        self.left.notify_waiters();
    }
}

/// The state of a lock when a call begins.
enum Found {
    Held(Arc<Held>),
    Question(Asker),
    /// Another call of this owner waits in the queue.
    Waiting,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    /// Polls once. Records in `woken` whether it is woken later.
    fn poll<F: Future + ?Sized>(future: Pin<&mut F>, woken: &Arc<Woken>) -> Poll<F::Output> {
        woken.0.store(false, Ordering::SeqCst);
        future.poll(&mut Context::from_waker(&Waker::from(woken.clone())))
    }

    #[test]
    fn a_wake_up_of_one_who_leaves_goes_to_another() {
        let owner = Arc::new(Locks::new(1, AskAs::Caller));
        let woken = Arc::new(Woken::default());
        let other: Arc<StdMutex<Option<Asking>>> = Arc::default();
        // The answer comes while the acquisition is being polled, after the check that would have seen it. All calls
        // are woken. The other call finds the acquisition being polled, and sleeps again.
        let mut came = false;
        let question: Asking = Box::pin(std::future::poll_fn({
            let (other, woken) = (other.clone(), woken.clone());
            move |context: &mut Context<'_>| {
                if std::mem::replace(&mut came, true) {
                    return Poll::Ready(Ok(None));
                }
                context.waker().wake_by_ref();
                let mut other = lock(&other);
                let other = other.as_mut().expect("it is there by now");
                assert!(poll(other.as_mut(), &woken).is_pending());
                Poll::Pending
            }
        }));
        let (answer, left) = (question.shared(), Arc::new(Notify::new()));
        let asker = || {
            let key = Key { client: 0, path: LockPath::from_server("/locks/x".to_owned()) };
            let mut asker = Asker { owner: owner.clone(), key, answer: answer.clone(), left: left.clone() };
            let asking: Asking = Box::pin(async move { asker.answer().await });
            asking
        };
        let mut first = asker();
        *lock(&other) = Some(asker());
        assert!(poll(first.as_mut(), &Arc::default()).is_pending());
        assert!(!woken.0.load(Ordering::SeqCst), "only the first knows that there is an answer");
        drop(first);
        assert!(woken.0.load(Ordering::SeqCst), "the other looks again");
        let mut other = lock(&other);
        let other = other.as_mut().expect("put there above");
        assert!(matches!(poll(other.as_mut(), &woken), Poll::Ready(Ok(None))));
    }
}
