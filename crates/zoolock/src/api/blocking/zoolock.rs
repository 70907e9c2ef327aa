//! The client handle.

use std::time::Duration;

use super::block_on;
use super::guard::Guard;
use super::handle::Blocking;
use super::mutex::Mutex;
use crate::admin::graph::{Deadlock, WaitChain};
use crate::admin::snapshot::Snapshot;
use crate::api::builder::Builder;
use crate::base::error::Error;

/// A client of one ensemble. Cheap to clone; all clones share their sessions.
///
/// A program that is about to exit calls [`Zoolock::close`]: otherwise its locks stay until the session timeout has
/// passed.
pub type Zoolock = Blocking<crate::Zoolock>;

impl Zoolock {
    /// Connects with the default settings. Fails as [`Builder::connect`] does.
    pub fn connect(address: &str) -> Result<Zoolock, Error> {
        Zoolock::builder().connect_blocking(address)
    }

    /// Returns a builder for other settings than the defaults. Connect with [`Builder::connect_blocking`].
    pub fn builder() -> Builder {
        crate::Zoolock::builder()
    }

    /// Returns a mutex by name. The name is relative to the [root](Builder::root), or absolute if it starts with `/`.
    /// Sends nothing. If the name is bad, the first request, such as `lock()`, fails.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Blocking { inner: self.inner.mutex(name) }
    }

    /// Acquires the lock `name` and passes the guard to `work`. The lock is released when the guard is dropped,
    /// normally at the end of `work`. If `work` returns the guard, the caller keeps the lock.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`]; [`Error::Lost`] if the lock was lost before it was released. The work may then have
    /// overlapped with the work of the next holder.
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
        let pending_release = guard.inner.pending_release();
        let value = work(guard);
        // If the work returned the guard with its value, the guard belongs to the caller.
        if pending_release.has_begun() {
            block_on(pending_release.wait())?;
        }
        Ok(value)
    }

    /// Returns a snapshot of every lock directory under the root, or under `prefix`. Fails as
    /// [`zoolock::Zoolock::locks`](crate::Zoolock::locks) does.
    pub fn locks(&self, prefix: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        block_on(self.inner.locks(prefix))
    }

    /// Returns the same as [`Zoolock::locks`], with at most `waiters` waiters of each lock. Fails as
    /// [`zoolock::Zoolock::survey`](crate::Zoolock::survey) does.
    pub fn survey(&self, prefix: Option<&str>, waiters: usize) -> Result<Vec<Snapshot>, Error> {
        block_on(self.inner.survey(prefix, waiters))
    }

    /// Returns the deadlocks: owners that wait for each other in a cycle. Fails as
    /// [`zoolock::Zoolock::deadlocks`](crate::Zoolock::deadlocks) does.
    pub fn deadlocks(&self, prefix: Option<&str>) -> Result<Vec<Deadlock>, Error> {
        block_on(self.inner.deadlocks(prefix))
    }

    /// Returns why the lock `name` is not free: its holder, the lock for which the holder waits, and so on. Fails as
    /// [`zoolock::Zoolock::why`](crate::Zoolock::why) does.
    pub fn why(&self, name: &str) -> Result<WaitChain, Error> {
        block_on(self.inner.why(name))
    }

    /// Closes this client and all its clones: later calls fail with [`Error::Invalid`]. Blocks until releases in
    /// progress have finished and the server has confirmed the end of the sessions, for a limited time. Guards that
    /// still exist lose their lock ([`LossReason::Closed`](crate::LossReason::Closed)).
    pub fn close(&self) {
        block_on(self.inner.close());
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
        block_on(crate::Zoolock::embedded()).map(Zoolock::from_async)
    }
}

impl Builder {
    /// Connects to an ensemble, for programs without async. Works and fails as [`Builder::connect`] does.
    pub fn connect_blocking(self, address: &str) -> Result<Zoolock, Error> {
        block_on(self.connect(address)).map(Zoolock::from_async)
    }
}
