//! The sessions of one [`Zoolock`](crate::Zoolock): opened when needed, and again after expiry.
//!
//! A session is opened on a task of its own, not in a caller's future. Otherwise a caller with a timeout
//! shorter than a handshake would start a new handshake at each attempt, and would leave half-open sessions
//! on the server.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;
use zoolock_core::lease;

use crate::base::error::Error;
use crate::base::path::ConnectString;
use crate::base::sync::lock;
use crate::session::LockSession;
use crate::session::subscription::{ObserverSession, Subscription};
use crate::session::tick::ServerTick;
use crate::zk::connect;
use crate::zk::session::{self, ConnectionLog, SessionParameters};

pub(crate) struct Sessions {
    connect: ConnectString,
    /// The addresses of the servers.
    endpoints: String,
    parameters: SessionParameters,
    log: Arc<ConnectionLog>,
    tick: Arc<ServerTick>,
    grace: Duration,
    connect_timeout: Duration,
    pool: Mutex<SessionPool>,
    /// The session of the observers' watches, while there are subscriptions. Locked while that session is
    /// opened.
    watches: tokio::sync::Mutex<Weak<ObserverSession>>,
    /// Set by [`Zoolock::close`](crate::Zoolock::close), and when the last handle is dropped.
    is_closed: watch::Sender<bool>,
}

#[derive(Default)]
struct SessionPool {
    live: Vec<Arc<LockSession>>,
    /// The outcome of the opening in progress.
    opening: Option<watch::Receiver<Option<Result<(), Error>>>>,
}

impl Sessions {
    pub(crate) fn new(
        connect: ConnectString,
        parameters: SessionParameters,
        tick: Option<Duration>,
        grace: Duration,
        connect_timeout: Duration,
    ) -> Sessions {
        let tick = Arc::new(ServerTick::new(tick, &parameters));
        Sessions {
            endpoints: connect.endpoints(),
            connect,
            log: Arc::default(),
            parameters,
            tick,
            grace,
            connect_timeout,
            pool: Mutex::default(),
            watches: tokio::sync::Mutex::default(),
            is_closed: watch::Sender::new(false),
        }
    }

    /// Returns a live session, and reserves `bytes` of watched paths on it.
    ///
    /// Cancel safe: a session that is being opened stays available for the next caller.
    pub(crate) async fn reserve_session(self: &Arc<Self>, bytes: usize) -> Result<Arc<LockSession>, Error> {
        loop {
            let mut opening = {
                let pool = &mut *lock(&self.pool);
                if *self.is_closed.borrow() {
                    return Err(Error::Closed);
                }
                if let Some(session) = pool.checkout(bytes) {
                    return Ok(session);
                }
                pool.opening.get_or_insert_with(|| self.begin_opening(!pool.live.is_empty())).clone()
            };
            let mut is_closed = self.is_closed.subscribe();
            let outcome = tokio::select! {
                biased;
                outcome = opening.wait_for(Option::is_some) => match outcome {
                    Ok(outcome) => outcome.clone(),
                    // The runtime is shutting down.
                    Err(_) => Some(Err(Error::Closed)),
                },
                _ = is_closed.wait_for(|is_closed| *is_closed) => Some(Err(Error::Closed)),
            };
            if let Some(Err(error)) = outcome {
                return Err(error);
            }
        }
    }

    /// Returns a live session with room for these watches, or `None` instead of waiting.
    pub(crate) fn try_reserve_session(&self, bytes: usize) -> Option<Arc<LockSession>> {
        let pool = &mut *lock(&self.pool);
        if *self.is_closed.borrow() { None } else { pool.checkout(bytes) }
    }

    /// Returns the addresses of the servers.
    pub(crate) fn endpoints(&self) -> &str {
        &self.endpoints
    }

    /// Returns the reason why there is no connection; see [`ConnectionLog::outage_reason`].
    pub(crate) fn outage_reason(&self) -> Option<String> {
        self.log.outage_reason()
    }

    /// Returns whether new sessions are refused.
    pub(crate) fn is_closed(&self) -> bool {
        *self.is_closed.borrow()
    }

    /// Returns every session that has not ended.
    pub(crate) fn all(&self) -> Vec<Arc<LockSession>> {
        lock(&self.pool).live.iter().filter(|session| session.end().is_none()).cloned().collect()
    }

    /// Watches the lock at this path. Returns `None` if no session can be opened, if the server
    /// does not support persistent recursive watches (before ZooKeeper 3.6), or if it does not
    /// answer.
    pub(crate) async fn subscribe(&self, path: &str) -> Option<Subscription> {
        let session = self.watch_session().await?;
        let subscription = Subscription::start(session, path.to_owned());
        tokio::time::timeout(self.connect_timeout, subscription).await.ok()?
    }

    async fn watch_session(&self) -> Option<Arc<ObserverSession>> {
        let mut watches = self.watches.lock().await;
        if let Some(session) = watches.upgrade().filter(|session| !session.is_over()) {
            return Some(session);
        }
        let deadline = tokio::time::Instant::now() + self.connect_timeout;
        let requests = session::open_requests(&self.parameters, deadline).await.ok()?;
        let session = Arc::new(ObserverSession::new(requests));
        *watches = Arc::downgrade(&session);
        Some(session)
    }

    /// Closes the session of the observers' watches. Waits for the server's answer, for `max_wait` at most.
    pub(crate) async fn close_watches(&self, max_wait: Duration) {
        let session = self.watches.try_lock().ok().and_then(|watches| watches.upgrade());
        if let Some(session) = session {
            let _ = tokio::time::timeout(max_wait, session.close()).await;
        }
    }

    /// Refuses new sessions from now on. A session that is being opened is closed as soon as it is
    /// open.
    pub(crate) fn refuse_new_sessions(&self) {
        let pool = &mut *lock(&self.pool);
        self.is_closed.send_replace(true);
        pool.opening = None;
    }

    /// Starts to open a session on the client's own runtime. The same runtime then runs the tasks of the
    /// session.
    fn begin_opening(self: &Arc<Self>, is_spare: bool) -> watch::Receiver<Option<Result<(), Error>>> {
        let (sender, receiver) = watch::channel(None);
        let sessions = self.clone();
        self.parameters.tasks.spawn(async move {
            let opened = sessions.open(is_spare).await;
            let outcome = match sessions.add_to_pool(opened) {
                Ok(outcome) => outcome,
                Err(late) => {
                    late.close(late.timeout()).await;
                    Err(Error::Closed)
                }
            };
            sender.send_replace(Some(outcome));
        });
        receiver
    }

    /// Adds an opened session to the pool, and returns the outcome for the callers that wait for
    /// it. If the client was closed meanwhile, returns the session as the error. The caller must
    /// close this session.
    fn add_to_pool(
        &self,
        opened: Result<Arc<LockSession>, Error>,
    ) -> Result<Result<(), Error>, Arc<LockSession>> {
        let pool = &mut *lock(&self.pool);
        let is_closed = *self.is_closed.borrow();
        match (opened, is_closed) {
            (Ok(session), true) => Err(session),
            (Err(_), true) => Ok(Err(Error::Closed)),
            (opened, false) => {
                pool.opening = None;
                Ok(opened.map(|session| pool.live.push(session)))
            }
        }
    }

    async fn open(&self, is_spare: bool) -> Result<Arc<LockSession>, Error> {
        let deadline = tokio::time::Instant::now() + self.connect_timeout;
        match session::open(&self.parameters, &self.log, deadline).await {
            Ok(opened) => {
                self.check_timeout(opened.zk.timeout())?;
                let started = LockSession::start(&self.parameters.tasks, opened, self.tick.clone(), is_spare);
                started.map_err(|error| Error::Unavailable {
                    servers: self.endpoints.clone(),
                    message: format!("no timer for the lease: {error}"),
                    source: Some(Arc::new(error)),
                })
            }
            #[cfg(feature = "simulation")]
            Err(_) if matches!(self.parameters.tasks, crate::base::tasks::Tasks::Simulated(_)) => {
                Err(Error::unavailable(self.endpoints(), "no session in time"))
            }
            Err(error) => Err(connect::connect_error(
                &self.connect,
                &self.parameters,
                self.connect_timeout,
                false,
                error,
            )
            .await),
        }
    }

    fn check_timeout(&self, granted: Duration) -> Result<(), Error> {
        let tick = self.tick.configured();
        let shortest = shortest_timeout(tick);
        if granted < shortest {
            return Err(Error::invalid(
                format!("session timeout {granted:?}"),
                format!(
                    "was granted by the server, but is shorter than three ticks ({:?} each); request {shortest:?} or \
                     more, or set the tick time to the server's tickTime",
                    shortest / 3
                ),
            ));
        }
        check_grace(self.grace, granted, tick)
    }
}

impl SessionPool {
    fn checkout(&mut self, bytes: usize) -> Option<Arc<LockSession>> {
        self.live.retain(|session| session.end().is_none());
        self.live.iter().find(|session| session.reserve(bytes)).cloned()
    }
}

/// The default tick (`tickTime`) of a ZooKeeper server.
const USUAL_TICK: Duration = Duration::from_secs(2);

/// Returns the shortest session timeout that the client accepts: three ticks. Servers round
/// timeouts to ticks, and a shorter timeout leaves no room for that.
pub(crate) fn shortest_timeout(tick: Option<Duration>) -> Duration {
    tick.unwrap_or(USUAL_TICK) * 3
}

/// Checks the grace: the time before the lease deadline in which the caller stops its work. The grace must
/// not begin before a third of the session timeout has passed without a confirmation.
pub(crate) fn check_grace(grace: Duration, timeout: Duration, tick: Option<Duration>) -> Result<(), Error> {
    let most = lease::spare_time(timeout, tick);
    if grace > most {
        return Err(Error::invalid(
            format!("grace {grace:?}"),
            format!("is too long for a session of {timeout:?}; at most {most:?}"),
        ));
    }
    Ok(())
}
