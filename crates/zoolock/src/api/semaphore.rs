//! The semaphore.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock_core::Kind;
use zoolock_core::contender::Failure;
use zoolock_core::record::{Record, Size};

use crate::api::acquire_methods::operate;
use crate::api::guard::{guard, guard_path};
use crate::api::zoolock::Zoolock;
use crate::base::error::Error;
use crate::base::options::settings;
use crate::lock::acquire::{Lock, WaitLimit};

/// A fixed number of permits, across processes and hosts.
///
/// Fair: first come, first served. Several permits are taken all or none, so two contenders that want two of
/// two permits cannot block each other.
///
/// It is not compatible with kazoo's Semaphore and Curator's InterProcessSemaphoreV2: at a path with one of
/// those, every call fails with [`Error::Invalid`]. Before its first acquisition a handle looks for them,
/// which costs one round trip.
///
/// All users agree on the size. The lock directory keeps the size while it is used; the server removes the
/// directory some time after its last user. A handle with another size is refused until the semaphore is
/// [resized](Semaphore::resize).
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
/// let workers = zl.semaphore("encoders", 5);
/// let one = workers.acquire().await?;
/// let three = workers.acquire_many(3).await?;
/// # drop((one, three)); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    pub(crate) lock: Lock,
    permits: u32,
}

operate!(Semaphore);
settings!(Semaphore);

guard! {
    /// A guard that holds some permits of a semaphore. It has no fencing token, since concurrent holders have no
    /// order; see [`ticket`](PermitGuard::ticket).
    PermitGuard
}
guard_path!(PermitGuard);

impl PermitGuard {
    /// Returns the number of permits that it holds.
    pub fn permits(&self) -> u32 {
        self.held.permits()
    }
}

impl Semaphore {
    /// Returns the size of the semaphore according to this handle.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Waits for one permit.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue. Its znode is deleted in the background, also after a lost
    /// connection, until it is deleted or the session has ended.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, a lock of another kind or library, or another size; else as
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub async fn acquire(&self) -> Result<PermitGuard, Error> {
        self.acquire_many(1).await
    }

    /// Waits for several permits, all or none.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for no permits, or more than the size; else as [`Semaphore::acquire`].
    pub async fn acquire_many(&self, permits: u32) -> Result<PermitGuard, Error> {
        self.lock.lock(self.kind(permits)?).await.map(PermitGuard::new)
    }

    /// Takes several permits if they are free and no contender waits; returns `None` otherwise.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<PermitGuard>, Error> {
        let held = self.lock.acquire(self.kind(permits)?, WaitLimit::Try).await?;
        Ok(held.map(PermitGuard::new))
    }

    /// Waits for several permits, at most for `timeout`.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Semaphore::acquire_many`].
    pub async fn acquire_timeout(&self, permits: u32, timeout: Duration) -> Result<PermitGuard, Error> {
        self.acquire_deadline(permits, crate::base::clock::deadline_after(timeout)).await
    }

    /// Waits for several permits, at most until `deadline`.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// [`Error::Timeout`] if the lock is busy at the end of the wait; else as [`Semaphore::acquire_many`].
    pub async fn acquire_deadline(&self, permits: u32, deadline: Instant) -> Result<PermitGuard, Error> {
        self.lock.lock_until(self.kind(permits)?, deadline).await.map(PermitGuard::new)
    }

    /// Changes the number of permits for all clients.
    ///
    /// Holders keep their permits. Waiters are served by the new size. New contenders with a handle of
    /// another size are refused. This handle has the new size from now on.
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
                Err(error) if error.failure == Failure::NoNode => return Err(self.no_semaphore()),
                Err(error) => return Err(self.refusal(error)),
            };
            match Record::parse(&data) {
                Record::Semaphore(size) if size.is_of(stat.czxid) => {}
                _ => {
                    return Err(match self.foreign_layout(&zk).await? {
                        Some(layout) => self.other_layout(layout),
                        None => self.no_semaphore(),
                    });
                }
            }
            let size = Size { directory: stat.czxid, permits }.encode();
            match zk.commit(resizing(path, size, stat.version)).await {
                Ok(_) => return Ok(()),
                // Another client resizes at the same time.
                Err(error) if error.failure == Failure::BadVersion => {}
                Err(error) => return Err(self.refusal(error)),
            }
        }
    }

    fn no_semaphore(&self) -> Error {
        let subject = format!("lock {}", self.path());
        Error::invalid(subject, "is not a semaphore; acquire a permit to create it")
    }
}

/// Returns the transaction that writes a new size. The first waiter watches the children, not the data: a
/// child that is created and deleted wakes it.
fn resizing(path: &str, size: String, version: i32) -> Vec<crate::zk::session::Op> {
    use crate::zk::session::Op;
    let wake_node = format!("{path}/resized-{}", crate::base::uuid::random_uuid().simple());
    vec![
        Op::Write { path: path.to_owned(), data: size.into_bytes(), version: Some(version) },
        Op::Create { path: wake_node.clone(), data: Vec::new() },
        Op::Delete(wake_node),
    ]
}

impl Zoolock {
    /// Returns a semaphore by name, with this number of permits. The name is relative to the root, or
    /// absolute if it starts with `/`. Nothing is sent; the first call that would use a bad name or size
    /// reports it.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        let mut lock = Lock::new(self.context().clone(), vec![name.as_ref().to_owned()]);
        lock.layout_checked = Some(Arc::default());
        Semaphore { lock, permits }
    }
}
