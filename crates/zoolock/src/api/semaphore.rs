//! The semaphore.

use std::sync::Arc;
use std::time::Duration;

use zoolock_core::Kind;
use zoolock_core::acquisition::RequestFailure;
use zoolock_core::record::{Record, Size};

use crate::api::guard::Guard;
use crate::api::handle::Handle;
use crate::api::mode::Permits;
use crate::api::zoolock::Zoolock;
use crate::base::clock::deadline_after;
use crate::base::error::Error;
use crate::lock::acquire::{Lock, WaitLimit};

/// A semaphore: a limited number of permits, shared across processes and hosts.
///
/// Fair: first come, first served. An acquisition of several permits gets all of them or none. So
/// two contenders that want two of two permits cannot deadlock with one permit each.
///
/// It is not compatible with kazoo's Semaphore and Curator's InterProcessSemaphoreV2: at a path with one of those,
/// acquisitions and resizes fail with [`Error::Invalid`]. Before its first acquisition, a handle looks for such a
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
pub type Semaphore = Handle<Permits>;

/// A guard that holds some permits of a semaphore. It has no fencing token, since concurrent holders have no
/// order; see [`ticket`](crate::Held::ticket).
pub type PermitGuard = Guard<Permits>;

/// The mode of semaphores.
pub(super) mod modes {
    use crate::api::mode::OneLock;
    use crate::api::mode::sealed::Mode;

    /// The mode of a semaphore and of its guards.
    pub enum Permits {}

    impl Mode for Permits {}
    impl OneLock for Permits {}
}

impl PermitGuard {
    /// Returns the number of permits that this guard holds.
    pub fn permits(&self) -> u32 {
        self.held.permits()
    }
}

impl Semaphore {
    /// Returns the size of the semaphore that this handle uses. Sends nothing.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Acquires this number of permits, all or none. Waits without a time limit.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue. The znode is deleted in the background. After a lost connection the
    /// deletion is repeated, until it succeeds or the session has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 permits, for more permits than the size, for a bad name, and if the lock is of another
    /// kind, belongs to another client library, or has another size; else as [`Mutex::lock`](crate::Mutex::lock).
    pub async fn acquire(&self, permits: u32) -> Result<PermitGuard, Error> {
        self.lock.acquire(self.kind(permits)?, WaitLimit::ForEver).await.map(Guard::expect_granted)
    }

    /// Acquires this number of permits if they are free and no contender waits. Returns `None` otherwise. Errors and cancel
    /// safety: see [`Semaphore::acquire`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<PermitGuard>, Error> {
        Ok(self.lock.acquire(self.kind(permits)?, WaitLimit::Try).await?.map(Guard::new))
    }

    /// Acquires this number of permits, all or none. Waits for `timeout` at most.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the permits are not free at the end of the wait; else as [`Semaphore::acquire`].
    pub async fn acquire_timeout(&self, permits: u32, timeout: Duration) -> Result<PermitGuard, Error> {
        self.lock.lock_until(self.kind(permits)?, deadline_after(timeout)).await.map(Guard::new)
    }

    /// Changes the number of permits for all clients.
    ///
    /// Holders keep their permits. The new size applies to waiters at once. This handle uses the
    /// new size from now on. Acquisitions of handles with another size are refused.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 permits, if there is no semaphore, or if it belongs to another client
    /// library; [`Error::Unavailable`], [`Error::Denied`].
    pub async fn resize(&mut self, permits: u32) -> Result<(), Error> {
        if permits == 0 {
            return Err(Error::invalid("0 permits", "a semaphore has at least one"));
        }
        self.lock.resize(permits).await?;
        self.permits = permits;
        Ok(())
    }

    fn kind(&self, take: u32) -> Result<Kind, Error> {
        let size = self.permits;
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
        let subject = format!("lock {}", self.path());
        Error::invalid(subject, "is not a semaphore; acquire a permit to create it")
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
        let mut semaphore = Semaphore::new(self.context(), vec![name.as_ref().to_owned()]);
        semaphore.lock.layout_checked = Some(Arc::default());
        semaphore.permits = permits;
        semaphore
    }
}
