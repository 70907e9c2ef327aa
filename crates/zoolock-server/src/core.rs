//! The server without sockets, clock and randomness: frames in, frames out.
//!
//! The socket tasks drive it, and so do simulations, with their own clock and scheduler. The interface serves these two
//! and may change in any release.
//!
//! A single core guarantees order: each connection has one output buffer, and a commit appends its events to it before
//! any later reply.
//!
//! * `requests.rs`: requests of attached connections; `sessions.rs`: sessions, from the greeting to their end.
//! * `output.rs`: output of connections; `connection.rs`: their state; `report.rs`: reports on it.

mod connection;
mod output;
mod report;
mod requests;
mod sessions;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use bytes::BytesMut;
use zoolock_wire::{Code, Identity, perms};

use self::connection::{Conn, Phase};
pub use self::connection::{Counts, Latency};
pub use self::report::{ConnectionReport, DataWatchCounts, WatchReport};
use crate::access::Access;
use crate::acl;
use crate::commit::{Event, Outcome, commit};
use crate::expiry::ExpiryQueue;
pub use crate::ids::ConnId;
use crate::ids::{SessionId, Zxid};
use crate::prepare::remove_container;
use crate::state::{Session, State};
use crate::tree::NodeRecord;
use crate::txn::{Change, Password, Txn};
use crate::watches::{WatchKinds, Watches};

/// Configuration of a core.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// The unit of session expiry, in milliseconds.
    pub tick_ms: u32,
    /// The shortest session timeout granted, in milliseconds.
    pub min_timeout_ms: u32,
    /// The longest session timeout granted, in milliseconds.
    pub max_timeout_ms: u32,
    /// Access control.
    pub access: Access,
    /// Maximum number of bytes queued for a connection when an event is added. Above it the connection is closed.
    pub max_output: usize,
    /// Maximum number of bytes queued for all connections; 0: no limit. Above it the connection with the most is
    /// closed.
    pub max_queued: usize,
    /// Maximum number of watched paths of a connection; 0: no limit. A long path counts as several. Above it the
    /// connection is closed.
    pub max_watches: usize,
    /// Maximum number of connections; 0: no limit. A new session is refused if holders that may reconnect need the
    /// rest.
    pub max_connections: usize,
    /// Maximum number of connections per client address; 0: no limit.
    pub max_connections_per_address: usize,
    /// Set if znodes may have a time to live.
    pub extended_types: bool,
    /// Set if decided transactions are kept for [`Core::decided_mut`].
    pub journal: bool,
}

/// Ticks of 2 s, timeouts of 2 to 20 ticks, no access control, no limits and no journal.
impl Default for CoreConfig {
    fn default() -> Self {
        CoreConfig {
            tick_ms: 2000,
            min_timeout_ms: 4000,
            max_timeout_ms: 40_000,
            access: Access::default(),
            max_output: usize::MAX,
            max_queued: 0,
            max_watches: 0,
            max_connections: 0,
            max_connections_per_address: 0,
            extended_types: true,
            journal: false,
        }
    }
}

/// The time, by two clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Milliseconds of a monotonic clock, for the expiry of sessions.
    pub mono_ms: u64,
    /// Milliseconds since 1970, for stats.
    pub wall_ms: i64,
}

/// Random values for a new session, from the caller.
#[derive(Debug, Clone)]
pub struct SessionSeed {
    /// Session id, if it is not in use.
    pub id: u64,
    /// Session password.
    pub password: Password,
}

/// Counts of a running server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Open connections.
    pub connections: usize,
    /// Live sessions, attached or not.
    pub sessions: usize,
    /// Znodes, including the root.
    pub znodes: usize,
    /// Ephemeral znodes.
    pub ephemerals: usize,
    /// Watches: pairs of path and connection.
    pub watches: usize,
    /// Watches as ZooKeeper counts them: watches on the data and on the children of a path are two.
    pub watch_sides: usize,
    /// Number of the last transaction.
    pub zxid: i64,
    /// Bytes of frames received.
    pub bytes_received: u64,
    /// Bytes of frames sent.
    pub bytes_sent: u64,
    /// Bytes queued for output, on all connections.
    pub queued: usize,
    /// Authentications refused.
    pub auth_failures: u64,
    /// Sessions that expired.
    pub expired: u64,
    /// Connections closed because they did not read, or watched too much.
    pub cut_off: u64,
}

/// The server without input and output.
#[derive(Debug)]
pub struct Core {
    config: CoreConfig,
    state: State,
    watches: Watches,
    expiry: ExpiryQueue,
    conns: BTreeMap<ConnId, Conn>,
    attached: HashMap<SessionId, ConnId>,
    /// Last client address of each session that is not attached. Unknown after a restart.
    last_addresses: HashMap<SessionId, IpAddr>,
    /// Longest session timeout since the last time without sessions.
    longest_timeout_ms: u32,
    next_conn: u64,
    woken: Vec<ConnId>,
    decided: Vec<Txn>,
    /// Last transaction that changed the state.
    last_change: Zxid,
    received: u64,
    sent: u64,
    auth_failures: u64,
    bytes_received: u64,
    bytes_sent: u64,
    expired: u64,
    connections_cut_off: u64,
    /// Bytes queued for all connections.
    queued: usize,
}

impl Core {
    /// Creates a core with an empty tree, whose transaction numbers begin at the start of `epoch`.
    pub fn new(config: CoreConfig, epoch: u32) -> Self {
        Core::restore(config, State::new(0), epoch, Now { mono_ms: 0, wall_ms: 0 })
    }

    /// Creates a core with the state of an earlier server. Transaction numbers begin at the start of `epoch`, which
    /// must be a later one. The timeout of each session starts anew.
    pub fn restore(config: CoreConfig, mut state: State, epoch: u32, now: Now) -> Self {
        let mut expiry = ExpiryQueue::new(u64::from(config.tick_ms));
        for (&session, known) in &state.sessions {
            expiry.touch(session, known.timeout_ms, now.mono_ms);
        }
        let last_change = state.zxid;
        state.zxid = state.zxid.max(Zxid::start_of(epoch));
        Core {
            expiry,
            config,
            last_change,
            state,
            watches: Watches::default(),
            conns: BTreeMap::new(),
            attached: HashMap::new(),
            last_addresses: HashMap::new(),
            longest_timeout_ms: 0,
            next_conn: 1,
            woken: Vec::new(),
            decided: Vec::new(),
            received: 0,
            sent: 0,
            auth_failures: 0,
            bytes_received: 0,
            bytes_sent: 0,
            expired: 0,
            connections_cut_off: 0,
            queued: 0,
        }
    }

    /// Adds a new connection.
    pub fn open(&mut self, peer: IpAddr) -> ConnId {
        self.open_as(peer, None)
    }

    /// Adds a new connection that has already authenticated as `identity`.
    pub fn open_as(&mut self, peer: IpAddr, identity: Option<Identity>) -> ConnId {
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        self.conns.insert(id, Conn::new(peer, identity));
        id
    }

    /// Removes a connection that has ended. Its session stays until it expires, but ends now if it was never admitted.
    pub fn remove_connection(&mut self, conn: ConnId, now: Now) {
        self.end_if_never_admitted(conn, now);
        self.watches.forget(conn);
        let Some(state) = self.conns.remove(&conn) else { return };
        self.queued -= state.output.len() + state.unwritten;
        if let Phase::Attached { session, .. } = state.phase
            && self.attached.get(&session) == Some(&conn)
        {
            self.attached.remove(&session);
            if self.state.sessions.contains_key(&session) {
                self.last_addresses.insert(session, state.peer);
            }
        }
    }

    /// Stops handling input of a connection. Returns false if it has no session, and so no answer to wait for.
    pub fn stop_input(&mut self, conn: ConnId) -> bool {
        self.close(conn);
        matches!(self.conns.get(&conn), Some(Conn { phase: Phase::Attached { .. }, .. }))
    }

    /// Handles one frame of a connection, without its length.
    pub fn receive(&mut self, conn: ConnId, frame: &[u8], now: Now, seed: impl FnOnce() -> SessionSeed) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if state.closing {
            return;
        }
        self.received += 1;
        self.bytes_received += frame.len() as u64 + 4;
        state.counts.received += 1;
        match state.phase {
            Phase::New => self.connect(conn, frame, now, seed),
            Phase::Attached { session, timeout_ms, .. } => {
                state.counts.record_request(frame, now.mono_ms);
                self.expiry.touch(session, timeout_ms, now.mono_ms);
                self.request(conn, session, frame, now);
            }
        }
    }

    /// Expires sessions. Call it at [`Core::next_expiry`], or every tick.
    pub fn tick(&mut self, now: Now) {
        for session in self.expiry.expired(now.mono_ms) {
            tracing::info!(%session, "session expired");
            self.expired += 1;
            self.end_session(session, now);
        }
    }

    /// Returns the time at which the next session expires unless its client is heard, on the monotonic clock.
    pub fn next_expiry(&self) -> Option<u64> {
        self.expiry.next()
    }

    /// Deletes containers that had children and have none now, and znodes past their time to live.
    pub fn remove_empty_containers(&mut self, now: Now) {
        for path in self.state.tree.expired(now.wall_ms) {
            if let Some(change) = remove_container(&self.state, &path) {
                let _ = self.execute(SessionId::SERVER, change, now);
            }
        }
    }

    /// Moves a connection's output to `out`. Returns true if the connection must be closed after it.
    pub fn take_output(&mut self, conn: ConnId, out: &mut BytesMut) -> bool {
        let Some(conn) = self.conns.get_mut(&conn) else { return true };
        conn.woken = false;
        self.queued -= conn.output.len() + conn.unwritten;
        if out.is_empty() {
            std::mem::swap(out, &mut conn.output);
        } else {
            out.extend_from_slice(&conn.output);
            conn.output.clear();
        }
        conn.unwritten = out.len();
        self.queued += conn.unwritten;
        conn.closing
    }

    /// Returns whether a connection has a session, and has presented the secret if there is one.
    pub fn admitted(&self, conn: ConnId) -> bool {
        matches!(self.conns.get(&conn).map(|conn| conn.phase), Some(Phase::Attached { admitted: true, .. }))
    }

    /// Returns the number of bytes queued for a connection.
    pub fn output_len(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |conn| conn.output.len())
    }

    /// Returns the decided transactions that were not taken yet, in order, for the log. Refusals are not included
    /// because they change nothing. Output of [`Core::take_output`] may be sent when all of these transactions are on
    /// disk.
    pub fn decided_mut(&mut self) -> &mut Vec<Txn> {
        &mut self.decided
    }

    /// Begins a snapshot of all znodes as they are now. [`Core::snapshot_chunk`] returns them in chunks, unaffected by
    /// later changes. Returns the last transaction in the snapshot, and the sessions.
    pub fn begin_snapshot(&mut self) -> (Zxid, BTreeMap<SessionId, Session>) {
        self.state.tree.begin_snapshot();
        (self.last_change, self.state.sessions.clone())
    }

    /// Returns the next znodes of the snapshot, possibly none, or `None` at its end.
    pub fn snapshot_chunk(&mut self, max: usize) -> Option<Vec<NodeRecord>> {
        self.state.tree.snapshot_chunk(max)
    }

    /// Abandons the snapshot.
    pub fn abandon_snapshot(&mut self) {
        self.state.tree.abandon_snapshot();
    }

    /// Returns the last transaction that changed the state. No answer shows the effects of a later one.
    pub fn last_change(&self) -> Zxid {
        self.last_change
    }

    /// Takes the connections that got output, or must be closed, because of another connection or of time.
    pub fn take_woken(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.woken)
    }

    /// Continues transaction numbers from the start of `epoch`, which must be a later one.
    pub fn start_epoch(&mut self, epoch: u32) {
        self.state.zxid = self.state.zxid.max(Zxid::start_of(epoch));
    }

    /// Returns the number of the last transaction.
    pub fn zxid(&self) -> Zxid {
        self.state.zxid
    }

    /// Returns the state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Expires a session now. Returns false if there is none.
    pub fn expire(&mut self, session: SessionId, now: Now) -> bool {
        let known = self.state.sessions.contains_key(&session);
        if known {
            self.end_session(session, now);
        }
        known
    }

    /// Closes all connections at once, without their queued output.
    pub fn disconnect_all(&mut self) {
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns {
            if let Some(state) = self.conns.get_mut(&conn) {
                self.queued -= state.output.len();
                state.output.clear();
            }
            self.close(conn);
        }
    }

    /// Returns the number of live sessions, attached or not.
    pub fn session_count(&self) -> usize {
        self.state.sessions.len()
    }

    /// Sets the sequence counter of a directory, for tests of its overflow. Returns false if there is no such
    /// directory.
    #[doc(hidden)]
    pub fn set_child_counter(&mut self, path: &str, count: i32) -> bool {
        self.state.tree.set_created(path, count)
    }

    /// Assigns a number to a change, applies it, and fires watches.
    fn execute(&mut self, session: SessionId, change: Change, now: Now) -> Result<zoolock_wire::Reply, Code> {
        let Some(zxid) = self.state.zxid.next() else {
            tracing::error!("no transaction numbers left in this epoch; refusing writes");
            return Err(Code::SystemError);
        };
        let txn = Txn { zxid, session, time: now.wall_ms, change };
        let Outcome { reply, events } = commit(&txn, &mut self.state);
        for event in &events {
            self.fire(event);
        }
        if !matches!(txn.change, Change::Refused(_)) {
            self.last_change = zxid;
            if self.config.journal {
                self.decided.push(txn);
            }
        }
        reply
    }

    /// Fires the watches of an event. A one-shot watch is used up even if its client may not see the event, as in
    /// ZooKeeper.
    fn fire(&mut self, event: &Event) {
        for conn in self.watches.fire(event.kind, &event.path) {
            if acl::check(&event.acl, perms::READ, self.identities(conn)).is_ok() {
                self.send_event(conn, event.kind, &event.path);
            }
        }
    }

    fn add_watch(&mut self, path: &str, conn: ConnId, kinds: WatchKinds) {
        let max = self.config.max_watches;
        self.watches.add(path, conn, kinds);
        if max != 0 && self.watches.cost(conn) > max {
            tracing::warn!(%conn, max, "too many watches; closing the connection");
            self.watches.forget(conn);
            self.cut_off(conn);
        }
    }

    fn identities(&self, conn: ConnId) -> &[Identity] {
        self.conns.get(&conn).map_or(&[], |conn| &conn.identities)
    }
}
