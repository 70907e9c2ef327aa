//! The network between clients and servers, and the calendar of all events. All times are in
//! virtual milliseconds.
//!
//! A connection is two queues of byte chunks. Each chunk gets an arrival time, which is never before that of an earlier
//! chunk, and an event in the calendar. The event takes the first chunk of the queue, so no chunk overtakes another.
//! When a client loses a connection, a random part of its sent chunks still arrives at the server. Replies no longer
//! arrive.
//!
//! | file | contents |
//! |---|---|
//! | `connections.rs` | the connections, the protocol on them, and the requests that need no leader |
//! | `leader.rs` | the decisions of the leader, and how they reach the servers |
//! | `faults.rs` | the faults of the plan, and which servers a host can use |

mod connections;
mod faults;
mod leader;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use fastrand::Rng;
use zoolock_wire::{Code, OpResult, Reply, Request};

use crate::ensemble::{FiredWatch, Leader, RequestOrigin, SYNC_LIMIT, SimServer, TICK, WriteOutcome};
use crate::executor::Executor;
use crate::plan::{PlannedFault, SimPlan};
use crate::trace::RunTrace;

/// The whole simulation, apart from the tasks.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    pub(crate) trace: RunTrace,
    pub(crate) plan: SimPlan,
    calendar: BinaryHeap<Reverse<(u64, u64, WorldEvent)>>,
    entries: u64,
    pub(crate) leader: Leader,
    pub(crate) servers: Vec<SimServer>,
    conns: BTreeMap<u64, SimConnection>,
    next_conn: u64,
    /// Every session that was ever opened.
    sessions: BTreeMap<i64, SessionRecord>,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) executor: Arc<Executor>,
    /// For each lock, the number of actions of operators.
    pub(crate) operator_actions: Vec<u64>,
    pub(crate) requests: u64,
    /// The time at which the servers went back to an older state.
    pub(crate) restored_at: Option<u64>,
}

/// The state of a host, apart from its tasks.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostState {
    /// The time at which the last pause began.
    pub(crate) paused_at: u64,
    pub(crate) paused_until: u64,
    pub(crate) resumed_at: u64,
    /// The network passes nothing from the host until this time.
    pub(crate) up_until: u64,
    /// The network passes nothing to the host until this time.
    pub(crate) down_until: u64,
    pub(crate) dead: bool,
    /// The last time at which a reply was so late that the host may have lost a lock.
    slow: Option<u64>,
}

/// The simulation's own record of a session, beside that of the leader.
struct SessionRecord {
    host: usize,
    /// The time at which the servers ended the session, or told the client that the session is unknown.
    over_at: Option<u64>,
    /// Set when the leader has logged the client's request to close the session.
    is_closed: bool,
    /// The send time of the newest request whose reply the client has read.
    known_at: u64,
    /// The timeout that was granted at the creation of the session.
    timeout: u64,
    /// The shortest timeout with which the leader has tracked the session.
    shortest: u64,
    /// Set while the client does not know of the shortest timeout.
    is_shortened: bool,
}

/// An event of the calendar.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorldEvent {
    /// A chunk arrives at the server of a connection.
    ReachesServer(u64),
    /// A chunk arrives at the client of a connection.
    ReachesClient(u64),
    /// A message of a server arrives at the leader. The second number is `SimServer::life` when the
    /// message was sent.
    ToLeader(usize, u64, LeaderRequest),
    /// The leader's answer to an attach arrives at a server: whether the session exists.
    Validated(usize, u64, bool),
    /// The leader's answer to a sync arrives: the number of entries in its log.
    Synced(usize, u64, i32, usize),
    /// The leader's refusal of a write arrives. The flag is set if the session has expired, and
    /// unset if another server owns the session.
    Refused(usize, u64, i32, bool),
    /// The next entry of the leader's log arrives at a server.
    Apply(usize),
    /// A server reports to the leader which sessions have sent requests, as it does each half tick.
    ReportRegularly(usize),
    /// A server reports once which sessions have sent requests, between two regular reports.
    ReportOnce(usize),
    /// A server that has been cut off for the sync limit gives up, and restarts.
    GiveUp(usize, u64),
    Expiry,
    RemoveContainers,
    InjectFault(usize),
    Resume(usize),
    /// The checks of `work::check_and_advance_stage` are due.
    Audit,
}

/// A message of a server to the leader.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LeaderRequest {
    /// Opens a session if `session` is 0. Otherwise attaches that session to the connection.
    Session {
        conn: u64,
        session: i64,
        timeout: u64,
    },
    /// The first request in the queue of the connection.
    Write {
        conn: u64,
    },
    Sync {
        conn: u64,
        xid: i32,
    },
}

/// A connection.
struct SimConnection {
    host: usize,
    server: usize,
    dial: DialState,
    /// The session of the connect request. `None` before that request.
    requested: Option<i64>,
    /// The attached session, or 0.
    session: i64,
    /// The timeout that was granted to the session on this connection.
    timeout: u64,
    /// Set until the client closes its end of the connection.
    client_open: bool,
    /// The time at which the client closed its end of the connection.
    given_up_at: u64,
    server_open: bool,
    up: VecDeque<ToServer>,
    down: VecDeque<ToClient>,
    up_at: u64,
    down_at: u64,
    /// Bytes at the server that are no whole frame yet.
    input: BytesMut,
    /// Bytes at the client that it has not read yet.
    unread: BytesMut,
    /// Set if the end of the stream follows the unread bytes.
    has_ended: bool,
    /// The sessions of connect responses among the unread bytes.
    granted: Vec<i64>,
    /// The send time of the newest request whose reply has arrived.
    answered_at: u64,
    /// Wakes the client's task.
    reader: Option<Waker>,
    /// The times at which the requests without a reply were sent.
    asked: VecDeque<u64>,
    work: VecDeque<(i32, Request)>,
    /// Set while the first request of `work` waits for the leader.
    busy: bool,
}

/// The state of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DialState {
    Waiting,
    Accepted,
    Refused,
}

/// A message from a client to a server.
enum ToServer {
    Dial,
    Bytes(u64, Bytes),
    /// The client has closed the connection.
    Close,
}

/// A message from a server to a client.
enum ToClient {
    Accepted,
    Bytes(Bytes, ChunkContent),
    Close,
}

/// The content of a chunk for a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkContent {
    /// The reply to the oldest request.
    Reply,
    Event,
    /// The reply to the connect request: this session is attached.
    Granted(i64),
    /// The reply to the connect request: this session is unknown.
    Unknown(i64),
}

impl World {
    pub(crate) fn new(seed: u64, plan: SimPlan, executor: Arc<Executor>, verbose: bool) -> World {
        let mut world = World {
            now: 0,
            rng: Rng::with_seed(seed ^ 0x00c0_ffee_0000_0001),
            trace: RunTrace::new(verbose),
            calendar: BinaryHeap::new(),
            entries: 0,
            leader: Leader::new(),
            servers: (0..plan.servers).map(|_| SimServer::new(plan.longest_timeout)).collect(),
            conns: BTreeMap::new(),
            next_conn: 1,
            sessions: BTreeMap::new(),
            hosts: vec![HostState::default(); plan.drifts.len()],
            executor,
            operator_actions: vec![0; plan.locks.len()],
            requests: 0,
            restored_at: None,
            plan,
        };
        world.schedule_at(TICK, WorldEvent::Expiry);
        world.schedule_at(5000, WorldEvent::RemoveContainers);
        world.schedule_at(100, WorldEvent::Audit);
        for server in 0..world.servers.len() {
            let begin = world.rng.u64(..TICK / 2);
            world.schedule_at(begin, WorldEvent::ReportRegularly(server));
        }
        for (nth, at) in world.plan.faults.iter().map(|(at, _)| *at).enumerate().collect::<Vec<_>>() {
            world.schedule_at(at, WorldEvent::InjectFault(nth));
        }
        world
    }

    /// Returns the number of actions of operators on these locks.
    pub(crate) fn count_operator_actions(&self, locks: &[usize]) -> u64 {
        locks.iter().map(|lock| self.operator_actions[*lock]).sum()
    }

    /// Returns whether a session of this host has expired within the last two session timeouts. If
    /// the host was paused in that time, returns whether one has expired since the pause began. Also
    /// returns true if the client has given up a session that no server attached.
    pub(crate) fn any_expired(&self, host: usize) -> bool {
        let recent = self.now.saturating_sub(2 * self.plan.timeout);
        let machine = &self.hosts[host];
        let since = if machine.paused_until >= recent { recent.min(machine.paused_at) } else { recent };
        let mut sessions =
            self.sessions.values().filter(|session| session.host == host && !session.is_closed);
        sessions.any(|session| {
            // The client gives up a session after 7/4 of the timeout on its own clock, which may
            // run fast by up to three percent.
            let given_up = session.known_at + session.timeout * 7 / 4 * 96 / 100;
            session.over_at.is_some_and(|at| at >= since)
                || (self.now >= given_up && given_up + 3 * session.timeout >= since)
        })
    }

    /// Returns whether replies to this host were late within the last session timeout. A reply is late after an eighth
    /// of the timeout: a lease allows for that delay (`zoolock_core::pace`).
    pub(crate) fn was_slow(&self, host: usize) -> bool {
        let then = self.now.saturating_sub(self.plan.timeout);
        let mut conns = self.conns.values().filter(|conn| conn.host == host && conn.client_open);
        self.hosts[host].slow.is_some_and(|slow| slow >= then)
            || conns.any(|conn| conn.oldest_unanswered().is_some_and(|sent| self.is_late(sent)))
    }

    fn is_late(&self, sent: u64) -> bool {
        self.now - sent > self.plan.timeout / 8
    }

    /// Returns whether the leader counts a shorter timeout for a session of this host than the host
    /// knows. No client can know the shorter timeout while the reply to its attach is under way
    /// (docs/CLIENT.md).
    pub(crate) fn is_shortened(&self, host: usize) -> bool {
        let mut sessions = self.sessions.values().filter(|session| session.host == host);
        sessions.any(|session| session.is_shortened && session.over_at.is_none() && !session.is_closed)
    }

    /// Returns whether an operator removed the directory of one of these locks, or restored an
    /// older state. A client that listed the directory before can still delete a later znode of the
    /// same name, so a later holder can lose its lock (docs/design/limits.md).
    pub(crate) fn was_removed_or_restored(&self, locks: &[usize]) -> bool {
        if self.restored_at.is_some() {
            return true;
        }
        let mut faults = self.plan.faults.iter();
        faults.any(
            |(at, fault)| matches!(fault, PlannedFault::Remove(lock) if *at <= self.now && locks.contains(lock)),
        )
    }

    /// Returns whether the servers went back to an older state so recently that a host can still
    /// act on replies from before that.
    pub(crate) fn was_just_restored(&self) -> bool {
        self.restored_at.is_some_and(|at| self.now < at + 3 * self.plan.timeout)
    }

    /// Returns whether the leader has a znode with this path that was created by the transaction `created`.
    pub(crate) fn znode_exists(&self, path: &str, created: i64) -> bool {
        self.leader.state.tree.get(path).is_some_and(|node| node.czxid().0 == created)
    }

    /// Returns the znodes of all contenders.
    pub(crate) fn contenders(&self) -> Vec<String> {
        let all = (0..self.plan.locks.len()).filter_map(|lock| {
            let directory = directory(lock);
            let node = self.leader.state.tree.get(&directory)?;
            Some(node.children().map(|name| format!("{directory}/{name}")).collect::<Vec<_>>())
        });
        all.flatten().collect()
    }

    pub(crate) fn schedule_at(&mut self, time: u64, event: WorldEvent) {
        self.entries += 1;
        self.calendar.push(Reverse((time, self.entries, event)));
    }

    pub(crate) fn schedule_after(&mut self, ms: u64, event: WorldEvent) {
        self.schedule_at(self.now + ms, event);
    }

    /// Returns the time of the next event.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.calendar.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Returns a random time that a message takes.
    fn latency(&mut self) -> u64 {
        let most = self.plan.latency;
        // One message of 64 takes much longer.
        if self.rng.u8(..64) == 0 {
            self.rng.u64(most..=longest_latency(most))
        } else {
            self.rng.u64(1..=most)
        }
    }

    /// Carries out the next event. Returns whether the checks are due.
    pub(crate) fn carry_out_next_event(&mut self) -> bool {
        let Some(Reverse((_, _, event))) = self.calendar.pop() else { return false };
        if let WorldEvent::Validated(server, ..)
        | WorldEvent::Synced(server, ..)
        | WorldEvent::Refused(server, ..)
        | WorldEvent::GiveUp(server, _) = event
            && self.now < self.servers[server].silent_until
        {
            self.schedule_at(self.servers[server].silent_until, event);
            return false;
        }
        match event {
            WorldEvent::ReachesServer(conn) => self.deliver_to_server(conn),
            WorldEvent::ReachesClient(conn) => self.deliver_to_client(conn),
            WorldEvent::ToLeader(server, life, ask) => self.handle_leader_request(server, life, ask),
            WorldEvent::Validated(server, conn, is_alive) => self.handle_validation(server, conn, is_alive),
            WorldEvent::Synced(server, conn, xid, upto) => {
                let known = &mut self.servers[server];
                if known.applied >= upto {
                    self.answer_sync(conn, xid);
                } else {
                    known.syncs.push((upto, conn, xid));
                }
            }
            WorldEvent::Refused(_, conn, xid, expired) => {
                let code = if expired { Code::SessionExpired } else { Code::SessionMoved };
                // A transaction has the error in its first part. ZooKeeper before 3.6 also answers "moved" there, and later
                // versions close the connection (ZOOKEEPER-2886).
                let first = self.conns.get(&conn).and_then(|conn| conn.work.front());
                let refused = match first {
                    Some((_, Request::Multi(parts))) if expired || self.plan.is_before_3_6 => {
                        let number = |at: usize| if at == 0 { code.number() } else { -2 };
                        Ok(Reply::Multi((0..parts.len()).map(|at| OpResult::Error(number(at))).collect()))
                    }
                    _ => Err(code),
                };
                if expired || refused.is_ok() {
                    self.answer(conn, xid, &refused);
                } else {
                    self.close_from_server(conn);
                }
            }
            WorldEvent::Apply(server) => self.apply_next_entry(server),
            WorldEvent::ReportRegularly(server) => {
                self.report_touched_sessions(server);
                self.schedule_after(TICK / 2, WorldEvent::ReportRegularly(server));
            }
            WorldEvent::ReportOnce(server) => self.report_touched_sessions(server),
            WorldEvent::GiveUp(server, life) => {
                if self.servers[server].life == life && self.servers[server].is_cut(self.now) {
                    self.trace.note(self.now, "gives up", &[server as u64], "");
                    let until = self.servers[server].cut_until;
                    self.restart_server(server, until);
                }
            }
            WorldEvent::Expiry => {
                if self.now < self.leader.stalled_until {
                    let until = self.leader.stalled_until;
                    self.schedule_at(until, WorldEvent::Expiry);
                    return false;
                }
                if self.now >= self.leader.elected_at {
                    for session in self.leader.end_expired_sessions(self.now) {
                        self.trace.note(self.now, "expired", &[session as u64 & 0xffff], "");
                        self.record_session_end(session);
                        self.send_to_servers();
                    }
                }
                // The leader expires sessions in buckets, which end at whole ticks.
                self.schedule_at((self.now / TICK + 1) * TICK, WorldEvent::Expiry);
            }
            WorldEvent::RemoveContainers => {
                if self.now >= self.leader.elected_at {
                    for _ in 0..self.leader.remove_empty_containers(self.now) {
                        self.trace.note(self.now, "reaped", &[], "");
                        self.send_to_servers();
                    }
                }
                let wait = self.rng.u64(1000..20_000);
                self.schedule_after(wait, WorldEvent::RemoveContainers);
            }
            WorldEvent::InjectFault(nth) => self.inject(nth),
            WorldEvent::Resume(host) => {
                self.trace.note(self.now, "resumes", &[host as u64], "");
                self.hosts[host].resumed_at = self.now;
                self.executor.resume(host);
            }
            WorldEvent::Audit => {
                self.schedule_after(500, WorldEvent::Audit);
                return true;
            }
        }
        false
    }

    /// Reports to the leader which sessions have sent requests to a server since its last report.
    fn report_touched_sessions(&mut self, server: usize) {
        let stalled = self.leader.stalled_until;
        let known = &mut self.servers[server];
        let silent = known.silent_until;
        if self.now < stalled.max(silent) {
            return self.schedule_at(stalled.max(silent), WorldEvent::ReportOnce(server));
        }
        if !known.is_cut(self.now) && self.now >= self.leader.elected_at {
            for (session, timeout) in std::mem::take(&mut known.touched) {
                self.leader.extend_session(session, timeout, self.now);
            }
        }
    }

    fn record_session_end(&mut self, session: i64) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.over_at = Some(self.now);
        }
    }
}

impl SimConnection {
    fn oldest_unanswered(&self) -> Option<u64> {
        let sent = self.up.iter().find_map(|up| match up {
            ToServer::Bytes(sent, _) => Some(*sent),
            ToServer::Dial | ToServer::Close => None,
        });
        self.asked.front().copied().or(sent)
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// The duration of a message above which a reply may take 1 s, in milliseconds. A request and its
/// reply take four messages: from the client to a follower, to the leader, and back.
const SLOW: u64 = 250;

/// Returns whether the run has faults, or a network on which replies may be late.
pub(crate) fn is_slow_or_faulty(plan: &SimPlan) -> bool {
    let slowest = longest_latency(plan.latency);
    slowest > plan.timeout / 8 || slowest > SLOW || !plan.faults.is_empty()
}

/// Returns the longest time that any message takes, if most messages take at most `usual`.
pub(crate) fn longest_latency(usual: u64) -> u64 {
    usual * 8 + 40
}

/// Returns the directory of a lock.
pub(crate) fn directory(lock: usize) -> String {
    format!("/locks/{}", name(lock))
}

/// Returns the name of a lock.
pub(crate) fn name(lock: usize) -> &'static str {
    ["alpha", "beta"][lock]
}

fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Create(_)
            | Request::Delete { .. }
            | Request::SetData { .. }
            | Request::Multi(_)
            | Request::CloseSession
    )
}

/// Describes a request in the trace.
pub(crate) fn describe(request: &Request) -> String {
    match request {
        Request::Create(create) => format!("create {}", create.path),
        Request::Delete { path, .. } => format!("delete {path}"),
        Request::SetData { path, .. } => format!("set {path}"),
        Request::Check { path, .. } => format!("check {path}"),
        Request::Multi(parts) => {
            let parts: Vec<String> = parts.iter().map(describe).collect();
            format!("multi [{}]", parts.join(", "))
        }
        Request::CloseSession => "close".to_owned(),
        Request::GetData { path, watch } => format!("read {path} {}", if *watch { "watch" } else { "" }),
        Request::GetChildren2 { path, watch } => format!("list {path} {}", if *watch { "watch" } else { "" }),
        Request::Exists { path, .. } => format!("exists {path}"),
        Request::Sync { .. } => "sync".to_owned(),
        Request::Ping => "ping".to_owned(),
        Request::RemoveWatches { path, .. } => format!("unwatch {path}"),
        Request::GetEphemerals { prefix } => format!("ephemerals {prefix}"),
        _ => "?".to_owned(),
    }
}
