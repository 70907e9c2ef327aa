//! The client handle.

use std::time::Duration;

use crate::admin::graph::{self, Deadlock, Why};
use crate::admin::snapshot::{self, Snapshot, View};
use crate::api::builder::Builder;
use crate::api::guard::Guard;
use crate::api::locker::guard_dropped_early;
use crate::api::mutex::Mutex;
use crate::base::error::Error;
use crate::base::path::LockPath;
use crate::engine::reader::Reader;
use crate::lock::acquire::Lock;
use crate::lock::context::Context;

/// A client of one ensemble. Cheap to clone; all clones share their sessions.
///
/// When the last clone, guard and pending `lock()` are dropped, the clean-up finishes in the background and
/// the sessions are closed. A program that is about to exit calls [`Zoolock::close`] and awaits it. Otherwise
/// its locks stay until the session timeout has passed.
///
/// A process that was forked off cannot use the client of its parent: calls fail at once with [`Error::Invalid`], and guards
/// are lost there ([`LossReason::Forked`](crate::LossReason::Forked)). The parent keeps its locks, also when the child drops
/// the guards.
#[derive(Clone)]
pub struct Zoolock {
    context: Context,
}

impl Zoolock {
    /// Connects with the default settings.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect(address: &str) -> Result<Zoolock, Error> {
        Zoolock::builder().connect(address).await
    }

    /// Returns a builder for other settings than the defaults.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn new(context: Context) -> Zoolock {
        Zoolock { context }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Returns a mutex by name. The name is relative to the root, or absolute if it starts with `/`. Nothing
    /// is sent; the first call that would use a bad name reports it.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(Lock::new(self.context.clone(), vec![name.as_ref().to_owned()]))
    }

    /// Runs `work` under the lock `name`. Releases the lock when the work drops the guard, at its end at the
    /// latest.
    ///
    /// # Errors
    /// As [`Mutex::lock_timeout`].
    ///
    /// [`Error::Invalid`] if the closure drops the guard instead of moving it into its future: that would run
    /// without the lock.
    ///
    /// [`Error::Lost`] if the lock was lost before it was released. The work may then have overlapped with
    /// the next holder's.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lock in the background.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn example(zl: zoolock::Zoolock) -> Result<(), zoolock::Error> {
    /// use std::time::Duration;
    /// let token = zl.with_lock("nightly", Duration::from_secs(10), |guard| async move { guard.token() }).await?;
    /// # let _ = token; Ok(()) }
    /// ```
    pub async fn with_lock<T, F, Fut>(&self, name: &str, timeout: Duration, work: F) -> Result<T, Error>
    where
        F: FnOnce(Guard) -> Fut,
        Fut: Future<Output = T>,
    {
        let guard = self.mutex(name).lock_timeout(timeout).await?;
        let pending_release = guard.pending_release();
        let work = work(guard);
        if pending_release.has_begun() {
            return Err(guard_dropped_early(pending_release.path()));
        }
        let value = work.await;
        // A guard that the work returned with its value belongs to the caller.
        if pending_release.has_begun() {
            pending_release.wait().await?;
        }
        Ok(value)
    }

    /// Returns every lock directory under the root, or under `prefix`, with its queue, in the order of their
    /// paths.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad prefix, [`Error::Unavailable`], [`Error::Denied`].
    pub async fn locks(&self, prefix: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        self.survey(prefix, usize::MAX).await
    }

    /// Returns the same as [`Zoolock::locks`], but with only the holders and the next `waiters` waiters of each lock.
    /// The other waiters are counted, not read ([`Snapshot::waiting`]). This costs two requests per directory
    /// and one per contender that is read, at most 64 of them at a time.
    ///
    /// # Errors
    /// As [`Zoolock::locks`].
    pub async fn survey(&self, prefix: Option<&str>, waiters: usize) -> Result<Vec<Snapshot>, Error> {
        let start = match prefix {
            None | Some("") => LockPath::from_server(self.context.root().to_owned()),
            Some("/") if self.context.chroot().is_empty() => LockPath::from_server("/".to_owned()),
            Some("/") => LockPath::from_server(self.context.chroot().to_owned()),
            Some(prefix) => self.context.path(prefix.trim_end_matches('/'))?,
        };
        let zk = self.context.zk().await?;
        snapshot::walk(&Reader::new(&*zk), start, &View { waiters, ..View::of(&self.context) }).await
    }

    /// Returns the deadlocks among the owners of the locks under the root, or under `prefix`: owners that wait for
    /// each other in a cycle.
    ///
    /// Locks are read one after the other, and change meanwhile. A cycle that appeared only because of this is not
    /// returned. A returned cycle existed at one moment. It still exists, unless a contender has given up or was
    /// broken. Owners are only as certain as [`Entry::owner_kind`](crate::Entry::owner_kind) says.
    ///
    /// # Errors
    /// As [`Zoolock::locks`].
    pub async fn deadlocks(&self, prefix: Option<&str>) -> Result<Vec<Deadlock>, Error> {
        Ok(graph::reread_suspects(&self.context, self.locks(prefix).await?).await?.deadlocks())
    }

    /// Returns why the lock `name` is not free: its holder, the lock under the root for which the holder waits, the
    /// holder of that lock, and so on.
    ///
    /// # Errors
    /// As [`Zoolock::locks`]; [`Error::Invalid`] for a bad name.
    pub async fn why(&self, name: &str) -> Result<Why, Error> {
        let path = self.context.path(name)?;
        let path = self.context.without_chroot(path.as_str()).to_owned();
        let mut locks = self.locks(None).await?;
        if locks.iter().all(|lock| lock.path != path) {
            locks.push(self.mutex(name).snapshot().await?);
        }
        Ok(graph::reread_suspects(&self.context, locks).await?.why(&path))
    }

    /// Returns the session timeout that the server granted, which may be shorter or longer than the requested
    /// one. The locks of a crashed client are freed after it. `None` while there is no session.
    pub fn session_timeout(&self) -> Option<Duration> {
        self.context.process().check().ok()?;
        self.context.sessions().iter().map(|session| session.timeout()).min()
    }

    /// Closes this client and its clones, for good: later calls fail with [`Error::Invalid`]. Waits for the server's answer,
    /// for a limited time. Guards that are still held lose their lock ([`LossReason::Closed`](crate::LossReason::Closed)).
    /// Before that, releases in progress get time to finish.
    pub async fn close(&self) {
        self.context.close().await;
    }

    /// Returns the number of background tasks, for tests that look for leaks.
    #[doc(hidden)]
    pub fn background_tasks(&self) -> usize {
        self.context.tasks().alive()
    }
}

impl std::fmt::Debug for Zoolock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zoolock").field("root", &self.context.root()).finish_non_exhaustive()
    }
}
