//! The client's end of a session: what the client crate does for the real ones.
//!
//! It pings, notices silence after a quarter of the session timeout, goes to another server, sets its watches again,
//! fails what was under way when a connection is lost, keeps what comes while there is none, and gives the session up by
//! itself after seven fifths of its timeout.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use zoolock::sim::{Answer, Later, Line, LineState, Opened};
use zoolock_wire::{Code, EventKind, Reply, Request};

use crate::Sim;
use crate::ensemble::{Side, Told, watched};
use crate::world::{Down, Event, SET_WATCHES, Up, World};

pub(crate) struct Client {
    pub(crate) host: usize,
    pub(crate) session: i64,
    timeout: u64,
    phase: Phase,
    conn: Option<u64>,
    seen: i64,
    next_xid: i32,
    flight: VecDeque<(i32, Sent)>,
    queue: VecDeque<Sent>,
    watches: BTreeMap<(String, Side), Vec<Watcher>>,
    next_watch: u64,
    interruptions: u64,
    heard: u64,
    sent: u64,
    dialled: u64,
    /// When something was last answered that should have been long before.
    slow: Option<u64>,
    states: watch::Sender<LineState>,
    /// Who waits for the session, and how often it was tried.
    opening: Option<(oneshot::Sender<Opened>, u32)>,
    /// Nobody needs it any more.
    closing: bool,
}

/// Its number, and whom to tell.
type Watcher = (u64, oneshot::Sender<bool>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connecting,
    Up,
    Over,
}

pub(crate) struct Sent {
    at: u64,
    request: Request,
    answer: Option<oneshot::Sender<Answer>>,
}

/// What is told to whoever waits, once nobody looks at the world: wakers and what is dropped with them may.
pub(crate) enum Effect {
    Answer(oneshot::Sender<Answer>, Answer),
    Fire(oneshot::Sender<bool>, bool),
    Open(oneshot::Sender<Opened>, Opened),
    Forget(#[expect(dead_code, reason = "it is there to be dropped")] Sent),
    Leave(#[expect(dead_code, reason = "it is there to be dropped")] Box<Client>),
}

impl Effect {
    pub(crate) fn leave(client: Client) -> Effect {
        Effect::Leave(Box::new(client))
    }

    pub(crate) fn happen(self) {
        match self {
            Effect::Answer(whom, answer) => drop(whom.send(answer)),
            Effect::Fire(whom, deleted) => drop(whom.send(deleted)),
            Effect::Open(whom, opened) => drop(whom.send(opened)),
            Effect::Forget(_) | Effect::Leave(_) => {}
        }
    }
}

const CLOSE: i32 = -11;
const RETRIES: u32 = 3;

impl World {
    /// Begins to open a session.
    pub(crate) fn open(&mut self, host: usize, timeout: u64) -> oneshot::Receiver<Opened> {
        let (sender, receiver) = oneshot::channel();
        let id = self.next_client;
        self.next_client += 1;
        let client = Client {
            host,
            session: 0,
            timeout,
            phase: Phase::Connecting,
            conn: None,
            seen: 0,
            next_xid: 1,
            flight: VecDeque::new(),
            queue: VecDeque::new(),
            watches: BTreeMap::new(),
            next_watch: 0,
            interruptions: 0,
            heard: self.now,
            sent: self.now,
            dialled: self.now,
            slow: None,
            states: watch::Sender::new(LineState::Up),
            opening: Some((sender, 0)),
            closing: false,
        };
        self.clients.insert(id, client);
        self.after(timeout / 32, Event::ClientTick(id));
        self.after(0, Event::Reconnect(id));
        receiver
    }

    pub(crate) fn reconnect(&mut self, id: u64) {
        let server = self.rng.usize(..self.servers.len());
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.phase != Phase::Connecting || client.conn.is_some() || self.hosts[client.host].dead {
            return;
        }
        let awake = self.hosts[client.host].paused_until;
        if self.now < awake {
            return self.at(awake, Event::Reconnect(id));
        }
        client.dialled = self.now;
        let hello = Up::Hello { session: client.session, seen: client.seen, timeout: client.timeout };
        let conn = self.dial(id, server);
        if let Some(client) = self.clients.get_mut(&id) {
            client.conn = Some(conn);
        }
        self.send_up(conn, hello);
    }

    pub(crate) fn client_tick(&mut self, id: u64) {
        let Some(client) = self.clients.get(&id) else { return };
        if client.phase == Phase::Over || self.hosts[client.host].dead {
            return;
        }
        let awake = self.hosts[client.host].paused_until;
        if self.now < awake {
            return self.at(awake, Event::ClientTick(id));
        }
        let (timeout, patience) = (client.timeout, client.timeout / 4);
        let since = |then: u64| self.now - then;
        if client.phase == Phase::Up && since(client.heard) >= patience {
            self.lose(id);
        } else if client.phase == Phase::Up && since(client.sent) >= patience * 3 / 8 {
            self.put_on_the_wire(id, Sent { at: self.now, request: Request::Ping, answer: None });
        } else if client.phase == Phase::Connecting
            && client.session != 0
            && since(client.heard) >= timeout * 7 / 5
        {
            return self.end(id, LineState::Expired);
        } else if client.conn.is_some()
            && client.phase == Phase::Connecting
            && since(client.dialled) >= patience
        {
            self.lose(id);
        }
        self.after(timeout / 32, Event::ClientTick(id));
    }

    /// The connection is gone.
    pub(crate) fn lose(&mut self, id: u64) {
        let wait = self.rng.u64(0..200);
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(conn) = client.conn.take() else { return };
        let was_up = client.phase == Phase::Up;
        let closing = client.flight.iter().any(|(_, sent)| sent.request == Request::CloseSession);
        let lost = std::mem::take(&mut client.flight);
        self.effects.extend(lost.into_iter().map(|(_, sent)| Effect::Forget(sent)));
        client.phase = Phase::Connecting;
        // It is given up for nothing else.
        client.slow = Some(self.now);
        if was_up {
            self.trace.note(self.now, "loses", &[id, conn], "");
            client.interruptions += 1;
            client.states.send_replace(LineState::Down);
        }
        let mut tried_enough = false;
        if let Some((_, tries)) = &mut client.opening {
            *tries += 1;
            tried_enough = *tries >= RETRIES;
        }
        self.give_up(conn);
        if closing || tried_enough {
            return self.end(id, LineState::Closed);
        }
        self.after(wait, Event::Reconnect(id));
    }

    fn end(&mut self, id: u64, state: LineState) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.phase == Phase::Over {
            return;
        }
        self.trace.note(self.now, "over", &[id, u64::from(state == LineState::Expired)], "");
        client.phase = Phase::Over;
        let lost = std::mem::take(&mut client.flight).into_iter().map(|(_, sent)| sent);
        self.effects.extend(lost.chain(std::mem::take(&mut client.queue)).map(Effect::Forget));
        let watches = std::mem::take(&mut client.watches).into_values().flatten();
        self.effects.extend(watches.map(|(_, watch)| Effect::Fire(watch, false)));
        client.opening = None;
        client.states.send_replace(state);
        if let Some(conn) = client.conn.take() {
            self.give_up(conn);
        }
    }

    /// Something comes from the server.
    pub(crate) fn hear(&mut self, id: u64, conn: u64, message: Down) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.conn != Some(conn) || client.phase == Phase::Over {
            return;
        }
        match message {
            Down::Bye => self.lose(id),
            Down::NoSession => self.end(id, LineState::Expired),
            Down::Welcome { session } => self.welcomed(id, session),
            Down::Told(told) => {
                client.heard = now;
                self.trace.note(now, "told", &[id, told.kind.code() as u64], &told.path);
                self.effects.extend(client.tell(&told));
            }
            Down::Reply { reply: Err(Code::SessionExpired), .. } => self.end(id, LineState::Expired),
            Down::Reply { xid, zxid, reply } => {
                client.heard = now;
                client.seen = client.seen.max(zxid);
                let Some((expected, sent)) = client.flight.pop_front() else { return };
                assert_eq!(xid, expected, "answers come in the order of the requests");
                client.note_answer(sent.at, now);
                if sent.request == Request::CloseSession {
                    return self.end(id, LineState::Closed);
                }
                self.answered(id, sent, reply);
            }
        }
    }

    fn answered(&mut self, id: u64, sent: Sent, reply: Result<Reply, Code>) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(answer) = sent.answer else { return };
        let code = reply.as_ref().err().map_or(0, |code| code.number());
        self.trace.note(now, "answer", &[id, u64::from(code.unsigned_abs())], "");
        let watch = match (&reply, watched(&sent.request)) {
            (Ok(_), Some((path, side))) => {
                let (sender, fired) = oneshot::channel();
                client.next_watch += 1;
                let number = client.next_watch;
                client.watches.entry((path.to_owned(), side)).or_default().push((number, sender));
                Some((path.to_owned(), side, number, fired))
            }
            _ => None,
        };
        let watch = watch.map(|(path, side, number, fired)| -> Later<bool> {
            let back = TakeBack { sim: self.sim.clone(), client: id, path, side, number };
            Box::pin(async move {
                let deleted = fired.await.unwrap_or(false);
                drop(back);
                deleted
            })
        });
        self.effects.push(Effect::Answer(answer, Answer { reply, watch }));
    }

    fn welcomed(&mut self, id: u64, session: i64) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(&id) else { return };
        (client.phase, client.session, client.heard) = (Phase::Up, session, now);
        client.interruptions += 1;
        self.trace.note(now, "up", &[id, client.conn.unwrap_or(0)], "");
        if let Some((sender, _)) = client.opening.take() {
            client.note_answer(client.dialled, now);
            let line = SimLine { sim: self.sim.clone(), client: id, session, timeout: client.timeout };
            let opened = Opened { line: Arc::new(line), states: client.states.subscribe() };
            self.effects.push(Effect::Open(sender, opened));
        } else {
            client.states.send_replace(LineState::Up);
        }
        let watches: Vec<(String, Side)> = client.watches.keys().cloned().collect();
        if let (false, Some(conn)) = (watches.is_empty(), client.conn) {
            // Sometimes it is told again of what it knows.
            let seen = if self.rng.u8(..8) == 0 { client.seen - 2 } else { client.seen };
            client
                .flight
                .push_back((SET_WATCHES, Sent { at: self.now, request: Request::Ping, answer: None }));
            self.send_up(conn, Up::SetWatches { seen, watches });
        }
        let queued =
            self.clients.get_mut(&id).map_or(VecDeque::new(), |client| std::mem::take(&mut client.queue));
        for sent in queued {
            self.put_on_the_wire(id, sent);
        }
        if self.clients.get(&id).is_some_and(|client| client.closing) {
            self.put_on_the_wire(id, Sent { at: self.now, request: Request::CloseSession, answer: None });
        }
    }

    fn put_on_the_wire(&mut self, id: u64, sent: Sent) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(conn) = client.conn else { return };
        let xid = match sent.request {
            Request::CloseSession => CLOSE,
            _ => {
                client.next_xid += 1;
                client.next_xid
            }
        };
        client.sent = self.now;
        let request = sent.request.clone();
        client.flight.push_back((xid, sent));
        self.send_up(conn, Up::Request(xid, request));
    }

    fn submit(&mut self, id: u64, request: Request) -> Option<oneshot::Receiver<Answer>> {
        let client = self.clients.get_mut(&id)?;
        let (sender, receiver) = oneshot::channel();
        let dead = self.hosts[client.host].dead;
        if client.phase == Phase::Over || dead {
            return None;
        }
        let sent = Sent { at: self.now, request, answer: Some(sender) };
        match client.phase {
            Phase::Up => self.put_on_the_wire(id, sent),
            _ => client.queue.push_back(sent),
        }
        Some(receiver)
    }

    fn take_back(&mut self, id: u64, path: &str, side: Side, number: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let key = (path.to_owned(), side);
        let Some(watches) = client.watches.get_mut(&key) else { return };
        watches.retain(|(other, _)| *other != number);
        if watches.is_empty() {
            client.watches.remove(&key);
            // As the client crate does: what is asked for anew is not taken back behind it.
            let mut requests = client.flight.iter().map(|(_, sent)| &sent.request);
            if requests.any(|request| watched(request) == Some((path, side))) {
                return;
            }
            if client.phase == Phase::Up && !self.hosts[client.host].dead {
                let kind = if side == Side::Children { 1 } else { 2 };
                let request = Request::RemoveWatches { path: path.to_owned(), kind };
                self.put_on_the_wire(id, Sent { at: self.now, request, answer: None });
            }
        }
    }

    fn close(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.closing = true;
        if client.phase == Phase::Up && !self.hosts[client.host].dead {
            self.put_on_the_wire(id, Sent { at: self.now, request: Request::CloseSession, answer: None });
        }
    }
}

impl Client {
    pub(crate) fn has_expired(&self) -> bool {
        *self.states.borrow() == LineState::Expired
    }

    /// Whether anything was answered so late, since then, that a lock may be lost by it.
    pub(crate) fn was_slow_since(&self, then: u64, now: u64) -> bool {
        let waits = self.flight.front().is_some_and(|(_, sent)| self.is_late(sent.at, now));
        waits || self.slow.is_some_and(|slow| slow >= then)
    }

    fn note_answer(&mut self, sent: u64, now: u64) {
        if self.is_late(sent, now) {
            self.slow = Some(now);
        }
    }

    /// An eighth of the timeout is what the lease allows for (`zoolock_core::pace`).
    fn is_late(&self, sent: u64, now: u64) -> bool {
        now - sent > self.timeout / 8
    }

    fn tell(&mut self, told: &Told) -> Vec<Effect> {
        let sides = [Side::Data, Side::Children].into_iter().filter(|side| told.is_for(*side));
        let fired = sides.filter_map(|side| self.watches.remove(&(told.path.clone(), side)));
        let deleted = told.kind == EventKind::Deleted;
        fired.flatten().map(|(_, watch)| Effect::Fire(watch, deleted)).collect()
    }
}

/// Takes a watch back that nobody waits for.
struct TakeBack {
    sim: Weak<Sim>,
    client: u64,
    path: String,
    side: Side,
    number: u64,
}

impl Drop for TakeBack {
    fn drop(&mut self) {
        if let Some(sim) = self.sim.upgrade() {
            sim.world(|world| world.take_back(self.client, &self.path, self.side, self.number));
        }
    }
}

/// A session, for the lock code. What was killed in the middle of something may keep it for ever, but not the run.
struct SimLine {
    sim: Weak<Sim>,
    client: u64,
    session: i64,
    timeout: u64,
}

impl Line for SimLine {
    fn session(&self) -> i64 {
        self.session
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout)
    }

    fn is_connected(&self) -> bool {
        let is_up = |client: &Client| client.phase == Phase::Up;
        let sim = self.sim.upgrade();
        sim.is_some_and(|sim| sim.world(|world| world.clients.get(&self.client).is_some_and(is_up)))
    }

    fn interruptions(&self) -> u64 {
        let of = |world: &mut World| world.clients.get(&self.client).map(|client| client.interruptions);
        self.sim.upgrade().and_then(|sim| sim.world(of)).unwrap_or(u64::MAX)
    }

    fn send(&self, request: Request) -> Later<Option<Answer>> {
        match self.sim.upgrade().and_then(|sim| sim.world(|world| world.submit(self.client, request))) {
            Some(answer) => Box::pin(async move { answer.await.ok() }),
            None => Box::pin(std::future::poll_fn(|_| Poll::Ready(None))),
        }
    }
}

impl Drop for SimLine {
    fn drop(&mut self) {
        if let Some(sim) = self.sim.upgrade() {
            sim.world(|world| world.close(self.client));
        }
    }
}
