//! Reentrant locking: whoever asks again as the same owner does not wait for itself.
//!
//! All that an owner holds and asks for is in one map under one mutex. Nothing that may hold a guard is dropped while
//! it is locked: the drop would lock it again.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex as StdMutex, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::Shared;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use zoolock_core::FencingToken;

use crate::clock::Deadline;
use crate::error::{Error, LossReason};
use crate::guard::{Guard, Previous};
use crate::mutex::Mutex;
use crate::path::LockPath;
use crate::session::{Connection, lock};
use crate::zoolock::Zoolock;

/// Whoever may take the same lock several times: a value that you pass on, no task and no thread.
///
/// Tasks move between threads, and one job may be done by several tasks, so nothing but you can say which calls belong
/// together. Make an owner where a job begins and hand it (or a clone, which is the same owner) to everything that is
/// part of the job. The first [`Mutex::lock_as`] of an owner acquires the lock, further ones return at once, and the
/// lock is released with the last [`ReentrantGuard`].
///
/// Those who share an owner do not exclude each other: a clone in another task means that both may be inside.
///
/// Locks are told apart by client and full path. The same owner on two [`Zoolock`]s waits for itself.
///
/// # Examples
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// use zoolock::{Error, Owner, Zoolock};
///
/// async fn rotate(zl: &Zoolock, owner: &Owner) -> Result<(), Error> {
///     let guard = zl.mutex("keys").lock_as(owner).await?;
///     publish(zl, owner).await?; // takes the same lock, and does not wait for us
///     guard.release().await
/// }
///
/// async fn publish(zl: &Zoolock, owner: &Owner) -> Result<(), Error> {
///     let _guard = zl.mutex("keys").lock_as(owner).await?;
///     Ok(())
/// }
///
/// rotate(&zl, &Owner::new()).await
/// # }
/// ```
#[derive(Clone)]
pub struct Owner {
    inner: Arc<Inner>,
}

struct Inner {
    limit: u32,
    places: StdMutex<HashMap<Key, Place>>,
}

/// One lock of one client.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    client: usize,
    path: LockPath,
}

/// How an owner stands to a lock.
enum Place {
    Asked(Question),
    Held(Weak<Held>),
}

/// An acquisition under way, shared by all who ask as this owner.
struct Question {
    answer: Shared<Asking>,
    asking: usize,
    /// Somebody left; also tells this question from later ones.
    left: Arc<Notify>,
    trying: bool,
}

type Asking = Pin<Box<dyn Future<Output = Answer> + Send>>;
/// `None`: busy, for those who only try.
type Answer = Result<Option<Arc<Held>>, Error>;

impl Owner {
    /// How often an owner may hold the same lock at a time unless said otherwise.
    pub const LIMIT: u32 = u16::MAX as u32;

    /// Makes an owner that is different from all others.
    pub fn new() -> Owner {
        Owner::with_limit(Owner::LIMIT)
    }

    /// Makes an owner that may hold the same lock at most `limit` times at a time, so that a recursion without an end
    /// is found out.
    pub fn with_limit(limit: u32) -> Owner {
        Owner { inner: Arc::new(Inner { limit, places: StdMutex::default() }) }
    }
}

impl Default for Owner {
    fn default() -> Self {
        Owner::new()
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Held, or waited for.
        let locks = lock(&self.inner.places).len();
        f.debug_struct("Owner")
            .field("limit", &self.inner.limit)
            .field("locks", &locks)
            .finish_non_exhaustive()
    }
}

impl Mutex {
    /// Waits until the lock is `owner`'s, not at all where it is already.
    ///
    /// Calls of the same owner that wait at the same time share one place in the queue and are granted together.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue, unless another call of the same owner waits on it.
    ///
    /// # Errors
    /// [`Error::Lost`] where the owner has lost the lock, until its last guard is gone: what was lost is not entered
    /// again. [`Error::Invalid`] where it holds the lock as often as it may. Else as [`Mutex::lock`].
    pub async fn lock_as(&self, owner: &Owner) -> Result<ReentrantGuard, Error> {
        let guard = owner.inner.enter(self, false).await?;
        Ok(guard.expect("only those who try are told that it is busy"))
    }

    /// Takes the lock for `owner` if it is free or already its own, and says `None` if it is not: also while the same
    /// owner waits for it elsewhere.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// As [`Mutex::lock_as`].
    pub async fn try_lock_as(&self, owner: &Owner) -> Result<Option<ReentrantGuard>, Error> {
        owner.inner.enter(self, true).await
    }

    /// Waits until the lock is `owner`'s, at most for `timeout`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock_as`].
    pub async fn lock_as_timeout(&self, owner: &Owner, timeout: Duration) -> Result<ReentrantGuard, Error> {
        self.lock_as_deadline(owner, Zoolock::deadline_after(timeout)).await
    }

    /// Waits until the lock is `owner`'s, at most until `deadline`.
    ///
    /// # Cancel safety
    /// As [`Mutex::lock_as`].
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Mutex::lock_as`].
    pub async fn lock_as_deadline(&self, owner: &Owner, deadline: Instant) -> Result<ReentrantGuard, Error> {
        let began = Instant::now();
        // Each has its own: the place in the queue may be shared with somebody more patient.
        let alarm = self.zoolock().alarm(deadline);
        tokio::select! {
            biased;
            entered = self.lock_as(owner) => entered,
            () = alarm => Err(Error::Timeout { path: self.path(), waited: began.elapsed() }),
        }
    }
}

/// Proof that the lock is its owner's. It is released with the owner's last guard, whichever that is.
///
/// All guards of an owner on a lock share its token, its validity and its loss. Dropping the last one releases the
/// lock as dropping a [`Guard`] does.
#[must_use = "the lock is released when the owner's last guard is dropped"]
pub struct ReentrantGuard {
    /// Taken only when the guard goes.
    held: Option<Arc<Held>>,
}

impl ReentrantGuard {
    /// A number that rises with every grant, for the resource to check. The same for all guards of the owner.
    pub fn token(&self) -> FencingToken {
        self.guard().token()
    }

    /// Until when the lock may be believed to be ours; see [`Guard::valid_until`].
    pub fn valid_until(&self) -> Deadline {
        self.guard().valid_until()
    }

    /// Whether the lock may be believed to be ours now; see [`Guard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guard().is_valid()
    }

    /// Waits until the lock is lost. Resolves at once, and always the same, if it has been.
    ///
    /// # Cancel safety
    /// Can be dropped and called again at any time.
    pub async fn lost(&self) -> LossReason {
        self.guard().lost().await
    }

    /// Why the lock was lost, if that is known already. Waits for nothing.
    pub fn loss(&self) -> Option<LossReason> {
        self.guard().loss()
    }

    /// How the holder before this owner left.
    pub fn previous(&self) -> Previous {
        self.guard().previous()
    }

    /// The directory of the lock.
    pub fn path(&self) -> &str {
        self.guard().path()
    }

    /// The node that holds the lock.
    pub fn node_path(&self) -> String {
        self.guard().node_path()
    }

    /// What the session is doing: for a word to the user, not for deciding anything.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.guard().connection()
    }

    /// How many guards the owner has on this lock now, this one included.
    pub fn depth(&self) -> u32 {
        self.held().depth.load(Ordering::Acquire)
    }

    /// Gives this guard back. The owner's last one releases the lock and waits until the service has confirmed it;
    /// any other returns at once.
    ///
    /// # Errors
    /// As [`Guard::release`]; [`Error::Lost`] for every guard of a lost lock.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(mut self) -> Result<(), Error> {
        let held = self.leave().expect("taken only when the guard goes");
        let loss = held.loss();
        match Arc::into_inner(held) {
            Some(Held { guard, entry, .. }) => {
                drop(entry);
                guard.release().await
            }
            None => loss.map_or(Ok(()), Err),
        }
    }

    pub(crate) fn when_lost(&self, tell: impl FnOnce(LossReason) + Send + 'static) -> AbortHandle {
        self.guard().when_lost(tell)
    }

    fn guard(&self) -> &Guard {
        &self.held().guard
    }

    fn held(&self) -> &Held {
        self.held.as_ref().expect("taken only when the guard goes")
    }

    fn leave(&mut self) -> Option<Arc<Held>> {
        let held = self.held.take()?;
        held.depth.fetch_sub(1, Ordering::AcqRel);
        Some(held)
    }
}

impl Drop for ReentrantGuard {
    fn drop(&mut self) {
        self.leave();
    }
}

impl std::fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("path", &self.path())
            .field("token", &self.token())
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}

/// A lock that an owner holds. Every guard has an `Arc` of it, and so has every answer that nobody has fetched yet;
/// the lock is released with the last one.
struct Held {
    guard: Guard,
    depth: AtomicU32,
    limit: u32,
    entry: Entry,
}

impl Held {
    /// One guard more.
    fn enter(self: Arc<Held>) -> Result<ReentrantGuard, Error> {
        if let Some(lost) = self.loss() {
            return Err(lost);
        }
        let more = |depth: u32| (depth < self.limit).then(|| depth + 1);
        match self.depth.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(ReentrantGuard { held: Some(self) }),
            Err(_) => Err(too_deep(self.guard.path(), self.limit)),
        }
    }

    fn loss(&self) -> Option<Error> {
        if self.guard.is_valid() {
            return None;
        }
        let reason = self.guard.loss().unwrap_or(LossReason::Unreachable);
        Some(Error::Lost { path: self.guard.path().to_owned(), reason })
    }
}

/// Takes a lock off its owner's map when it is dropped, unless somebody has put a newer one there.
struct Entry {
    owner: Arc<Inner>,
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

/// One of those who wait for the answer to a question.
struct Asker {
    owner: Arc<Inner>,
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
                // Whoever was polling the question left, perhaps with a wake-up that was meant for it: ask again.
                () = left => {}
            }
        }
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        // Held until the map is unlocked: with the last of us goes the place in the queue.
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

/// What an owner finds where it asks.
enum Found {
    Held(Arc<Held>),
    Question(Asker),
    /// Somebody stands in the queue as this owner.
    Waiting,
}

impl Inner {
    /// `None`: busy, for those who only try.
    async fn enter(self: &Arc<Self>, mutex: &Mutex, trying: bool) -> Result<Option<ReentrantGuard>, Error> {
        let path = mutex.zoolock().path(mutex.name())?;
        if self.limit == 0 {
            return Err(too_deep(&mutex.path(), 0));
        }
        let key = Key { client: mutex.zoolock().id(), path };
        loop {
            let mut asker = match self.find(&key, mutex, trying) {
                Found::Held(held) => return held.enter().map(Some),
                Found::Waiting => return Ok(None),
                Found::Question(asker) => asker,
            };
            match asker.answer().await? {
                Some(held) => return held.enter().map(Some),
                None if trying => return Ok(None),
                // It was somebody else's try; now we wait ourselves.
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
        let answer: Asking = Box::pin(self.clone().ask(key.clone(), mutex.clone(), trying));
        let question = Question { answer: answer.shared(), asking: 1, left: Arc::default(), trying };
        let found = asker(&question);
        places.insert(key.clone(), Place::Asked(question));
        found
    }

    /// Stands in the queue once for all who ask.
    async fn ask(self: Arc<Self>, key: Key, mutex: Mutex, trying: bool) -> Answer {
        let answer = if trying { mutex.try_lock().await } else { mutex.lock().await.map(Some) };
        let answer = answer.map(|guard| {
            guard.map(|guard| {
                let entry = Entry { owner: self.clone(), key: key.clone() };
                Arc::new(Held { guard, depth: AtomicU32::new(0), limit: self.limit, entry })
            })
        });
        // Nobody joins a question that is answered: a failure would be told again to whoever tries again.
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

fn too_deep(path: &str, limit: u32) -> Error {
    Error::invalid(
        format!("lock {path}"),
        format!(
            "is held {limit} times by the same owner, which is its limit; release some, or raise the limit"
        ),
    )
}
