//! The client handle.

use std::time::Duration;

use crate::admin::graph::{self, Deadlock, WaitChain, WaitGraph};
use crate::admin::snapshot::{self, Snapshot};
use crate::admin::{history, server_clock};
use crate::api::builder::Builder;
use crate::api::mutex::{Guard, Mutex};
use crate::base::error::Error;
use crate::lock::acquire::Lock;
use crate::lock::context::Context;
use crate::lock::history::HistoryEvent;
use crate::observe::All;
use crate::session::Connection;

/// A client of one ensemble. Cheap to clone; all clones share their sessions.
///
/// After the last clone, guard and pending `lock()` are dropped, a background task finishes the releases in progress
/// and closes the sessions. The last drop waits for these releases, for a quarter of a second at most. A program that is
/// about to exit calls [`Zoolock::close`] and awaits it. Otherwise the server may keep the locks of the program until the
/// session timeout has passed.
///
/// A forked child process cannot use the client of its parent: calls fail at once with [`Error::Forked`], and the
/// child's copies of the guards are lost ([`LossReason::Forked`](crate::LossReason::Forked)). The parent keeps its
/// locks, even if the child drops its copies.
#[derive(Clone)]
pub struct Zoolock {
    context: Context,
}

impl Zoolock {
    /// Connects with the default settings.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect(address: impl AsRef<str>) -> Result<Zoolock, Error> {
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

    /// Returns a mutex by name. The name is relative to the [root](Builder::root), or absolute if it starts with `/`.
    /// Sends nothing. If the name is bad, the first request, such as `lock()`, fails.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(Lock::new(self.context.clone(), vec![name.as_ref().to_owned()]))
    }

    /// Acquires the lock `name`, works, and releases it; see [`Mutex::with_lock`].
    ///
    /// # Errors
    /// As [`Mutex::with_lock`].
    ///
    /// # Cancel safety
    /// As [`Mutex::with_lock`].
    pub async fn with_lock<T>(
        &self,
        name: impl AsRef<str>,
        timeout: Duration,
        work: impl AsyncFnOnce(&Guard) -> T,
    ) -> Result<T, Error> {
        self.mutex(name).with_lock(timeout, work).await
    }

    /// Returns a snapshot of every lock directory under the root, or under `prefix`, sorted by path.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad prefix, [`Error::Unavailable`], [`Error::Denied`].
    pub async fn locks(&self, prefix: Option<&str>) -> Result<Vec<Snapshot>, Error> {
        self.survey(prefix, usize::MAX).await
    }

    /// Returns the same as [`Zoolock::locks`], but reads only the holders and the next `waiters`
    /// waiters of each lock. The other waiters are counted, not read ([`Snapshot::waiting`]). This
    /// costs at least two requests per directory, and one per contender that is read. At most 64
    /// requests are in flight at a time.
    ///
    /// # Errors
    /// As [`Zoolock::locks`].
    pub async fn survey(&self, prefix: Option<&str>, waiters: usize) -> Result<Vec<Snapshot>, Error> {
        snapshot::survey(&self.context, prefix, waiters).await
    }

    /// Returns a live view of the same locks as [`Zoolock::survey`].
    pub fn observe(&self, prefix: Option<&str>, waiters: usize) -> All {
        All::new(self.context.clone(), prefix, waiters)
    }

    /// Returns the deadlocks among the owners of the locks under the root, or under `prefix`: owners that wait for
    /// each other in a cycle.
    ///
    /// The locks are read at different moments, and may change in between. Such a change can look
    /// like a cycle. So suspected cycles are read again, and only cycles that existed at one moment
    /// are returned. A returned cycle still exists, unless one of its contenders has left the queue
    /// meanwhile. [`Entry::owner_kind`](crate::Entry::owner_kind) shows how certain the owner of a
    /// contender is.
    ///
    /// # Errors
    /// As [`Zoolock::locks`].
    pub async fn deadlocks(&self, prefix: Option<&str>) -> Result<Vec<Deadlock>, Error> {
        Ok(graph::build_wait_graph(&self.context, self.locks(prefix).await?).await?.deadlocks())
    }

    /// Returns the deadlocks among locks that were read before, such as those of [`Zoolock::survey`]. Costs nothing if
    /// there is none. Otherwise reads the locks of each deadlock again, as [`Zoolock::deadlocks`] does. Waiters that the
    /// snapshots leave out are in no deadlock.
    ///
    /// # Errors
    /// As [`Zoolock::locks`].
    pub async fn deadlocks_among(&self, locks: &[Snapshot]) -> Result<Vec<Deadlock>, Error> {
        if WaitGraph::of(locks).deadlocks().is_empty() {
            return Ok(Vec::new());
        }
        Ok(graph::build_wait_graph(&self.context, locks.to_vec()).await?.deadlocks())
    }

    /// Returns why the lock `name` is not free: its holder, the lock under the root for which the holder waits, the
    /// holder of that lock, and so on.
    ///
    /// # Errors
    /// As [`Zoolock::locks`]; [`Error::Invalid`] for a bad name.
    pub async fn why(&self, name: &str) -> Result<WaitChain, Error> {
        let path = self.context.path(name)?;
        let path = self.context.without_chroot(path.as_str()).to_owned();
        let mut locks = self.locks(None).await?;
        if locks.iter().all(|lock| lock.path != path) {
            locks.push(self.mutex(name).snapshot().await?);
        }
        // The graph has only contenders that can be read.
        let unread_end =
            locks.iter().find(|lock| lock.path == path).and_then(|lock| match lock.unread.is_empty() {
                false => Some("unread"),
                true => {
                    lock.foreign_semaphore.as_ref().filter(|foreign| foreign.leases > 0).map(|_| "foreign")
                }
            });
        let chain = graph::build_wait_graph(&self.context, locks).await?.why(&path);
        match unread_end.filter(|_| chain.end == "free") {
            Some(end) => Ok(WaitChain { end, ..chain }),
            None => Ok(chain),
        }
    }

    /// Returns the last `max` events in the history of the locks under the root, or of the lock `name`, the oldest first:
    /// requests to release, breaks, and the crashes that holders found. Locks with absolute names are in the history of
    /// the root of the client that acted. Leaves out events that this client has no permission to read. Costs one
    /// request, and one for each event.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a bad name, [`Error::Unavailable`], [`Error::Denied`].
    pub async fn history(&self, name: Option<&str>, max: usize) -> Result<Vec<HistoryEvent>, Error> {
        history::read(&self.context, name, max).await
    }

    /// Returns how far the server's clock is ahead of this machine's clock, in milliseconds; negative if it is behind, and 0
    /// if the difference is shorter than the request took. The server gives the times of a [`Snapshot`] by its clock.
    /// Creates an ephemeral znode below the root, and deletes it.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Denied`].
    pub async fn server_clock_ahead_ms(&self) -> Result<i64, Error> {
        server_clock::read_ahead_ms(&self.context).await
    }

    /// Returns the state of the client's sessions. Sends nothing.
    pub fn connection(&self) -> Connection {
        let sessions = self.context.sessions();
        if self.context.is_closed() || self.context.process().is_forked() {
            return Connection::Ended;
        }
        let mut states = sessions.iter().map(|session| *session.connection().borrow());
        match states.clone().next() {
            None => Connection::Idle,
            Some(_) if states.all(|state| state == Connection::Connected) => Connection::Connected,
            Some(_) => Connection::Suspect,
        }
    }

    /// Returns the session timeout that the server granted, or the shortest one of several
    /// sessions. It may be shorter or longer than the requested timeout. The server frees the locks
    /// of a crashed client after this time. Returns `None` while there is no session, and in a
    /// forked process.
    pub fn session_timeout(&self) -> Option<Duration> {
        self.context.process().check_not_forked().ok()?;
        self.context.sessions().iter().map(|session| session.timeout()).min()
    }

    /// Closes this client and all its clones: later calls fail with [`Error::Closed`]. Waits until
    /// the releases in progress have finished. Then closes the sessions and waits for the server's
    /// answers. Each wait has a time limit. Guards that still exist lose their lock
    /// ([`LossReason::Closed`](crate::LossReason::Closed)).
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
