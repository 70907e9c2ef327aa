//! The client handle.

use std::time::Duration;

use super::guard::{Guard, wait_if_begun};
use super::mutex::Mutex;
use super::wait;
use crate::admin::graph::{Deadlock, Why};
use crate::admin::snapshot::Snapshot;
use crate::api::builder::Builder;
use crate::base::error::Error;

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

    /// Returns a builder for other settings than the defaults. Connect with [`Builder::connect_blocking`].
    pub fn builder() -> Builder {
        crate::Zoolock::builder()
    }

    /// Converts a client of the async API. Both share their sessions.
    pub fn from_async(zoolock: crate::Zoolock) -> Zoolock {
        Zoolock { inner: zoolock }
    }

    pub(super) fn as_async(&self) -> &crate::Zoolock {
        &self.inner
    }

    /// Converts the client to one of the async API.
    pub fn into_async(self) -> crate::Zoolock {
        self.inner
    }

    /// Returns a mutex by name. The name is relative to the root, or absolute if it starts with `/`. Nothing is sent;
    /// the first call that would use a bad name reports it.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(self.inner.mutex(name))
    }

    /// Runs `work` under the lock `name`. Releases the lock when the work drops the guard, at its end at the latest.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`]; [`Error::Lost`] if the lock was lost before it was released. The work may then
    /// have overlapped with the next holder's.
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
        let pending_release = guard.pending_release();
        let value = work(guard);
        wait_if_begun(pending_release)?;
        Ok(value)
    }

    /// Returns every lock directory under the root, or under `prefix`, with its queue.
    ///
    /// # Errors
    /// As [`zoolock::Zoolock::locks`](crate::Zoolock::locks).
    pub fn locks(&self, prefix: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        wait(self.inner.locks(prefix))
    }

    /// Returns the same as [`Zoolock::locks`], with at most `waiters` waiters of each lock.
    ///
    /// # Errors
    /// As [`zoolock::Zoolock::survey`](crate::Zoolock::survey).
    pub fn survey(&self, prefix: Option<&str>, waiters: usize) -> Result<Vec<Snapshot>, Error> {
        wait(self.inner.survey(prefix, waiters))
    }

    /// Returns the deadlocks: owners that wait for each other in a cycle.
    ///
    /// # Errors
    /// As [`zoolock::Zoolock::deadlocks`](crate::Zoolock::deadlocks).
    pub fn deadlocks(&self, prefix: Option<&str>) -> Result<Vec<Deadlock>, Error> {
        wait(self.inner.deadlocks(prefix))
    }

    /// Returns why a lock is not free.
    ///
    /// # Errors
    /// As [`zoolock::Zoolock::why`](crate::Zoolock::why).
    pub fn why(&self, name: &str) -> Result<Why, Error> {
        wait(self.inner.why(name))
    }

    /// Closes all sessions and waits for the server's answer, but not for ever. Guards that are still held are lost
    /// ([`LossReason::Closed`](crate::LossReason::Closed)). Releases under way are given time first.
    pub fn close(&self) {
        wait(self.inner.close());
    }
}

#[cfg(feature = "embedded")]
impl Zoolock {
    /// Starts a server in this process and connects to it; see [`zoolock::Zoolock::embedded`](crate::Zoolock::embedded).
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no port or thread is available.
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
