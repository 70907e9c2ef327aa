//! Frames and records: several connections send requests and arbitrary bytes to the core of a server.
//!
//! The decided transactions are replayed as from a log, and must result in the same state.
#![no_main]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use zoolock_fuzz::{CREDENTIALS, Input, frame, records, sorted};
use zoolock_server::acl;
use zoolock_server::core::{ConnId, Core, CoreConfig, Now, Readiness, SessionSeed};
use zoolock_server::log::{codec, replay};
use zoolock_server::tree::{NodeRecord, Tree, ZnodeOwner};
use zoolock_server::{Access, Secret, SessionId, State, Users, txn};
use zoolock_wire::{
    ConnectRequest, ConnectResponse, Hidden, Reader, Reply, ReplyHeader, Request, RequestHeader, WatchEvent,
    Writer, op,
};

fuzz_target!(|data: &[u8]| {
    round_trips(data);
    let mut input = Input::new(data);
    let mut server = Server::new(config(input.byte()));
    while !input.is_empty() {
        server.step(&mut input);
        server.replay_decided();
        // In some steps the connections do not read their output.
        if !input.byte().is_multiple_of(4) {
            server.drain();
        }
    }
    server.end();
});

fn config(choice: u8) -> CoreConfig {
    let users =
        Users::parse(&acl::digest_identity(CREDENTIALS[0].as_bytes()).id).expect("the account is valid");
    let access = match choice % 8 {
        1 => Access { secret: Some(Secret::new("secret")), ..Access::default() },
        2 => Access { required: true, users: Some(users), ..Access::default() },
        3 => Access {
            super_digest: Some(Secret::new(acl::digest_identity(b"super:test").id)),
            ..Access::default()
        },
        _ => Access::default(),
    };
    let small = choice & 64 != 0;
    CoreConfig {
        tick_ms: 100,
        min_timeout_ms: 200,
        max_timeout_ms: 4000,
        access,
        max_output: if small { 256 } else { 1 << 20 },
        max_queued: if small { 400 } else { 0 },
        max_watches: if small { 3 } else { 0 },
        // The smallest parts of work.
        max_part: if choice & 32 != 0 { 1 } else { usize::MAX },
        extended_types: choice & 128 == 0,
        journal: true,
        ..CoreConfig::default()
    }
}

struct Server {
    core: Core,
    config: CoreConfig,
    epoch: u32,
    now: Now,
    seed: u64,
    /// The connections that the steps use.
    conns: [ConnId; 3],
    /// All connections since the last restart.
    all: Vec<ConnId>,
    /// The state that a log would restore.
    replayed: State,
    snapshot: Option<(Vec<NodeRecord>, Vec<NodeRecord>)>,
    /// The zxid of the last reply to each connection.
    seen: BTreeMap<ConnId, i64>,
}

impl Server {
    fn new(config: CoreConfig) -> Self {
        let mut core = Core::new(config.clone(), 1);
        let conns = [(); 3].map(|()| core.add_connection(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        let mut server = Server {
            core,
            config,
            epoch: 1,
            now: Now { mono_ms: 0, wall_ms: 1 },
            seed: 0,
            conns,
            all: conns.to_vec(),
            replayed: State::new(0),
            snapshot: None,
            seen: BTreeMap::new(),
        };
        for index in 0..3 {
            server.connect(index, SessionId::NONE, &[0; 16]);
        }
        server
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let action = input.byte();
        let index = usize::from(action) % self.conns.len();
        match action >> 3 {
            0 => self.open(index),
            1 => {
                self.open(index);
                self.connect(index, SessionId::NONE, &[0; 16]);
            }
            2 => {
                self.open(index);
                self.reattach(index, input.byte());
            }
            3 => self.core.remove_connection(self.conns[index], self.now),
            4 | 5 => {
                let ms = u32::from(input.byte()) * if action & 4 == 0 { 1 } else { 20 };
                self.now.mono_ms += u64::from(ms);
                self.now.wall_ms += i64::from(ms);
                self.core.expire_due_sessions(self.now);
                self.core.remove_empty_containers(self.now);
            }
            6 => {
                let frame = input.bytes();
                self.receive(index, frame);
            }
            7 => {
                let mut frame = frame(1, &input.request());
                for _ in 0..=action & 3 {
                    let at = usize::from(input.byte()) % frame.len();
                    frame[at] = input.byte();
                }
                if action & 4 != 0 {
                    frame.truncate(usize::from(input.byte()));
                }
                self.receive(index, &frame);
            }
            8 => match self.snapshot {
                None => self.begin_snapshot(),
                Some(_) => self.snapshot_chunk(usize::from(input.byte() % 8)),
            },
            9 => match input.byte() % 10 {
                0 => self.restart_from_log(),
                1 => self.core.disconnect_all(),
                2 => {
                    self.epoch += 1;
                    self.core.start_epoch(self.epoch);
                }
                3 => {
                    let _ = self.core.stop_input(self.conns[index]);
                }
                at => {
                    let session = self.core.state().sessions.keys().nth(usize::from(at - 4)).copied();
                    if let Some(session) = session {
                        assert!(self.core.expire_session(session, self.now));
                    }
                }
            },
            10..16 => {
                let frame = frame(1, &input.request());
                self.receive(index, &frame);
            }
            _ => {
                let request = input.request();
                self.ask(index, &request);
            }
        }
    }

    fn open(&mut self, index: usize) {
        let conn = self.core.add_connection(IpAddr::V4(Ipv4Addr::LOCALHOST));
        self.conns[index] = conn;
        self.all.push(conn);
    }

    fn connect(&mut self, index: usize, session: SessionId, password: &[u8]) {
        let password = Hidden(password.to_vec());
        let request = ConnectRequest { session: session.0, password, ..ConnectRequest::new_session(1000) };
        let mut frame = BytesMut::new();
        request.encode(&mut Writer::new(&mut frame));
        self.receive(index, &frame);
        let answer = self.read_answer(index);
        let Some(answer) = frames(&answer).next() else { return };
        let answer = ConnectResponse::decode(answer).expect("the answer is a connect response");
        let known = self.core.state().sessions.get(&SessionId(answer.session));
        assert_eq!(known.is_some(), answer.timeout_ms > 0);
    }

    fn reattach(&mut self, index: usize, at: u8) {
        let sessions = &self.core.state().sessions;
        let known = sessions.iter().nth(usize::from(at % 8)).map(|(id, known)| (*id, known.password.clone()));
        let Some((id, mut password)) = known else { return };
        password.0[0] ^= at & 128;
        self.connect(index, id, &password.0);
    }

    /// Sends a frame when the connection is ready for it, as the server does.
    fn receive(&mut self, index: usize, frame: &[u8]) {
        if !self.make_ready(index) {
            return;
        }
        let seed = &mut self.seed;
        let session_seed = || {
            *seed += 1;
            // Some session ids repeat.
            SessionSeed { id: *seed % 6, password: txn::Password([*seed as u8; 16]) }
        };
        self.core.receive(self.conns[index], frame, self.now, session_seed);
    }

    /// Continues the work of a connection for some turns. Returns whether its next request can be handled. Perhaps its
    /// client must read first.
    fn make_ready(&mut self, index: usize) -> bool {
        (0..100).any(|_| {
            self.core.continue_work(self.now);
            self.core.advance(self.conns[index]) == Readiness::Ready
        })
    }

    /// Reads the output of a connection until its request is answered.
    fn read_answer(&mut self, index: usize) -> BytesMut {
        let mut answer = self.take(self.conns[index]);
        for _ in 0..10_000 {
            let ready = self.make_ready(index);
            answer.extend(self.take(self.conns[index]));
            if ready {
                return answer;
            }
        }
        panic!("the request of a client that reads is never answered");
    }

    /// Finishes all work. The clients read their output.
    fn finish_work(&mut self) {
        for _ in 0..100_000 {
            self.core.continue_work(self.now);
            let mut ready = true;
            for conn in self.all.clone() {
                ready &= self.core.advance(conn) == Readiness::Ready;
                self.take(conn);
            }
            if ready && !self.core.has_work() {
                return;
            }
        }
        panic!("the work does not end");
    }

    /// Sends a request, and reads the answer as a client would.
    fn ask(&mut self, index: usize, request: &Request) {
        let conn = self.conns[index];
        if self.core.session_timeout_ms(conn) == 0 {
            // The first frame of a connection is always decoded as a connect request.
            return self.receive(index, &frame(7, request));
        }
        self.read_answer(index);
        self.receive(index, &frame(7, request));
        let answer = self.read_answer(index);
        let mut answers = 0;
        for frame in frames(&answer) {
            let mut reader = Reader::new(frame);
            let header = ReplyHeader::decode(&mut reader).expect("every frame has a header");
            if header.xid == op::XID_EVENT {
                WatchEvent::decode(&mut reader).expect("the event is decoded");
            } else if header.xid == 7 {
                answers += 1;
                if header.zxid != 0 {
                    let before = self.seen.insert(conn, header.zxid).unwrap_or(0);
                    assert!(header.zxid >= before, "the zxid of a reply decreased");
                }
                if header.err == 0 {
                    Reply::decode(request.op(), &mut reader).expect("the reply matches its request");
                }
            }
            reader.check_end().expect("the frame has no other bytes");
        }
        assert!(answers <= 1, "{answers} answers");
    }

    fn take(&mut self, conn: ConnId) -> BytesMut {
        let mut out = BytesMut::new();
        self.core.take_output(conn, &mut out);
        out
    }

    fn drain(&mut self) {
        for conn in self.conns {
            frames(&self.take(conn)).for_each(drop);
        }
        self.core.take_woken();
    }

    /// Encodes, decodes and replays the decided transactions, as a log does.
    fn replay_decided(&mut self) {
        for txn in std::mem::take(self.core.decided_mut()) {
            let mut bytes = BytesMut::new();
            codec::encode_txn(&txn, &mut bytes).expect("a decided transaction can be logged");
            let txn = codec::decode_txn(&bytes).expect("the encoding is decoded");
            replay(txn, &mut self.replayed).expect("a decided transaction can be replayed");
        }
    }

    fn begin_snapshot(&mut self) {
        let start = self.core.begin_snapshot();
        assert_eq!((start.zxid, &start.sessions), (self.core.last_change(), &self.core.state().sessions));
        self.snapshot = Some((records(&self.core.state().tree), Vec::new()));
    }

    fn snapshot_chunk(&mut self, max: usize) {
        let Some((begun, had)) = &mut self.snapshot else { return };
        match self.core.snapshot_chunk(max) {
            Some(chunk) => had.extend(chunk),
            None => {
                assert_eq!(sorted(std::mem::take(had)), *begun, "the snapshot differs from the tree");
                self.snapshot = None;
            }
        }
    }

    /// Checks that a log would restore the current state, and that the counts are right.
    fn check(&self) {
        let state = self.core.state();
        assert_eq!(records(&self.replayed.tree), records(&state.tree));
        assert_eq!(self.replayed.sessions, state.sessions);
        let again = Tree::from_records(state.tree.records()).expect("the tree is consistent");
        assert_eq!(again.approximate_data_size(), state.tree.approximate_data_size());
        let ephemerals = |id: &SessionId| state.tree.ephemerals(*id);
        let all: Vec<_> = state.sessions.keys().chain(&state.ending).flat_map(ephemerals).collect();
        assert_eq!(self.replayed.ending, state.ending);
        let owned = |record: &NodeRecord| {
            matches!(ZnodeOwner::from_number(record.meta.owner), ZnodeOwner::Session(_))
        };
        assert_eq!(
            all.len(),
            state.tree.records().filter(owned).count(),
            "an ephemeral has outlived its session"
        );
        for id in state.sessions.keys() {
            assert_eq!(again.ephemerals(*id), state.tree.ephemerals(*id));
        }
        let expired = |tree: &Tree| tree.expired_paths(i64::MAX, usize::MAX);
        assert_eq!(expired(&again), expired(&state.tree));
        let stats = self.core.stats();
        assert_eq!(
            (stats.znodes, stats.ephemerals, stats.sessions),
            (state.tree.len(), all.len(), state.sessions.len())
        );
        assert_eq!(self.core.connections().count(), stats.connections);
    }

    fn restart_from_log(&mut self) {
        self.replay_decided();
        self.check();
        self.epoch += 1;
        let state = self.replayed.clone();
        self.core = Core::restore(self.config.clone(), state, self.epoch, self.now);
        self.snapshot = None;
        self.seen.clear();
        self.all.clear();
        (0..3).for_each(|index| self.open(index));
    }

    fn end(mut self) {
        self.finish_work();
        self.replay_decided();
        self.check();
        while self.snapshot.is_some() {
            self.snapshot_chunk(5);
        }
        // The first take gives the output to the sockets. The second take marks it as written.
        for conn in [self.all.clone(), self.all.clone()].concat() {
            self.take(conn);
        }
        assert_eq!(self.core.stats().queued, 0, "queued bytes remain without a connection");
        for conn in std::mem::take(&mut self.all) {
            self.core.remove_connection(conn, self.now);
        }
        self.now.mono_ms += 60_000;
        self.core.expire_due_sessions(self.now);
        while self.core.has_work() {
            self.core.continue_work(self.now);
        }
        let stats = self.core.stats();
        let left = (stats.sessions, stats.ephemerals, stats.watches, stats.watch_sides, stats.connections);
        assert_eq!((left, stats.queued), ((0, 0, 0, 0, 0), 0));
        assert_eq!(self.core.next_expiry(), None);
        self.replay_decided();
        self.check();
    }
}

/// Checks that a decoded request is the same after another encoding and decoding, and that no
/// decoder panics.
fn round_trips(data: &[u8]) {
    let _ = ConnectRequest::decode(data);
    let _ = ConnectResponse::decode(data);
    let mut reader = Reader::new(data);
    let Ok(header) = RequestHeader::decode(&mut reader) else { return };
    let _ = Reply::decode(header.op, &mut Reader::new(data));
    if let Ok(request) = Request::decode(header.op, &mut reader) {
        let out = frame(header.xid, &request);
        let mut again = Reader::new(&out);
        assert_eq!(RequestHeader::decode(&mut again).expect("the encoding is decoded"), header);
        let decoded = Request::decode(header.op, &mut again).expect("the encoding is decoded");
        assert_eq!(decoded, request);
    }
}

fn frames(mut out: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let Some((len, rest)) = out.split_first_chunk() else {
            assert!(out.is_empty(), "the output ends within a length");
            return None;
        };
        let (frame, rest) = rest.split_at_checked(u32::from_be_bytes(*len) as usize).expect("a whole frame");
        out = rest;
        Some(frame)
    })
}
