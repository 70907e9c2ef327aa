//! The network between clients and servers, and what happens on it, in virtual milliseconds.
//!
//! A connection is two queues. Whatever is put into one gets an arrival time, never before that of what was put in
//! earlier, and an event in the calendar; the event takes the first of the queue, so that nothing overtakes. When a
//! client loses a connection, a random part of what it had sent still arrives; answers do not.
//!
//! * `connections.rs`: how they are made and lost, and what goes over them.
//! * `faults.rs`: what goes wrong.
//! * `leader.rs`: what it decides, and how that reaches the others.

mod connections;
mod faults;
mod leader;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Weak};

use fastrand::Rng;
use zoolock_wire::{Code, Reply, Request};

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
