//! The whole server but its sockets, clock and randomness: frames in, frames out.
//!
//! A simulation drives this with its own clock and scheduler, exactly as the socket tasks do. The interface follows
//! the needs of those two and may change in any release.
//!
//! Order comes from there being one core: each connection has one output buffer, and an event is appended to it by
//! the very commit that causes it, before any later reply can be.
//!
//! * `requests.rs`: a request of an attached connection; `sessions.rs`: from the greeting to the end of a session.
//! * `output.rs`: what is said to a connection; `connection.rs`, `report.rs`: what is known of it, and told.

mod connection;
mod output;
mod report;
mod requests;
mod sessions;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use bytes::BytesMut;

use self::connection::{Conn, Phase};
pub use self::connection::{ConnId, Counts, Latency};
pub use self::report::{ConnectionReport, OnData, WatchReport};
use crate::access::Access;
use crate::acl::{self, Identity, perms};
use crate::code::Code;
use crate::commit::{Event, Outcome, commit};
use crate::expiry::ExpiryQueue;
use crate::ids::{SessionId, Zxid};
use crate::prepare::remove_container;
use crate::state::{Session, State};
use crate::tree::NodeRecord;
use crate::txn::{Change, Password, Txn};
use crate::watches::{Kinds, Watches};

/// What a core has to be told once.
#[derive(Debug, Clone)]
pub struct CoreConfig {
    /// The unit of session expiry, in milliseconds.
    pub tick_ms: u32,
    /// The shortest session timeout granted, in milliseconds.
    pub min_timeout_ms: u32,
    /// The longest session timeout granted, in milliseconds.
    pub max_timeout_ms: u32,
    /// Who is let in.
    pub access: Access,
    /// How many bytes may wait for a connection when an event is added, before it is cut off.
    pub max_output: usize,
    /// How many bytes may wait for all connections together, before the one with the most is cut off; 0: any number.
    pub max_queued: usize,
    /// How many paths a connection may watch before it is cut off, a long one counted as several; 0: any number.
    pub max_watches: usize,
    /// Whether znodes may have a time to live.
    pub extended_types: bool,
    /// Keep what was decided for [`Core::decided`].
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
            extended_types: true,
            journal: false,
        }
    }
}

/// The time, as two clocks tell it.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Milliseconds of a clock that never goes back; sessions expire by it.
    pub mono_ms: u64,
    /// Milliseconds since 1970; stats show it.
    pub wall_ms: i64,
}

/// Random material for one session, made by the caller.
#[derive(Debug, Clone)]
pub struct Fresh {
    /// Becomes the session id, if it is free.
    pub id: u64,
    /// Becomes the password.
    pub password: Password,
}

/// Counts of a running server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Frames received.
    pub received: u64,
    /// Frames sent.
    pub sent: u64,
    /// Connections now open.
    pub connections: usize,
    /// Sessions now alive, attached or not.
    pub sessions: usize,
    /// Znodes, the root included.
    pub znodes: usize,
    /// Those of them that go with their session.
    pub ephemerals: usize,
    /// Watches: pairs of path and connection.
    pub watches: usize,
    /// Watches as ZooKeeper counts them: one on a path's data and one on its children are two.
    pub watch_sides: usize,
    /// The last transaction.
    pub zxid: i64,
    /// Bytes of frames received.
    pub bytes_received: u64,
    /// Bytes of frames sent.
    pub bytes_sent: u64,
    /// Bytes that wait to be written, on all connections.
    pub queued: usize,
    /// Authentications refused.
    pub auth_failures: u64,
    /// Sessions that expired.
    pub expired: u64,
    /// Connections closed because they did not read, or watched too much.
    pub cut_off: u64,
}

/// The server without its input and output.
#[derive(Debug)]
pub struct Core {
    config: CoreConfig,
    state: State,
    watches: Watches,
    expiry: ExpiryQueue,
    conns: BTreeMap<ConnId, Conn>,
    attached: HashMap<SessionId, ConnId>,
    /// The longest timeout of a session since there was none.
    longest_ms: u32,
    next_conn: u64,
    woken: Vec<ConnId>,
    decided: Vec<Txn>,
    /// The last transaction that changed anything.
    last_change: Zxid,
    received: u64,
    sent: u64,
    auth_failures: u64,
    bytes_received: u64,
    bytes_sent: u64,
    expired: u64,
    cut_off: u64,
    /// What waits for all connections.
    queued: usize,
}

impl Core {
    /// Starts with an empty tree, numbering from the start of `epoch`.
    pub fn new(config: CoreConfig, epoch: u32) -> Self {
        Core::restore(config, State::new(0), epoch, Now { mono_ms: 0, wall_ms: 0 })
    }

    /// Goes on with what an earlier server left, numbering from the start of `epoch`, which must be a later one.
    /// Each session has its whole timeout from now on.
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
            longest_ms: 0,
            next_conn: 1,
            woken: Vec::new(),
            decided: Vec::new(),
            received: 0,
            sent: 0,
            auth_failures: 0,
            bytes_received: 0,
            bytes_sent: 0,
            expired: 0,
            cut_off: 0,
            queued: 0,
        }
    }

    /// Takes a new connection.
    pub fn open(&mut self, peer: IpAddr) -> ConnId {
        self.open_as(peer, None)
    }

    /// Takes a new connection of somebody who has proven to be `who` already.
    pub fn open_as(&mut self, peer: IpAddr, who: Option<Identity>) -> ConnId {
        let id = ConnId(self.next_conn);
        self.next_conn += 1;
        self.conns.insert(id, Conn::new(peer, who));
        id
    }

    /// Forgets a connection that ended; its session lives on until it expires, unless it never was let in.
    pub fn closed(&mut self, conn: ConnId, now: Now) {
        self.end_if_never_admitted(conn, now);
        self.watches.forget(conn);
        let Some(state) = self.conns.remove(&conn) else { return };
        self.queued -= state.output.len() + state.unwritten;
        if let Phase::Attached { session, .. } = state.phase
            && self.attached.get(&session) == Some(&conn)
        {
            self.attached.remove(&session);
        }
    }

    /// Takes nothing more from a connection; false when it has no session, and no answer to wait for.
    pub fn finish(&mut self, conn: ConnId) -> bool {
        self.close(conn);
        matches!(self.conns.get(&conn), Some(Conn { phase: Phase::Attached { .. }, .. }))
    }

    /// Takes one frame of a connection, without its length.
    pub fn receive(&mut self, conn: ConnId, frame: &[u8], now: Now, fresh: impl FnOnce() -> Fresh) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if state.closing {
            return;
        }
        self.received += 1;
        self.bytes_received += frame.len() as u64 + 4;
        state.counts.received += 1;
        match state.phase {
            Phase::New => self.connect(conn, frame, now, fresh),
            Phase::Attached { session, timeout_ms, .. } => {
                state.counts.note(frame, now.mono_ms);
                self.expiry.touch(session, timeout_ms, now.mono_ms);
                self.request(conn, session, frame, now);
            }
        }
    }

    /// Lets time pass: expires sessions. Call it at [`Core::next_expiry`], or every tick.
    pub fn tick(&mut self, now: Now) {
        for session in self.expiry.expired(now.mono_ms) {
            tracing::info!(%session, "session expired");
            self.expired += 1;
            self.end_session(session, now);
        }
    }

    /// When the next session expires unless it is heard of, on the monotonic clock.
    pub fn next_expiry(&self) -> Option<u64> {
        self.expiry.next()
    }

    /// Deletes the containers that had a child and have none now, and the znodes that outlived their time.
    pub fn remove_empty_containers(&mut self, now: Now) {
        for path in self.state.tree.expired(now.wall_ms) {
            if let Some(change) = remove_container(&self.state, &path) {
                let _ = self.execute(SessionId::SERVER, change, now);
            }
        }
    }

    /// Moves a connection's output to `out`; true when nothing follows and the connection must be closed.
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

    /// Whether a connection has a session, and presented the secret if there is one.
    pub fn admitted(&self, conn: ConnId) -> bool {
        matches!(self.conns.get(&conn).map(|conn| conn.phase), Some(Phase::Attached { admitted: true, .. }))
    }

    /// How much output waits for a connection.
    pub fn output_len(&self, conn: ConnId) -> usize {
        self.conns.get(&conn).map_or(0, |conn| conn.output.len())
    }

    /// What was decided and not yet taken from here, in order: what a log has to keep. Refusals change nothing and
    /// are not among it. What [`Core::take_output`] gives may be sent when all of it is kept.
    pub fn decided(&mut self) -> &mut Vec<Txn> {
        &mut self.decided
    }

    /// Begins a snapshot of all znodes as they are now; [`Core::snapshot_chunk`] gives them a few at a time, whatever
    /// is changed meanwhile. Returns the last transaction in it, and the sessions.
    pub fn begin_snapshot(&mut self) -> (Zxid, BTreeMap<SessionId, Session>) {
        self.state.tree.begin_snapshot();
        (self.last_change, self.state.sessions.clone())
    }

    /// Some more of the znodes, perhaps none this time; `None` when there are no more.
    pub fn snapshot_chunk(&mut self, max: usize) -> Option<Vec<NodeRecord>> {
        self.state.tree.snapshot_chunk(max)
    }

    /// Gives the snapshot up.
    pub fn abandon_snapshot(&mut self) {
        self.state.tree.abandon_snapshot();
    }

    /// The last transaction that changed anything; whatever is answered shows its effects at most.
    pub fn last_change(&self) -> Zxid {
        self.last_change
    }

    /// Takes the connections that got output, or must be closed, through somebody else's doing.
    pub fn take_woken(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.woken)
    }

    /// Continues numbering from the start of `epoch`, which must be a later one.
    pub fn start_epoch(&mut self, epoch: u32) {
        self.state.zxid = self.state.zxid.max(Zxid::start_of(epoch));
    }

    /// The last transaction.
    pub fn zxid(&self) -> Zxid {
        self.state.zxid
    }

    /// The state, to look at.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Expires a session now; false where there is none.
    pub fn expire(&mut self, session: SessionId, now: Now) -> bool {
        let known = self.state.sessions.contains_key(&session);
        if known {
            self.end_session(session, now);
        }
        known
    }

    /// Ends all connections where they stand; what waits for them is not sent.
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

    /// How many sessions are alive, attached or not.
    pub fn session_count(&self) -> usize {
        self.state.sessions.len()
    }

    /// Sets a directory's count of creations, for tests of its end; false where there is no such directory.
    #[doc(hidden)]
    pub fn set_child_counter(&mut self, path: &str, count: i32) -> bool {
        self.state.tree.set_created(path, count)
    }

    /// Numbers a change, makes it, and tells the watchers.
    fn execute(&mut self, session: SessionId, change: Change, now: Now) -> Result<crate::wire::Reply, Code> {
        let Some(zxid) = self.state.zxid.next() else {
            tracing::error!("this epoch has no transaction numbers left, refusing to write");
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

    /// A watch of one shot is used up by an event that its owner may not hear of, as in ZooKeeper.
    fn fire(&mut self, event: &Event) {
        for conn in self.watches.fire(event.kind, &event.path) {
            if acl::check(&event.acl, perms::READ, self.identities(conn)).is_ok() {
                self.send_event(conn, event.kind, &event.path);
            }
        }
    }

    fn add_watch(&mut self, path: &str, conn: ConnId, kinds: Kinds) {
        let max = self.config.max_watches;
        self.watches.add(path, conn, kinds);
        if max != 0 && self.watches.cost(conn) > max {
            tracing::warn!(%conn, max, "too many watches, closing");
            self.watches.forget(conn);
            self.cut_off(conn);
        }
    }

    fn identities(&self, conn: ConnId) -> &[Identity] {
        self.conns.get(&conn).map_or(&[], |conn| &conn.identities)
    }
}
