//! One live session: its lease, its renewal, and its acquisitions.

mod connection;
mod lease;
pub(crate) mod member;
pub(crate) mod pool;
mod renewal;
mod run;
mod strays;
pub(crate) mod subscription;
pub(crate) mod tick;
pub(crate) mod znode_owner;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use zoolock_core::acquisition::SessionEnd;
use zoolock_core::lease::Lease;
use zoolock_core::{ContenderId, Event, SessionId, Zxid};

use crate::base::metrics;
use crate::base::path::LockPath;
use crate::base::sync::lock;
use crate::base::tasks::Tasks;
use crate::base::telemetry::log_event;
use crate::zk::session::{ConnectionState, ZkSession};
pub use connection::{Connection, ConnectionChanges};
use member::SessionAcquisition;
use strays::StraySearch;
use tick::ServerTick;

/// Maximum total size of the paths watched on one session, in bytes. At the end of a session, the
/// server deletes all znodes of the session in one transaction. The transaction contains the paths
/// of these znodes, and must stay below 1 MB.
pub(crate) const WATCHED_BYTES: usize = 100 * 1024;

/// Value of [`LockSession::watched`] while a spare session is being closed. With this value, every
/// further reservation fails, because it would exceed [`WATCHED_BYTES`].
const CLOSING: usize = usize::MAX / 2;

pub(crate) struct LockSession {
    id: SessionId,
    tick: Arc<ServerTick>,
    zk: RwLock<Option<Arc<ZkSession>>>,
    tasks: Tasks,
    lease: Mutex<Lease>,
    /// The time at which the lease ends, in the nanoseconds of an
    /// [`Instant`](zoolock_core::Instant). Zero if there is no lease: before the first confirmation, and after a long rest.
    /// An atomic, because every call of `Held::is_valid` reads it.
    valid_until: AtomicU64,
    lease_moved: Notify,
    /// Notified if a write is due because the lease is in use again.
    renewal_due: Notify,
    connection: watch::Sender<Connection>,
    connection_state: watch::Receiver<ConnectionState>,
    end: Mutex<Option<SessionEnd>>,
    acquisitions: Mutex<BTreeMap<ContenderId, Registration>>,
    /// The znodes of the acquisitions: the czxid, the acquisition, and the index of the directory in the acquisition.
    nodes: Mutex<BTreeSet<(Zxid, ContenderId, usize)>>,
    strays: StraySearch,
    watched: AtomicUsize,
    /// Set if the session was opened because the other sessions had too little capacity left for
    /// watches. Such a session is closed after it has been idle for a while.
    is_spare: bool,
}

/// An acquisition, and the znodes that it created: the czxid, and the index of the directory in the acquisition.
struct Registration {
    acquisition: Arc<dyn SessionAcquisition>,
    nodes: Vec<(Zxid, usize)>,
}

/// Reserved capacity for watches on a session. Dropping the reservation frees the capacity.
pub(crate) struct WatchReservation {
    session: Arc<LockSession>,
    bytes: usize,
}

impl WatchReservation {
    /// Makes the guard of a reservation that was already made on this session.
    pub(crate) fn of(session: Arc<LockSession>, bytes: usize) -> WatchReservation {
        WatchReservation { session, bytes }
    }

    pub(crate) fn session(&self) -> &Arc<LockSession> {
        &self.session
    }

    /// Ends this guard without freeing the capacity, and returns the number of reserved bytes. The
    /// caller passes this number to an acquisition, which frees the capacity when the acquisition
    /// ends.
    pub(crate) fn hand_over(mut self) -> usize {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for WatchReservation {
    fn drop(&mut self) {
        self.session.unreserve(self.bytes);
    }
}

impl LockSession {
    pub(crate) fn id(&self) -> SessionId {
        self.id
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

    pub(crate) fn connection_changes(&self) -> ConnectionChanges {
        ConnectionChanges::new(self.connection())
    }

    /// Returns whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        *self.connection_state.borrow() == ConnectionState::Up
    }

    /// Returns the shortest session timeout that a server granted.
    pub(crate) fn timeout(&self) -> Duration {
        lock(&self.lease).timeout()
    }

    // ---- its acquisitions ----

    /// Reserves capacity for the watches of one acquisition. Returns `false` if too little capacity
    /// is left, or the session has ended.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        // The first reservation is always granted, because a single path can be longer than the
        // limit.
        let fits =
            |used: usize| (used == 0 || used.saturating_add(bytes) <= WATCHED_BYTES).then_some(used + bytes);
        self.end().is_none() && self.watched.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    /// Reserves capacity, even above the limit, for an acquisition that must use this session.
    pub(crate) fn reserve_anyway(&self, bytes: usize) {
        self.watched.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives back a reservation that no acquisition has taken over.
    fn unreserve(&self, bytes: usize) {
        self.watched.fetch_sub(bytes, Ordering::AcqRel);
    }

    pub(crate) fn register(&self, acquisition: Arc<dyn SessionAcquisition>) {
        let id = acquisition.id();
        lock(&self.acquisitions).insert(id, Registration { acquisition, nodes: Vec::new() });
    }

    /// Removes an acquisition that has ended, and frees its `reserved` bytes.
    pub(crate) fn unregister(&self, id: ContenderId, reserved: usize) {
        let left = lock(&self.acquisitions).remove(&id);
        if let Some(Registration { nodes: created, .. }) = &left {
            let nodes = &mut *lock(&self.nodes);
            for (node, lock_index) in created {
                nodes.remove(&(*node, id, *lock_index));
            }
        }
        self.watched.fetch_sub(reserved, Ordering::AcqRel);
    }

    /// Records that an acquisition has a znode with this czxid in one of its directories. The znodes of one transaction
    /// have the same czxid, and may belong to different acquisitions: a search takes a znode with unreadable data, if no
    /// other acquisition in its directory can have created it.
    pub(crate) fn register_node(&self, node: Zxid, lock_index: usize, id: ContenderId) {
        // An acquisition that has ended is no longer registered. Its znodes are deleted, so there
        // is nothing to record.
        if let Some(registration) = lock(&self.acquisitions).get_mut(&id) {
            registration.nodes.push((node, lock_index));
            lock(&self.nodes).insert((node, id, lock_index));
        }
    }

    /// Returns the acquisition that has the znode with this czxid in a directory.
    pub(crate) fn acquisition_of_node(&self, node: Zxid, directory: &LockPath) -> Option<ContenderId> {
        let acquisitions = lock(&self.acquisitions);
        let nodes = lock(&self.nodes);
        let is_in_directory = |id: &ContenderId, lock_index: usize| {
            let registration = acquisitions.get(id);
            registration.and_then(|it| it.acquisition.directories().get(lock_index)) == Some(directory)
        };
        let of_transaction =
            nodes.range((node, ContenderId(0), 0)..).take_while(|(czxid, ..)| *czxid == node);
        let mut owners = of_transaction.filter(|(_, id, lock_index)| is_in_directory(id, *lock_index));
        owners.next().map(|(_, id, _)| *id)
    }

    /// Returns whether an acquisition has a znode with this czxid in any directory.
    pub(crate) fn has_node(&self, id: ContenderId, node: Zxid) -> bool {
        lock(&self.nodes).range((node, id, 0)..=(node, id, usize::MAX)).next().is_some()
    }

    /// Returns the acquisition with this id, unless it has ended.
    fn member(&self, id: ContenderId) -> Option<Arc<dyn SessionAcquisition>> {
        lock(&self.acquisitions).get(&id).map(|registration| registration.acquisition.clone())
    }

    /// Returns the ids of the acquisitions that have not ended.
    pub(crate) fn acquisition_ids(&self) -> Vec<ContenderId> {
        lock(&self.acquisitions).keys().copied().collect()
    }

    pub(crate) fn acquisitions(&self) -> Vec<Arc<dyn SessionAcquisition>> {
        lock(&self.acquisitions).values().map(|registration| registration.acquisition.clone()).collect()
    }

    /// Returns the acquisitions in one of these directories.
    pub(crate) fn acquisitions_in(&self, directories: &[LockPath]) -> Vec<Arc<dyn SessionAcquisition>> {
        let is_in = |acquisition: &&Arc<dyn SessionAcquisition>| {
            acquisition.directories().iter().any(|directory| directories.contains(directory))
        };
        // An acquisition locks its own state first and this list second. Locking the state of an
        // acquisition here would be the opposite order, and could deadlock.
        let acquisitions = lock(&self.acquisitions);
        acquisitions.values().map(|registration| &registration.acquisition).filter(is_in).cloned().collect()
    }

    /// Closes this session if it is a spare session that no acquisition uses. Returns whether the
    /// session was closed. New acquisitions get another session.
    fn close_if_unused(&self) -> bool {
        let unused = self.is_spare
            && self.is_idle()
            && self.watched.compare_exchange(0, CLOSING, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if unused {
            self.end_session(SessionEnd::Closed);
        }
        unused
    }

    fn is_idle(&self) -> bool {
        lock(&self.acquisitions).is_empty()
    }

    fn has_znode(&self) -> bool {
        lock(&self.acquisitions).values().any(|registration| !registration.nodes.is_empty())
    }

    pub(crate) fn tell_all(&self, event: &Event) {
        for acquisition in self.acquisitions() {
            acquisition.tell(event.clone());
        }
    }

    // ---- the end ----

    /// Waits for the releases in progress.
    pub(crate) async fn wait_for_releases(&self) {
        for acquisition in self.acquisitions() {
            if acquisition.is_leaving() {
                acquisition.wait_until_ended().await;
            }
        }
    }

    /// Closes the session. The server then deletes all znodes of the session. Waits for the
    /// server's answer, but at most for `max_wait`.
    pub(crate) async fn close(&self, max_wait: Duration) {
        // The acquisitions must end first. Otherwise the holders would report that another client
        // has deleted their znodes.
        let server = self.zk().and_then(|zk| zk.server()).map(|server| server.to_string());
        self.end_session(SessionEnd::Closed);
        let mut connection_state = self.connection_state.clone();
        let closed = async {
            while !matches!(*connection_state.borrow(), ConnectionState::Ended(_))
                && connection_state.changed().await.is_ok()
            {}
        };
        if tokio::time::timeout(max_wait, closed).await.is_err() {
            log_event!(
                WARN,
                server,
                "the server did not confirm the end of a session; its locks are freed when it expires"
            );
        }
    }

    /// Ends the session, and reports it to all its acquisitions.
    pub(crate) fn end_session(&self, end: SessionEnd) {
        {
            let mut known = lock(&self.end);
            if known.is_some() {
                return;
            }
            *known = Some(end);
        }
        metrics::count_ended_session(end);
        self.connection.send_replace(Connection::Ended);
        // Every holder must learn of the end before the ZooKeeper session is dropped. Dropping the
        // session closes it. The server then deletes the session's znodes, and other clients can
        // acquire the locks.
        self.tell_all(&Event::SessionOver(end));
        self.zk.write().unwrap_or_else(PoisonError::into_inner).take();
    }
}
