//! The server under test, which is this server or Apache ZooKeeper, and the sessions on it.

use std::collections::HashMap;
use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use zoolock_wire::{
    ConnectRequest, ConnectResponse, EventKind, Hidden, OpResult, Reader, Reply, ReplyHeader, Request,
    RequestHeader, SetWatches, Stat, WatchEvent, Writer, op,
};

use super::plan::{Action, ROOT, SLOTS};
use crate::common::{Frames, PATIENCE};

/// A message of a server, without the parts in which two servers may differ. Zxids count from the
/// start of the round. Times are replaced by small numbers that show which times are set. Lists
/// without an order are sorted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Message {
    Event(EventKind, String),
    Reply {
        xid: i32,
        zxid: i64,
        err: i32,
        reply: Reply,
    },
    Connected {
        timeout_ms: i32,
        session: i64,
        known_password: bool,
    },
    /// The bytes of a frame that cannot be decoded.
    Garbled(Vec<u8>),
    Closed,
    TimedOut,
}

pub(crate) struct ServerUnderTest {
    pub(crate) name: &'static str,
    addr: SocketAddr,
    /// The zxid at the start of the round.
    base: i64,
    /// The root znode of this round, which replaces [`ROOT`] in frames.
    root: String,
    slots: Vec<Slot>,
    /// Numbers that replace session ids in [`Message`].
    sessions: HashMap<i64, i64>,
}

struct Slot {
    frames: Option<Frames<TcpStream>>,
    session: i64,
    password: Hidden,
}

impl ServerUnderTest {
    pub(crate) fn new(name: &'static str, addr: SocketAddr) -> Self {
        let slot = |_| Slot { frames: None, session: 0, password: Hidden(vec![0; 16]) };
        ServerUnderTest {
            name,
            addr,
            base: 0,
            root: ROOT.to_owned(),
            slots: (0..SLOTS).map(slot).collect(),
            sessions: HashMap::new(),
        }
    }

    /// Begins a round: opens new sessions, and counts zxids from here.
    pub(crate) async fn begin(&mut self, root: &str) {
        root.clone_into(&mut self.root);
        assert_eq!(root.len(), ROOT.len(), "only a name of the same length can replace ROOT");
        for slot in 0..SLOTS {
            self.renew(slot).await;
        }
        let messages = self.exchange(0, &[(1, Action::Request(Request::WhoAmI))]).await;
        let [Message::Reply { zxid, .. }] = messages.as_slice() else {
            panic!("{}: {messages:?}", self.name)
        };
        self.base += zxid;
    }

    /// Returns whether the slot has a connection.
    pub(crate) fn connected(&self, slot: usize) -> bool {
        self.slots[slot].frames.is_some()
    }

    /// Sends all requests at once, and reads messages until all requests are answered.
    pub(crate) async fn exchange(&mut self, slot: usize, calls: &[(i32, Action)]) -> Vec<Message> {
        let mut out = BytesMut::new();
        let mut expected = Vec::new();
        for (xid, action) in calls {
            let (xid, op) = self.encode(*xid, action, &mut out);
            expected.push((xid, op));
        }
        let Some(frames) = &mut self.slots[slot].frames else { return vec![Message::Closed] };
        let mut messages = Vec::new();
        if frames.stream.write_all(&out).await.is_err() {
            messages.push(Message::Closed);
        }
        let mut expected = expected.into_iter();
        let mut awaited = expected.next();
        while let Some((xid, op)) = awaited {
            let Some(frames) = &mut self.slots[slot].frames else { break };
            let Ok(frame) = tokio::time::timeout(PATIENCE, frames.next()).await else {
                messages.push(Message::TimedOut);
                self.slots[slot].frames = None;
                break;
            };
            let Some(frame) = frame else {
                messages.push(Message::Closed);
                self.slots[slot].frames = None;
                break;
            };
            let message = self.normalize(op, frame);
            if matches!(&message, Message::Reply { xid: answered, .. } if *answered == xid) {
                awaited = expected.next();
            }
            // After refusing credentials the server closes the connection.
            let last = matches!(&message, Message::Reply { err: -115, .. });
            messages.push(message);
            if last {
                self.slots[slot].frames = None;
            }
        }
        messages
    }

    /// Drops the connection, and attaches the session to a new connection.
    pub(crate) async fn reattach(&mut self, slot: usize, wrong_password_first: bool) -> Vec<Message> {
        self.slots[slot].frames = None;
        let (session, password) = (self.slots[slot].session, self.slots[slot].password.clone());
        let mut messages = Vec::new();
        if wrong_password_first {
            messages.push(self.connect(slot, session, Hidden(vec![1; 16])).await);
        }
        messages.push(self.connect(slot, session, password).await);
        messages
    }

    /// Closes the session, and opens a new one.
    pub(crate) async fn renew(&mut self, slot: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        if self.connected(slot) {
            messages = self.exchange(slot, &[(1, Action::Request(Request::CloseSession))]).await;
            messages.sort_by_key(|message| format!("{message:?}"));
        }
        messages.push(self.connect(slot, 0, Hidden(vec![0; 16])).await);
        messages
    }

    async fn connect(&mut self, slot: usize, session: i64, password: Hidden) -> Message {
        let request = ConnectRequest { session, password, ..ConnectRequest::new_session(3_600_000) };
        let mut out = BytesMut::new();
        Writer::frame(&mut out, |writer| request.encode(writer));
        let socket = TcpStream::connect(self.addr).await.expect("the server listens");
        socket.set_nodelay(true).expect("it is a socket");
        let mut frames = Frames::new(socket);
        frames.stream.write_all(&out).await.expect("the server reads");
        let Ok(frame) = tokio::time::timeout(PATIENCE, frames.next()).await else { return Message::TimedOut };
        let Some(frame) = frame else { return Message::Closed };
        let Ok(response) = ConnectResponse::decode(&frame) else { return Message::Garbled(frame.to_vec()) };
        let known_password = response.password == request.password;
        if response.timeout_ms != 0 {
            let count = i64::try_from(self.sessions.len()).expect("it is small");
            self.sessions.entry(response.session).or_insert(count + 1);
            self.slots[slot] =
                Slot { frames: Some(frames), session: response.session, password: response.password.clone() };
        }
        Message::Connected {
            timeout_ms: response.timeout_ms,
            session: self.session(response.session),
            known_password: known_password && session != 0,
        }
    }

    fn encode(&self, xid: i32, action: &Action, out: &mut BytesMut) -> (i32, i32) {
        let mut frame = BytesMut::new();
        let (xid, op) = match action {
            Action::Request(request) => {
                let xid = match request {
                    Request::Ping => op::XID_PING,
                    Request::Auth { .. } => op::XID_AUTH,
                    Request::SetWatches(_) => op::XID_SET_WATCHES,
                    _ => xid,
                };
                Writer::frame(&mut frame, |writer| {
                    RequestHeader { xid, op: request.op() }.encode(writer);
                    match request {
                        Request::SetWatches(set) => {
                            let relative_zxid = set.relative_zxid + self.base;
                            let set = SetWatches { relative_zxid, ..set.clone() };
                            Request::SetWatches(set).encode(writer);
                        }
                        request => request.encode(writer),
                    }
                });
                (xid, request.op())
            }
            Action::Broken { op, body } => {
                Writer::frame(&mut frame, |writer| {
                    RequestHeader { xid, op: *op }.encode(writer);
                });
                frame.extend_from_slice(body);
                let len = u32::try_from(frame.len() - 4).expect("it is small");
                frame[..4].copy_from_slice(&len.to_be_bytes());
                (xid, *op)
            }
            Action::Reattach { .. } | Action::Renew => unreachable!("only requests are encoded"),
        };
        replace(&mut frame, &ROOT[1..], &self.root[1..]);
        out.extend_from_slice(&frame);
        (xid, op)
    }

    fn normalize(&self, op: i32, frame: Bytes) -> Message {
        let mut frame = BytesMut::from(frame);
        replace(&mut frame, &self.root[1..], &ROOT[1..]);
        self.decode(op, &frame).unwrap_or_else(|| Message::Garbled(frame.to_vec()))
    }

    fn decode(&self, op: i32, frame: &[u8]) -> Option<Message> {
        let mut reader = Reader::new(frame);
        let header = ReplyHeader::decode(&mut reader).ok()?;
        if header.xid == op::XID_EVENT {
            let event = WatchEvent::decode(&mut reader).ok()?;
            reader.check_end().ok()?;
            return ((header.zxid, header.err) == (-1, 0)).then_some(Message::Event(event.kind, event.path));
        }
        // After an error code Apache ZooKeeper sends a part of a reply. No client reads that part,
        // so it is not decoded here.
        let reply = if header.err == 0 { Reply::decode(op, &mut reader).ok()? } else { Reply::Empty };
        let zxid = if header.zxid == 0 { 0 } else { header.zxid - self.base };
        Some(Message::Reply { xid: header.xid, zxid, err: header.err, reply: self.reply(reply) })
    }

    fn reply(&self, reply: Reply) -> Reply {
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        match reply {
            Reply::Stat(stat) => Reply::Stat(self.stat(stat)),
            Reply::PathStat { path, stat } => Reply::PathStat { path, stat: self.stat(stat) },
            Reply::Data { data, stat } => Reply::Data { data, stat: self.stat(stat) },
            Reply::Children(children) => Reply::Children(sorted(children)),
            Reply::ChildrenStat { children, stat } => {
                Reply::ChildrenStat { children: sorted(children), stat: self.stat(stat) }
            }
            Reply::AclStat { mut acl, stat } => {
                // Apache ZooKeeper expands `auth` in the order of a hash table.
                acl.sort_by_key(|acl| (acl.identity.clone(), acl.perms));
                Reply::AclStat { acl, stat: self.stat(stat) }
            }
            Reply::Multi(results) => {
                let results = results.into_iter().map(|result| match result {
                    OpResult::SetData(stat) => OpResult::SetData(self.stat(stat)),
                    OpResult::Create2 { path, stat } => OpResult::Create2 { path, stat: self.stat(stat) },
                    OpResult::GetData { data, stat } => OpResult::GetData { data, stat: self.stat(stat) },
                    OpResult::GetChildren(children) => OpResult::GetChildren(sorted(children)),
                    other => other,
                });
                Reply::Multi(results.collect())
            }
            Reply::Identities(mut clients) => {
                clients.sort();
                Reply::Identities(clients)
            }
            other => other,
        }
    }

    fn stat(&self, stat: Stat) -> Stat {
        let zxid = |zxid: i64| if zxid == 0 { 0 } else { zxid - self.base };
        let one_time = stat.ctime == stat.mtime;
        Stat {
            czxid: zxid(stat.czxid),
            mzxid: zxid(stat.mzxid),
            pzxid: zxid(stat.pzxid),
            ctime: i64::from(stat.ctime != 0),
            mtime: if stat.czxid == stat.mzxid {
                i64::from(one_time)
            } else {
                2 * i64::from(stat.mtime != 0)
            },
            ephemeral_owner: self.session(stat.ephemeral_owner),
            ..stat
        }
    }

    /// Returns the number that replaces a session id. An unknown id stays as it is.
    fn session(&self, id: i64) -> i64 {
        self.sessions.get(&id).copied().unwrap_or(id)
    }
}

/// Replaces a name by another one of the same length.
fn replace(frame: &mut [u8], from: &str, to: &str) {
    if from == to {
        return;
    }
    let len = from.len();
    let mut at = 0;
    while at + len <= frame.len() {
        if frame[at] == b'd' && &frame[at..at + len] == from.as_bytes() {
            frame[at..at + len].copy_from_slice(to.as_bytes());
            at += len;
        } else {
            at += 1;
        }
    }
}
