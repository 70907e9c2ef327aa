//! The server without sockets, clock and randomness. Its input and its output are frames.
//!
//! The socket tasks of the server drive a [`Core`]. Simulations drive a core with their own clock
//! and scheduler. The interface has no other users and may change in any release.
//!
//! Each connection has one output buffer. A commit appends its watch events to the buffers before any later reply, so
//! clients receive events and replies in order.
//!
//! * `requests.rs`: requests of connections that have a session; `sessions.rs`: sessions, from the
//!   connect request to their end.
//! * `output.rs`: output of connections; `connection.rs`: state of a connection; `report.rs`: data for four-letter words and
//!   metrics.
//! * `events.rs`: watches and their events; `deliveries.rs`: events that are not delivered yet; `event_turns.rs`: their
//!   delivery; `set_watches.rs`: watches that are set again.
//! * `work.rs`: expiry and other work in parts; `jobs.rs`: the state of work that goes on later.

mod connection;
mod deliveries;
mod event_turns;
mod events;
mod jobs;
mod output;
mod report;
mod requests;
mod sessions;
mod set_watches;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

use bytes::BytesMut;
use zoolock_wire::{Code, Identity};

use self::connection::{Conn, HandshakePhase};
use self::deliveries::Deliveries;
pub use self::jobs::Readiness;
use self::jobs::{DeliveryRound, SessionEnd};
pub use self::report::{ConnectionReport, DataWatchCounts};
pub use self::requests::ReceivedRequest;

use crate::access::Access;
use crate::commit::{Committed, commit};
use crate::expiry::ExpiryQueue;
pub use crate::ids::ConnId;
use crate::ids::{SessionId, Zxid};
use crate::state::{State, StoredSession};
use crate::tree::NodeRecord;
use crate::txn::{Change, Password, Txn};
use crate::watches::Watches;

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
    /// Maximum number of bytes queued for a connection. If more are queued when an event is added,
    /// the connection is closed.
    pub max_output: usize,
    /// Maximum number of bytes queued for all connections; 0: no limit. If more are queued, the
    /// connection with the most queued bytes is closed.
    pub max_queued: usize,
    /// Maximum number of watched paths of a connection; 0: no limit. A long path counts as several.
    /// A connection that watches more is closed.
    pub max_watches: usize,
    /// Maximum number of watched paths of all connections, counted like `max_watches`; 0: no limit. If there are more,
    /// the connection that watches the most is closed.
    pub max_total_watches: usize,
    /// Maximum number of bytes of events that are not delivered yet; 0: no limit. If there are more, the connections
    /// that have not taken the oldest events are closed.
    pub max_undelivered: usize,
    /// Approximate maximum memory of all znodes in bytes; 0: no limit. Above the limit, writes that add znodes or much
    /// data are refused.
    pub max_znode_memory: usize,
    /// Maximum number of sessions; 0: no limit. Above the limit, new sessions are refused.
    pub max_sessions: usize,
    /// Approximate maximum number of events that a turn sends at once, and of sessions, znodes and watches that one part of
    /// longer work concerns. The rest is left for [`Core::continue_work`] and [`Core::advance`]. `usize::MAX`: all is done
    /// at once.
    pub max_part: usize,
    /// Maximum number of connections; 0: no limit. A new session is refused if all free connections
    /// are reserved for sessions that own ephemerals and have no connection. At most a quarter is reserved.
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
            max_total_watches: 0,
            max_undelivered: 0,
            max_znode_memory: 0,
            max_sessions: 0,
            max_part: usize::MAX,
            max_connections: 0,
            max_connections_per_address: 0,
            extended_types: true,
            journal: false,
        }
    }
}

/// The current time on two clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Milliseconds of a monotonic clock, for the expiry of sessions.
    pub mono_ms: u64,
    /// Milliseconds since 1970, for the `ctime` and `mtime` of znodes and for their time to live.
    pub wall_ms: i64,
}

/// Random values for a new session, from the caller.
#[derive(Debug, Clone)]
pub struct SessionSeed {
    /// Random number that the session id is made from.
    pub id: u64,
    /// Session password.
    pub password: Password,
}

/// The start of a snapshot: everything but the znodes.
#[derive(Debug)]
pub struct SnapshotStart {
    /// The last transaction in the snapshot.
    pub zxid: Zxid,
    /// The live sessions.
    pub sessions: BTreeMap<SessionId, StoredSession>,
    /// The sessions that have ended and still own ephemerals.
    pub ending: BTreeSet<SessionId>,
}

/// Counts of a running server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerStats {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Open connections.
    pub connections: usize,
    /// Live sessions, with or without a connection.
    pub sessions: usize,
    /// Znodes, including the root.
    pub znodes: usize,
    /// Ephemeral znodes.
    pub ephemerals: usize,
    /// Watches: pairs of path and connection.
    pub watches: usize,
    /// Watches as ZooKeeper counts them: a data watch and a child watch on the same path count as two.
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
    /// Approximate memory of all znodes in bytes.
    pub znode_memory: usize,
    /// Watched paths of all connections. A long path counts as several.
    pub watched_paths: usize,
    /// Bytes of events that are not delivered yet.
    pub undelivered: usize,
    /// Connections that the server does not read from at present, because others are served first.
    pub waiting: usize,
    /// Connections closed because the client did not read its output or watched too many paths.
    pub cut_off: u64,
    /// New sessions refused because of a limit.
    pub refused: u64,
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
    /// Last client address of each session without a connection. The addresses are unknown after a
    /// restart.
    last_addresses: HashMap<SessionId, IpAddr>,
    /// Longest session timeout granted. [`Core::update_longest_timeout_ms`] resets it while there are no sessions.
    longest_timeout_ms: u32,
    next_conn: u64,
    woken: Vec<ConnId>,
    decided: Vec<Txn>,
    /// Number of events that the present turn may still send at once.
    sends_left: usize,
    /// The kind of work that [`Core::continue_work`] continues next.
    next_work: usize,
    /// Sessions that have ended and still own ephemerals.
    ends: VecDeque<SessionEnd>,
    /// Set if no transaction number is left for `ends`.
    ends_failed: bool,
    /// Sessions whose deadline is not after this time of the monotonic clock are to expire.
    expire_until: Option<u64>,
    /// Containers and znodes that are due at this time of the wall clock are to be removed.
    remove_until: Option<i64>,
    deliveries: Deliveries,
    round: DeliveryRound,
    /// Last transaction that changed the state. Refused writes and checks change nothing but the zxid.
    last_change: Zxid,
    /// Last transaction that wrote an access list of an existing znode.
    last_acl_change: Zxid,
    /// Counters for [`Core::stats`]. Counts that are derived from other fields are zero here.
    totals: ServerStats,
}

impl Core {
    /// Creates a core with the tree of a fresh server. Transaction numbers begin at the start of `epoch`.
    pub fn new(config: CoreConfig, epoch: u32) -> Self {
        Core::restore(config, State::new(0), epoch, Now { mono_ms: 0, wall_ms: 0 })
    }

    /// Creates a core with the state of an earlier server. Transaction numbers begin at the start of `epoch`, which
    /// must be later than the epoch of `state`. The timeout of each session starts again.
    pub fn restore(config: CoreConfig, mut state: State, epoch: u32, now: Now) -> Self {
        let mut expiry = ExpiryQueue::new(u64::from(config.tick_ms));
        for (&session, known) in &state.sessions {
            expiry.extend_session(session, known.timeout_ms, now.mono_ms);
        }
        let last_change = state.zxid;
        state.zxid = state.zxid.max(Zxid::start_of(epoch));
        let mut core = Core {
            expiry,
            sends_left: config.max_part,
            config,
            last_change,
            last_acl_change: last_change,
            state,
            watches: Watches::default(),
            conns: BTreeMap::new(),
            attached: HashMap::new(),
            last_addresses: HashMap::new(),
            longest_timeout_ms: 0,
            next_conn: 1,
            woken: Vec::new(),
            decided: Vec::new(),
            next_work: 0,
            ends: VecDeque::new(),
            ends_failed: false,
            expire_until: None,
            remove_until: None,
            deliveries: Deliveries::default(),
            round: DeliveryRound::default(),
            totals: ServerStats::default(),
        };
        core.resume_ends();
        core
    }

    /// Adds a new connection.
    pub fn add_connection(&mut self, peer: IpAddr) -> ConnId {
        self.add_authenticated_connection(peer, None)
    }

    /// Adds a new connection that has already authenticated as `identity`.
    pub fn add_authenticated_connection(&mut self, peer: IpAddr, identity: Option<Identity>) -> ConnId {
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        self.conns.insert(id, Conn::new(peer, identity));
        id
    }

    /// Removes a connection that has ended. Its session remains until the session expires. But if
    /// the session was never admitted (see [`Core::is_admitted`]), the session ends now.
    pub fn remove_connection(&mut self, conn: ConnId, now: Now) {
        self.begin_sends();
        self.end_if_never_admitted(conn, now);
        self.end_watches(conn);
        let Some(state) = self.conns.remove(&conn) else { return };
        self.totals.queued -= state.queued_bytes();
        if let HandshakePhase::Attached { session, .. } = state.phase
            && self.attached.get(&session) == Some(&conn)
        {
            self.attached.remove(&session);
            if self.state.sessions.contains_key(&session) {
                self.last_addresses.insert(session, state.peer);
            }
        }
        self.finish_work(now);
    }

    /// Stops handling input of a connection. Returns whether the connection has a session. If it
    /// has one, replies may still be pending. The caller should write them before it closes the
    /// connection.
    pub fn stop_input(&mut self, conn: ConnId) -> bool {
        self.end_waiting_reply(conn);
        self.close(conn);
        matches!(self.conns.get(&conn), Some(Conn { phase: HandshakePhase::Attached { .. }, .. }))
    }

    /// Handles one frame of a connection, without its length prefix. Calls `seed` if the frame begins a session.
    ///
    /// The connection must be [ready](Core::advance).
    pub fn receive(&mut self, conn: ConnId, frame: &[u8], now: Now, seed: impl FnOnce() -> SessionSeed) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if state.closing {
            return;
        }
        match state.phase {
            HandshakePhase::New => {
                self.record_received(conn, frame.len());
                self.handle_connect_request(conn, frame, now, seed);
            }
            HandshakePhase::Attached { .. } => {
                return self.receive_decoded(conn, ReceivedRequest::decode(frame), now);
            }
        }
        self.finish_work(now);
    }

    /// Does the same as [`Core::receive`] for a request that is decoded already. The connection must have a session.
    pub fn receive_decoded(&mut self, conn: ConnId, request: ReceivedRequest, now: Now) {
        let Some(state) = self.conns.get_mut(&conn).filter(|state| !state.closing) else { return };
        let HandshakePhase::Attached { session, timeout_ms, .. } = state.phase else { return };
        self.expiry.extend_session(session, timeout_ms, now.mono_ms);
        self.begin_sends();
        self.handle_request(conn, session, request, now);
        self.finish_work(now);
    }

    /// Ends the sessions whose timeout has passed. Call this method at [`Core::next_expiry`], or
    /// every tick.
    pub fn expire_due_sessions(&mut self, now: Now) {
        self.expire_until = Some(now.mono_ms);
        self.resume_ends();
        self.continue_work(now);
    }

    /// Returns the time, on the monotonic clock, at which the next session expires if its client sends nothing until
    /// then.
    pub fn next_expiry(&self) -> Option<u64> {
        self.expiry.next()
    }

    /// Deletes containers that had children and have none now, and childless znodes past their time to live.
    pub fn remove_empty_containers(&mut self, now: Now) {
        self.remove_until = Some(now.wall_ms);
        self.continue_work(now);
    }

    /// Records how many bytes of output the connection's task has taken and not written yet.
    pub fn set_unwritten(&mut self, conn: ConnId, unwritten: usize) {
        let Some(conn) = self.conns.get_mut(&conn).filter(|conn| !conn.cut_off) else { return };
        self.totals.queued = self.totals.queued - conn.unwritten + unwritten;
        conn.unwritten = unwritten;
    }

    /// Returns the last transaction that the output of a connection may show. The output must wait until it is on disk.
    pub fn last_shown(&self, conn: ConnId) -> Zxid {
        self.conns.get(&conn).map_or(Zxid(0), |conn| conn.shown)
    }

    /// Moves a connection's output to `out`. Returns true if the connection must be closed after this output.
    pub fn take_output(&mut self, conn: ConnId, out: &mut BytesMut) -> bool {
        let Some(conn) = self.conns.get_mut(&conn) else { return true };
        conn.woken = false;
        conn.shown = Zxid(0);
        self.totals.queued -= conn.output.len() + conn.unwritten;
        if out.is_empty() {
            std::mem::swap(out, &mut conn.output);
        } else {
            out.extend_from_slice(&conn.output);
            conn.output.clear();
        }
        conn.unwritten = if conn.cut_off { 0 } else { out.len() };
        self.totals.queued += conn.unwritten;
        conn.closing
    }

    /// Returns whether a connection has a session, and has authenticated as the server requires.
    pub fn is_admitted(&self, conn: ConnId) -> bool {
        matches!(
            self.conns.get(&conn).map(|conn| conn.phase),
            Some(HandshakePhase::Attached { admitted: true, .. })
        )
    }

    /// Returns the number of bytes queued for a connection.
    pub fn output_len(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |conn| conn.output.len())
    }

    /// Returns the decided transactions, in order. The caller removes them from the vector and
    /// writes them to the log. Refused writes and checks are not included, because they change nothing but the
    /// zxid. Output of [`Core::take_output`] may be sent only when the transactions up to [`Core::last_shown`] are on
    /// disk.
    pub fn decided_mut(&mut self) -> &mut Vec<Txn> {
        &mut self.decided
    }

    /// Begins a snapshot of all znodes as they are now. [`Core::snapshot_chunk`] returns them in chunks, unaffected by
    /// later changes.
    pub fn begin_snapshot(&mut self) -> SnapshotStart {
        self.state.tree.begin_snapshot();
        let State { sessions, ending, .. } = &self.state;
        SnapshotStart { zxid: self.last_change, sessions: sessions.clone(), ending: ending.clone() }
    }

    /// Returns the next znodes of the snapshot, or `None` at its end. The vector may be empty
    /// before the end. Visits at most `max` slots of the tree. A slot holds at most one znode.
    pub fn snapshot_chunk(&mut self, max: usize) -> Option<Vec<NodeRecord>> {
        self.state.tree.snapshot_chunk(max)
    }

    /// Abandons the snapshot.
    pub fn abandon_snapshot(&mut self) {
        self.state.tree.abandon_snapshot();
    }

    /// Returns the last transaction that was not refused. The queued replies and events show the
    /// effects of transactions up to this one, and of no others. The queued output may be sent when
    /// this transaction is on disk.
    pub fn last_change(&self) -> Zxid {
        self.last_change
    }

    /// Takes the connections that have new events or must be closed. The caller must wake the tasks
    /// of these connections.
    pub fn take_woken(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.woken)
    }

    /// Continues transaction numbers from the start of `epoch`, which must be later than the current epoch.
    pub fn start_epoch(&mut self, epoch: u32) {
        self.state.zxid = self.state.zxid.max(Zxid::start_of(epoch));
    }

    /// Returns the number of the last transaction, which may be a refused write.
    pub fn zxid(&self) -> Zxid {
        self.state.zxid
    }

    /// Returns the state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Expires a session now. Returns false if there is no such session.
    pub fn expire_session(&mut self, session: SessionId, now: Now) -> bool {
        let known = self.state.sessions.contains_key(&session);
        if known {
            self.begin_sends();
            self.end_session(session, self.config.max_part, now);
        }
        known
    }

    /// Closes all connections at once, without sending their queued output.
    pub fn disconnect_all(&mut self) {
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns {
            if let Some(state) = self.conns.get_mut(&conn) {
                self.totals.queued -= state.output.len();
                state.output.clear();
            }
            self.close(conn);
        }
    }

    /// Returns the number of live sessions, with or without a connection.
    pub fn session_count(&self) -> usize {
        self.state.sessions.len()
    }

    /// Sets the counter for the sequential children of a znode, for tests of its overflow. Returns false if there is no
    /// such znode.
    #[doc(hidden)]
    pub fn set_child_counter(&mut self, path: &str, count: i32) -> bool {
        self.state.tree.set_created_children(path, count)
    }

    /// Assigns a transaction number to a change, applies the change, and fires watches.
    fn commit_change(
        &mut self,
        session: SessionId,
        change: Change,
        now: Now,
    ) -> Result<zoolock_wire::Reply, Code> {
        let Some(zxid) = self.state.zxid.next() else {
            tracing::error!("no transaction numbers left in this epoch; refusing writes");
            return Err(Code::SystemError);
        };
        let txn = Txn { zxid, session, time: now.wall_ms, change };
        let Committed { reply, events } = commit(&txn, &mut self.state);
        let changes = match &txn.change {
            Change::Multi(changes) => changes.as_slice(),
            change => std::slice::from_ref(change),
        };
        if changes.iter().any(|change| !matches!(change, Change::Check | Change::Refused(_))) {
            self.last_change = zxid;
            if changes.iter().any(|change| matches!(change, Change::SetAcl { .. })) {
                self.last_acl_change = zxid;
            }
            if self.config.journal {
                self.decided.push(txn);
            }
        }
        self.fire_watches(events);
        reply
    }
}
