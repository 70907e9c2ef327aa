//! One live session: its lease, its renewal, and its acquisitions.

pub(crate) mod member;
pub(crate) mod pool;
mod task;
pub(crate) mod tick;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use zoolock_core::contender::{Failure, SessionEnd};
use zoolock_core::lease::{self, Lease};
use zoolock_core::pace::Pace;
use zoolock_core::{ContenderId, Event, Instant, SessionId, Zxid};

use crate::base::clock::{self, Alarm};
use crate::base::metrics;
use crate::base::path::LockPath;
use crate::base::sync::lock;
use crate::base::tasks::Tasks;
use crate::zk::session::{ConnectionState, Opened, ZkSession};
use member::Member;
use task::{SessionTask, run_session_task};
use tick::Tick;

/// The state of the session of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connection {
    /// The server confirms the session.
    Connected,
    /// The connection is lost, or a confirmation by the server is late. The lock is not lost: it is held
    /// until its `valid_until`.
    Suspect,
    /// The session has ended.
    Over,
}

/// Maximum size of the watched paths on one session. The server deletes all znodes of a session in one transaction, which
/// has their paths and must stay below 1 MB.
pub(crate) const WATCHED_BYTES: usize = 100 * 1024;

/// Value of [`Session::watched`] while a spare session is being closed. No reservation fits on top of it.
const CLOSING: usize = usize::MAX / 2;

pub(crate) struct Session {
    id: SessionId,
    tick: Arc<Tick>,
    zk: RwLock<Option<Arc<ZkSession>>>,
    tasks: Tasks,
    lease: Mutex<Lease>,
    /// End of the lease in nanoseconds; zero if there never was one. Read on every `is_valid`.
    valid_until: AtomicU64,
    lease_moved: Notify,
    connection: watch::Sender<Connection>,
    connection_state: watch::Receiver<ConnectionState>,
    end: Mutex<Option<SessionEnd>>,
    acquisitions: Mutex<BTreeMap<ContenderId, Registration>>,
    /// The acquisition that created each znode.
    nodes: Mutex<BTreeMap<Zxid, ContenderId>>,
    session_task: SessionTask,
    watched: AtomicUsize,
    /// Opened because the first session was full. Closed when idle.
    is_spare: bool,
}

/// An acquisition, and the znodes that it created.
struct Registration {
    acquisition: Arc<dyn Member>,
    nodes: Vec<Zxid>,
}

/// Reserved capacity for watches on a session. Dropping it returns the capacity.
pub(crate) struct WatchReservation {
    session: Arc<Session>,
    bytes: usize,
}

impl WatchReservation {
    /// Wraps bytes that were reserved on this session.
    pub(crate) fn of(session: Arc<Session>, bytes: usize) -> WatchReservation {
        WatchReservation { session, bytes }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Passes the reservation to an acquisition, which returns it at its end.
    pub(crate) fn hand_over(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for WatchReservation {
    fn drop(&mut self) {
        self.session.unreserve(self.bytes);
    }
}

impl Session {
    /// Starts the tasks of a session that was opened. Call it from one of `tasks`.
    pub(crate) fn start(
        tasks: &Tasks,
        Opened { zk, arrivals, connection_state, requested }: Opened,
        tick: Arc<Tick>,
        is_spare: bool,
    ) -> std::io::Result<Arc<Session>> {
        let timeout = zk.timeout();
        let session = Arc::new(Session {
            id: zk.session(),
            lease: Mutex::new(Lease::new(timeout, tick.of(timeout), requested)),
            tick,
            zk: RwLock::new(Some(zk)),
            tasks: tasks.clone(),
            valid_until: AtomicU64::new(0),
            lease_moved: Notify::new(),
            connection: watch::Sender::new(Connection::Connected),
            connection_state: connection_state.clone(),
            end: Mutex::new(None),
            acquisitions: Mutex::default(),
            nodes: Mutex::default(),
            session_task: SessionTask::new(arrivals),
            watched: AtomicUsize::new(0),
            is_spare,
        });
        let alarm = Alarm::new()?;
        if let Some(zk) = session.zk() {
            let session = Arc::downgrade(&session);
            zk.on_grant(Box::new(move |sent, timeout| {
                if let Some(session) = session.upgrade() {
                    session.attach(sent, timeout);
                }
            }));
        }
        metrics::session_opened();
        // All these tasks end with the session's connection, which the task of the ZooKeeper session ends.
        tasks.spawn(run_session_task(session.clone()));
        tasks.spawn(watch_lease(session.clone(), alarm, connection_state.clone()));
        tasks.spawn(run_keep_alive(session.clone(), connection_state));
        Ok(session)
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn session_task(&self) -> &SessionTask {
        &self.session_task
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Returns the ZooKeeper session; `None` after it ended.
    pub(crate) fn zk(&self) -> Option<Arc<ZkSession>> {
        self.zk.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn end(&self) -> Option<SessionEnd> {
        *lock(&self.end)
    }

    pub(crate) fn connection(&self) -> watch::Receiver<Connection> {
        self.connection.subscribe()
    }

    // ---- the lease ----

    pub(crate) fn valid_until(&self) -> Instant {
        Instant(self.valid_until.load(Ordering::Acquire))
    }

    pub(crate) fn lease_valid(&self) -> bool {
        clock::now() < self.valid_until()
    }

    /// Records that a quorum confirmed a write that was sent at `sent`.
    ///
    /// A confirmation may arrive after the lease ended. Extending is still correct: the session was alive at
    /// `sent`, so it did not end in between. Every holder that *saw* the lease end (by the alarm, or by
    /// asking its guard) has lost the lock for good.
    pub(crate) fn confirm(&self, sent: Instant) {
        self.update_lease(|lease| lease.confirm(sent, clock::now()));
    }

    /// Records that the server answered a request that was sent at `sent`.
    fn record_answer(&self, sent: Instant) {
        self.update_lease(|lease| lease.hear(sent, clock::now()));
    }

    /// Records that a server granted a session timeout again. A shorter one cuts the lease. Called under the lock of the
    /// client: it sends no request.
    fn attach(&self, sent: Instant, timeout: Duration) {
        let mut lease = lock(&self.lease);
        if timeout < lease.timeout() {
            tracing::warn!(?timeout, "the server granted a shorter session timeout");
        }
        lease.attach(sent, timeout);
        self.valid_until.store(lease.valid_until().map_or(0, |end| end.0), Ordering::Release);
        self.lease_moved.notify_waiters();
    }

    /// Changes the lease. `change` returns whether its end has moved.
    fn update_lease(&self, change: impl FnOnce(&mut Lease) -> bool) {
        let (lapsed, moved) = {
            let mut lease = lock(&self.lease);
            let before = self.valid_until();
            if let Some(tick) = self.tick.of(lease.timeout()) {
                lease.set_tick(tick);
            }
            let moved = change(&mut lease);
            if moved {
                self.valid_until.store(lease.valid_until().map_or(0, |end| end.0), Ordering::Release);
                self.lease_moved.notify_waiters();
            }
            // After the store: a waiter that saw the ended lease before the store waits for an event.
            (before <= clock::now(), moved)
        };
        if self.lease_valid() {
            if moved && *self.connection_state.borrow() == ConnectionState::Up {
                let confirmed = self.connection.send_if_modified(|c| {
                    *c == Connection::Suspect && clock::now() < self.late_at() && {
                        *c = Connection::Connected;
                        true
                    }
                });
                if confirmed {
                    self.acquisitions().iter().for_each(|acquisition| acquisition.report_connection(false));
                }
            }
            if lapsed {
                self.tell_all(&Event::LeaseRenewed);
            }
        }
    }

    /// Returns whether the lease needs a renewal before the next regular one.
    fn is_low(&self) -> bool {
        lock(&self.lease).is_low(clock::now())
    }

    /// Returns whether the lease of a holder ends soon.
    fn ends_soon(&self) -> bool {
        !self.is_idle() && self.is_up() && lock(&self.lease).ends_soon(clock::now())
    }

    /// Attaches the session on a new connection if the lease ends soon, and this connection can hardly renew it. That is so if
    /// the server does not answer, confirms nothing, or cannot prove in time that the leader knows of the session.
    fn attach_again_if_needed(&self) {
        let now = clock::now();
        let (ends_soon, is_hopeless, server_works) = {
            let lease = lock(&self.lease);
            (lease.ends_soon(now), lease.needs_attach(now), lease.is_confirmed_last())
        };
        if ends_soon && let Some(zk) = self.zk() {
            zk.reattach(is_hopeless, server_works);
        }
    }

    /// Returns the time at which nothing will have been answered for a third of the timeout.
    fn late_at(&self) -> Instant {
        let timeout = self.timeout();
        let spare = lease::spare(timeout, self.tick.of(timeout));
        Instant(self.valid_until().0.saturating_sub(nanos(spare)))
    }

    fn suspect(&self) {
        let suspect = self.connection.send_if_modified(|c| {
            *c == Connection::Connected && {
                *c = Connection::Suspect;
                true
            }
        });
        if suspect {
            self.acquisitions().iter().for_each(|acquisition| acquisition.report_connection(true));
        }
    }

    // ---- its acquisitions ----

    /// Reserves capacity for the watches of one acquisition; `false` if there is none left, or the session
    /// has ended.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        // The first reservation always fits: a path may have any length.
        let fits =
            |used: usize| (used == 0 || used.saturating_add(bytes) <= WATCHED_BYTES).then_some(used + bytes);
        self.end().is_none() && self.watched.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    /// Reserves capacity without a limit, for an acquisition that needs this session.
    pub(crate) fn reserve_anyway(&self, bytes: usize) {
        self.watched.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives back a reservation that no acquisition has taken over.
    fn unreserve(&self, bytes: usize) {
        self.watched.fetch_sub(bytes, Ordering::AcqRel);
    }

    pub(crate) fn register(&self, acquisition: Arc<dyn Member>) {
        let id = acquisition.id();
        lock(&self.acquisitions).insert(id, Registration { acquisition, nodes: Vec::new() });
    }

    /// Removes an acquisition that has ended.
    pub(crate) fn unregister(&self, id: ContenderId, reserved: usize) {
        let left = lock(&self.acquisitions).remove(&id);
        if let Some(Registration { nodes: created, .. }) = &left {
            let nodes = &mut *lock(&self.nodes);
            for node in created {
                // The znodes of one transaction have the same zxid, and belong to the same acquisition.
                nodes.remove(node);
            }
        }
        self.watched.fetch_sub(reserved, Ordering::AcqRel);
    }

    pub(crate) fn register_node(&self, node: Zxid, id: ContenderId) {
        // An acquisition that has ended left no znode.
        if let Some(registration) = lock(&self.acquisitions).get_mut(&id) {
            registration.nodes.push(node);
            lock(&self.nodes).insert(node, id);
        }
    }

    pub(crate) fn acquisition_of_node(&self, node: Zxid) -> Option<ContenderId> {
        lock(&self.nodes).get(&node).copied()
    }

    /// Returns an acquisition that has not ended.
    fn member(&self, id: ContenderId) -> Option<Arc<dyn Member>> {
        lock(&self.acquisitions).get(&id).map(|registration| registration.acquisition.clone())
    }

    pub(crate) fn acquisitions(&self) -> Vec<Arc<dyn Member>> {
        lock(&self.acquisitions).values().map(|registration| registration.acquisition.clone()).collect()
    }

    /// Returns the acquisitions in one of these directories.
    pub(crate) fn acquisitions_in(&self, directories: &[LockPath]) -> Vec<Arc<dyn Member>> {
        let is_in = |acquisition: &&Arc<dyn Member>| {
            acquisition.directories().iter().any(|directory| directories.contains(directory))
        };
        // Not their states: an acquisition locks its state before this.
        let acquisitions = lock(&self.acquisitions);
        acquisitions.values().map(|registration| &registration.acquisition).filter(is_in).cloned().collect()
    }

    /// Closes an unused spare session, and returns whether it did. New acquisitions get another session.
    fn retire_if_unused(&self) -> bool {
        let unused = self.is_spare
            && self.is_idle()
            && self.watched.compare_exchange(0, CLOSING, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if unused {
            self.finish(SessionEnd::Closed);
        }
        unused
    }

    fn is_idle(&self) -> bool {
        lock(&self.acquisitions).is_empty()
    }

    /// Returns the znode that a renewal checks: the directory of one of the acquisitions, or the root of the tree. `turn` counts
    /// the znodes that could not be checked.
    ///
    /// The root exists even if an operator has removed all these directories. Without the root, no renewal would succeed then,
    /// and an acquisition that waits for the lease would never get it.
    fn checked_znode(&self, turn: usize) -> Option<String> {
        if turn % 2 == 1 {
            return Some("/".to_owned());
        }
        let turn = turn / 2;
        let acquisitions = lock(&self.acquisitions);
        // An acquisition with a znode has a directory.
        let placed = acquisitions.values().filter(|registration| !registration.nodes.is_empty());
        let at = turn.checked_rem(placed.clone().count().max(1))?;
        let registration = placed.clone().nth(at).or_else(|| acquisitions.values().next())?;
        registration.acquisition.directories().first().map(|path| path.as_str().to_owned())
    }

    pub(crate) fn tell_all(&self, event: &Event) {
        for acquisition in self.acquisitions() {
            acquisition.tell(event.clone());
        }
    }

    // ---- the end ----

    /// Returns whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        *self.connection_state.borrow() == ConnectionState::Up
    }

    /// Returns the shortest session timeout that a server granted.
    pub(crate) fn timeout(&self) -> Duration {
        lock(&self.lease).timeout()
    }

    /// Waits for the releases in progress.
    pub(crate) async fn releases_done(&self) {
        for acquisition in self.acquisitions() {
            if acquisition.is_leaving() {
                acquisition.wait_until_ended().await;
            }
        }
    }

    /// Closes the session: the server deletes all its znodes. Waits for the answer, at most for `max_wait`.
    pub(crate) async fn close(&self, max_wait: Duration) {
        // First, because otherwise the holders would report the deletion of their znodes as a break by another client.
        self.finish(SessionEnd::Closed);
        let mut connection_state = self.connection_state.clone();
        let closed = async {
            while !matches!(*connection_state.borrow(), ConnectionState::Over(_))
                && connection_state.changed().await.is_ok()
            {}
        };
        if tokio::time::timeout(max_wait, closed).await.is_err() {
            tracing::warn!(
                "the server did not confirm the end of a session; its locks are freed when it expires"
            );
        }
    }

    /// Ends the session, and reports it to all its acquisitions.
    pub(crate) fn finish(&self, end: SessionEnd) {
        {
            let mut known = lock(&self.end);
            if known.is_some() {
                return;
            }
            *known = Some(end);
        }
        metrics::session_ended(end);
        self.connection.send_replace(Connection::Over);
        // Before the ZooKeeper session is dropped, which closes it: no holder may rely on its lock when the
        // next one is granted.
        self.tell_all(&Event::SessionOver(end));
        self.session_task.stop();
        self.zk.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Reports to the holders that the lease has ended, also right after the machine resumes.
async fn watch_lease(
    session: Arc<Session>,
    alarm: Alarm,
    mut connection_state: watch::Receiver<ConnectionState>,
) {
    let mut reported_end = 0;
    let mut timeout = session.timeout();
    while session.end().is_none() {
        let moved = session.lease_moved.notified();
        tokio::pin!(moved);
        moved.as_mut().enable();
        let end = session.valid_until();
        let shorter = session.timeout();
        if shorter < timeout {
            timeout = shorter;
            // Wakes the holders' receivers: the reaper of a command must learn of the earlier end of the lease.
            session.connection.send_modify(|_| {});
        }
        let ring = async {
            if end.0 == reported_end {
                std::future::pending::<()>().await;
            }
            // A third of the timeout without a confirmation: the lock is not lost, but suspect.
            for at in [session.late_at(), end] {
                if let Err(error) = alarm.wait_until(at).await {
                    tracing::error!(%error, "the lease timer failed; guards still check the clock when asked");
                    std::future::pending::<()>().await;
                }
                if !session.is_idle() {
                    session.suspect();
                }
            }
        };
        tokio::select! {
            biased;
            () = &mut moved => {}
            () = ring => {
                reported_end = end.0;
                if !session.lease_valid() {
                    session.tell_all(&Event::LeaseLost);
                }
            }
            changed = connection_state.changed() => if changed.is_err() { return },
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Follows the connection, and renews the lease while the session has acquisitions.
async fn run_keep_alive(session: Arc<Session>, mut connection_state: watch::Receiver<ConnectionState>) {
    let mut pace = Pace::new();
    let mut renewer = Renewer::new(&session);
    let mut beats = beats(session.timeout());
    let mut idle_beats = 0u32;
    loop {
        let is_beat = tokio::select! {
            biased;
            changed = connection_state.changed() => {
                let now = *connection_state.borrow_and_update();
                match now {
                    ConnectionState::Down => {
                        session.suspect();
                    }
                    ConnectionState::Up => {
                        metrics::reconnected();
                        beats = self::beats(session.timeout());
                    }
                    ConnectionState::Over(end) => return session.finish(end),
                }
                if changed.is_err() {
                    // The client's task ended without reporting the end.
                    return session.finish(SessionEnd::Closed);
                }
                false
            }
            _ = beats.tick() => true,
            // A holder may have to try several servers before its lease ends.
            () = tokio::time::sleep(Pace::beat(session.timeout()) / 8), if session.ends_soon() => {
                session.attach_again_if_needed();
                continue;
            }
        };
        if session.end().is_some() {
            return;
        }
        if !session.is_up() {
            // A renewal would be refused.
        } else if !session.is_idle() {
            idle_beats = 0;
            if is_beat {
                session.attach_again_if_needed();
            }
            // A new connection is used at once.
            renewer.renew(!is_beat || pace.writes(session.is_low()));
        } else if is_beat {
            idle_beats += 1;
            if idle_beats > MAX_IDLE_BEATS && session.retire_if_unused() {
                return;
            }
            if pace.is_heard(session.tick.of(session.timeout()).is_some()) {
                renewer.keep_alive();
            }
        }
    }
}

fn beats(timeout: Duration) -> tokio::time::Interval {
    let mut beats = tokio::time::interval(Pace::beat(timeout).max(SHORTEST_BEAT));
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    beats
}

/// The shortest time between two renewals. A server may grant a timeout that no lease can follow.
const SHORTEST_BEAT: Duration = Duration::from_millis(10);

/// Number of beats for which an idle spare session is kept.
const MAX_IDLE_BEATS: u32 = 4;

/// Maximum number of pending requests. A late answer does not delay the next renewal.
const MAX_PENDING: usize = 6;

/// Number of renewals after which the client asks for the tick of the servers. Short commands do not ask.
const RENEWALS_BEFORE_TICK: u32 = 4;

/// Sends the requests that keep the lease and the session alive.
struct Renewer {
    session: Arc<Session>,
    pending: Arc<tokio::sync::Semaphore>,
    renewals: u32,
    /// The number of checks whose znode did not exist or was not readable.
    missing: Arc<AtomicUsize>,
}

impl Renewer {
    fn new(session: &Arc<Session>) -> Renewer {
        Renewer {
            session: session.clone(),
            pending: Arc::new(tokio::sync::Semaphore::new(MAX_PENDING)),
            renewals: 0,
            missing: Arc::default(),
        }
    }

    /// Sends a request that the server reports to the leader: a `sync`, or with `writes` the check of a lock directory. The
    /// check changes nothing, and only a quorum can confirm it.
    ///
    /// Both answers come through the server's connection to the leader, so they follow a ping of the leader and the server's
    /// report. A read would prove neither: the server answers it by itself.
    fn renew(&mut self, writes: bool) {
        self.renewals = self.renewals.saturating_add(1);
        // Again after a failure, at growing intervals.
        if self.renewals >= RENEWALS_BEFORE_TICK && self.renewals.is_power_of_two() {
            self.session.tick.ask();
        }
        if !writes {
            return self.keep_alive();
        }
        let Some(zk) = self.session.zk() else { return };
        let turn = self.missing.load(Ordering::Relaxed);
        let Some(path) = self.session.checked_znode(turn) else { return };
        let Ok(slot) = self.pending.clone().try_acquire_owned() else { return };
        let (session, sent) = (self.session.clone(), clock::now());
        let (answer, missing) = (zk.check(&path), self.missing.clone());
        self.session.tasks.spawn(async move {
            let outcome = answer.await;
            metrics::renewed(outcome.is_ok());
            match outcome {
                Ok(()) => session.confirm(sent),
                Err(error) => {
                    // Makes the next renewal check another znode.
                    if matches!(error.failure, Failure::NoNode | Failure::Refused(_)) {
                        // Counts several checks of this znode once.
                        let _ =
                            missing.compare_exchange(turn, turn + 1, Ordering::Relaxed, Ordering::Relaxed);
                    }
                    tracing::debug!(message = error.message, "the lease was not renewed");
                }
            }
            drop(slot);
        });
    }

    /// Sends a `sync`. A session without acquisitions sends it, too: otherwise the next acquisition would wait for
    /// three answers, as after a silence.
    fn keep_alive(&mut self) {
        let Some(zk) = self.session.zk() else { return };
        let Ok(slot) = self.pending.clone().try_acquire_owned() else { return };
        let session = self.session.clone();
        let (sent, answer) = (clock::now(), zk.sync_ahead());
        self.session.tasks.spawn(async move {
            if answer.await.is_ok() {
                session.record_answer(sent);
            }
            drop(slot);
        });
    }
}
