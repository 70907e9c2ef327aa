//! The ensemble: a leader, and servers that receive its decisions late.
//!
//! The leader decides each write against its state, with the `prepare` of the real server, and adds the decision to a
//! log. Each server applies the log to its own state, entry by entry, some time later. It answers reads and fires
//! watches from that state. So a server shows a consistent prefix of the decisions, which may be old.

use std::collections::{BTreeMap, BTreeSet};

use zoolock_server::txn::{Change, Password, Txn};
use zoolock_server::{Client, Requester, SessionId, State, Zxid, commit, prepare, query};
use zoolock_wire::{Code, EventKind, Identity, OpResult, Reply, Request};

/// The tick in milliseconds.
pub(crate) const TICK: u64 = 2000;
/// The number of ticks after which a server that is cut off from the leader gives up.
pub(crate) const SYNC_LIMIT: u64 = 5;

/// The origin of a request: server, connection and xid.
pub(crate) type RequestOrigin = (usize, u64, i32);

/// A server since its last restart: its number and its `life`. After a restart, the leader takes it for another server.
pub(crate) type Follower = (usize, u64);

/// The leader.
pub(crate) struct Leader {
    pub(crate) state: State,
    pub(crate) log: Vec<LogEntry>,
    pub(crate) sessions: BTreeMap<i64, LeaderSession>,
    /// The time at which the last election ends. Until then there is no leader.
    pub(crate) elected_at: u64,
    /// The leader does nothing until this time.
    pub(crate) stalled_until: u64,
    epoch: u32,
    client: Client,
}

/// A decision, and the request that led to it.
pub(crate) struct LogEntry {
    pub(crate) txn: Txn,
    pub(crate) from: Option<RequestOrigin>,
    /// Set if the request opened a session.
    pub(crate) greeting: bool,
}

/// A session, as the leader knows it.
pub(crate) struct LeaderSession {
    /// The timeout that was granted when the session was created. A new leader counts with this
    /// timeout.
    pub(crate) timeout: u64,
    deadline: u64,
    /// The server that owns the session. An attach sets the owner, even if the client has given up that connection
    /// meanwhile. If there is no owner, the first write sets it. Writes by other servers are refused.
    /// (`SessionTrackerImpl.setOwner`, `checkSession`)
    owner: Option<Follower>,
    /// The newest connection on which the session wrote, and its server. A server passes on the writes of its connections
    /// in order, so the leader gets no write of an older connection to the same server.
    newest: (usize, u64),
}

/// The leader's answer to a write.
pub(crate) enum WriteOutcome {
    Logged,
    /// The session does not exist.
    Expired,
    /// Another server owns the session.
    Moved,
}

impl Leader {
    pub(crate) fn new() -> Leader {
        let state = State::new(1);
        Leader {
            state,
            log: Vec::new(),
            sessions: BTreeMap::new(),
            elected_at: 0,
            stalled_until: 0,
            epoch: 1,
            client: Client::new(vec![Identity::new("ip", "127.0.0.1")]),
        }
    }

    pub(crate) fn begin_session(
        &mut self,
        id: u64,
        timeout: u64,
        (from, life): (RequestOrigin, u64),
        now: u64,
    ) -> i64 {
        let mut session = SessionId::from_random(id);
        while self.sessions.contains_key(&session.0) {
            session = session.next();
        }
        let owner = Some((from.0, life));
        self.sessions.insert(session.0, LeaderSession { timeout, deadline: 0, owner, newest: (from.0, 0) });
        self.extend_session(session.0, timeout, now);
        let timeout_ms = u32::try_from(timeout).unwrap_or(u32::MAX);
        let change = Change::CreateSession { timeout_ms, password: Password([0; 16]) };
        self.append(change, session, Some(from), true, now);
        session.0
    }

    /// Restarts the timeout of a session at `now`. A shorter timeout can bring the expiry forward
    /// (`ExpiryQueue.update`).
    pub(crate) fn extend_session(&mut self, session: i64, timeout: u64, now: u64) {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.deadline = ((now + timeout) / TICK + 1) * TICK;
        }
    }

    /// Gives a session to the server that has attached it.
    pub(crate) fn set_owner(&mut self, session: i64, server: Follower) {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.owner = Some(server);
        }
    }

    pub(crate) fn write(
        &mut self,
        request: Request,
        session: i64,
        (from, life): (RequestOrigin, u64),
        now: u64,
    ) -> WriteOutcome {
        let Some(known) = self.sessions.get_mut(&session) else { return WriteOutcome::Expired };
        let (server, conn, _) = from;
        // ZooKeeper does not ask who closes a session (`PrepRequestProcessor`).
        if !matches!(request, Request::CloseSession) {
            let is_old = known.newest.0 == server && known.newest.1 > conn;
            if is_old || known.owner.is_some_and(|owner| owner != (server, life)) {
                return WriteOutcome::Moved;
            }
            (known.owner, known.newest) = (Some((server, life)), (server, conn));
        }
        if matches!(request, Request::CloseSession) {
            self.sessions.remove(&session);
        }
        let session = SessionId(session);
        let change = self.decide(request, session);
        self.append(change, session, Some(from), false, now);
        WriteOutcome::Logged
    }

    fn decide(&self, request: Request, session: SessionId) -> Change {
        prepare(request, &self.state, Requester { session, client: &self.client, extended_types: false })
    }

    /// Ends the sessions whose timeout has passed. Returns their ids.
    pub(crate) fn end_expired_sessions(&mut self, now: u64) -> Vec<i64> {
        let due: Vec<i64> =
            self.sessions.iter().filter(|(_, known)| known.deadline <= now).map(|(id, _)| *id).collect();
        due.iter().for_each(|session| self.end_session(*session, now));
        due
    }

    /// Ends a session, if it exists.
    pub(crate) fn end_session(&mut self, session: i64, now: u64) {
        if self.sessions.remove(&session).is_some() {
            let id = SessionId(session);
            let change = self.decide(Request::CloseSession, id);
            self.append(change, id, None, false, now);
        }
    }

    /// Elects another leader. The new leader restarts the timeout of every session, with the
    /// timeout that was granted when the session was created. It does not know who owns a session.
    pub(crate) fn elect(&mut self, now: u64) {
        self.epoch += 1;
        self.state.zxid = self.state.zxid.max(Zxid::start_of(self.epoch));
        self.sessions.values_mut().for_each(|known| known.owner = None);
        let sessions: Vec<(i64, u64)> =
            self.sessions.iter().map(|(id, known)| (*id, known.timeout)).collect();
        sessions.into_iter().for_each(|(session, timeout)| self.extend_session(session, timeout, now));
    }

    /// Goes back to the state at the time `then`, and begins a new epoch at `now`.
    pub(crate) fn restore(&mut self, then: u64, now: u64) {
        let then = i64::try_from(then).unwrap_or(i64::MAX);
        self.log.truncate(self.log.partition_point(|entry| entry.txn.time <= then));
        self.state = State::new(1);
        for entry in &self.log {
            commit(&entry.txn, &mut self.state);
        }
        let sessions = self.state.sessions.iter().map(|(id, session)| {
            let timeout = u64::from(session.timeout_ms);
            (id.0, LeaderSession { timeout, deadline: 0, owner: None, newest: (0, 0) })
        });
        self.sessions = sessions.collect();
        self.epoch = self.state.zxid.epoch();
        self.elected_at = now;
        self.elect(now);
    }

    /// Deletes container znodes whose children were all deleted. Returns their number.
    pub(crate) fn remove_empty_containers(&mut self, now: u64) -> usize {
        let empty = self.state.tree.emptied_containers();
        let count = empty.len();
        for path in empty {
            self.append(Change::Delete { path }, SessionId::NONE, None, false, now);
        }
        count
    }

    /// Deletes a directory and its children, as an operator does.
    pub(crate) fn remove_all(&mut self, directory: &str, now: u64) {
        let Some(node) = self.state.tree.get(directory) else { return };
        let mut paths: Vec<String> = node.children().map(|name| format!("{directory}/{name}")).collect();
        paths.push(directory.to_owned());
        for path in paths {
            self.append(Change::Delete { path: path.into() }, SessionId::NONE, None, false, now);
        }
    }

    fn append(
        &mut self,
        change: Change,
        session: SessionId,
        from: Option<RequestOrigin>,
        greeting: bool,
        now: u64,
    ) {
        let zxid = self.state.zxid.next().expect("an epoch has enough zxids for a run");
        let txn = Txn { zxid, session, time: i64::try_from(now).unwrap_or(i64::MAX), change };
        commit(&txn, &mut self.state);
        self.log.push(LogEntry { txn, from, greeting });
    }
}

/// The kind of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WatchSide {
    Data,
    Children,
}

/// A watch event.
#[derive(Debug, Clone)]
pub(crate) struct FiredWatch {
    pub(crate) kind: EventKind,
    pub(crate) path: String,
}

impl FiredWatch {
    /// Returns whether the event fires a watch of this kind.
    pub(crate) fn is_for(&self, side: WatchSide) -> bool {
        match self.kind {
            EventKind::Created | EventKind::DataChanged => side == WatchSide::Data,
            EventKind::ChildrenChanged => side == WatchSide::Children,
            EventKind::Deleted => true,
        }
    }
}

/// A server, as clients see it.
pub(crate) struct SimServer {
    pub(crate) state: State,
    pub(crate) applied: usize,
    watches: BTreeMap<(String, WatchSide), BTreeSet<u64>>,
    /// The longest session timeout that the server grants.
    pub(crate) longest_timeout: u64,
    /// Sessions that sent a request since the last report to the leader, with the timeout that was
    /// granted on their connection.
    pub(crate) touched: BTreeMap<i64, u64>,
    /// The server is cut off from the leader until this time.
    pub(crate) cut_until: u64,
    /// Set if the server was the leader, and does not know that another leader was elected.
    pub(crate) deposed: bool,
    /// The server accepts no connections until this time.
    pub(crate) down_until: u64,
    /// Until this time, the server accepts connections, and closes each connection when it receives
    /// the first bytes on it.
    pub(crate) refuses_until: u64,
    /// The server does nothing until this time. Its operating system still accepts connections.
    pub(crate) silent_until: u64,
    /// The replies of the server are late until this time, by at most `late_by`.
    pub(crate) late_until: u64,
    pub(crate) late_by: u64,
    /// The server receives the decisions of the leader late until this time, by at most `slow_by`.
    pub(crate) slow_until: u64,
    pub(crate) slow_by: u64,
    /// The number of restarts. A message to the leader carries this number. If the server has
    /// restarted since, most such messages are lost.
    pub(crate) life: u64,
    /// The syncs that wait: the number of log entries that must be applied first, the connection, and the xid.
    pub(crate) syncs: Vec<(usize, u64, i32)>,
    client: Client,
}

/// The consequences of an applied log entry.
pub(crate) struct Applied {
    pub(crate) reply: Result<Reply, Code>,
    /// The watch events, with their connections.
    pub(crate) events: Vec<(u64, FiredWatch)>,
}

impl SimServer {
    pub(crate) fn new(longest_timeout: u64) -> SimServer {
        SimServer {
            state: State::new(1),
            applied: 0,
            watches: BTreeMap::new(),
            longest_timeout,
            touched: BTreeMap::new(),
            cut_until: 0,
            deposed: false,
            down_until: 0,
            refuses_until: 0,
            silent_until: 0,
            late_until: 0,
            late_by: 0,
            slow_until: 0,
            slow_by: 0,
            life: 0,
            syncs: Vec::new(),
            client: Client::new(vec![Identity::new("ip", "127.0.0.1")]),
        }
    }

    /// Copies the state of the leader, and removes all watches and syncs.
    pub(crate) fn restore(&mut self, leader: &Leader) {
        self.state = leader.state.clone();
        self.applied = leader.log.len();
        self.watches.clear();
        self.syncs.clear();
    }

    pub(crate) fn is_cut(&self, now: u64) -> bool {
        now < self.cut_until
    }

    /// Applies the next log entry. With `returns_created_stat`, creates in a transaction return
    /// their Stat, as in newer servers.
    pub(crate) fn apply(&mut self, entry: &LogEntry, returns_created_stat: bool) -> Applied {
        let outcome = commit(&entry.txn, &mut self.state);
        self.applied += 1;
        let mut events = Vec::new();
        for event in outcome.events {
            let event = FiredWatch { kind: event.kind, path: event.path.to_string() };
            self.fire(&event, &mut events);
        }
        let mut reply = outcome.reply;
        if let (true, Ok(Reply::Multi(results))) = (returns_created_stat, &mut reply) {
            for result in results {
                if let OpResult::Create { path } = result
                    && let Some(node) = self.state.tree.get(path)
                {
                    *result = OpResult::Create2 { path: std::mem::take(path), stat: node.stat() };
                }
            }
        }
        Applied { reply, events }
    }

    fn fire(&mut self, event: &FiredWatch, events: &mut Vec<(u64, FiredWatch)>) {
        let mut conns = BTreeSet::new();
        for side in [WatchSide::Data, WatchSide::Children] {
            if event.is_for(side)
                && let Some(watching) = self.watches.remove(&(event.path.clone(), side))
            {
                conns.extend(watching);
            }
        }
        events.extend(conns.into_iter().map(|conn| (conn, event.clone())));
    }

    /// Answers a read, and sets its watch.
    pub(crate) fn read(&mut self, request: &Request, session: i64, conn: u64) -> Result<Reply, Code> {
        let session = SessionId(session);
        let asker = Requester { session, client: &self.client, extended_types: false };
        let reply = query(request, &self.state, asker)?;
        if let Some((path, side)) = watch_of_read(request) {
            self.watches.entry((path.to_owned(), side)).or_default().insert(conn);
        }
        Ok(reply)
    }

    /// Removes the watches and syncs of a connection that has ended.
    pub(crate) fn remove_connection(&mut self, conn: u64) {
        self.watches.retain(|_, conns| {
            conns.remove(&conn);
            !conns.is_empty()
        });
        self.syncs.retain(|(_, waiting, _)| *waiting != conn);
    }
}

/// Returns the watch that a read sets.
pub(crate) fn watch_of_read(request: &Request) -> Option<(&str, WatchSide)> {
    match request {
        Request::GetData { path, watch: true } => Some((path, WatchSide::Data)),
        Request::GetChildren2 { path, watch: true } => Some((path, WatchSide::Children)),
        _ => None,
    }
}
