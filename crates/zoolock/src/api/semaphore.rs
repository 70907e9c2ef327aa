//! The semaphore.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use zoolock_core::Kind;
use zoolock_core::acquisition::RequestFailure;
use zoolock_core::record::{Record, Size};

use crate::admin::kinds::PreviousEnd;
use crate::admin::snapshot::LockPoller;
use crate::api::guard::{guard, lend, of_one_lock};
use crate::api::handle::{handle, named};
use crate::api::zoolock::Zoolock;
use crate::base::clock;
use crate::base::error::Error;
use crate::lock::acquire::{Lock, WaitLimit};
use crate::lock::held::Held;

/// The pause between two reads of the size in an outage.
const READ_PAUSE: Duration = Duration::from_millis(500);

handle! {
    /// A semaphore: a limited number of permits, shared across processes and hosts.
    ///
    /// Fair: first come, first served. An acquisition of several permits gets all of them or none. So
    /// two contenders that want two of two permits cannot deadlock with one permit each.
    ///
    /// It is not compatible with kazoo's Semaphore and Curator's InterProcessSemaphoreV2: at a path with one of those,
    /// acquisitions and resizes fail with [`Error::WrongKind`]. Before its first acquisition, a handle looks for such a
    /// semaphore at its path, which costs one round trip.
    ///
    /// All clients must use the same size. The lock directory stores the size. A handle with another
    /// size is refused until the semaphore is [resized](Semaphore::resize). Some time after the last
    /// contender has left, the server removes the directory, and with it the size.
    ///
    /// ```no_run
    /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// let workers = zl.semaphore("encoders", 5);
    /// let one = workers.acquire(1).await?;
    /// let three = workers.acquire(3).await?;
    /// # drop((one, three)); Ok(()) }
    /// ```
    Semaphore {
        /// The size of the semaphore. Clones share it.
        permits: Arc<AtomicU32>,
        /// Set if the handle takes the size that the lock directory stores.
        adopts_size: bool
    }
}

named!(Semaphore);

guard! {
    /// A guard that holds some permits of a [`Semaphore`]. It has no fencing token, since concurrent holders have no
    /// order; see [`ticket`](crate::Held::ticket).
    PermitGuard
}

of_one_lock!(PermitGuard);

impl PermitGuard {
    /// Returns the number of permits that this guard holds.
    pub fn permits(&self) -> u32 {
        self.held.permits()
    }
}

impl Semaphore {
    /// Makes this handle take the size that the semaphore has. The size of [`Zoolock::semaphore`] then only applies until the
    /// handle has seen another one. With this option on all hosts, the size can be changed while they run: call
    /// [`resize`](Semaphore::resize) once, and then roll out the new size.
    #[must_use = "the option applies to the returned handle"]
    pub fn adopt_size(mut self) -> Self {
        self.adopts_size = true;
        // Handles without this option keep their size.
        self.permits = Arc::new(AtomicU32::new(self.permits()));
        self
    }

    /// Returns the size of the semaphore that this handle uses. Sends nothing.
    pub fn permits(&self) -> u32 {
        self.permits.load(Ordering::Relaxed)
    }

    /// Returns the number of permits that no contender holds. Waiters may be ahead of a new call, and the number may
    /// have changed already.
    ///
    /// # Errors
    /// As [`Admin::snapshot`](crate::Admin::snapshot); [`Error::WrongKind`] if there is a lock of another kind.
    pub async fn available_permits(&self) -> Result<u32, Error> {
        let seen = self.lock.snapshot().await?;
        if let Some(foreign) = &seen.foreign_semaphore {
            return Err(Error::wrong_kind(self.path(), format!("is a {foreign}; use another name")));
        }
        match seen.permits {
            Some(size) => {
                let taken: u64 = seen.holders().map(|holder| u64::from(holder.weight)).sum();
                Ok(size.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX)))
            }
            // The first acquisition writes the size.
            None if !seen.is_held()
                && seen.waiting == 0
                && !seen.foreign_record
                && seen.previous == PreviousEnd::Unknown =>
            {
                Ok(self.permits())
            }
            None => Err(self.lock.no_semaphore()),
        }
    }

    /// Acquires this number of permits, all or none. Waits without a time limit.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue. The znode is deleted in the background. After a lost connection the
    /// deletion is repeated, until it succeeds or the session has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 permits, for more permits than the size, and for a bad name; [`Error::WrongSize`] if the
    /// semaphore has another size; [`Error::WrongKind`] if the lock is of another kind, or belongs to another client library;
    /// else as [`Mutex::lock`](crate::Mutex::lock).
    pub async fn acquire(&self, permits: u32) -> Result<PermitGuard, Error> {
        self.acquire_within(permits, WaitLimit::ForEver).await.map(PermitGuard::expect_granted)
    }

    /// Acquires this number of permits if they are free and no contender waits. Returns `None` otherwise. Errors and cancel
    /// safety: see [`Semaphore::acquire`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<PermitGuard>, Error> {
        Ok(self.acquire_within(permits, WaitLimit::Try).await?.map(PermitGuard::new))
    }

    /// Acquires this number of permits, all or none. Waits for `timeout` at most.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the permits are not free at the end of the wait; else as [`Semaphore::acquire`].
    pub async fn acquire_timeout(&self, permits: u32, timeout: Duration) -> Result<PermitGuard, Error> {
        let began = clock::monotonic();
        let held = self.acquire_within(permits, WaitLimit::timeout(timeout)).await?;
        let timed_out = || self.lock.timed_out(Kind::Permits { take: permits, size: self.permits() }, began);
        held.map(PermitGuard::new).ok_or_else(timed_out)
    }

    /// Acquires this number of permits, lends the guard to `work`, and releases the permits; see
    /// [`Mutex::with_lock`](crate::Mutex::with_lock).
    pub async fn with_permits<T>(
        &self,
        permits: u32,
        timeout: Duration,
        work: impl AsyncFnOnce(&PermitGuard) -> T,
    ) -> Result<T, Error> {
        lend(self.acquire_timeout(permits, timeout).await?, work).await
    }

    /// Changes the number of permits for all clients.
    ///
    /// Holders keep their permits. The new size applies to waiters at once. This handle and its clones use the new size
    /// from now on. Acquisitions of handles with another size are refused, unless they [adopt](Semaphore::adopt_size) it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 permits; [`Error::WrongKind`] if there is no semaphore, or if it belongs to another client
    /// library; [`Error::Unavailable`], [`Error::Denied`].
    pub async fn resize(&self, permits: u32) -> Result<(), Error> {
        if permits == 0 {
            return Err(Error::invalid("0 permits", "a semaphore has at least one"));
        }
        self.lock.resize(permits).await?;
        self.permits.store(permits, Ordering::Relaxed);
        Ok(())
    }

    /// Acquires permits. If the handle adopts the size of the semaphore, tries again with that size.
    async fn acquire_within(&self, permits: u32, wait_limit: WaitLimit) -> Result<Option<Held>, Error> {
        if self.adopts_size && permits > self.permits() {
            let limit = wait_limit.at_least(clock::deadline_after(self.lock.context.answer_timeout()));
            let mut poller = LockPoller::new(self.lock.clone(), 0);
            let read = async {
                loop {
                    match poller.snapshot().await {
                        // The outage may end before the wait.
                        Err(Error::Unavailable { .. }) => {
                            self.lock.context.alarm(clock::deadline_after(READ_PAUSE)).await;
                        }
                        outcome => return outcome,
                    }
                }
            };
            let seen = self.lock.wait_within(limit, read).await.ok_or_else(|| self.lock.no_answer())??.lock;
            if let Some(size) = seen.permits.filter(|_| seen.foreign_semaphore.is_none()) {
                self.permits.store(size, Ordering::Relaxed);
            }
        }
        loop {
            match self.lock.acquire(self.kind(permits)?, wait_limit).await {
                Err(Error::WrongSize { actual, .. }) if self.adopts_size => {
                    self.permits.store(actual, Ordering::Relaxed);
                }
                outcome => return outcome,
            }
        }
    }

    fn kind(&self, take: u32) -> Result<Kind, Error> {
        let size = self.permits();
        let wrong = |message: String| Err(Error::invalid(format!("{take} permits"), message));
        match take {
            0 => wrong("at least one is taken".to_owned()),
            _ if take > size => wrong(format!("semaphore {} has only {size}", self.path())),
            _ => Ok(Kind::Permits { take, size }),
        }
    }
}

impl Lock {
    async fn resize(&self, permits: u32) -> Result<(), Error> {
        let directory = self.directory()?;
        let path = directory.as_str();
        let zk = self.context.zk().await?;
        loop {
            let (data, stat) = match zk.read(path).await {
                Ok(read) => read,
                Err(error) if error.failure == RequestFailure::NoNode => return Err(self.no_semaphore()),
                Err(error) => return Err(self.request_error(error)),
            };
            match Record::parse(&data) {
                Record::Semaphore(size) if size.is_of(stat.czxid) => {}
                _ => {
                    return Err(match self.find_foreign_semaphore(&zk).await? {
                        Some(layout) => self.other_layout(layout),
                        None => self.no_semaphore(),
                    });
                }
            }
            let size = Size { directory: stat.czxid, permits }.encode();
            match zk.commit(resize_ops(path, size, stat.version)).await {
                Ok(_) => return Ok(()),
                // Another client has changed the data since the read.
                Err(error) if error.failure == RequestFailure::BadVersion => {}
                Err(error) => return Err(self.request_error(error)),
            }
        }
    }

    fn no_semaphore(&self) -> Error {
        Error::wrong_kind(self.path(), "is not a semaphore; acquire a permit to create it")
    }
}

/// Returns the transaction that writes a new size. The first waiter watches the children, not the data. So the
/// transaction also creates and deletes a child, which wakes this waiter.
fn resize_ops(path: &str, size: String, version: i32) -> Vec<crate::zk::session::Op> {
    use crate::zk::session::Op;
    let wake_node = format!("{path}/resized-{}", crate::base::uuid::random_uuid().simple());
    vec![
        Op::Write { path: path.to_owned(), data: size.into_bytes(), version: Some(version) },
        Op::Create { path: wake_node.clone(), data: Vec::new() },
        Op::Delete(wake_node),
    ]
}

impl Zoolock {
    /// Returns a semaphore by name, with this number of permits. The name is relative to the
    /// [root](crate::Builder::root), or absolute if it starts with `/`. Sends nothing. If the name or the size is bad,
    /// the first request, such as `acquire()`, fails.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        let mut lock = Lock::new(self.context().clone(), vec![name.as_ref().to_owned()]);
        lock.layout_checked = Some(Arc::default());
        Semaphore { lock, permits: Arc::new(AtomicU32::new(permits)), adopts_size: false }
    }
}
