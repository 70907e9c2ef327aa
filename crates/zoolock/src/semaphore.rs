//! The semaphore.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zoolock_core::Kind;
use zoolock_core::contender::Failure;
use zoolock_core::record::{Record, Size};

use crate::acquire::{Lock, Patience};
use crate::acquire_methods::operate;
use crate::error::Error;
use crate::guard::{guard, guard_of_one};
use crate::options::settings;
use crate::zoolock::Zoolock;

/// So many permits, across processes and hosts. Fair: first come, first served, and several permits are taken all or
/// none, so that two who want two of two cannot wait for each other.
///
/// It shares nothing with kazoo's Semaphore or Curator's InterProcessSemaphoreV2: at a path where one of those is, every
/// call fails with [`Error::Invalid`]. Before its first acquisition a handle looks for them, which costs one round trip.
///
/// All users agree on the size, which is kept in the lock for as long as it is used (the service removes it some time
/// after its last user); a handle of another size is refused until somebody [resizes](Semaphore::resize) it on purpose.
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
    /// Some permits of a semaphore. It has no fencing token: nothing orders those who hold at once; see
    /// [`ticket`](PermitGuard::ticket).
    PermitGuard
}
guard_of_one!(PermitGuard);

impl PermitGuard {
    /// How many permits it holds.
    pub fn permits(&self) -> u32 {
        self.held.permits()
    }
}

impl Semaphore {
    /// How many permits this handle says there are.
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Waits for one permit.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue. Its node is deleted in the background, also after a lost
    /// connection, until it is gone or the session is over.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, a lock of another kind or library, or another size; else as
    /// [`Mutex::lock`](crate::Mutex::lock).
    pub async fn acquire(&self) -> Result<PermitGuard, Error> {
        self.acquire_many(1).await
    }

    /// Waits for so many permits, all or none.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for none, or more than there are; else as [`Semaphore::acquire`].
    pub async fn acquire_many(&self, permits: u32) -> Result<PermitGuard, Error> {
        self.lock.lock(self.kind(permits)?).await.map(PermitGuard::new)
    }

    /// Takes so many permits if they are free and nobody waits, and says `None` if not.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// As [`Semaphore::acquire_many`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<PermitGuard>, Error> {
        let held = self.lock.acquire(self.kind(permits)?, Patience::Try).await?;
        Ok(held.map(PermitGuard::new))
    }

    /// Waits for so many permits, at most for `timeout`.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Semaphore::acquire_many`].
    pub async fn acquire_timeout(&self, permits: u32, timeout: Duration) -> Result<PermitGuard, Error> {
        self.acquire_deadline(permits, Zoolock::deadline_after(timeout)).await
    }

    /// Waits for so many permits, at most until `deadline`.
    ///
    /// # Cancel safety
    /// As [`Semaphore::acquire`].
    ///
    /// # Errors
    /// [`Error::Timeout`], at once when the time is over; else as [`Semaphore::acquire_many`].
    pub async fn acquire_deadline(&self, permits: u32, deadline: Instant) -> Result<PermitGuard, Error> {
        self.lock.lock_until(self.kind(permits)?, deadline).await.map(PermitGuard::new)
    }

    /// Changes the number of permits, for everybody. Those who hold keep theirs; those who wait are served by the new
    /// size; those who come with a handle of another size are refused. This handle has the new size from now on.
    ///
    /// # Errors
    /// [`Error::Invalid`] for none, where no semaphore is there, or where it is another library's;
    /// [`Error::Unavailable`], [`Error::Denied`].
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
        let keeper = self.zoolock.keeper().await?;
        loop {
            let (data, stat) = match keeper.read(path).await {
                Ok(read) => read,
                Err(error) if error.failure == Failure::NoNode => return Err(self.no_semaphore()),
                Err(error) => return Err(self.refusal(error)),
            };
            match Record::parse(&data) {
                Record::Semaphore(size) if size.is_of(stat.czxid) => {}
                _ => {
                    return Err(match self.foreign_layout(&*keeper).await? {
                        Some(layout) => self.other_layout(layout),
                        None => self.no_semaphore(),
                    });
                }
            }
            let size = Size { directory: stat.czxid, permits }.encode();
            match keeper.commit(resizing(path, size, stat.version)).await {
                Ok(_) => return Ok(()),
                // Somebody else resizes, too.
                Err(error) if error.failure == Failure::BadVersion => {}
                Err(error) => return Err(self.refusal(error)),
            }
        }
    }

    fn no_semaphore(&self) -> Error {
        let subject = format!("lock {}", self.path());
        Error::invalid(subject, "is no semaphore; it is made when it is first used")
    }
}

/// The first waiter watches the children, not the record: a child that comes and goes wakes it.
fn resizing(path: &str, size: String, version: i32) -> Vec<crate::keeper::Op> {
    use crate::keeper::Op;
    let bell = format!("{path}/resized-{}", crate::chance::uuid().simple());
    vec![
        Op::Write { path: path.to_owned(), data: size.into_bytes(), version: Some(version) },
        Op::Create { path: bell.clone(), data: Vec::new() },
        Op::Delete(bell),
    ]
}

impl Zoolock {
    /// A semaphore by name, with so many permits: relative to the root, or absolute where it starts with `/`. Nothing
    /// is sent; a bad name or size is reported by the first call that would use it.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Semaphore {
        let mut lock = Lock::new(self.clone(), vec![name.as_ref().to_owned()]);
        lock.layout_checked = Some(Arc::default());
        Semaphore { lock, permits }
    }
}
