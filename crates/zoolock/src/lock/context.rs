//! The client behind all handles: its sessions, its thread and its settings.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use tokio::sync::oneshot;
use zoolock_core::ContenderId;

use crate::base::clock;
use crate::base::error::Error;
use crate::base::naming::Naming;
use crate::base::options::Options;
use crate::base::owner_id::OwnerIds;
use crate::base::path::LockPath;
use crate::base::process::Process;
use crate::base::runtime_thread::RuntimeThread;
use crate::base::tasks::Tasks;
use crate::base::telemetry;
use crate::base::uuid::random_uuid;
use crate::engine::data::ClientInfo;
use crate::session::LockSession;
use crate::session::pool::Sessions;
use crate::zk::session::ZkSession;

/// A client. All clones share their sessions.
#[derive(Clone)]
pub(crate) struct Context {
    inner: Arc<ContextState>,
}

pub(crate) struct ContextState {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) thread: SessionThread,
    pub(crate) chroot: String,
    pub(crate) root: String,
    pub(crate) epoch: u32,
    pub(crate) naming: Naming,
    pub(crate) kazoo_pattern: bool,
    pub(crate) client_info: ClientInfo,
    pub(crate) owner_ids: OwnerIds,
    pub(crate) labels_metrics_by_lock: bool,
    pub(crate) server: Option<EmbeddedServer>,
    pub(crate) process: Process,
    pub(crate) answer_timeout: Duration,
    pub(crate) claim_timeout: Duration,
    pub(crate) session_timeout: Duration,
    pub(crate) tick: Option<Duration>,
}

/// A server in this process. The server must outlive the sessions.
pub(crate) type EmbeddedServer = Arc<dyn std::any::Any + Send + Sync>;

impl Context {
    pub(crate) fn new(inner: ContextState) -> Context {
        Context { inner: Arc::new(inner) }
    }

    pub(crate) async fn open_first_session(&self) -> Result<(), Error> {
        self.inner.sessions.reserve_session(0).await.map(|_| ())
    }

    /// Closes all sessions, and waits for the server's answer for a limited time.
    pub(crate) async fn close(&self) {
        if self.process().is_forked() {
            return;
        }
        let sessions = self.inner.sessions.clone();
        // Runs on the client's own runtime. The caller's runtime may have no timer, and the caller
        // may drop this future.
        let (done, closed) = oneshot::channel::<()>();
        self.inner.thread.tasks().spawn(async move {
            close(&sessions, false, mpsc::channel().0).await;
            drop(done);
        });
        // No value is ever sent. The channel closes when the task ends, even if the task is
        // aborted.
        let _ = closed.await;
    }

    /// Returns an id that all clones share. No other client has this id while a clone exists.
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

    /// Returns the path as [`Context::path`] does. Refuses a lock that would look like a contender of another lock.
    pub(crate) fn path_to_acquire(&self, name: &str) -> Result<LockPath, Error> {
        let path = self.path(name)?;
        LockPath::check_new(name, &self.inner.root)?;
        Ok(path)
    }

    /// Returns the path without the chroot, as the user writes it.
    pub(crate) fn without_chroot<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(self.inner.chroot.as_str()).unwrap_or(path)
    }

    pub(crate) fn process(&self) -> Process {
        self.inner.process
    }

    /// Returns the time within which a caller must take its grant.
    pub(crate) fn claim_timeout(&self) -> Duration {
        self.inner.claim_timeout
    }

    /// Returns the longest time that a holder may reserve at the end of its lease, with a session timeout that the server
    /// granted, or with the one that this client requests.
    pub(crate) fn longest_grace(&self, granted: Option<Duration>) -> Duration {
        let ContextState { session_timeout, tick, .. } = *self.inner;
        zoolock_core::lease::spare_time(granted.unwrap_or(session_timeout), tick)
    }

    pub(crate) fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout
    }

    pub(crate) async fn session(&self, bytes: usize) -> Result<Arc<LockSession>, Error> {
        self.process().check_not_forked()?;
        self.inner.sessions.reserve_session(bytes).await
    }

    /// Reserves `bytes` of watched paths on a live session, and returns the session. Returns `None` instead of waiting.
    pub(crate) fn session_now(&self, bytes: usize) -> Option<Arc<LockSession>> {
        self.inner.sessions.try_reserve_session(bytes)
    }

    /// Returns a future that resolves at `deadline`. It uses the timer of the client's own runtime,
    /// so any executor can poll it.
    pub(crate) fn alarm(&self, deadline: Instant) -> tokio::time::Sleep {
        let tasks = self.inner.thread.tasks();
        let _inside = tasks.enter();
        tokio::time::sleep_until(deadline.into())
    }

    pub(crate) async fn zk(&self) -> Result<Arc<ZkSession>, Error> {
        let session = self.session(0).await?;
        let ended = || Error::unavailable(self.endpoints(), "the session ended just now; try again");
        session.zk().ok_or_else(ended)
    }

    /// Returns whether a server answers a request within the answer timeout.
    pub(crate) async fn server_answers(&self) -> bool {
        let asking = async {
            let Ok(zk) = self.zk().await else { return false };
            zk.exists("/").await.err().is_none_or(|error| error.failure.is_answer())
        };
        let alarm = self.alarm(clock::deadline_after(self.answer_timeout()));
        tokio::select! {
            biased;
            answers = asking => answers,
            () = alarm => false,
        }
    }

    /// Returns the addresses of the servers.
    pub(crate) fn endpoints(&self) -> &str {
        self.inner.sessions.endpoints()
    }

    /// Returns the reason of the current outage, with the address of each server. `None` if there is no outage.
    pub(crate) fn outage_reason(&self) -> Option<String> {
        self.inner.sessions.outage_reason()
    }

    /// Returns every session that has not ended.
    pub(crate) fn sessions(&self) -> Vec<Arc<LockSession>> {
        self.inner.sessions.all()
    }

    /// Returns whether the client was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.pool().is_closed()
    }

    /// Returns the pool of sessions.
    pub(crate) fn pool(&self) -> Arc<Sessions> {
        self.inner.sessions.clone()
    }

    pub(crate) fn new_contender(&self) -> ContenderId {
        ContenderId(random_uuid().as_u128())
    }

    pub(crate) fn client_info(&self) -> &ClientInfo {
        &self.inner.client_info
    }

    pub(crate) fn owner_ids(&self) -> &OwnerIds {
        &self.inner.owner_ids
    }

    /// Returns the options of a new handle.
    pub(crate) fn options(&self) -> Options {
        let ContextState { naming, kazoo_pattern, .. } = *self.inner;
        Options { naming, kazoo_pattern, ..Options::default() }
    }

    pub(crate) fn labels_metrics_by_lock(&self) -> bool {
        self.inner.labels_metrics_by_lock
    }

    /// Returns a handle that runs tasks where the sessions run.
    pub(crate) fn tasks(&self) -> Tasks {
        self.inner.thread.tasks()
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.inner.epoch
    }

    /// Returns the directory of locks with relative names. The path includes the chroot.
    pub(crate) fn root(&self) -> &str {
        &self.inner.root
    }

    pub(crate) fn chroot(&self) -> &str {
        &self.inner.chroot
    }
}

/// Maximum time to wait for the releases in progress, and then again for the end of the session, if
/// a caller waits and the session has a connection.
const MAX_CLOSE_TIME: Duration = Duration::from_secs(5);
/// As [`MAX_CLOSE_TIME`], for a session without a connection; maximum time to wait until log events are written.
const MAX_CLOSE_TIME_OFFLINE: Duration = Duration::from_millis(500);
/// Maximum time for which dropping the last handle waits for the releases in progress. It is short, because the current
/// thread may belong to an executor.
const MAX_DROP_TIME: Duration = Duration::from_millis(250);

/// Waits for the releases in progress, drops `released`, and closes all sessions. `in_background`: set if no caller
/// waits. Each of these two steps may then take up to the session timeout. Otherwise each step
/// takes up to [`MAX_CLOSE_TIME`] or [`MAX_CLOSE_TIME_OFFLINE`].
async fn close(sessions: &Sessions, in_background: bool, released: mpsc::Sender<()>) {
    sessions.refuse_new_sessions();
    let all = sessions.all();
    let max_wait = |session: &LockSession| match (in_background, session.is_up()) {
        (true, _) => session.timeout(),
        (false, true) => MAX_CLOSE_TIME,
        (false, false) => MAX_CLOSE_TIME_OFFLINE,
    };
    let releases =
        all.iter().map(|session| tokio::time::timeout(max_wait(session), session.wait_for_releases()));
    join_all(releases).await;
    drop(released);
    let closed = join_all(all.iter().map(|session| session.close(max_wait(session))));
    join(closed, sessions.close_watches(MAX_CLOSE_TIME_OFFLINE)).await;
    let _ = tokio::time::timeout(MAX_CLOSE_TIME_OFFLINE, telemetry::flush()).await;
}

/// The name of the threads of the sessions, which must never be blocked.
const SESSION_THREAD: &str = "zoolock-session";

/// The runtime of the sessions, on a thread of its own, so that a caller that blocks its executor does not
/// delay lease renewal.
pub(crate) struct SessionThread(SessionRuntime);

enum SessionRuntime {
    Thread(RuntimeThread),
    #[cfg(feature = "simulation")]
    Simulated(Arc<dyn crate::base::host::SimulatedMachine>),
    /// The thread was taken out, because the context is being dropped.
    Taken,
}

impl SessionThread {
    pub(crate) fn start() -> io::Result<SessionThread> {
        telemetry::start()?;
        Ok(SessionThread(SessionRuntime::Thread(RuntimeThread::start(SESSION_THREAD)?)))
    }

    /// Runs the sessions in a simulation, without a thread.
    #[cfg(feature = "simulation")]
    pub(crate) fn simulated(host: Arc<dyn crate::base::host::SimulatedMachine>) -> SessionThread {
        SessionThread(SessionRuntime::Simulated(host))
    }

    pub(crate) fn tasks(&self) -> Tasks {
        match &self.0 {
            SessionRuntime::Thread(thread) => Tasks::Runtime(thread.handle().clone()),
            #[cfg(feature = "simulation")]
            SessionRuntime::Simulated(host) => Tasks::Simulated(host.clone()),
            SessionRuntime::Taken => unreachable!("the thread is taken only when the context is dropped"),
        }
    }
}

impl Drop for ContextState {
    /// Finishes the releases in progress, closes the sessions, and ends the thread. This work runs on the session
    /// thread, because the current thread may belong to an executor, which must not be blocked for long. Waits a moment
    /// for the releases, because the process may be about to exit.
    fn drop(&mut self) {
        let sessions = self.sessions.clone();
        let thread = match std::mem::replace(&mut self.thread.0, SessionRuntime::Taken) {
            SessionRuntime::Thread(thread) => thread,
            #[cfg(feature = "simulation")]
            SessionRuntime::Simulated(host) => {
                Tasks::Simulated(host).spawn(async move { close(&sessions, true, mpsc::channel().0).await });
                return;
            }
            SessionRuntime::Taken => return,
        };
        let server = self.server.take();
        if self.process.is_forked() {
            // Drops nothing, because the runtime's threads exist only in the parent process, and a dropped
            // socket would no longer be registered in the epoll instance, which is the parent's.
            std::mem::forget((thread, sessions, server));
            return;
        }
        // Waits for no session without a connection, because no release can be confirmed there soon.
        let connected = sessions.all().into_iter().filter(|session| session.is_up());
        let releases = connected.flat_map(|session| session.acquisitions()).any(|it| it.is_leaving());
        let (released, confirmed) = mpsc::channel();
        thread.handle().clone().spawn(async move {
            close(&sessions, true, released).await;
            drop((thread, server));
        });
        if releases && std::thread::current().name() != Some(SESSION_THREAD) {
            // No value is ever sent. The channel closes after the releases.
            let _ = confirmed.recv_timeout(MAX_DROP_TIME);
        }
    }
}
