//! The handle of a lock of any kind.

use std::marker::PhantomData;
use std::time::Duration;

use zoolock_core::Kind;

use crate::admin::snapshot::{Entry, LockPoller, Snapshot};
use crate::api::guard::Guard;
use crate::api::mode::{self, Fenced, HasPrevious, HasReaders, OneLock};
use crate::base::clock::deadline_after;
use crate::base::error::Error;
use crate::base::events::LockEvents;
use crate::base::naming::Naming;
use crate::base::ticket::Ticket;
use crate::lock::acquire::{Lock, WaitLimit};
use crate::lock::context::Context;

/// A handle that acquires a lock. Its clones have the same options.
///
/// Programs use its aliases, one for each kind of lock: [`Mutex`](crate::Mutex),
/// [`RwLock`](crate::RwLock), [`Semaphore`](crate::Semaphore) and [`MultiLock`](crate::MultiLock).
/// The [mode] determines which methods a handle has.
pub struct Handle<M> {
    pub(super) lock: Lock,
    /// The size of a semaphore; 1 for other locks.
    pub(super) permits: u32,
    mode: PhantomData<fn() -> M>,
}

/// Methods that acquire a lock exclusively.
impl<M: Fenced> Handle<M> {
    /// Acquires the lock, or all locks of a multi-lock. Waits without a time limit.
    ///
    /// If the session expires while the call waits, the call queues again, at the end of the queue.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue. The znode is deleted in the background. After a lost connection the
    /// deletion is repeated, until it succeeds or the session has ended.
    ///
    /// A future that is granted the lock must be polled within the
    /// [`claim timeout`](crate::Builder::claim_timeout). After it, or if the lock is lost first, the lock is given back.
    /// When the future is polled again, it queues anew, at the end of the queue, or times out.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, a lock of another kind, or a client that was closed or belongs to another
    /// process; [`Error::Removed`] if another client deleted the znode of this acquisition; [`Error::Unavailable`] if no
    /// session can be opened; [`Error::Denied`] if the server refuses.
    pub async fn lock(&self) -> Result<Guard<M>, Error> {
        self.lock.acquire(Kind::Mutex, WaitLimit::ForEver).await.map(Guard::expect_granted)
    }

    /// Acquires the lock if it is free. Returns `None` if it is busy.
    ///
    /// # Cancel safety
    /// As [`Self::lock`].
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the server does not answer within
    /// [`Builder::answer_timeout`](crate::Builder::answer_timeout); else as [`Self::lock`].
    pub async fn try_lock(&self) -> Result<Option<Guard<M>>, Error> {
        Ok(self.lock.acquire(Kind::Mutex, WaitLimit::Try).await?.map(Guard::new))
    }

    /// Acquires the lock. Waits for `timeout` at most, and then for the
    /// [`answer timeout`](crate::Builder::answer_timeout) if the server is slow. A timeout of zero makes one attempt.
    ///
    /// # Cancel safety
    /// As [`Self::lock`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait, and the server still answers;
    /// [`Error::Unavailable`] if the server does not answer within
    /// [`Builder::answer_timeout`](crate::Builder::answer_timeout); else as [`Self::lock`].
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Guard<M>, Error> {
        self.lock.lock_until(Kind::Mutex, deadline_after(timeout)).await.map(Guard::new)
    }
}

/// Methods that acquire a lock for reading.
impl<M: HasReaders> Handle<M> {
    /// Acquires the lock for reading, or all locks of a multi-lock. Waits without a time limit. Errors and cancel
    /// safety: see [`Handle::lock`].
    pub async fn read(&self) -> Result<Guard<M::Reader>, Error> {
        self.lock.acquire(Kind::Read, WaitLimit::ForEver).await.map(Guard::expect_granted)
    }

    /// Acquires the lock for reading if it is free. Returns `None` if it is busy. Errors and cancel safety: see
    /// [`Handle::try_lock`].
    pub async fn try_read(&self) -> Result<Option<Guard<M::Reader>>, Error> {
        Ok(self.lock.acquire(Kind::Read, WaitLimit::Try).await?.map(Guard::new))
    }

    /// Acquires the lock for reading. Waits for `timeout` at most. Errors and cancel safety: see
    /// [`Handle::lock_timeout`].
    pub async fn read_timeout(&self, timeout: Duration) -> Result<Guard<M::Reader>, Error> {
        self.lock.lock_until(Kind::Read, deadline_after(timeout)).await.map(Guard::new)
    }
}

/// Methods for operators and observers of one lock.
impl<M: OneLock> Handle<M> {
    /// Returns the name of the lock, as it was given.
    pub fn name(&self) -> &str {
        self.lock.name()
    }

    /// Returns the path of the lock directory, or the given name if the name is invalid.
    pub fn path(&self) -> String {
        self.lock.path()
    }

    /// Returns the holders and the waiters of the lock. Directories that may contain more
    /// contenders, and that this client has no permission to read, are in
    /// [`unread`](Snapshot::unread).
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Unavailable`], [`Error::Denied`].
    pub async fn snapshot(&self) -> Result<Snapshot, Error> {
        self.lock.snapshot().await
    }

    /// Returns a source of repeated snapshots; see [`LockPoller`]. Each snapshot has the holders
    /// and the next `waiters` waiters. The other waiters are counted, not read.
    ///
    /// ```no_run
    /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// let mut poller = zl.mutex("nightly").poller(0);
    /// let seen = poller.snapshot().await?;
    /// println!("{} wait for {:?}", seen.lock.waiting, seen.lock.holder);
    /// # Ok(()) }
    /// ```
    pub fn poller(&self, waiters: usize) -> LockPoller {
        LockPoller::new(self.lock.clone(), waiters)
    }

    /// Asks a holder to release the lock. Then [`revoked`](crate::Held::revoked) of its guard
    /// resolves. A waiter keeps its queue position, and gets the request after its grant. A
    /// revocable lock of Curator gets Curator's request. Contenders of other libraries cannot be
    /// asked, and nothing is written for them.
    ///
    /// # Errors
    /// [`Error::NoSuchHolder`] if no contender in the queue has this ticket; [`Error::Denied`] if
    /// the ticket may belong to a contender that this client has no permission to read;
    /// [`Error::NotRevocable`] if the contender cannot be asked; else as [`Self::snapshot`].
    pub async fn revoke(&self, ticket: impl Into<Ticket>) -> Result<(), Error> {
        self.lock.revoke(ticket.into()).await
    }

    /// Deletes the znode of the contender with this ticket. A holder's `lost()` resolves with
    /// [`LossReason::Broken`](crate::LossReason::Broken). The same transaction records this client in the directory
    /// `.audit` of the root. Returns the contender as it was last seen.
    ///
    /// The holder may not have noticed the loss yet: wait until its work must have ended, or let
    /// the resource check tokens. A client of another library does not watch its own znode while it
    /// holds. It may continue to work after the break, until an operator ends its program. The
    /// returned entry of such a client has no `pid`. Its `family` is not zoolock's `native`, except
    /// for a mutex of .NET.
    ///
    /// # Errors
    /// [`Error::NoSuchHolder`] if no contender in the queue has this ticket; [`Error::Denied`] if
    /// the ticket may belong to a contender that this client has no permission to read; else
    /// as [`Self::snapshot`].
    pub async fn break_lock(&self, ticket: impl Into<Ticket>) -> Result<Entry, Error> {
        self.lock.break_lock(ticket.into()).await
    }
}

/// Options and events of all kinds of locks.
impl<M> Handle<M> {
    pub(super) fn new(context: &Context, names: Vec<String>) -> Handle<M> {
        Handle { lock: Lock::new(context.clone(), names), permits: 1, mode: PhantomData }
    }

    /// Sets the naming scheme of this handle's contenders. The default is that of the
    /// [`Builder`](crate::Builder::naming). If a scheme does not have this kind of lock, acquisitions fail.
    #[must_use = "the option applies to the returned handle"]
    pub fn naming(mut self, naming: Naming) -> Self {
        self.lock.options.naming = naming;
        self
    }

    /// Declares that every kazoo client of this lock was created with
    /// `extra_lock_patterns=["lock-"]`, and so waits for znodes with zoolock's native names. The
    /// names of kazoo's znodes do not show this. Without this option, a kazoo client in the queue
    /// of a native lock is assumed to ignore this client's znodes, and the acquisition fails.
    #[must_use = "the option applies to the returned handle"]
    pub fn kazoo_pattern(mut self) -> Self {
        self.lock.options.kazoo_pattern = true;
        self
    }

    /// Returns a stream of the future events of acquisitions by this handle and its clones.
    pub fn events(&self) -> LockEvents {
        self.lock.options.listeners.subscribe()
    }
}

/// Options of locks with exclusive holders.
impl<M: HasPrevious> Handle<M> {
    /// Makes each holder record the beginning of its hold in the lock directory. If the holder does
    /// not release the lock, the next holder gets [`Previous::Crashed`](crate::Previous::Crashed).
    /// This costs one more round trip per acquisition. The lock directory is then created as a
    /// persistent znode. A directory that existed before may be a container: when the server
    /// removes the container, the record is lost.
    ///
    /// After the first holder with this option, every later holder that uses this library does the same. Holders of
    /// other client libraries do not: their crashes go unnoticed.
    #[must_use = "the option applies to the returned handle"]
    pub fn crash_detection(mut self) -> Self {
        self.lock.options.crash_detection = true;
        self
    }

    /// Makes each acquisition wait for `delay` before its grant, unless the last holder is known to
    /// have left cleanly. This gives the last writes of that holder time to arrive.
    ///
    /// The delay counts against the caller's deadline and starts again with each call. Calls that
    /// make only one attempt also wait for the delay. The first contender in a lock directory does
    /// not wait. Like `crash_detection`, this creates the directory as a persistent znode. Use the
    /// delay with [`crash_detection`](Self::crash_detection). Without it, the delay also
    /// applies whenever another contender has left the queue since the last hold, because it is
    /// then unknown how the last holder left.
    #[must_use = "the option applies to the returned handle"]
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock.options.lock_delay = delay;
        self
    }

    /// Makes each acquisition read, before its grant, how the last holder left.
    ///
    /// Without this option, the deletion of the predecessor's znode grants a
    /// [`Mutex`](crate::Mutex) to a waiter, one round trip earlier. The waiter then reads some
    /// milliseconds later how the predecessor left. Until then [`previous`](crate::Held::previous)
    /// is [`Unknown`](crate::Previous::Unknown), even if the predecessor released the lock. If any
    /// holder uses [`crash_detection`](Self::crash_detection), or this handle uses
    /// [`lock_delay`](Self::lock_delay), the waiter reads this before the grant in any case.
    #[must_use = "the option applies to the returned handle"]
    pub fn tell_previous(mut self) -> Self {
        self.lock.options.tells_previous = true;
        self
    }
}

impl<M> Clone for Handle<M> {
    fn clone(&self) -> Self {
        Handle { lock: self.lock.clone(), permits: self.permits, mode: PhantomData }
    }
}

impl<M> std::fmt::Debug for Handle<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle")
            .field("mode", &format_args!("{}", mode::name::<M>()))
            .field("names", &self.lock.names)
            .finish_non_exhaustive()
    }
}
