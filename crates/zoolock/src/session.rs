//! One live session: its lease, its renewal, and who stands on it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use zoolock_core::contender::{Failure, Refusal, SessionEnd};
use zoolock_core::lease::{Ensemble, Lease, Renewal};
use zoolock_core::pace::Pace;
use zoolock_core::{ContenderId, Event, Instant, SessionId, Zxid};

use crate::chance;
use crate::clock::{self, Alarm};
use crate::directory;
use crate::driver::{Acquisition, Attendant, attend};
use crate::keeper::{Keeper, KeeperError, Link};
use crate::metrics;
use crate::path::SESSIONS;
use crate::tasks::Tasks;

/// How sure we are of the session that a lock stands on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connection {
    /// The service confirms the session.
    Connected,
    /// The connection is lost or the service is late with its confirmation. Disconnected is not lost: the lock is
    /// ours until its `valid_until`.
    Suspect,
    /// The session is over.
    Over,
}

/// What the lease goes by.
#[derive(Debug, Clone)]
pub(crate) struct LeaseConfig {
    pub(crate) ensemble: Ensemble,
    pub(crate) strict: bool,
    /// The directory under which the nodes of short sessions live.
    pub(crate) root: String,
}

/// The most bytes of watched paths on one session: the client crate registers watches again in one batch per
/// 128 KiB, all under one xid, and a session with two batches never survives a reconnect.
pub(crate) const WATCHED_BYTES: usize = 100 * 1024;

/// What [`Session::watched`] says of a spare session that is being closed: no reservation fits any more.
const CLOSING: usize = usize::MAX / 2;

pub(crate) struct Session {
    id: SessionId,
    timeout: Duration,
    /// What is left of the lease when nothing has been confirmed for a third of the timeout.
    spare_time: Duration,
    keeper: RwLock<Option<Arc<dyn Keeper>>>,
    tasks: Tasks,
    lease: Mutex<Lease>,
    /// The end of the lease in nanoseconds, zero if there never was one. Read on every `is_valid`.
    valid_until: AtomicU64,
    lease_moved: Notify,
    connection: watch::Sender<Connection>,
    link: watch::Receiver<Link>,
    end: Mutex<Option<SessionEnd>>,
    acquisitions: Mutex<BTreeMap<ContenderId, Standing>>,
    /// Which acquisition created which node.
    nodes: Mutex<BTreeMap<Zxid, ContenderId>>,
    attendant: Attendant,
    watched: AtomicUsize,
    /// Opened because the first session was full; closed again when it is idle.
    is_spare: bool,
}

/// An acquisition, and the nodes that it created.
struct Standing {
    acquisition: Arc<Acquisition>,
    nodes: Vec<Zxid>,
}

/// Room for watches on a session; given back when dropped.
pub(crate) struct Room {
    session: Arc<Session>,
    bytes: usize,
}

impl Room {
    /// Of what was reserved on this session.
    pub(crate) fn of(session: Arc<Session>, bytes: usize) -> Room {
        Room { session, bytes }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// An acquisition gives it back when it is over.
    pub(crate) fn hand_over(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.session.unreserve(self.bytes);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Takes a fresh session into service, which was asked for at `began`. To be called on one of these tasks.
    pub(crate) fn start(
        tasks: &Tasks,
        keeper: Arc<dyn Keeper>,
        link: watch::Receiver<Link>,
        (config, began): (LeaseConfig, Instant),
        is_spare: bool,
    ) -> std::io::Result<Arc<Session>> {
        let timeout = keeper.timeout();
        let session = Arc::new(Session {
            id: keeper.session(),
            timeout,
            spare_time: config.ensemble.spare(timeout, config.ensemble.renewal(timeout, config.strict)),
            keeper: RwLock::new(Some(keeper)),
            tasks: tasks.clone(),
            lease: Mutex::new(Lease::new(timeout, config.ensemble, began)),
            valid_until: AtomicU64::new(0),
            lease_moved: Notify::new(),
            connection: watch::Sender::new(Connection::Connected),
            link: link.clone(),
            end: Mutex::new(None),
            acquisitions: Mutex::default(),
            nodes: Mutex::default(),
            attendant: Attendant::new(),
            watched: AtomicUsize::new(0),
            is_spare,
        });
        let alarm = Alarm::new()?;
        metrics::session_opened();
        // All end with the session's link, which the keeper's task ends.
        tasks.spawn(attend(session.clone()));
        tasks.spawn(watch_lease(session.clone(), alarm, link.clone()));
        tasks.spawn(tend(session.clone(), link, config));
        Ok(session)
    }

    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn attendant(&self) -> &Attendant {
        &self.attendant
    }

    pub(crate) fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// The way to the service; `None` once the session is over.
    pub(crate) fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        self.keeper.read().unwrap_or_else(PoisonError::into_inner).clone()
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

    /// The leader confirmed a request that was sent at `sent`.
    ///
    /// A confirmation may come after the lease ran out. That is no lie: the session was alive at `sent`, so it never
    /// ended in between. Whoever *saw* the lease run out (the alarm, or a guard asked) was told lost, for ever.
    pub(crate) fn confirm(&self, sent: Instant, how: Renewal) {
        let lapsed = {
            let mut lease = lock(&self.lease);
            let before = self.valid_until();
            if lease.confirm(sent, clock::now(), how) {
                self.valid_until.store(lease.valid_until().map_or(0, |end| end.0), Ordering::Release);
                self.lease_moved.notify_waiters();
            }
            // After the store: whoever looked before it and found none waits to be told.
            before <= clock::now()
        };
        if self.lease_valid() {
            if *self.link.borrow() == Link::Up {
                let confirmed = self.connection.send_if_modified(|c| {
                    *c == Connection::Suspect && {
                        *c = Connection::Connected;
                        true
                    }
                });
                if confirmed {
                    self.acquisitions().iter().for_each(|acquisition| acquisition.connection_is(false));
                }
            }
            if lapsed {
                self.tell_all(&Event::LeaseRenewed);
            }
        }
    }

    /// The same for the answer to a write that was sent at `sent`, where it is the leader's.
    pub(crate) fn confirm_write<T>(&self, sent: Instant, outcome: &Result<T, KeeperError>) {
        if is_confirmed(outcome) {
            self.confirm(sent, Renewal::Write);
        }
    }

    /// Whether the lease is to be renewed before that is due.
    fn is_low(&self) -> bool {
        lock(&self.lease).is_low(clock::now())
    }

    /// The leader answered a request that was sent at `sent`, though that confirms nothing.
    fn hear(&self, sent: Instant) {
        lock(&self.lease).hear(sent, clock::now());
    }

    fn suspect(&self) {
        let suspect = self.connection.send_if_modified(|c| {
            *c == Connection::Connected && {
                *c = Connection::Suspect;
                true
            }
        });
        if suspect {
            self.acquisitions().iter().for_each(|acquisition| acquisition.connection_is(true));
        }
    }

    // ---- who stands on it ----

    /// Room for the watches of one acquisition; `false` where there is none left, or the session is over.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        // The first always fits: a path may be as long as it likes.
        let fits =
            |used: usize| (used == 0 || used.saturating_add(bytes) <= WATCHED_BYTES).then_some(used + bytes);
        self.end().is_none() && self.watched.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    /// The same where it has to be this session, full or not: those who stand on it already may be few.
    pub(crate) fn reserve_anyway(&self, bytes: usize) {
        self.watched.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives back room that no acquisition has taken over.
    fn unreserve(&self, bytes: usize) {
        self.watched.fetch_sub(bytes, Ordering::AcqRel);
    }

    pub(crate) fn enter(&self, acquisition: &Arc<Acquisition>) {
        let standing = Standing { acquisition: acquisition.clone(), nodes: Vec::new() };
        lock(&self.acquisitions).insert(acquisition.id(), standing);
    }

    /// The acquisition is over; nothing of it is left.
    pub(crate) fn leave(&self, id: ContenderId, reserved: usize) {
        let left = lock(&self.acquisitions).remove(&id);
        if let Some(Standing { nodes: created, .. }) = &left {
            let nodes = &mut *lock(&self.nodes);
            for node in created {
                // In a transaction several have the same zxid, all of the same acquisition.
                nodes.remove(node);
            }
        }
        self.watched.fetch_sub(reserved, Ordering::AcqRel);
    }

    pub(crate) fn own(&self, node: Zxid, id: ContenderId) {
        // Whoever has left by now has left nothing.
        if let Some(standing) = lock(&self.acquisitions).get_mut(&id) {
            standing.nodes.push(node);
            lock(&self.nodes).insert(node, id);
        }
    }

    pub(crate) fn owner_of(&self, node: Zxid) -> Option<ContenderId> {
        lock(&self.nodes).get(&node).copied()
    }

    pub(crate) fn acquisitions(&self) -> Vec<Arc<Acquisition>> {
        lock(&self.acquisitions).values().map(|standing| standing.acquisition.clone()).collect()
    }

    /// Closes a spare session that nobody stands on. Whoever wants to stand on it now gets another.
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

    fn tell_all(&self, event: &Event) {
        for acquisition in self.acquisitions() {
            acquisition.happen(event.clone());
        }
    }

    // ---- the end ----

    /// Whether there is a connection to have an answer from.
    pub(crate) fn is_up(&self) -> bool {
        *self.link.borrow() == Link::Up
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Waits for the clean-up that is under way.
    pub(crate) async fn releases_done(&self) {
        for acquisition in self.acquisitions() {
            if acquisition.is_leaving() {
                acquisition.over().await;
            }
        }
    }

    /// Closes the session: the service removes all its nodes. Waits for the answer, but not for ever.
    pub(crate) async fn close(&self, patience: Duration) {
        // First: else the holders would see the service delete their nodes, and take it for somebody else's deed.
        self.finish(SessionEnd::Closed);
        let mut link = self.link.clone();
        let closed =
            async { while !matches!(*link.borrow(), Link::Over(_)) && link.changed().await.is_ok() {} };
        if tokio::time::timeout(patience, closed).await.is_err() {
            tracing::warn!("the service did not confirm the end of a session; its locks go when it expires");
        }
    }

    /// It is over; whoever stands on it hears of that.
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
        // Before the client goes, which closes the session: nobody may believe beside the next holder.
        self.tell_all(&Event::SessionOver(end));
        self.attendant.dismiss();
        self.keeper.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Tells the holders when the lease runs out, also right after the machine woke up.
async fn watch_lease(session: Arc<Session>, alarm: Alarm, mut link: watch::Receiver<Link>) {
    let mut told = 0;
    while session.end().is_none() {
        let moved = session.lease_moved.notified();
        tokio::pin!(moved);
        moved.as_mut().enable();
        let end = session.valid_until();
        let ring = async {
            if end.0 == told {
                std::future::pending::<()>().await;
            }
            // Nothing for a third of the timeout: not lost, but say so.
            let late = Instant(end.0.saturating_sub(nanos(session.spare_time)));
            for at in [late, end] {
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
                told = end.0;
                if !session.lease_valid() {
                    session.tell_all(&Event::LeaseLost);
                }
            }
            changed = link.changed() => if changed.is_err() { return },
        }
    }
}

/// Whether it was the leader who answered.
fn is_confirmed<T>(outcome: &Result<T, KeeperError>) -> bool {
    outcome.as_ref().err().is_none_or(|error| error.failure.is_decided())
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Follows the connection and renews the lease while anybody stands on the session.
async fn tend(session: Arc<Session>, mut link: watch::Receiver<Link>, config: LeaseConfig) {
    let mut pace = Pace::new(&config.ensemble, session.timeout);
    let mut renewal = Renewer::new(&session, config);
    let mut beats = tokio::time::interval(Pace::beat(session.timeout));
    beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut idle_beats = 0u32;
    loop {
        let is_beat = tokio::select! {
            biased;
            changed = link.changed() => {
                let now = *link.borrow_and_update();
                match now {
                    Link::Down => {
                        session.suspect();
                        session.tell_all(&Event::Disconnected);
                    }
                    Link::Up => {
                        metrics::reconnected();
                        session.tell_all(&Event::Reconnected);
                    }
                    Link::Over(end) => return session.finish(end),
                }
                if changed.is_err() {
                    // The client's task is gone without a last word.
                    return session.finish(SessionEnd::Closed);
                }
                false
            }
            _ = beats.tick() => true,
        };
        if session.end().is_some() {
            return;
        }
        if !session.is_up() {
            // It would wait in the client's queue, and be the one under way when there is a connection again.
        } else if !session.is_idle() {
            idle_beats = 0;
            // A connection that is new is used at once.
            if !is_beat || pace.renews(session.is_low()) {
                renewal.renew();
            }
        } else if is_beat {
            idle_beats += 1;
            if idle_beats > PATIENCE && session.retire_if_unused() {
                return;
            }
            if pace.is_heard() {
                renewal.be_heard();
            }
        }
    }
}

/// For how many beats a spare session is kept that nobody stands on.
const PATIENCE: u32 = 4;

/// How many renewals may be under way. One that is not answered soon does not keep the next one from being sent.
const UNDER_WAY: usize = 3;

/// Sends renewals.
struct Renewer {
    session: Arc<Session>,
    how: Renewal,
    parent: String,
    node: String,
    /// We were told that we may not make it.
    barren: Arc<AtomicBool>,
    under_way: Arc<tokio::sync::Semaphore>,
}

impl Renewer {
    fn new(session: &Arc<Session>, config: LeaseConfig) -> Renewer {
        let parent = format!("{}/{SESSIONS}", config.root.trim_end_matches('/'));
        Renewer {
            how: config.ensemble.renewal(session.timeout, config.strict),
            node: format!("{parent}/{}", chance::uuid().simple()),
            parent,
            session: session.clone(),
            barren: Arc::default(),
            under_way: Arc::new(tokio::sync::Semaphore::new(UNDER_WAY)),
        }
    }

    fn renew(&mut self) {
        let Some(keeper) = self.session.keeper() else { return };
        let Ok(turn) = self.under_way.clone().try_acquire_owned() else { return };
        let (session, tasks) = (self.session.clone(), self.session.tasks.clone());
        let sent = clock::now();
        match self.how {
            Renewal::Sync => {
                let answer = keeper.sync("/");
                tasks.spawn(async move {
                    let outcome = answer.await;
                    metrics::renewed(Renewal::Sync, outcome.is_ok());
                    if outcome.is_ok() {
                        session.confirm(sent, Renewal::Sync);
                    }
                    drop(turn);
                });
            }
            Renewal::Write => {
                let (parent, node, barren) = (self.parent.clone(), self.node.clone(), self.barren.clone());
                let answer = keeper.write(&node, b"", None);
                tasks.spawn(async move {
                    let outcome = answer.await;
                    metrics::renewed(Renewal::Write, is_confirmed(&outcome));
                    session.confirm_write(sent, &outcome);
                    match outcome {
                        Ok(_) => {}
                        // That there is none renews as well.
                        Err(KeeperError { failure: Failure::NoNode, .. })
                            if barren.load(Ordering::Relaxed) => {}
                        Err(KeeperError { failure: Failure::NoNode, .. }) => {
                            let planted = plant(&session, keeper, &parent, &node).await;
                            let denied = matches!(planted, Err(Failure::Refused(Refusal::Denied)));
                            barren.store(denied, Ordering::Relaxed);
                        }
                        Err(error) => tracing::debug!(message = error.message, "the lease was not renewed"),
                    }
                    drop(turn);
                });
            }
        }
    }
}

impl Renewer {
    /// While nobody stands on the session: so that whoever comes need not wait for three confirmations, as after a silence.
    /// A `sync` is enough for that whatever the timeout. One that a cut-off leader answers does no harm: to write to another
    /// one we have to connect again, and that one hears of us then.
    fn be_heard(&mut self) {
        let Some(keeper) = self.session.keeper() else { return };
        let Ok(turn) = self.under_way.clone().try_acquire_owned() else { return };
        let session = self.session.clone();
        let (sent, answer) = (clock::now(), keeper.sync("/"));
        self.session.tasks.spawn(async move {
            if answer.await.is_ok() {
                session.hear(sent);
            }
            drop(turn);
        });
    }
}

/// Creates the node that renewals write to. Its create is a write like any other.
async fn plant(session: &Session, keeper: Arc<dyn Keeper>, parent: &str, node: &str) -> Result<(), Failure> {
    let mut sent = clock::now();
    let mut outcome = keeper.create_ephemeral(node, b"").await;
    session.confirm_write(sent, &outcome);
    if matches!(outcome, Err(KeeperError { failure: Failure::NoNode, .. })) {
        if let Err(error) = directory::make(keeper.clone(), parent.to_owned(), false).await {
            tracing::warn!(
                message = error.message,
                path = parent,
                "cannot make the directory for lease renewals"
            );
            return Err(error.failure);
        }
        sent = clock::now();
        outcome = keeper.create_ephemeral(node, b"").await;
        session.confirm_write(sent, &outcome);
    }
    match outcome {
        // Another renewal has made it.
        Ok(()) | Err(KeeperError { failure: Failure::NodeExists, .. }) => Ok(()),
        Err(error) => {
            tracing::warn!(message = error.message, path = node, "cannot make the node for lease renewals");
            Err(error.failure)
        }
    }
}
