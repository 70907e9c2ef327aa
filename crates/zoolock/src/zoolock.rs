//! The client handle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::oneshot;
use zoolock_core::ContenderId;

use crate::acquire::Lock;
use crate::asker::Askers;
use crate::builder::Builder;
use crate::chance;
use crate::clock;
use crate::data::Owner;
use crate::error::Error;
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::locker::not_taken_along;
use crate::mutex::Mutex;
use crate::naming::Naming;
use crate::options::Options;
use crate::path::LockPath;
use crate::process::Process;
use crate::runtime_thread::RuntimeThread;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::snapshot::reader::Reader;
use crate::snapshot::{self, Snapshot, View};
use crate::tasks::Tasks;
use crate::tenure::Tenures;

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
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) thread: SessionThread,
    pub(crate) chroot: String,
    pub(crate) root: String,
    pub(crate) epoch: u32,
    pub(crate) naming: Naming,
    pub(crate) kazoo_pattern: bool,
    pub(crate) owner: Owner,
    pub(crate) askers: Askers,
    pub(crate) tenures: Tenures,
    pub(crate) measures_by_lock: bool,
    pub(crate) server: Option<Kept>,
    pub(crate) process: Process,
    pub(crate) answer_timeout: Duration,
}

/// A server in this process, which must outlive the sessions.
pub(crate) type Kept = Arc<dyn std::any::Any + Send + Sync>;

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

    pub(crate) fn new(inner: Inner) -> Zoolock {
        Zoolock { inner: Arc::new(inner) }
    }

    pub(crate) async fn open_first_session(&self) -> Result<(), Error> {
        self.inner.sessions.checkout(0).await.map(|_| ())
    }

    /// Returns a mutex by name. The name is relative to the root, or absolute if it starts with `/`. Nothing
    /// is sent; the first call that would use a bad name reports it.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex::new(Lock::new(self.clone(), vec![name.as_ref().to_owned()]))
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
        let departure = guard.departure();
        let work = work(guard);
        if departure.has_begun() {
            return Err(not_taken_along(departure.path()));
        }
        let value = work.await;
        // A guard that the work returned with its value belongs to the caller.
        if departure.has_begun() {
            departure.wait().await?;
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
            None | Some("") => LockPath::from_server(self.inner.root.clone()),
            Some("/") if self.inner.chroot.is_empty() => LockPath::from_server("/".to_owned()),
            Some("/") => LockPath::from_server(self.inner.chroot.clone()),
            Some(prefix) => self.path(prefix.trim_end_matches('/'))?,
        };
        let keeper = self.keeper().await?;
        snapshot::walk(&Reader::new(&*keeper), start, &View { waiters, ..self.view() }).await
    }

    /// Returns the session timeout that the server granted, which may be shorter or longer than the requested
    /// one. The locks of a crashed client are freed after it. `None` while there is no session.
    pub fn session_timeout(&self) -> Option<Duration> {
        self.process().check().ok()?;
        self.inner.sessions.all().iter().map(|session| session.timeout()).min()
    }

    /// Closes this client and its clones, for good: later calls fail with [`Error::Invalid`]. Waits for the server's answer,
    /// for a limited time. Guards that are still held lose their lock ([`LossReason::Closed`](crate::LossReason::Closed)).
    /// Before that, releases in progress get time to finish.
    pub async fn close(&self) {
        if self.process().is_forked() {
            return;
        }
        let sessions = self.inner.sessions.clone();
        // On the client's own runtime: the caller's may have no clock, and the caller may drop this future.
        let (done, closed) = oneshot::channel::<()>();
        self.inner.thread.tasks().spawn(async move {
            close(&sessions, false).await;
            drop(done);
        });
        // No value is ever sent. The channel closes with the task, also if the task is aborted.
        let _ = closed.await;
    }

    /// Returns the number of background tasks, for tests that look for leaks.
    #[doc(hidden)]
    pub fn background_tasks(&self) -> usize {
        self.inner.thread.tasks().alive()
    }

    // ---- for the other modules ----

    /// Returns an id that all clones share. Unique while one of them lives.
    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }

    pub(crate) fn path(&self, name: &str) -> Result<LockPath, Error> {
        if self.inner.chroot.is_empty() || !name.starts_with('/') {
            return LockPath::parse(name, &self.inner.root);
        }
        let inside = LockPath::parse(name, &self.inner.root)?;
        Ok(LockPath::from_server(format!("{}{inside}", self.inner.chroot)))
    }

    /// Returns the path as [`Zoolock::path`] does. Refuses a lock that would look like a contender of another lock.
    pub(crate) fn path_to_acquire(&self, name: &str) -> Result<LockPath, Error> {
        let path = self.path(name)?;
        LockPath::check_new(name, &self.inner.root)?;
        Ok(path)
    }

    /// Returns the path without the chroot, as the user knows it.
    pub(crate) fn shown<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(self.inner.chroot.as_str()).unwrap_or(path)
    }

    pub(crate) fn process(&self) -> Process {
        self.inner.process
    }

    pub(crate) fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout
    }

    pub(crate) async fn session(&self, bytes: usize) -> Result<Arc<Session>, Error> {
        self.process().check()?;
        self.inner.sessions.checkout(bytes).await
    }

    /// Returns a session if there is one already.
    pub(crate) fn session_now(&self, bytes: usize) -> Option<Arc<Session>> {
        self.inner.sessions.checkout_now(bytes)
    }

    /// Resolves at `deadline`, wherever it is polled.
    pub(crate) fn alarm(&self, deadline: Instant) -> tokio::time::Sleep {
        let tasks = self.inner.thread.tasks();
        let _inside = tasks.enter();
        tokio::time::sleep_until(deadline.into())
    }

    pub(crate) async fn keeper(&self) -> Result<Arc<Keeper>, Error> {
        let session = self.session(0).await?;
        session.keeper().ok_or_else(|| Error::unavailable("session", "it ended just now; try again"))
    }

    /// Returns whether a server answers a request within the answer timeout.
    pub(crate) async fn is_answered(&self) -> bool {
        let Some(keeper) = self.sessions().first().and_then(|session| session.keeper()) else { return false };
        let alarm = self.alarm(Zoolock::deadline_after(self.answer_timeout()));
        tokio::select! {
            biased;
            answer = keeper.exists("/") => answer.err().is_none_or(|error| error.failure.is_answer()),
            () = alarm => false,
        }
    }

    /// Returns the addresses of the servers.
    pub(crate) fn endpoints(&self) -> String {
        self.inner.sessions.endpoints()
    }

    /// Returns every session that has not ended.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.inner.sessions.all()
    }

    pub(crate) fn new_contender(&self) -> ContenderId {
        ContenderId(chance::uuid().as_u128())
    }

    /// Returns the options of a snapshot with all waiters.
    pub(crate) fn view(&self) -> View<'_> {
        View { chroot: &self.inner.chroot, epoch: self.inner.epoch, waiters: usize::MAX }
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.inner.owner
    }

    pub(crate) fn askers(&self) -> &Askers {
        &self.inner.askers
    }

    /// Returns the options of a new handle.
    pub(crate) fn options(&self) -> Options {
        let Inner { naming, kazoo_pattern, .. } = *self.inner;
        Options { naming, kazoo_pattern, ..Options::default() }
    }

    pub(crate) fn measures_by_lock(&self) -> bool {
        self.inner.measures_by_lock
    }

    pub(crate) fn tenures(&self) -> &Tenures {
        &self.inner.tenures
    }

    /// Returns the tasks that drive the sessions.
    pub(crate) fn tasks(&self) -> Tasks {
        self.inner.thread.tasks()
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.inner.epoch
    }

    /// Returns the directory of relative names, with the chroot.
    pub(crate) fn root(&self) -> &str {
        &self.inner.root
    }

    /// Returns the directory of relative names, without the chroot.
    pub(crate) fn shown_root(&self) -> &str {
        match self.shown(&self.inner.root) {
            "" => "/",
            root => root,
        }
    }

    pub(crate) fn chroot(&self) -> &str {
        &self.inner.chroot
    }

    pub(crate) fn deadline_after(timeout: Duration) -> Instant {
        // Far enough to mean "never", near enough for every clock.
        const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);
        clock::monotonic() + timeout.min(FOR_EVER)
    }
}

impl std::fmt::Debug for Zoolock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zoolock").field("root", &self.inner.root).finish_non_exhaustive()
    }
}

/// Maximum time to wait for the server's answer at the end, with and without a connection.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);
const CLOSE_PATIENCE_OFFLINE: Duration = Duration::from_millis(500);

/// Closes all sessions, after the releases in progress. Waits for seconds at most if a caller waits, else for
/// up to the session timeout.
async fn close(sessions: &Sessions, in_background: bool) {
    sessions.refuse_new();
    join_all(sessions.all().into_iter().map(|session| async move {
        let patience = match (in_background, session.is_up()) {
            (true, _) => session.timeout(),
            (false, true) => CLOSE_PATIENCE,
            (false, false) => CLOSE_PATIENCE_OFFLINE,
        };
        let _ = tokio::time::timeout(patience, session.releases_done()).await;
        session.close(patience).await;
    }))
    .await;
}

/// The runtime of the sessions, on a thread of its own, so that a caller that blocks its executor does not
/// delay lease renewal.
pub(crate) struct SessionThread(Where);

enum Where {
    Runtime(RuntimeThread),
    #[cfg(feature = "simulation")]
    Simulated(Arc<dyn crate::sim::Host>),
    /// The thread has ended, or its new owner ends it.
    Gone,
}

impl SessionThread {
    pub(crate) fn start() -> Result<SessionThread, Error> {
        let thread = clock::start_timers().and_then(|()| RuntimeThread::start("zoolock-session"));
        let thread = thread.map_err(|error| Error::Unavailable {
            address: "this process".to_owned(),
            message: format!("cannot start the threads of a session: {error}"),
            source: Some(Arc::new(error)),
        })?;
        Ok(SessionThread(Where::Runtime(thread)))
    }

    /// Runs the sessions in a simulation, without a thread.
    #[cfg(feature = "simulation")]
    pub(crate) fn simulated(host: Arc<dyn crate::sim::Host>) -> SessionThread {
        SessionThread(Where::Simulated(host))
    }

    pub(crate) fn tasks(&self) -> Tasks {
        match &self.0 {
            Where::Runtime(thread) => Tasks::Runtime(thread.handle().clone()),
            #[cfg(feature = "simulation")]
            Where::Simulated(host) => Tasks::Simulated(host.clone()),
            Where::Gone => unreachable!("taken only when dropped"),
        }
    }
}

impl Drop for Inner {
    /// Finishes the releases in progress, closes the sessions, and ends the thread. All of that runs on that thread, since
    /// the current one may be an executor's.
    fn drop(&mut self) {
        let sessions = self.sessions.clone();
        let thread = match std::mem::replace(&mut self.thread.0, Where::Gone) {
            Where::Runtime(thread) => thread,
            #[cfg(feature = "simulation")]
            Where::Simulated(host) => {
                Tasks::Simulated(host).spawn(async move { close(&sessions, true).await });
                return;
            }
            Where::Gone => return,
        };
        let server = self.server.take();
        if self.process.is_forked() {
            // The runtime's threads, and the epoll instance that the sockets are registered with, are the parent's.
            std::mem::forget((thread, sessions, server));
            return;
        }
        thread.handle().clone().spawn(async move {
            close(&sessions, true).await;
            drop((thread, server));
        });
    }
}
