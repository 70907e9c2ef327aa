//! The sessions of one [`Zoolock`](crate::Zoolock): opened when needed, and again after expiry.
//!
//! A session is opened on a task of its own, not in a caller's future. Otherwise a caller whose wait is
//! shorter than a handshake would start again each time. It would also leave half-open sessions on the
//! server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use zoolock_core::lease;

use crate::base::error::Error;
use crate::base::path::ConnectString;
use crate::base::sync::lock;
use crate::session::Session;
use crate::session::tick::Tick;
use crate::zk::connect;
use crate::zk::session::{self, Opening};

pub(crate) struct Sessions {
    connect: ConnectString,
    opening: Opening,
    tick: Arc<Tick>,
    grace: Duration,
    connect_timeout: Duration,
    pool: Mutex<Pool>,
    /// Set by [`Zoolock::close`](crate::Zoolock::close), and when the last handle is dropped.
    is_closed: watch::Sender<bool>,
}

#[derive(Default)]
struct Pool {
    live: Vec<Arc<Session>>,
    /// The outcome of the opening in progress.
    opening: Option<watch::Receiver<Option<Result<(), Error>>>>,
}

impl Sessions {
    pub(crate) fn new(
        connect: ConnectString,
        opening: Opening,
        tick: Option<Duration>,
        grace: Duration,
        connect_timeout: Duration,
    ) -> Sessions {
        let tick = Arc::new(Tick::new(tick, &opening));
        Sessions {
            connect,
            opening,
            tick,
            grace,
            connect_timeout,
            pool: Mutex::default(),
            is_closed: watch::Sender::new(false),
        }
    }

    /// Returns a live session, and reserves `bytes` of watched paths on it.
    ///
    /// Cancel safe: a session that is being opened stays available for the next caller.
    pub(crate) async fn checkout(self: &Arc<Self>, bytes: usize) -> Result<Arc<Session>, Error> {
        loop {
            let mut opening = {
                let pool = &mut *lock(&self.pool);
                if *self.is_closed.borrow() {
                    return Err(Error::closed());
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
                    Err(_) => Some(Err(Error::closed())),
                },
                _ = is_closed.wait_for(|is_closed| *is_closed) => Some(Err(Error::closed())),
            };
            if let Some(Err(error)) = outcome {
                return Err(error);
            }
        }
    }

    /// Returns a live session as `checkout` does, or `None` instead of waiting.
    pub(crate) fn checkout_now(&self, bytes: usize) -> Option<Arc<Session>> {
        let pool = &mut *lock(&self.pool);
        if *self.is_closed.borrow() { None } else { pool.checkout(bytes) }
    }

    /// Returns the addresses of the servers.
    pub(crate) fn endpoints(&self) -> String {
        self.connect.endpoints()
    }

    /// Returns every session that has not ended.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        lock(&self.pool).live.iter().filter(|session| session.end().is_none()).cloned().collect()
    }

    /// Refuses new sessions for good. A session that is being opened closes as soon as it is open.
    pub(crate) fn refuse_new(&self) {
        let pool = &mut *lock(&self.pool);
        self.is_closed.send_replace(true);
        pool.opening = None;
    }

    /// Starts to open a session on the client's own runtime, which then runs its tasks.
    fn begin_opening(self: &Arc<Self>, is_spare: bool) -> watch::Receiver<Option<Result<(), Error>>> {
        let (sender, receiver) = watch::channel(None);
        let sessions = self.clone();
        self.opening.tasks.spawn(async move {
            let opened = sessions.open(is_spare).await;
            let outcome = match sessions.add(opened) {
                Ok(outcome) => outcome,
                Err(late) => {
                    late.close(late.timeout()).await;
                    Err(Error::closed())
                }
            };
            sender.send_replace(Some(outcome));
        });
        receiver
    }

    /// Adds a session to the pool. Fails with the session if all sessions were closed while it was being
    /// opened.
    fn add(&self, opened: Result<Arc<Session>, Error>) -> Result<Result<(), Error>, Arc<Session>> {
        let pool = &mut *lock(&self.pool);
        let is_closed = *self.is_closed.borrow();
        match (opened, is_closed) {
            (Ok(session), true) => Err(session),
            (Err(_), true) => Ok(Err(Error::closed())),
            (opened, false) => {
                pool.opening = None;
                Ok(opened.map(|session| pool.live.push(session)))
            }
        }
    }

    async fn open(&self, is_spare: bool) -> Result<Arc<Session>, Error> {
        let deadline = tokio::time::Instant::now() + self.connect_timeout;
        match session::open(&self.opening, deadline).await {
            Ok(opened) => {
                self.check_timeout(opened.zk.timeout())?;
                let started = Session::start(&self.opening.tasks, opened, self.tick.clone(), is_spare);
                started.map_err(|error| Error::Unavailable {
                    address: self.connect.endpoints(),
                    message: format!("no timer for the lease: {error}"),
                    source: Some(Arc::new(error)),
                })
            }
            #[cfg(feature = "simulation")]
            Err(_) if matches!(self.opening.tasks, crate::base::tasks::Tasks::Simulated(_)) => {
                Err(Error::unavailable(self.connect.endpoints(), "no session in time"))
            }
            Err(error) => {
                Err(connect::explain(&self.connect, &self.opening, self.connect_timeout, false, error).await)
            }
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

impl Pool {
    fn checkout(&mut self, bytes: usize) -> Option<Arc<Session>> {
        self.live.retain(|session| session.end().is_none());
        self.live.iter().find(|session| session.reserve(bytes)).cloned()
    }
}

/// The default tick of a ZooKeeper server.
const USUAL_TICK: Duration = Duration::from_secs(2);

/// Returns the shortest session timeout that leaves room for the server's rounding.
pub(crate) fn shortest_timeout(tick: Option<Duration>) -> Duration {
    tick.unwrap_or(USUAL_TICK) * 3
}

/// Checks that a grace begins no earlier than a third of the timeout after the last answer.
pub(crate) fn check_grace(grace: Duration, timeout: Duration, tick: Option<Duration>) -> Result<(), Error> {
    let most = lease::spare(timeout, tick);
    if grace > most {
        return Err(Error::invalid(
            format!("grace {grace:?}"),
            format!("is too long for a session of {timeout:?}; at most {most:?}"),
        ));
    }
    Ok(())
}
