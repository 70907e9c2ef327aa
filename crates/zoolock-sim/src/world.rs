//! The network between clients and servers, and what happens on it, in virtual milliseconds.
//!
//! A connection is two queues. Whatever is put into one gets an arrival time, never before that of what was put in
//! earlier, and an event in the calendar; the event takes the first of the queue, so that nothing overtakes. When a
//! client loses a connection, a random part of what it had sent still arrives; answers do not.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Weak};

use fastrand::Rng;
use zoolock_server::Code;
use zoolock_server::wire::{Reply, Request};

use crate::Sim;
use crate::client::{Client, Effect};
use crate::ensemble::{Decided, From, Leader, SYNC_LIMIT, Server, Side, TICK, Told};
use crate::executor::Executor;
use crate::plan::{Fault, Plan};
use crate::trace::Trace;

/// Everything that is not a task.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) plan: Plan,
    calendar: BinaryHeap<Reverse<(u64, u64, Event)>>,
    entries: u64,
    pub(crate) leader: Leader,
    pub(crate) servers: Vec<Server>,
    pub(crate) conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    pub(crate) clients: BTreeMap<u64, Client>,
    pub(crate) next_client: u64,
    pub(crate) hosts: Vec<Machine>,
    pub(crate) executor: Arc<Executor>,
    /// What is to be told when nobody looks at the world any more.
    pub(crate) effects: Vec<Effect>,
    /// How often an operator did something to a lock.
    pub(crate) acts: Vec<u64>,
    pub(crate) requests: u64,
    pub(crate) sim: Weak<Sim>,
}

/// A host, as the network sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine {
    pub(crate) paused_until: u64,
    pub(crate) resumed_at: u64,
    pub(crate) up_until: u64,
    pub(crate) down_until: u64,
    pub(crate) dead: bool,
}

/// What comes in time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// Something arrives at the server of a connection.
    Up(u64),
    /// Something arrives at the client of a connection.
    Down(u64),
    /// Something arrives at the leader, sent in this life of the server.
    ToLeader(usize, u64, Ask),
    /// An answer of the leader's arrives at a server: the session lives, or not.
    Validated(usize, u64, bool),
    /// The same: so much of the log had been decided.
    Synced(usize, u64, i32, usize),
    /// The same: no.
    Refused(usize, u64, i32, bool),
    /// A server learns of the next decision.
    Apply(usize),
    /// A server tells the leader whom it has heard of, as it does each half tick.
    Touches(usize),
    /// The same, once.
    Flush(usize),
    /// A server that is out of touch gives up.
    GiveUp(usize, u64),
    Expiry,
    Reap,
    ClientTick(u64),
    Reconnect(u64),
    Strike(usize),
    Resume(usize),
    /// Time to look whether all is well.
    Audit,
}

/// What a server asks the leader.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ask {
    Session {
        conn: u64,
        session: i64,
        timeout: u64,
    },
    /// The first in the queue of the connection.
    Write {
        conn: u64,
    },
    Sync {
        conn: u64,
        xid: i32,
    },
}

pub(crate) struct Conn {
    pub(crate) client: u64,
    server: usize,
    session: i64,
    /// The client has not given it up.
    pub(crate) client_open: bool,
    server_open: bool,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
    up_at: u64,
    down_at: u64,
    work: VecDeque<(i32, Work)>,
    /// The first of the work waits for the leader.
    busy: bool,
}

enum Work {
    Do(Request),
    SetWatches(i64, Vec<(String, Side)>),
}

/// From a client.
pub(crate) enum Up {
    Hello {
        session: i64,
        seen: i64,
        timeout: u64,
    },
    Request(i32, Request),
    SetWatches {
        seen: i64,
        watches: Vec<(String, Side)>,
    },
    /// The client has gone away.
    Bye,
}

/// To a client.
pub(crate) enum Down {
    Welcome {
        session: i64,
    },
    /// There is no such session.
    NoSession,
    Reply {
        xid: i32,
        zxid: i64,
        reply: Result<Reply, Code>,
    },
    Told(Told),
    Bye,
}

/// The number of what only sets watches.
pub(crate) const SET_WATCHES: i32 = -8;

impl World {
    pub(crate) fn new(
        seed: u64,
        plan: Plan,
        executor: Arc<Executor>,
        verbose: bool,
        sim: Weak<Sim>,
    ) -> World {
        let mut world = World {
            now: 0,
            rng: Rng::with_seed(seed ^ 0x00c0_ffee_0000_0001),
            trace: Trace::new(verbose),
            calendar: BinaryHeap::new(),
            entries: 0,
            leader: Leader::new(),
            servers: (0..plan.servers).map(|_| Server::new()).collect(),
            conns: BTreeMap::new(),
            next_conn: 1,
            clients: BTreeMap::new(),
            next_client: 1,
            hosts: vec![Machine::default(); plan.drifts.len()],
            executor,
            effects: Vec::new(),
            acts: vec![0; plan.locks.len()],
            requests: 0,
            sim,
            plan,
        };
        world.at(TICK, Event::Expiry);
        world.at(5000, Event::Reap);
        world.at(100, Event::Audit);
        for server in 0..world.servers.len() {
            let begin = world.rng.u64(..TICK / 2);
            world.at(begin, Event::Touches(server));
        }
        for (nth, at) in world.plan.faults.iter().map(|(at, _)| *at).enumerate().collect::<Vec<_>>() {
            world.at(at, Event::Strike(nth));
        }
        world
    }

    /// How often an operator did something to one of these locks.
    pub(crate) fn acts_on(&self, locks: &[usize]) -> u64 {
        locks.iter().map(|lock| self.acts[*lock]).sum()
    }

    /// Whether any session of this host has expired.
    pub(crate) fn any_expired(&self, host: usize) -> bool {
        let mut clients = self.clients.values();
        clients.any(|client| client.host == host && client.has_expired())
    }

    /// Whether answers to this host were slow in the time of one session.
    pub(crate) fn was_slow(&self, host: usize) -> bool {
        let then = self.now.saturating_sub(self.plan.timeout);
        let mut clients = self.clients.values();
        clients.any(|client| client.host == host && client.was_slow_since(then, self.now))
    }

    /// Whether an operator removed the directory of one of these locks. Whoever looked before that, and has not heard of it,
    /// may still delete another's node that has the same name by then (docs/DESIGN.md, limits).
    pub(crate) fn was_removed(&self, locks: &[usize]) -> bool {
        let mut faults = self.plan.faults.iter();
        faults.any(
            |(at, fault)| matches!(fault, Fault::Remove(lock) if *at <= self.now && locks.contains(lock)),
        )
    }

    /// Whether this very node is there, as far as the leader knows.
    pub(crate) fn stands(&self, path: &str, created: i64) -> bool {
        self.leader.state.tree.get(path).is_some_and(|node| node.czxid().get() == created)
    }

    /// All who stand in a queue.
    pub(crate) fn contenders(&self) -> Vec<String> {
        let all = (0..self.plan.locks.len()).filter_map(|lock| {
            let directory = directory(lock);
            let node = self.leader.state.tree.get(&directory)?;
            Some(node.children().map(|name| format!("{directory}/{name}")).collect::<Vec<_>>())
        });
        all.flatten().collect()
    }

    pub(crate) fn at(&mut self, time: u64, event: Event) {
        self.entries += 1;
        self.calendar.push(Reverse((time, self.entries, event)));
    }

    pub(crate) fn after(&mut self, ms: u64, event: Event) {
        self.at(self.now + ms, event);
    }

    /// When the next event is due.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.calendar.peek().map(|Reverse((at, _, _))| *at)
    }

    /// How long a message takes.
    fn latency(&mut self) -> u64 {
        let most = self.plan.latency;
        // Now and then one takes much longer.
        if self.rng.u8(..64) == 0 { self.rng.u64(most..=most * 8 + 40) } else { self.rng.u64(1..=most) }
    }

    /// Lets the next event happen; whether it is time for an audit.
    pub(crate) fn step(&mut self) -> bool {
        let Some(Reverse((_, _, event))) = self.calendar.pop() else { return false };
        match event {
            Event::Up(conn) => self.arrive_up(conn),
            Event::Down(conn) => self.arrive_down(conn),
            Event::ToLeader(server, life, ask) => self.ask_leader(server, life, ask),
            Event::Validated(server, conn, alive) => self.validated(server, conn, alive),
            Event::Synced(server, conn, xid, upto) => {
                let known = &mut self.servers[server];
                if known.applied >= upto {
                    self.answer(conn, xid, Ok(Reply::Empty));
                } else {
                    known.syncs.push((upto, conn, xid));
                }
            }
            Event::Refused(_, conn, xid, expired) => {
                if expired {
                    self.answer(conn, xid, Err(Code::SessionExpired));
                } else {
                    self.hang_up(conn);
                }
            }
            Event::Apply(server) => self.apply(server),
            Event::Touches(server) => {
                self.flush(server);
                self.after(TICK / 2, Event::Touches(server));
            }
            Event::Flush(server) => self.flush(server),
            Event::GiveUp(server, life) => {
                if self.servers[server].life == life && self.servers[server].is_cut(self.now) {
                    self.trace.note(self.now, "gives up", &[server as u64], "");
                    let until = self.servers[server].cut_until;
                    self.begin_anew(server, until);
                }
            }
            Event::Expiry => {
                if self.now >= self.leader.elected_at {
                    for session in self.leader.expire(self.now) {
                        self.trace.note(self.now, "expired", &[session as u64 & 0xffff], "");
                        self.spread();
                    }
                }
                self.after(TICK, Event::Expiry);
            }
            Event::Reap => {
                if self.now >= self.leader.elected_at {
                    for _ in 0..self.leader.reap(self.now) {
                        self.trace.note(self.now, "reaped", &[], "");
                        self.spread();
                    }
                }
                let wait = self.rng.u64(1000..20_000);
                self.after(wait, Event::Reap);
            }
            Event::ClientTick(client) => self.client_tick(client),
            Event::Reconnect(client) => self.reconnect(client),
            Event::Strike(nth) => self.strike(nth),
            Event::Resume(host) => {
                self.trace.note(self.now, "resumes", &[host as u64], "");
                self.hosts[host].resumed_at = self.now;
                self.executor.resume(host);
            }
            Event::Audit => {
                self.after(500, Event::Audit);
                return true;
            }
        }
        false
    }

    fn flush(&mut self, server: usize) {
        let known = &mut self.servers[server];
        if !known.is_cut(self.now) && self.now >= self.leader.elected_at {
            for session in std::mem::take(&mut known.touched) {
                self.leader.touch(session, self.now);
            }
        }
    }

    // ---- what goes wrong ----

    fn strike(&mut self, nth: usize) {
        let now = self.now;
        let fault = self.plan.faults[nth].1.clone();
        self.trace.note(now, "fault", &[nth as u64], &format!("{fault:?}"));
        match fault {
            Fault::Break(host) => self.break_all(host),
            Fault::Partition { host, up, down, until } => {
                let host = &mut self.hosts[host];
                if up {
                    host.up_until = host.up_until.max(until);
                }
                if down {
                    host.down_until = host.down_until.max(until);
                }
            }
            Fault::Pause { host, until } => {
                let machine = &mut self.hosts[host];
                if !machine.dead && machine.paused_until <= now {
                    machine.paused_until = until;
                    self.executor.stop(host);
                    self.at(until, Event::Resume(host));
                }
            }
            // The tasks are ended by whoever sees that it is dead.
            Fault::Crash(host) => {
                // Somebody has to live.
                if self.hosts.iter().filter(|host| !host.dead).count() > 1 {
                    self.hosts[host].dead = true;
                    self.break_all(host);
                }
            }
            Fault::CutOff { server, until } => self.cut_off(server, until, false),
            Fault::Depose { server, until, election } => {
                if self.servers.len() > 1 {
                    self.cut_off(server, until, true);
                    for other in 0..self.servers.len() {
                        if other != server {
                            self.begin_anew(other, now + election);
                        }
                    }
                    self.leader.elected_at = now + election;
                    self.leader.elect(now + election);
                } else {
                    self.begin_anew(server, now + election);
                    self.leader.elect(now + election);
                }
            }
            Fault::Restart { server, until } => self.begin_anew(server, until),
            Fault::Lag { server, by, until } => {
                let server = &mut self.servers[server];
                (server.slow_until, server.slow_by) = (until, by);
            }
            Fault::Expire(host) => {
                self.acts.iter_mut().for_each(|acts| *acts += 1);
                let before = self.leader.log.len();
                let sessions: Vec<i64> = self
                    .clients
                    .values()
                    .filter(|client| client.host == host)
                    .map(|client| client.session)
                    .collect();
                sessions.into_iter().for_each(|session| self.leader.end(session, now));
                (before..self.leader.log.len()).for_each(|_| self.spread());
            }
            Fault::Remove(lock) => {
                self.acts[lock] += 1;
                let before = self.leader.log.len();
                self.leader.remove_all(&directory(lock), now);
                (before..self.leader.log.len()).for_each(|_| self.spread());
            }
        }
    }

    fn cut_off(&mut self, server: usize, until: u64, deposed: bool) {
        // One server is its own leader, and no one can cut it off from itself.
        if self.servers.len() == 1 {
            return;
        }
        let known = &mut self.servers[server];
        known.cut_until = known.cut_until.max(until);
        known.deposed = deposed;
        let life = known.life;
        self.after(SYNC_LIMIT * TICK, Event::GiveUp(server, life));
        // What the leader asked meanwhile is what it hears first.
        self.at(until, Event::Flush(server));
    }

    /// A server ends all connections, and forgets what was under way.
    fn begin_anew(&mut self, server: usize, until: u64) {
        let known = &mut self.servers[server];
        known.life += 1;
        known.deposed = false;
        known.touched.clear();
        known.down_until = known.down_until.max(until);
        let conns: Vec<u64> = self
            .conns
            .iter()
            .filter(|(_, conn)| conn.server == server && conn.server_open)
            .map(|(id, _)| *id)
            .collect();
        for id in conns {
            self.hang_up(id);
            // What has left for the leader may have got there; the rest is lost.
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.work.truncate(usize::from(conn.busy));
            }
        }
    }

    fn break_all(&mut self, host: usize) {
        let broken: Vec<u64> =
            self.clients.iter().filter(|(_, client)| client.host == host).map(|(id, _)| *id).collect();
        broken.into_iter().for_each(|client| self.lose(client));
    }

    // ---- connections ----

    pub(crate) fn dial(&mut self, client: u64, server: usize) -> u64 {
        let id = self.next_conn;
        self.next_conn += 1;
        self.conns.insert(
            id,
            Conn {
                client,
                server,
                session: 0,
                client_open: true,
                server_open: true,
                up: VecDeque::new(),
                down: VecDeque::new(),
                up_at: 0,
                down_at: 0,
                work: VecDeque::new(),
                busy: false,
            },
        );
        id
    }

    pub(crate) fn send_up(&mut self, id: u64, message: Up) {
        let latency = self.latency();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.up_at = conn.up_at.max(self.now + latency);
        conn.up.push_back(message);
        let at = conn.up_at;
        self.at(at, Event::Up(id));
    }

    fn send_down(&mut self, id: u64, message: Down) {
        let latency = self.latency();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.server_open || !conn.client_open {
            return;
        }
        conn.down_at = conn.down_at.max(self.now + latency);
        conn.down.push_back(message);
        let at = conn.down_at;
        self.at(at, Event::Down(id));
    }

    /// The client gives a connection up: only a part of what is under way still arrives.
    pub(crate) fn give_up(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.client_open = false;
        conn.down.clear();
        let keep = self.rng.usize(..=conn.up.len());
        conn.up.truncate(keep);
        // A part of what has arrived is not even read.
        if !conn.work.is_empty() && self.rng.bool() {
            let keep = self.rng.usize(1..=conn.work.len());
            conn.work.truncate(keep);
        }
        self.send_up(id, Up::Bye);
    }

    /// A server ends a connection.
    fn hang_up(&mut self, id: u64) {
        self.send_down(id, Down::Bye);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.server_open = false;
        let server = conn.server;
        self.servers[server].forget(id);
    }

    fn arrive_up(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (server, host) = (conn.server, self.clients.get(&conn.client).map_or(0, |client| client.host));
        let clear = self.hosts[host].up_until;
        if self.now < clear {
            conn.up_at = conn.up_at.max(clear);
            return self.at(clear, Event::Up(id));
        }
        let Some(message) = conn.up.pop_front() else { return };
        if !conn.server_open {
            return;
        }
        let known = &mut self.servers[server];
        if self.now < known.down_until {
            return self.hang_up(id);
        }
        match message {
            Up::Hello { session, seen, timeout } => {
                if seen > known.state.zxid.get() {
                    // It would see time go back.
                    return self.hang_up(id);
                }
                if known.deposed && known.is_cut(self.now) {
                    let alive = known.state.sessions.keys().any(|id| id.get() == session);
                    return if alive { self.welcome(id, session) } else { self.hang_up(id) };
                }
                let life = known.life;
                let latency = self.latency();
                let ask = Ask::Session { conn: id, session, timeout };
                self.after(latency, Event::ToLeader(server, life, ask));
            }
            Up::Request(xid, request) => {
                known.touched.insert(conn.session);
                conn.work.push_back((xid, Work::Do(request)));
                self.pump(id);
            }
            Up::SetWatches { seen, watches } => {
                conn.work.push_back((SET_WATCHES, Work::SetWatches(seen, watches)));
                self.pump(id);
            }
            Up::Bye => {
                conn.server_open = false;
                known.forget(id);
            }
        }
    }

    /// Does what comes first, as long as that needs nobody else.
    fn pump(&mut self, id: u64) {
        while let Some(conn) = self.conns.get_mut(&id) {
            if conn.busy {
                return;
            }
            let (server, session, heard) = (conn.server, conn.session, conn.server_open && conn.client_open);
            let Some((xid, work)) = conn.work.front() else { return };
            let xid = *xid;
            let known = &mut self.servers[server];
            let ask = match work {
                Work::Do(request) if is_write(request) => Some(Ask::Write { conn: id }),
                // It knows of nobody else whom it could ask.
                Work::Do(Request::Sync { .. }) if !(known.deposed && known.is_cut(self.now)) => {
                    Some(Ask::Sync { conn: id, xid })
                }
                _ => None,
            };
            if let Some(ask) = ask {
                conn.busy = true;
                let life = known.life;
                let latency = self.latency();
                return self.after(latency, Event::ToLeader(server, life, ask));
            }
            let Some((_, work)) = conn.work.pop_front() else { return };
            // Nobody listens, and it must set no watch.
            if !heard {
                continue;
            }
            match work {
                Work::SetWatches(since, watches) => {
                    for told in known.set_watches(id, since, &watches) {
                        self.send_down(id, Down::Told(told));
                    }
                    self.reply(id, xid, Ok(Reply::Empty));
                }
                Work::Do(Request::Ping | Request::Sync { .. }) => self.reply(id, xid, Ok(Reply::Empty)),
                Work::Do(Request::RemoveWatches { path, kind }) => {
                    known.unwatch(id, &path, if kind == 1 { Side::Children } else { Side::Data });
                    self.reply(id, xid, Ok(Reply::Empty));
                }
                Work::Do(request) => {
                    let reply = known.read(&request, session, id);
                    self.reply(id, xid, reply);
                }
            }
        }
    }

    fn reply(&mut self, id: u64, xid: i32, reply: Result<Reply, Code>) {
        let Some(conn) = self.conns.get(&id) else { return };
        let zxid = self.servers[conn.server].state.zxid.get();
        self.send_down(id, Down::Reply { xid, zxid, reply });
    }

    /// The answer to what came first, which needed the leader.
    fn answer(&mut self, id: u64, xid: i32, reply: Result<Reply, Code>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.busy = false;
        if conn.work.front().is_some_and(|(first, _)| *first == xid) {
            conn.work.pop_front();
        }
        self.reply(id, xid, reply);
        self.pump(id);
    }

    fn welcome(&mut self, id: u64, session: i64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.session = session;
        let server = conn.server;
        self.servers[server].touched.insert(session);
        self.send_down(id, Down::Welcome { session });
    }

    fn validated(&mut self, server: usize, id: u64, alive: bool) {
        let Some(conn) = self.conns.get(&id) else { return };
        if !conn.server_open || self.now < self.servers[server].down_until {
            return;
        }
        let client = conn.client;
        let session = self.clients.get(&client).map_or(0, |client| client.session);
        if alive {
            self.welcome(id, session);
        } else {
            self.send_down(id, Down::NoSession);
            self.hang_up(id);
        }
    }

    // ---- the leader ----

    fn ask_leader(&mut self, server: usize, life: u64, ask: Ask) {
        let known = &self.servers[server];
        if known.life != life {
            // It was on its way when the server began anew: perhaps it got through before.
            if !matches!(ask, Ask::Write { .. }) || self.rng.bool() {
                return;
            }
        } else if known.is_cut(self.now) {
            let until = known.cut_until;
            return self.at(until, Event::ToLeader(server, life, ask));
        }
        if self.now < self.leader.elected_at {
            return;
        }
        let latency = self.latency();
        match ask {
            Ask::Session { conn, session: 0, timeout } => {
                let id = self.rng.u64(..);
                let session = self.leader.begin_session(id, timeout, (server, conn, 0), self.now);
                self.trace.note(self.now, "session", &[session as u64 & 0xffff, conn], "");
                self.spread();
            }
            Ask::Session { conn, session, .. } => {
                let alive = self.leader.sessions.contains_key(&session);
                self.leader.touch(session, self.now);
                self.after(latency, Event::Validated(server, conn, alive));
            }
            Ask::Sync { conn, xid } => {
                let upto = self.leader.log.len();
                self.after(latency, Event::Synced(server, conn, xid, upto));
            }
            Ask::Write { conn: id } => {
                let Some(conn) = self.conns.get(&id) else { return };
                let Some((xid, Work::Do(request))) = conn.work.front() else { return };
                let (xid, request, session) = (*xid, request.clone(), conn.session);
                self.requests += 1;
                let from: From = (server, id, xid);
                let what = describe(&request);
                match self.leader.write(request, session, from, self.now) {
                    Decided::Logged => {
                        let refused = matches!(
                            self.leader.log.last().map(|entry| &entry.txn.change),
                            Some(zoolock_server::txn::Change::Refused(_))
                        );
                        let zxid = self.leader.state.zxid.get();
                        let numbers =
                            [session as u64 & 0xffff, zxid as u64 & 0xffff_ffff, u64::from(refused)];
                        self.trace.note(self.now, "write", &numbers, &what);
                        self.spread();
                    }
                    Decided::Expired => self.after(latency, Event::Refused(server, id, xid, true)),
                    Decided::Moved => self.after(latency, Event::Refused(server, id, xid, false)),
                }
            }
        }
    }

    /// All servers learn of the newest decision, sometime.
    fn spread(&mut self) {
        for server in 0..self.servers.len() {
            let mut lag = self.latency();
            if self.now < self.servers[server].slow_until {
                lag += self.rng.u64(..=self.servers[server].slow_by);
            }
            self.after(lag, Event::Apply(server));
        }
    }

    fn apply(&mut self, server: usize) {
        let known = &mut self.servers[server];
        if known.is_cut(self.now) {
            let until = known.cut_until;
            return self.at(until, Event::Apply(server));
        }
        let Some(entry) = self.leader.log.get(known.applied) else { return };
        let applied = known.apply(entry, self.plan.tells);
        let (from, greeting, session) = (entry.from, entry.greeting, entry.txn.session);
        let ends = matches!(entry.txn.change, zoolock_server::txn::Change::CloseSession { .. });
        let conns: Vec<u64> = match ends {
            true => self.attached(server, session.get()),
            false => Vec::new(),
        };
        // Whose session is over hears nothing of its own nodes: it would take them for deleted by somebody.
        for (conn, told) in applied.told.into_iter().filter(|(conn, _)| !conns.contains(conn)) {
            self.send_down(conn, Down::Told(told));
        }
        if let Some((_, conn, xid)) = from.filter(|(by, ..)| *by == server) {
            if greeting {
                self.welcome(conn, session.get());
            } else {
                self.answer(conn, xid, applied.reply);
            }
        }
        conns.into_iter().for_each(|conn| self.hang_up(conn));
        let known = &mut self.servers[server];
        let done = known.applied;
        let (ready, waiting) =
            std::mem::take(&mut known.syncs).into_iter().partition(|(upto, ..)| *upto <= done);
        known.syncs = waiting;
        let ready: Vec<(usize, u64, i32)> = ready;
        for (_, conn, xid) in ready {
            self.answer(conn, xid, Ok(Reply::Empty));
        }
    }

    fn attached(&self, server: usize, session: i64) -> Vec<u64> {
        let conns = self.conns.iter();
        let attached =
            conns.filter(|(_, conn)| conn.server == server && conn.server_open && conn.session == session);
        attached.map(|(id, _)| *id).collect()
    }

    fn arrive_down(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let client = conn.client;
        let Some(host) = self.clients.get(&client).map(|client| client.host) else { return };
        let machine = &self.hosts[host];
        let clear = machine.paused_until.max(machine.down_until);
        if self.now < clear && conn.client_open {
            conn.down_at = conn.down_at.max(clear);
            return self.at(clear, Event::Down(id));
        }
        let dead = machine.dead;
        let Some(message) = conn.down.pop_front() else { return };
        if conn.client_open && !dead {
            self.hear(client, id, message);
        }
    }
}

/// Where a lock lives.
pub(crate) fn directory(lock: usize) -> String {
    format!("/locks/{}", name(lock))
}

/// What a lock is called.
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

/// A request for a reader.
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
