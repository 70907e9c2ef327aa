//! The sockets and the clocks of a server, which drive a [`Core`].
//!
//! Each connection has one task. A mutex guards the core. A task holds the mutex for one batch of frames, and never
//! across an await. The replies to a batch are collected, then written to the socket.

pub(crate) mod background;
mod connection;
mod directory_check;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod guarded_core;
#[cfg(not(feature = "tls"))]
#[path = "serve/no_handshake.rs"]
mod handshake;
#[cfg(feature = "tls")]
mod handshake;
#[cfg(feature = "http")]
pub(crate) mod http;
mod input;
mod journal;
mod listener;
mod log_sink;
mod metrics;
mod outbox;
mod turns;
mod words;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use zoolock_wire::Identity;

use self::background::join_freed_blocks;
use self::guarded_core::{ConnectedPeer, GuardedCore, LatencyStats};
#[cfg(feature = "tls")]
pub(crate) use self::handshake::TlsSettings;
use self::journal::Journal;
pub(crate) use self::listener::Listener;
use self::log_sink::LogSink;
use crate::connection_limits::ConnectionLimits;
use crate::core::{ConnId, Core, Now};
use crate::data_dir::DataDir;
use crate::expiry::ExpiryRounds;
use crate::ids::SessionId;
use crate::log::Log;
use crate::word::FourLetterWord;

/// Maximum number of bytes queued for a connection. If more are queued when an event is added, the
/// connection is closed.
pub(crate) const MAX_OUTPUT: usize = 64 << 20;

/// The server stops reading from a connection while at least this many bytes of output are queued
/// for it.
const HIGH_WATER: usize = 1 << 20;

/// Times and limits for the tasks.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) tick: Duration,
    pub(crate) container_check: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_frame: usize,
    /// Maximum number of bytes of incomplete requests, over all connections; 0: no limit.
    pub(crate) max_queued: usize,
    /// Set if a connection may block its thread for a write (see [`Journal::write_here`]).
    pub(crate) may_block: bool,
    /// The four-letter words that are answered.
    pub(crate) words: Vec<FourLetterWord>,
    pub(crate) conf: ReportedSettings,
}

/// Settings that the four-letter word `conf` and the server's handle report.
#[derive(Debug)]
pub(crate) struct ReportedSettings {
    pub(crate) addr: Option<SocketAddr>,
    pub(crate) tls_addr: Option<SocketAddr>,
    pub(crate) metrics_addr: Option<SocketAddr>,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) max_connections_per_address: usize,
    pub(crate) max_http_connections: usize,
    pub(crate) min_timeout_ms: u32,
    pub(crate) max_timeout_ms: u32,
}

/// State that all tasks of a server share.
#[derive(Debug)]
pub(crate) struct SharedServer {
    inner: Arc<Mutex<GuardedCore>>,
    started: Instant,
    /// Total time by which [`SharedServer::advance`] advanced the clocks, in milliseconds.
    advanced: AtomicU64,
    /// Number of bytes of requests, over all connections, that are incomplete or not handled yet.
    unhandled_bytes: AtomicUsize,
    pub(crate) timing: Timing,
    // The journal is declared before the directory, and so dropped first. The journal must not
    // write after the lock of the directory is released.
    journal: Option<Journal>,
    data_dir: Option<DataDir>,
    /// Number of open connections over HTTP.
    http_connections: AtomicUsize,
    /// Notified when the core has long work.
    work: Notify,
    /// The permit for a long turn of a connection with the core.
    long_turns: Semaphore,
    /// Locked during long work and the pause after it, and while a connection may have a long turn.
    long_work: tokio::sync::Mutex<()>,
    /// Becomes true when the core has panicked and must not be used, or when a server without a log has lost its data
    /// directory.
    broken: watch::Sender<bool>,
}

/// Accepts connections until `stop` is set, then waits for the tasks of all connections.
pub(crate) async fn accept_connections(
    shared: Arc<SharedServer>,
    listener: Listener,
    limits: Arc<ConnectionLimits>,
    mut stop: watch::Receiver<bool>,
) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = wait_until_stopped(&mut stop) => break,
            Some(ended) = tasks.join_next() => log_task_panic(ended),
            accepted = listener.accept() => match accepted {
                Ok(accepted) => {
                    let peer = accepted.peer();
                    let Some(permit) = limits.try_acquire(peer.ip()) else {
                        tracing::debug!(%peer, "too many connections; closing this one");
                        shared.lock().rejected += 1;
                        continue;
                    };
                    let (shared, stop) = (Arc::clone(&shared), stop.clone());
                    tasks.spawn(async move {
                        let _permit = permit;
                        accepted.serve(shared, stop).await;
                    });
                }
                Err(error) => {
                    // Most likely no file descriptor is free. The pause gives connections time to
                    // end.
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    while let Some(ended) = tasks.join_next().await {
        log_task_panic(ended);
    }
}

/// Expires sessions, removes empty containers, and starts a new epoch if necessary, until `stop` is set.
pub(crate) async fn run_timers(shared: Arc<SharedServer>, mut stop: watch::Receiver<bool>) {
    let tick = shared.timing.tick;
    // Session deadlines are a whole number of ticks after the start. The interval ticks at the same
    // times.
    let mut ticks = interval_at(shared.started + tick, tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut rounds = ExpiryRounds::default();
    let tick_ms = u64::try_from(tick.as_millis()).unwrap_or(u64::MAX);
    let every = shared.timing.container_check;
    let _panic_check = PanicCheck(&shared);
    let mut checks = interval_at(shared.started + every, every);
    checks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = wait_until_stopped(&mut stop) => return,
            _ = ticks.tick() => {
                shared.do_long_work(|core, now| {
                    let reads_nothing = |journal: &Journal| journal.is_full() || journal.is_blocking_a_connection();
                    let reads_nothing = shared.journal.as_ref().is_some_and(reads_nothing);
                    if rounds.begin_round(now.mono_ms, tick_ms, reads_nothing) {
                        core.expire_due_sessions(now);
                    }
                })
                .await;
                shared.fail_if_directory_is_replaced();
                shared.record_session_timeout(&mut shared.lock(), true);
                shared.start_epoch_if_needed().await;
            }
            _ = checks.tick() => shared.do_long_work(Core::remove_empty_containers).await,
        }
    }
}

impl SharedServer {
    /// Creates the shared state, and starts a journal if there is a log. The log must contain all
    /// transactions of `core`.
    pub(crate) fn new(
        core: Core,
        timing: Timing,
        data_dir: Option<DataDir>,
        log: Option<Log>,
    ) -> std::io::Result<Self> {
        let started = Instant::now();
        let synced = core.last_change();
        let inner = Arc::new(Mutex::new(GuardedCore {
            core,
            idle_since: Some(started),
            peers: HashMap::new(),
            opened: 0,
            latency: LatencyStats::default(),
            rejected: 0,
            failed_handshakes: 0,
            recorded_timeout_ms: 0,
            last_active: None,
        }));
        let start = |log| Journal::start(LogSink::new(log, Arc::clone(&inner))?, synced);
        let journal = log.map(start).transpose()?;
        let advanced = AtomicU64::new(0);
        let unhandled_bytes = AtomicUsize::new(0);
        let broken = watch::channel(false).0;
        let shared = SharedServer {
            inner,
            started,
            advanced,
            unhandled_bytes,
            timing,
            journal,
            data_dir,
            http_connections: AtomicUsize::new(0),
            work: Notify::new(),
            long_turns: Semaphore::new(1),
            long_work: tokio::sync::Mutex::default(),
            broken,
        };
        shared.lock().wake_connections(None);
        Ok(shared)
    }

    /// Resolves when the log has failed or the core has panicked, and returns the reason.
    pub(crate) async fn wait_for_failure(&self) -> String {
        let mut broken = self.broken.subscribe();
        let unkept = async {
            let Some(journal) = &self.journal else { return std::future::pending().await };
            let _ = journal.subscribe_failure().wait_for(|failed| *failed).await;
            journal.failure().unwrap_or("a bug: the log thread ended without an error").to_owned()
        };
        tokio::select! {
            why = unkept => why,
            _ = broken.wait_for(|broken| *broken) => self.describe_break(),
        }
    }

    /// Returns whether the log has failed. A failed log stores no further transactions.
    fn log_has_failed(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.failure().is_some())
    }

    /// Sets `broken` if the core has panicked.
    fn report_panic(&self) {
        if self.inner.is_poisoned() {
            self.broken.send_replace(true);
        }
    }

    /// Writes all decided transactions and ends the journal. Without a journal, records in the data
    /// directory how long the next server has to wait until no client relies on the lost sessions.
    /// Blocks the thread.
    pub(crate) fn stop_journal(&self) {
        if let Some(journal) = &self.journal {
            journal.stop();
        } else if self.data_dir.is_some() {
            self.record_session_timeout(&mut self.lock(), true);
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, GuardedCore> {
        self.report_panic();
        self.inner.lock().expect("the core has not panicked, and must not be used if it has")
    }

    /// Returns whether neither the core has panicked nor the log has failed.
    fn is_healthy(&self) -> bool {
        !self.inner.is_poisoned() && !*self.broken.borrow() && !self.log_has_failed()
    }

    pub(crate) fn expire_session(&self, session: i64) -> bool {
        self.with_core(|core, now| core.expire_session(SessionId(session), now))
    }

    pub(crate) fn expire_sessions(&self) -> usize {
        self.with_core(|core, now| {
            let sessions: Vec<SessionId> = core.state().sessions.keys().copied().collect();
            sessions.iter().filter(|session| core.expire_session(**session, now)).count()
        })
    }

    pub(crate) fn disconnect_all(&self) {
        self.with_core(|core, _| core.disconnect_all());
    }

    /// Advances the clocks, and removes the sessions and znodes that have expired by the new time.
    pub(crate) fn advance(&self, by: Duration) {
        self.advanced.fetch_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.with_core(|core, now| {
            core.expire_due_sessions(now);
            core.remove_empty_containers(now);
        });
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let advanced = Duration::from_millis(self.advanced.load(Ordering::Relaxed));
        Now {
            mono_ms: u64::try_from((self.started.elapsed() + advanced).as_millis()).unwrap_or(u64::MAX),
            wall_ms: i64::try_from((wall + advanced).as_millis()).unwrap_or(i64::MAX),
        }
    }

    /// Does long work with the core, when no other long work is done.
    async fn do_long_work(&self, act: impl FnOnce(&mut Core, Now)) {
        let _turn = self.long_work.lock().await;
        self.with_core(act);
    }

    fn with_core<T>(&self, act: impl FnOnce(&mut Core, Now) -> T) -> T {
        join_freed_blocks();
        let mut inner = self.lock();
        let result = act(&mut inner.core, self.now());
        self.end_turn(&mut inner, None);
        result
    }

    /// Passes decided transactions to the journal, and wakes the tasks that have something to do. Skips `awake`, whose
    /// task is running.
    fn end_turn(&self, inner: &mut GuardedCore, awake: Option<ConnId>) {
        let _ = self.journal_decided(inner, false);
        inner.wake_connections(awake);
        if inner.core.has_work() {
            self.work.notify_one();
        }
    }

    fn add_connection(&self, addr: SocketAddr, identity: Option<Identity>, waker: Arc<Notify>) -> ConnId {
        let mut inner = self.lock();
        let conn = inner.core.add_authenticated_connection(addr.ip(), identity);
        inner.peers.insert(conn, ConnectedPeer { addr, waker });
        inner.opened += 1;
        conn
    }

    /// Stops reading from a connection. Returns whether the connection has a session. If it has
    /// one, replies may still be pending. The caller should write them before it closes the
    /// connection.
    fn stop_input(&self, conn: ConnId) -> bool {
        let Ok(mut inner) = self.inner.lock() else { return false };
        let had_session = inner.core.stop_input(conn);
        inner.wake_connections(None);
        had_session
    }

    fn remove_connection(&self, conn: ConnId) {
        // This function also runs while a panic unwinds. A second panic would abort the process. So
        // this function does nothing if the core has panicked.
        self.report_panic();
        let Ok(mut inner) = self.inner.lock() else { return };
        let now = self.now();
        inner.peers.remove(&conn);
        inner.core.remove_connection(conn, now);
        self.end_turn(&mut inner, None);
    }

    /// Passes decided transactions to the journal. The caller still holds the lock of the core, so the transactions stay
    /// in order. Returns whether the caller must write them (see [`Journal::append`]).
    fn journal_decided(&self, inner: &mut GuardedCore, alone: bool) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.append(inner.core.decided_mut(), alone))
    }

    /// Returns whether the journal's queue is full. If so, no requests should be handled until
    /// `waker` is woken.
    fn register_if_full(&self, waker: &Arc<Notify>) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.register_if_full(waker))
    }

    /// Records in the data directory how long the next server has to wait until the sessions of
    /// this server have expired. Always writes a longer time, but a shorter time only if
    /// `allow_decrease` is set. Returns false if the time cannot be written.
    pub(crate) fn record_session_timeout(&self, inner: &mut GuardedCore, allow_decrease: bool) -> bool {
        // With a log, the next server restores the sessions and need not wait.
        let Some(dir) = self.data_dir.as_ref().filter(|_| self.journal.is_none()) else { return true };
        // Rounded up, so that few different times are written while the core is locked. A session expires at a tick anyway.
        let tick_ms = inner.core.config().tick_ms;
        let timeout_ms = inner.core.update_longest_timeout_ms().next_multiple_of(tick_ms);
        if timeout_ms == inner.recorded_timeout_ms
            || timeout_ms < inner.recorded_timeout_ms && !allow_decrease
        {
            return true;
        }
        match dir.record_session_timeout(timeout_ms) {
            Ok(()) => {
                inner.recorded_timeout_ms = timeout_ms;
                true
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot record the longest session timeout in the data directory"
                );
                false
            }
        }
    }

    /// Starts a new epoch if half of the transaction numbers of the current epoch are used.
    async fn start_epoch_if_needed(&self) {
        let zxid = self.lock().core.zxid();
        if zxid.count() < 1 << 31 {
            return;
        }
        let epoch = match &self.data_dir {
            None => Ok(zxid.epoch() + 1),
            Some(dir) => dir.start_next_epoch(0),
        };
        match epoch {
            Ok(epoch) => self.lock().core.start_epoch(epoch),
            Err(error) => {
                tracing::error!(
                    %error,
                    "cannot start a new epoch; writes are refused when this epoch has no transaction numbers left"
                )
            }
        }
    }
}

/// A guard that checks for a panic of the core when a task ends.
struct PanicCheck<'a>(&'a SharedServer);

impl Drop for PanicCheck<'_> {
    fn drop(&mut self) {
        self.0.report_panic();
    }
}

/// Resolves when the stop flag is set, or when its sender is dropped.
async fn wait_until_stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn log_task_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection task panicked");
    }
}
