//! The service: what is decided, and servers that learn of it late.
//!
//! Writes are decided against the one state of the leader, by the server's own `prepare`, and kept in a log. Each server
//! has a state of its own, to which it applies the log, entry by entry, some time later; reads and watches are its own.
//! So what a server shows is always a consistent prefix of what was decided, perhaps an old one.

use std::collections::{BTreeMap, BTreeSet};

use zoolock_server::txn::{Change, Password, Txn};
use zoolock_server::{Asker, SessionId, State, Zxid, commit, prepare, query};
use zoolock_wire::{Code, EventKind, Identity, OpResult, Reply, Request};

/// What sessions live by, in milliseconds.
pub(crate) const TICK: u64 = 2000;
/// For how many ticks a server may be out of touch with the leader.
pub(crate) const SYNC_LIMIT: u64 = 5;

/// Which connection a request came by, and its number there.
pub(crate) type From = (usize, u64, i32);

/// The one that decides.
pub(crate) struct Leader {
    pub(crate) state: State,
    pub(crate) log: Vec<Entry>,
    pub(crate) sessions: BTreeMap<i64, Known>,
    /// There is none until then.
    pub(crate) elected_at: u64,
    epoch: u32,
    identities: Vec<Identity>,
}

/// A decision, and who waits for it.
pub(crate) struct Entry {
    pub(crate) txn: Txn,
    pub(crate) from: Option<From>,
    /// What else there is to say to whoever began a session with it.
    pub(crate) greeting: bool,
}

/// What the leader knows of a session.
pub(crate) struct Known {
    pub(crate) timeout: u64,
    deadline: u64,
    /// The newest connection that it wrote by: what older ones sent is refused.
    newest: u64,
}

/// What became of a write.
pub(crate) enum Decided {
    Logged,
    /// There is no such session.
    Expired,
    /// It has moved to another connection.
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
            epoch: 1,
            identities: vec![Identity::new("ip", "127.0.0.1")],
        }
    }

    pub(crate) fn begin_session(&mut self, id: u64, timeout: u64, from: From, now: u64) -> i64 {
        let mut session = SessionId::from_random(id);
        while self.sessions.contains_key(&session.get()) {
            session = session.next();
        }
        self.sessions.insert(session.get(), Known { timeout, deadline: 0, newest: 0 });
        self.touch(session.get(), now);
        let timeout_ms = u32::try_from(timeout).unwrap_or(u32::MAX);
        let change = Change::CreateSession { timeout_ms, password: Password([0; 16]) };
        self.log_it(change, session, Some(from), true, now);
        session.get()
    }

    /// It was heard of.
    pub(crate) fn touch(&mut self, session: i64, now: u64) {
        if let Some(known) = self.sessions.get_mut(&session) {
            known.deadline = known.deadline.max(((now + known.timeout) / TICK + 1) * TICK);
        }
    }

    pub(crate) fn write(&mut self, request: Request, session: i64, from: From, now: u64) -> Decided {
        let Some(known) = self.sessions.get_mut(&session) else { return Decided::Expired };
        if known.newest > from.1 {
            return Decided::Moved;
        }
        known.newest = from.1;
        if matches!(request, Request::CloseSession) {
            self.sessions.remove(&session);
        }
        let session = SessionId::from_wire(session);
        let change = self.decide(request, session);
        self.log_it(change, session, Some(from), false, now);
        Decided::Logged
    }

    fn decide(&self, request: Request, session: SessionId) -> Change {
        prepare(request, &self.state, Asker { session, identities: &self.identities, extended_types: false })
    }

    /// Ends the sessions that were not heard of for too long.
    pub(crate) fn expire(&mut self, now: u64) -> Vec<i64> {
        let due: Vec<i64> =
            self.sessions.iter().filter(|(_, known)| known.deadline <= now).map(|(id, _)| *id).collect();
        due.iter().for_each(|session| self.end(*session, now));
        due
    }

    /// Ends a session, if there is one.
    pub(crate) fn end(&mut self, session: i64, now: u64) {
        if self.sessions.remove(&session).is_some() {
            let id = SessionId::from_wire(session);
            let change = self.decide(Request::CloseSession, id);
            self.log_it(change, id, None, false, now);
        }
    }

    /// Another one is elected. It does not know when the sessions were heard of last.
    pub(crate) fn elect(&mut self, now: u64) {
        self.epoch += 1;
        self.state.zxid = self.state.zxid.max(Zxid::start_of(self.epoch));
        let sessions: Vec<i64> = self.sessions.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.touch(session, now));
    }

    /// Removes the containers that ran empty.
    pub(crate) fn reap(&mut self, now: u64) -> usize {
        let empty = self.state.tree.emptied_containers();
        let count = empty.len();
        for path in empty {
            self.log_it(Change::Delete { path }, SessionId::SERVER, None, false, now);
        }
        count
    }

    /// An operator deletes a directory with all that is in it.
    pub(crate) fn remove_all(&mut self, directory: &str, now: u64) {
        let Some(node) = self.state.tree.get(directory) else { return };
        let mut paths: Vec<String> = node.children().map(|name| format!("{directory}/{name}")).collect();
        paths.push(directory.to_owned());
        for path in paths {
            self.log_it(Change::Delete { path: path.into() }, SessionId::SERVER, None, false, now);
        }
    }

    fn log_it(&mut self, change: Change, session: SessionId, from: Option<From>, greeting: bool, now: u64) {
        let zxid = self.state.zxid.next().expect("no run has so many transactions");
        let txn = Txn { zxid, session, time: i64::try_from(now).unwrap_or(i64::MAX), change };
        commit(&txn, &mut self.state);
        self.log.push(Entry { txn, from, greeting });
    }
}

/// Which watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Data,
    Children,
}

/// What a watch is told.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) kind: EventKind,
    pub(crate) path: String,
}

impl Told {
    /// Whether a watch of this side is meant.
    pub(crate) fn is_for(&self, side: Side) -> bool {
        match self.kind {
            EventKind::Created | EventKind::DataChanged => side == Side::Data,
            EventKind::ChildrenChanged => side == Side::Children,
            EventKind::Deleted => true,
        }
    }
}

/// One server, as clients see it.
pub(crate) struct Server {
    pub(crate) state: State,
    pub(crate) applied: usize,
    watches: BTreeMap<(String, Side), BTreeSet<u64>>,
    /// Sessions that were heard of since the leader was told last.
    pub(crate) touched: BTreeSet<i64>,
    /// Out of touch with the leader until then.
    pub(crate) cut_until: u64,
    /// It was the leader, and does not know that it is no more.
    pub(crate) deposed: bool,
    /// It takes no connections until then.
    pub(crate) down_until: u64,
    /// Slow to learn until then, and by how much.
    pub(crate) slow_until: u64,
    pub(crate) slow_by: u64,
    /// How often it has begun anew: what was under way before is lost.
    pub(crate) life: u64,
    /// Who waits until so much of the log was applied.
    pub(crate) syncs: Vec<(usize, u64, i32)>,
    identities: Vec<Identity>,
}

/// What applying an entry leads to.
pub(crate) struct Applied {
    pub(crate) reply: Result<Reply, Code>,
    /// Who is told what.
    pub(crate) told: Vec<(u64, Told)>,
}

impl Server {
    pub(crate) fn new() -> Server {
        Server {
            state: State::new(1),
            applied: 0,
            watches: BTreeMap::new(),
            touched: BTreeSet::new(),
            cut_until: 0,
            deposed: false,
            down_until: 0,
            slow_until: 0,
            slow_by: 0,
            life: 0,
            syncs: Vec::new(),
            identities: vec![Identity::new("ip", "127.0.0.1")],
        }
    }

    pub(crate) fn is_cut(&self, now: u64) -> bool {
        now < self.cut_until
    }

    /// Applies the next entry. `tells`: whether creates in a transaction tell their Stat, as newer servers do.
    pub(crate) fn apply(&mut self, entry: &Entry, tells: bool) -> Applied {
        let outcome = commit(&entry.txn, &mut self.state);
        self.applied += 1;
        let mut told = Vec::new();
        for event in outcome.events {
            let event = Told { kind: event.kind, path: event.path.to_string() };
            self.fire(&event, &mut told);
        }
        let mut reply = outcome.reply;
        if let (true, Ok(Reply::Multi(results))) = (tells, &mut reply) {
            for result in results {
                if let OpResult::Create { path } = result
                    && let Some(node) = self.state.tree.get(path)
                {
                    *result = OpResult::Create2 { path: std::mem::take(path), stat: node.stat() };
                }
            }
        }
        Applied { reply, told }
    }

    fn fire(&mut self, event: &Told, told: &mut Vec<(u64, Told)>) {
        let mut who = BTreeSet::new();
        for side in [Side::Data, Side::Children] {
            if event.is_for(side)
                && let Some(conns) = self.watches.remove(&(event.path.clone(), side))
            {
                who.extend(conns);
            }
        }
        told.extend(who.into_iter().map(|conn| (conn, event.clone())));
    }

    /// Answers a read, and sets the watch that it asks for.
    pub(crate) fn read(&mut self, request: &Request, session: i64, conn: u64) -> Result<Reply, Code> {
        let session = SessionId::from_wire(session);
        let asker = Asker { session, identities: &self.identities, extended_types: false };
        let reply = query(request, &self.state, asker)?;
        if let Some((path, side)) = watched(request) {
            self.watches.entry((path.to_owned(), side)).or_default().insert(conn);
        }
        Ok(reply)
    }

    pub(crate) fn unwatch(&mut self, conn: u64, path: &str, side: Side) {
        if let Some(conns) = self.watches.get_mut(&(path.to_owned(), side)) {
            conns.remove(&conn);
        }
    }

    /// Sets watches again; what was missed since then is told at once.
    pub(crate) fn set_watches(&mut self, conn: u64, since: i64, watches: &[(String, Side)]) -> Vec<Told> {
        let mut told = Vec::new();
        for (path, side) in watches {
            let tell = |kind| Some(Told { kind, path: path.clone() });
            let missed = match (self.state.tree.get(path), side) {
                (None, _) => tell(EventKind::Deleted),
                (Some(node), Side::Data) if node.mzxid().get() > since => tell(EventKind::DataChanged),
                (Some(node), Side::Children) if node.pzxid().get() > since => {
                    tell(EventKind::ChildrenChanged)
                }
                (Some(_), _) => None,
            };
            match missed {
                Some(missed) => told.push(missed),
                None => {
                    self.watches.entry((path.clone(), *side)).or_default().insert(conn);
                }
            }
        }
        told
    }

    /// A connection is gone.
    pub(crate) fn forget(&mut self, conn: u64) {
        self.watches.retain(|_, conns| {
            conns.remove(&conn);
            !conns.is_empty()
        });
        self.syncs.retain(|(_, waiting, _)| *waiting != conn);
    }
}

/// What a read asks to be told of.
pub(crate) fn watched(request: &Request) -> Option<(&str, Side)> {
    match request {
        Request::GetData { path, watch: true } => Some((path, Side::Data)),
        Request::GetChildren2 { path, watch: true } => Some((path, Side::Children)),
        _ => None,
    }
}
