//! A client that asks for random things, notes what it is told, and takes its session along from server to server.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use zoolock_server::Hidden;
use zoolock_server::log::sim::Random;
use zoolock_server::wire::{
    ConnectRequest, ConnectResponse, EventKind, OpResult, Reader, Reply, ReplyHeader, Request, RequestHeader,
    WatchEvent, Writer, op,
};

use crate::common::{connect_request, create, delete, get, set, within};
use crate::told::Told;

/// How much one asks for in a round in which nothing goes wrong.
const REQUESTS: usize = 120;

pub(crate) fn single(client: usize) -> String {
    format!("/single-{client}")
}

/// These two are always written together.
pub(crate) fn pair(client: usize) -> [String; 2] {
    [format!("/pair-{client}-a"), format!("/pair-{client}-b")]
}

pub(crate) struct Client {
    id: usize,
    random: Random,
    session: Option<(i64, Hidden)>,
    /// The ephemerals of the session that were asked for, also those that may never have come.
    ephemerals: Vec<String>,
    names: usize,
    /// What this connection has seen of each counter.
    seen: BTreeMap<String, i64>,
    told: Arc<Mutex<Told>>,
}

impl Client {
    pub(crate) fn new(id: usize, seed: u64, told: Arc<Mutex<Told>>) -> Self {
        let (random, seen) = (Random(seed), BTreeMap::new());
        Client { id, random, session: None, ephemerals: Vec::new(), names: 0, seen, told }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect("no other client has found a fault")
    }

    /// Asks until the server is gone, or long enough.
    pub(crate) async fn run(mut self, addr: SocketAddr) -> Self {
        let mut left = REQUESTS;
        while left > 0 {
            let Ok(mut wire) = self.connect(addr).await else { return self };
            // Ends where the session does, or the server.
            let served = within(self.ask(&mut wire, &mut left)).await;
            if served.is_err() {
                return self;
            }
        }
        self
    }

    async fn connect(&mut self, addr: SocketAddr) -> io::Result<Wire> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let mut wire = Wire {
            stream,
            input: BytesMut::new(),
            asked: VecDeque::new(),
            xid: 0,
            session: (0, Hidden::default()),
        };
        let mut request = ConnectRequest { timeout_ms: 40_000, ..connect_request() };
        if let Some((session, password)) = &self.session {
            (request.session, request.password) = (*session, password.clone());
        }
        let mut out = BytesMut::new();
        Writer::frame(&mut out, |writer| request.encode(writer));
        wire.stream.write_all(&out).await?;
        let granted = ConnectResponse::decode(&wire.frame().await?).expect("a connect response");
        assert_ne!(granted.session, 0, "a session that was granted, and not closed, is not known");
        wire.session = (granted.session, granted.password);
        self.session = Some(wire.session.clone());
        self.seen.clear();
        let watch = Request::AddWatch { path: "/".to_owned(), mode: 1 };
        let counters: Vec<String> = self.told().counters.keys().cloned().collect();
        wire.send([watch].into_iter().chain(counters.iter().map(|path| get(path, false)))).await?;
        self.listen(&mut wire).await?;
        Ok(wire)
    }

    async fn ask(&mut self, wire: &mut Wire, left: &mut usize) -> io::Result<()> {
        while *left > 0 && self.session.is_some() {
            let mut requests = Vec::new();
            for _ in 0..self.random.below(5) + 1 {
                requests.push(self.request());
                if self.session.is_none() {
                    break;
                }
            }
            *left = left.saturating_sub(requests.len());
            wire.send(requests).await?;
            self.listen(wire).await?;
        }
        Ok(())
    }

    fn request(&mut self) -> Request {
        let id = self.id;
        match self.random.below(16) {
            0..4 => {
                let path = single(id);
                let value = self.next(&path);
                set(&path, &value.to_string(), -1)
            }
            4..6 => {
                let [a, b] = pair(id);
                let value = self.next(&a).to_string();
                self.next(&b);
                Request::Multi(vec![set(&a, &value, -1), create("/s/m-", 2), set(&b, &value, -1)])
            }
            6..8 => create("/s/c-", 2),
            8..10 => {
                self.names += 1;
                let path = format!("/e/{id}-{}", self.names);
                self.ephemerals.push(path.clone());
                create(&path, 1)
            }
            10 if !self.ephemerals.is_empty() => {
                let path = self.ephemerals.swap_remove(self.random.below(self.ephemerals.len()));
                self.told().doomed(&path);
                delete(&path, -1)
            }
            // Refused; it takes a number all the same.
            11 => create("/e", 0),
            12 if self.random.one_in(4) => {
                for path in std::mem::take(&mut self.ephemerals) {
                    self.told().doomed(&path);
                }
                // Whether it is over is known when that is answered.
                self.session = None;
                Request::CloseSession
            }
            13 => Request::Ping,
            _ => {
                let paths: Vec<String> = self.told().counters.keys().cloned().collect();
                get(&paths[self.random.below(paths.len())], false)
            }
        }
    }

    fn next(&mut self, path: &str) -> i64 {
        let mut told = self.told();
        let counter = told.counters.get_mut(path).expect("a counter");
        counter.sent += 1;
        counter.sent
    }

    /// Reads all replies that are due, and what else comes.
    async fn listen(&mut self, wire: &mut Wire) -> io::Result<()> {
        while !wire.asked.is_empty() {
            let frame = wire.frame().await?;
            let mut reader = Reader::new(&frame);
            let header = ReplyHeader::decode(&mut reader).expect("a reply header");
            if header.xid == op::XID_EVENT {
                self.event(&WatchEvent::decode(&mut reader).expect("an event"));
                continue;
            }
            let (xid, request) = wire.asked.pop_front().expect("something was asked");
            assert_eq!(header.xid, xid, "replies come in the order of the requests");
            let reply = match header.err {
                0 => Reply::decode(request.op(), &mut reader).expect("the reply that the operation has"),
                _ => Reply::Empty,
            };
            self.reply(&request, header, reply, &wire.session);
        }
        Ok(())
    }

    fn event(&mut self, event: &WatchEvent) {
        let path = event.path.as_str();
        let mut told = self.told.lock().expect("no other client has found a fault");
        match event.kind {
            EventKind::Created => told.exists(path, None),
            EventKind::Deleted => told.gone(path),
            EventKind::DataChanged => {
                if let Some(seen) = self.seen.get_mut(path) {
                    *seen += 1;
                    told.counted(path, *seen);
                }
            }
            EventKind::ChildrenChanged => {}
        }
    }

    fn reply(&mut self, request: &Request, header: ReplyHeader, reply: Reply, session: &(i64, Hidden)) {
        let mut told = self.told.lock().expect("no other client has found a fault");
        told.zxid(header.zxid);
        if header.err != 0 {
            // A crash may have taken what is to be deleted.
            let expected = match request {
                Request::Delete { .. } => -101,
                Request::Create(create) if create.path == "/e" => -110,
                request => panic!("error {} to {request:?}", header.err),
            };
            assert_eq!(header.err, expected, "{request:?}");
            return;
        }
        let is_write = !matches!(request, Request::Ping | Request::GetData { .. } | Request::AddWatch { .. });
        if is_write {
            told.change(header.zxid);
        }
        match (request, reply) {
            (Request::SetData { path, data, .. }, _) => told.counted(path, number(data.as_deref())),
            (Request::Create(asked), Reply::Path(path)) => {
                told.given(&path);
                told.exists(&path, (asked.flags == 1).then_some(session.0));
            }
            (Request::Delete { path, .. }, _) => told.gone(path),
            (Request::Multi(asked), Reply::Multi(results)) => {
                for (asked, result) in asked.iter().zip(results) {
                    match (asked, result) {
                        (Request::SetData { path, data, .. }, OpResult::SetData(_)) => {
                            told.counted(path, number(data.as_deref()));
                        }
                        (_, OpResult::Create { path }) => {
                            told.given(&path);
                            told.exists(&path, Some(0));
                        }
                        (asked, result) => panic!("{result:?} to {asked:?}"),
                    }
                }
            }
            (Request::GetData { path, .. }, Reply::Data { data, stat }) => {
                let value = number(data.as_deref());
                told.change(stat.mzxid);
                told.counted(path, value);
                let seen = *self.seen.entry(path.clone()).or_insert(value);
                assert_eq!(seen, value, "{path}: a read shows what no event has told of, or the reverse");
            }
            (Request::CloseSession, _) => told.closed.push(session.clone()),
            (Request::Ping | Request::AddWatch { .. }, _) => {}
            (request, reply) => panic!("{reply:?} to {request:?}"),
        }
    }
}

pub(crate) fn number(data: Option<&[u8]>) -> i64 {
    let text = std::str::from_utf8(data.expect("counters have data")).expect("counters are text");
    text.parse().expect("counters are numbers")
}

struct Wire {
    stream: TcpStream,
    input: BytesMut,
    asked: VecDeque<(i32, Request)>,
    xid: i32,
    session: (i64, Hidden),
}

impl Wire {
    async fn send(&mut self, requests: impl IntoIterator<Item = Request>) -> io::Result<()> {
        let mut out = BytesMut::new();
        for request in requests {
            self.xid += 1;
            let xid = if matches!(request, Request::Ping) { op::XID_PING } else { self.xid };
            Writer::frame(&mut out, |writer| {
                RequestHeader { xid, op: request.op() }.encode(writer);
                request.encode(writer);
            });
            self.asked.push_back((xid, request));
        }
        self.stream.write_all(&out).await
    }

    async fn frame(&mut self) -> io::Result<Bytes> {
        loop {
            if let Some(len) = self.input.first_chunk().map(|len| u32::from_be_bytes(*len) as usize)
                && self.input.len() >= 4 + len
            {
                return Ok(self.input.split_to(4 + len).freeze().split_off(4));
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
