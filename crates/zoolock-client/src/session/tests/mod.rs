//! Tests of the session's state machine. Each file tests one group of promises.

mod close;
mod handshake;
mod hostile;
mod moves;
mod requests;

use std::time::Duration;

use bytes::BytesMut;
use zoolock_wire::{
    Code, ConnectRequest, ConnectResponse, CreateRequest, Hidden, OpResult, Reader, Reply, ReplyHeader,
    Request, RequestHeader, Stat, Writer, op, split_frame,
};

use super::*;

/// The session timeout of the tests.
const T: Duration = Duration::from_secs(30);

/// The session id of the tests.
const ID: i64 = 0x1234;

/// The session under test and its clock. The test acts as the server, and sends the answers.
struct Harness {
    session: Session,
    now: Instant,
    random: u64,
    /// The outputs that the test has not taken yet.
    outputs: Vec<Output>,
    /// The granted timeouts, each with the time of its connect request.
    granted: Vec<(Duration, Instant)>,
    /// The sent bytes that the test has not taken yet.
    bytes: BytesMut,
    connection: Option<ConnectionId>,
    zxid: i64,
}

impl Harness {
    fn new() -> Harness {
        Harness::with(SessionConfig::new(T))
    }

    fn with(config: SessionConfig) -> Harness {
        let now = Instant(1_000_000_000_000);
        let mut harness = Harness {
            session: Session::new(config, now),
            now,
            random: 0,
            outputs: Vec::new(),
            granted: Vec::new(),
            bytes: BytesMut::new(),
            connection: None,
            zxid: 100,
        };
        harness.collect();
        harness
    }

    /// Returns a session that is attached, and whose first ping was answered.
    fn attached() -> Harness {
        let mut harness = Harness::new();
        harness.attach();
        harness
    }

    fn collect(&mut self) {
        while let Some(output) = self.session.next_output() {
            match output {
                Output::Granted { timeout, sent } => self.granted.push((timeout, sent)),
                other => self.outputs.push(other),
            }
        }
        while let Some((id, bytes)) = self.session.take_bytes() {
            assert!(self.connection == Some(id), "bytes for a connection that is not established");
            self.bytes.extend_from_slice(&bytes);
        }
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    /// Takes the only output.
    fn output(&mut self) -> Output {
        let mut outputs = self.outputs();
        assert_eq!(outputs.len(), 1, "{outputs:?}");
        outputs.remove(0)
    }

    /// Advances the clock until the session dials a server. Returns the number of the dial. Takes
    /// all outputs.
    fn dial(&mut self) -> ConnectionId {
        self.run(T, Harness::has_dial);
        let dials: Vec<ConnectionId> = self
            .outputs()
            .into_iter()
            .filter_map(|output| match output {
                Output::Dial { id, .. } => Some(id),
                _ => None,
            })
            .collect();
        assert_eq!(dials.len(), 1, "session dials once");
        dials[0]
    }

    fn has_dial(&self) -> bool {
        self.outputs.iter().any(|output| matches!(output, Output::Dial { .. }))
    }

    fn connect(&mut self, id: ConnectionId) {
        self.connection = Some(id);
        assert!(self.session.dial_succeeded(id, self.now, self.random), "the session refused the connection");
        self.collect();
    }

    /// Takes the connect request. It must be the only frame that was written.
    fn connect_request(&mut self) -> ConnectRequest {
        let frame =
            split_frame(&mut self.bytes, 4096).expect("frame is valid").expect("a connect request was sent");
        assert!(self.bytes.is_empty(), "something was sent behind the connect request");
        ConnectRequest::decode(&frame).expect("connect request is decoded")
    }

    fn respond_connect(&mut self, session: i64, timeout: Duration) {
        let response = ConnectResponse {
            protocol: 0,
            timeout_ms: i32::try_from(timeout.as_millis()).expect("timeout fits in i32"),
            session,
            password: Hidden(vec![7; 16]),
            read_only: Some(false),
        };
        self.respond_with(&response);
    }

    fn respond_with(&mut self, response: &ConnectResponse) {
        let mut frame = BytesMut::new();
        Writer::frame(&mut frame, |writer| response.encode(writer));
        self.receive(&frame);
    }

    fn receive(&mut self, bytes: &[u8]) {
        let id = self.connection.expect("session has a connection");
        self.session.receive(id, bytes, self.now, self.random);
        self.collect();
    }

    /// Dials, attaches and answers the first ping.
    fn attach(&mut self) {
        let id = self.dial();
        self.connect(id);
        self.connect_request();
        self.respond_connect(ID, T);
        self.answer_ping();
        self.outputs();
    }

    /// Takes the requests that the session has sent.
    fn requests(&mut self) -> Vec<(i32, Request)> {
        let mut requests = Vec::new();
        while let Some(frame) = split_frame(&mut self.bytes, 1 << 20).expect("frame is valid") {
            let mut reader = Reader::new(&frame);
            let header = RequestHeader::decode(&mut reader).expect("header is decoded");
            requests.push((header.xid, Request::decode(header.op, &mut reader).expect("request is decoded")));
        }
        requests
    }

    fn answer_ping(&mut self) {
        assert_eq!(self.requests(), [(op::XID_PING, Request::Ping)]);
        self.reply(op::XID_PING, Reply::Empty);
    }

    /// Sends a ping and a renewal of the lease.
    fn renew(&mut self) -> RequestNumber {
        let id = self.session.renew(&check(), self.now).expect("session has a connection");
        self.collect();
        id
    }

    fn reply(&mut self, xid: i32, reply: Reply) {
        self.zxid += 1;
        self.reply_at(xid, self.zxid, 0, reply);
    }

    fn refuse(&mut self, xid: i32, code: Code) {
        self.zxid += 1;
        self.reply_at(xid, self.zxid, code.number(), Reply::Empty);
    }

    fn reply_at(&mut self, xid: i32, zxid: i64, err: i32, reply: Reply) {
        let mut frame = BytesMut::new();
        Writer::frame(&mut frame, |writer| {
            ReplyHeader { xid, zxid, err }.encode(writer);
            reply.encode(writer);
        });
        self.receive(&frame);
    }

    fn send(&mut self, request: Request) -> RequestNumber {
        let id = self.session.request(&request, self.now).expect("session has a connection");
        self.collect();
        id
    }

    fn wait(&mut self, duration: Duration) {
        self.now = self.now.after(duration);
        self.session.run_due_timers(self.now, self.random);
        self.collect();
    }

    /// Calls the timer whenever it is due, until `until` is true or `duration` has passed. Returns the time
    /// until `until` was true, or `None` if it never was.
    fn run(&mut self, duration: Duration, until: impl Fn(&Harness) -> bool) -> Option<Duration> {
        let (start, end) = (self.now, self.now.after(duration));
        loop {
            if until(self) {
                return Some(start.until(self.now));
            }
            match self.session.next_timer() {
                Some(at) if at <= end => {
                    self.now = self.now.max(at);
                    self.session.run_due_timers(self.now, self.random);
                    self.collect();
                }
                _ => {
                    self.now = end;
                    return until(self).then(|| start.until(self.now));
                }
            }
        }
    }

    fn disconnect(&mut self) {
        let id = self.connection.take().expect("session has a connection");
        self.bytes.clear();
        self.session.handle_connection_end(id, self.now, self.random);
        self.collect();
    }

    /// Creates an ephemeral znode, as a contender does.
    fn create_ephemeral(&mut self) {
        self.send(create(3));
        let (xid, _) = self.requests().remove(0);
        let path = "/locks/a/lock-0000000000".to_owned();
        self.reply(xid, Reply::PathStat { path, stat: Stat::default() });
        self.outputs();
    }
}

fn create(flags: i32) -> Request {
    Request::Create(CreateRequest {
        op: op::CREATE2,
        path: "/locks/a/lock-".to_owned(),
        data: None,
        acl: Vec::new(),
        flags,
        ttl: -1,
    })
}

fn check() -> Request {
    Request::Multi(vec![Request::Check { path: "/locks/a".to_owned(), version: -1 }])
}

fn read() -> Request {
    Request::GetData { path: "/locks/a".to_owned(), watch: true }
}

fn data() -> Reply {
    Reply::Data { data: None, stat: Stat::default() }
}
