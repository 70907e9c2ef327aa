//! The way in.

use std::time::Duration;

use super::guard::{Guard, wait_if_begun};
use super::mutex::Mutex;
use super::wait;
use crate::builder::Builder;
use crate::error::Error;
use crate::graph::{Deadlock, Why};
use crate::snapshot::Snapshot;

/// A client of one ensemble. Cheap to clone; all clones share their sessions.
///
/// A program that is about to exit calls [`Zoolock::close`]; see [`zoolock::Zoolock`](crate::Zoolock#closing).
#[derive(Clone)]
pub struct Zoolock {
    inner: crate::Zoolock,
}

impl Zoolock {
    /// Connects with the default settings.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn connect(address: &str) -> Result<Zoolock, Error> {
        Zoolock::builder().connect_blocking(address)
    }

    /// Settings other than the defaults; connect with [`Builder::connect_blocking`].
    pub fn builder() -> Builder {
        crate::Zoolock::builder()
    }

    /// Takes over a client of the async API; both share their sessions.
    pub fn from_async(zoolock: crate::Zoolock) -> Zoolock {
        Zoolock { inner: zoolock }
    }

    pub(super) fn as_async(&self) -> &crate::Zoolock {
        &self.inner
    }

    /// Hands the client to the async API.
    pub fn into_async(self) -> crate::Zoolock {
        self.inner
    }

    /// A mutex by name: relative to the root, or absolute where it starts with `/`. Nothing is sent; a bad name is
    /// reported by the first call that would use it.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.inner.mutex(name))
    }

    /// Runs `work` under the lock `name`, and releases it when the work drops the guard, at its end at the latest.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`]; [`Error::Lost`] where the lock was lost before it was released: the work may then
    /// have overlapped with somebody else's.
    ///
    /// # Examples
    /// ```no_run
    /// # fn example(zl: zoolock::blocking::Zoolock) -> Result<(), zoolock::Error> {
    /// use std::time::Duration;
    /// let token = zl.with_lock("nightly", Duration::from_secs(10), |guard| guard.token())?;
    /// # let _ = token; Ok(()) }
    /// ```
    pub fn with_lock<T>(
        &self,
        name: &str,
        timeout: Duration,
        work: impl FnOnce(Guard) -> T,
    ) -> Result<T, Error> {
        let guard = self.mutex(name).lock_timeout(timeout)?;
        let departure = guard.departure();
        let value = work(guard);
        wait_if_begun(departure)?;
        Ok(value)
    }

    /// Every lock directory under the root, or under `prefix`, with its queue.
    ///
    /// # Errors
    /// As [`zoolock::Zoolock::locks`](crate::Zoolock::locks).
    pub fn locks(&self, prefix: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        wait(self.inner.locks(prefix))
    }

    /// The same with few of those who wait.
    ///
    /// # Errors
    /// As [`zoolock::Zoolock::survey`](crate::Zoolock::survey).
    pub fn survey(&self, prefix: Option<&str>, waiters: usize) -> Result<Vec<Snapshot>, Error> {
        wait(self.inner.survey(prefix, waiters))
    }

    /// Who waits for whom in a circle.
    ///
    /// # Errors
    /// As [`zoolock::Zoolock::deadlocks`](crate::Zoolock::deadlocks).
    pub fn deadlocks(&self, prefix: Option<&str>) -> Result<Vec<Deadlock>, Error> {
        wait(self.inner.deadlocks(prefix))
    }

    /// Why a lock is not free.
    ///
    /// # Errors
    /// As [`zoolock::Zoolock::why`](crate::Zoolock::why).
    pub fn why(&self, name: &str) -> Result<Why, Error> {
        wait(self.inner.why(name))
    }

    /// Closes all sessions and waits for the service's answer, but not for ever. Guards that are still held are lost
    /// ([`LossReason::Closed`](crate::LossReason::Closed)); releases under way are given time first.
    pub fn close(&self) {
        wait(self.inner.close());
    }
}

#[cfg(feature = "embedded")]
impl Zoolock {
    /// Starts a server in this process and connects to it; see [`zoolock::Zoolock::embedded`](crate::Zoolock::embedded).
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no port or thread to be had.
    ///
    /// # Examples
    /// ```
    /// # fn main() -> Result<(), zoolock::Error> {
    /// let zl = zoolock::blocking::Zoolock::embedded()?;
    /// let guard = zl.mutex("nightly").lock()?;
    /// assert!(zl.mutex("nightly").try_lock()?.is_none());
    /// guard.release()?;
    /// zl.close();
    /// # Ok(()) }
    /// ```
    pub fn embedded() -> Result<Zoolock, Error> {
        wait(crate::Zoolock::embedded()).map(Zoolock::from_async)
    }
}

impl Builder {
    /// Connects to an ensemble, as [`Builder::connect`] does, for programs without async.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub fn connect_blocking(self, address: &str) -> Result<Zoolock, Error> {
        wait(self.connect(address)).map(Zoolock::from_async)
    }
}

impl std::fmt::Debug for Zoolock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}
