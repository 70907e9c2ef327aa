//! The connections between clients and servers, the protocol on them, and the requests that need no leader.

use std::io;
use std::task::Poll;

use zoolock_wire::{
    ConnectRequest, ConnectResponse, Hidden, MAX_FRAME, Reader, ReplyHeader, RequestHeader, WatchEvent,
    Writer, op, split_frame,
};

use super::*;

/// The client's end of connections.
impl World {
    /// Starts to connect to a server. Returns the number of the connection.
    pub(crate) fn dial(&mut self, host: usize, server: usize) -> u64 {
        let id = self.next_conn;
        self.next_conn += 1;
        self.conns.insert(
            id,
            SimConnection {
                host,
                server,
                dial: DialState::Waiting,
                requested: None,
                session: 0,
                timeout: 0,
                client_open: true,
                given_up_at: 0,
                server_open: true,
                up: VecDeque::new(),
                down: VecDeque::new(),
                up_at: 0,
                down_at: 0,
                input: BytesMut::new(),
                unread: BytesMut::new(),
                has_ended: false,
                granted: Vec::new(),
                answered_at: 0,
                reader: None,
                asked: VecDeque::new(),
                work: VecDeque::new(),
                busy: false,
            },
        );
        self.trace.note(self.now, "dials", &[id, host as u64, server as u64], "");
        self.send_up(id, ToServer::Dial);
        id
    }

    /// Returns whether the server has accepted the connection.
    pub(crate) fn poll_dial(&mut self, id: u64, waker: &Waker) -> Poll<bool> {
        let Some(conn) = self.conns.get_mut(&id) else { return Poll::Ready(false) };
        match conn.dial {
            DialState::Accepted => Poll::Ready(true),
            DialState::Refused => Poll::Ready(false),
            DialState::Waiting => {
                conn.reader = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// Reads at most `most` bytes. An empty result is the end of the stream.
    pub(crate) fn read(&mut self, id: u64, most: usize, waker: &Waker) -> Poll<Bytes> {
        let Some(conn) = self.conns.get_mut(&id) else { return Poll::Ready(Bytes::new()) };
        if conn.unread.is_empty() && !conn.has_ended {
            conn.reader = Some(waker.clone());
            return Poll::Pending;
        }
        let bytes = conn.unread.split_to(conn.unread.len().min(most)).freeze();
        if let Some(session) = self.sessions.get_mut(&conn.session).filter(|_| !bytes.is_empty()) {
            session.known_at = session.known_at.max(conn.answered_at);
        }
        for session in std::mem::take(&mut conn.granted) {
            if let Some(session) = self.sessions.get_mut(&session) {
                session.is_shortened = false;
            }
        }
        Poll::Ready(bytes)
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// If the client has lost the connection.
    pub(crate) fn write(&mut self, id: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.conns.get(&id).is_some_and(|conn| conn.client_open) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.send_up(id, ToServer::Bytes(self.now, Bytes::copy_from_slice(bytes)));
        Ok(())
    }

    /// Closes the client's end of a connection. Only a random part of the messages under way still arrives at the
    /// server.
    pub(crate) fn close_client_end(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.client_open) else { return };
        conn.client_open = false;
        conn.given_up_at = self.now;
        conn.has_ended = true;
        // An attempt to connect fails at once, as TCP's does after a reset.
        if conn.dial == DialState::Waiting {
            conn.dial = DialState::Refused;
        }
        conn.down.clear();
        conn.unread.clear();
        conn.wake();
        let (host, is_attached, waiting) = (conn.host, conn.session != 0, conn.oldest_unanswered());
        let keep = self.rng.usize(..=conn.up.len());
        conn.up.truncate(keep);
        // The server may carry out only the first few of the requests that have arrived.
        if !conn.work.is_empty() && self.rng.bool() {
            let keep = self.rng.usize(1..=conn.work.len());
            conn.work.truncate(keep);
        }
        if waiting.is_some_and(|sent| self.is_late(sent)) {
            self.hosts[host].slow = Some(self.now);
        }
        if is_attached {
            self.trace.note(self.now, "loses", &[id], "");
        }
        self.send_up(id, ToServer::Close);
    }

    fn send_up(&mut self, id: u64, message: ToServer) {
        let latency = self.latency();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.up_at = conn.up_at.max(self.now + latency);
        conn.up.push_back(message);
        let at = conn.up_at;
        self.schedule_at(at, WorldEvent::ReachesServer(id));
    }

    pub(super) fn deliver_to_client(&mut self, id: u64) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let machine = &self.hosts[conn.host];
        if now < machine.down_until && conn.client_open {
            conn.down_at = conn.down_at.max(machine.down_until);
            let clear = machine.down_until;
            return self.schedule_at(clear, WorldEvent::ReachesClient(id));
        }
        let Some(message) = conn.down.pop_front() else { return };
        if !conn.client_open || machine.dead {
            return;
        }
        let mut sent = None;
        match message {
            ToClient::Accepted => conn.dial = DialState::Accepted,
            ToClient::Bytes(bytes, content) => {
                conn.unread.extend_from_slice(&bytes);
                match content {
                    ChunkContent::Reply => {
                        sent = conn.asked.pop_front();
                        conn.answered_at = conn.answered_at.max(sent.unwrap_or(0));
                    }
                    ChunkContent::Event => {}
                    ChunkContent::Granted(session) => {
                        sent = conn.asked.pop_front();
                        conn.answered_at = conn.answered_at.max(sent.unwrap_or(0));
                        conn.granted.push(session);
                    }
                    ChunkContent::Unknown(session) => {
                        if let Some(session) = self.sessions.get_mut(&session) {
                            session.over_at = Some(now);
                        }
                    }
                }
            }
            ToClient::Close => {
                conn.has_ended = true;
                if conn.dial == DialState::Waiting {
                    conn.dial = DialState::Refused;
                }
                self.hosts[conn.host].slow = Some(now);
            }
        }
        conn.wake();
        let host = conn.host;
        if sent.is_some_and(|sent| self.is_late(sent)) {
            self.hosts[host].slow = Some(now);
        }
    }
}

/// The server's end of connections.
impl World {
    fn send_down(&mut self, id: u64, message: ToClient) {
        let mut latency = self.latency();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if !conn.server_open || !conn.client_open {
            return;
        }
        let server = &self.servers[conn.server];
        if self.now < server.late_until {
            latency += self.rng.u64(..=server.late_by);
        }
        conn.down_at = conn.down_at.max(self.now + latency);
        conn.down.push_back(message);
        let at = conn.down_at;
        self.schedule_at(at, WorldEvent::ReachesClient(id));
    }

    fn send_frame(&mut self, id: u64, content: ChunkContent, body: impl FnOnce(&mut Writer<'_>)) {
        let mut frame = BytesMut::new();
        Writer::frame(&mut frame, body);
        self.send_down(id, ToClient::Bytes(frame.freeze(), content));
    }

    /// Closes the server's end of a connection.
    pub(super) fn close_from_server(&mut self, id: u64) {
        self.send_down(id, ToClient::Close);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.server_open = false;
        let server = conn.server;
        self.servers[server].remove_connection(id);
    }

    pub(super) fn deliver_to_server(&mut self, id: u64) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let server = &mut self.servers[conn.server];
        let is_dial = matches!(conn.up.front(), Some(ToServer::Dial));
        // The operating system accepts connections for a server that does nothing.
        let silent = if is_dial { 0 } else { server.silent_until };
        let clear = self.hosts[conn.host].up_until.max(silent);
        if now < clear {
            conn.up_at = conn.up_at.max(clear);
            return self.schedule_at(clear, WorldEvent::ReachesServer(id));
        }
        let Some(message) = conn.up.pop_front() else { return };
        if !conn.server_open {
            return;
        }
        if now < server.down_until || (now < server.refuses_until && !is_dial) {
            return self.close_from_server(id);
        }
        match message {
            ToServer::Dial => self.send_down(id, ToClient::Accepted),
            ToServer::Bytes(sent, bytes) => {
                conn.input.extend_from_slice(&bytes);
                self.handle_frames(id, sent);
            }
            ToServer::Close => {
                conn.server_open = false;
                server.remove_connection(id);
            }
        }
    }

    fn handle_frames(&mut self, id: u64, sent: u64) {
        while let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.server_open) {
            let frame = split_frame(&mut conn.input, MAX_FRAME).expect("clients send valid frames");
            let Some(frame) = frame else { break };
            conn.asked.push_back(sent);
            if conn.requested.is_none() {
                let request = ConnectRequest::decode(&frame).expect("clients encode connect requests");
                self.handle_connect(id, &request);
                continue;
            }
            let mut reader = Reader::new(&frame);
            let header = RequestHeader::decode(&mut reader).expect("clients encode headers");
            let request = Request::decode(header.op, &mut reader).expect("clients encode requests");
            let (session, timeout) = (conn.session, conn.timeout);
            conn.work.push_back((header.xid, request));
            self.servers[conn.server].touched.insert(session, timeout);
        }
        self.handle_queued_requests(id);
    }

    fn handle_connect(&mut self, id: u64, request: &ConnectRequest) {
        self.trace.note(self.now, "connects", &[id, request.session as u64 & 0xffff], "");
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.requested = Some(request.session);
        let server = &self.servers[conn.server];
        let asked = u64::try_from(request.timeout_ms).unwrap_or(0);
        let timeout = asked.clamp(2 * TICK, server.longest_timeout);
        conn.timeout = timeout;
        // The server has not applied the newest zxid that the client has seen. So the client would
        // read an older state, and the server closes the connection.
        if request.last_zxid_seen > server.state.zxid.0 {
            return self.close_from_server(id);
        }
        let session = request.session;
        if server.deposed && server.is_cut(self.now) {
            let is_known = server.state.sessions.keys().any(|id| id.0 == session);
            return match (is_known, session) {
                (true, _) => self.accept_session(id, session),
                // A new session needs the leader, so this server does not answer.
                (false, 0) => {}
                (false, _) => self.refuse_session(id, session),
            };
        }
        let (at, life, latency) = (conn.server, server.life, self.latency());
        self.schedule_after(
            latency,
            WorldEvent::ToLeader(at, life, LeaderRequest::Session { conn: id, session, timeout }),
        );
    }

    /// Carries out the requests of a connection, until one needs the leader.
    pub(super) fn handle_queued_requests(&mut self, id: u64) {
        while let Some(conn) = self.conns.get_mut(&id) {
            if conn.busy {
                return;
            }
            let (server, session, heard) = (conn.server, conn.session, conn.server_open && conn.client_open);
            let Some((xid, request)) = conn.work.front() else { return };
            let xid = *xid;
            let known = &mut self.servers[server];
            let ask = match request {
                request if is_write(request) => Some(LeaderRequest::Write { conn: id }),
                // A deposed leader answers a sync by itself.
                Request::Sync { .. } if !(known.deposed && known.is_cut(self.now)) => {
                    Some(LeaderRequest::Sync { conn: id, xid })
                }
                _ => None,
            };
            if let Some(ask) = ask {
                conn.busy = true;
                let life = known.life;
                let latency = self.latency();
                return self.schedule_after(latency, WorldEvent::ToLeader(server, life, ask));
            }
            let Some((_, request)) = conn.work.pop_front() else { return };
            // Reads of a lost connection are not answered, and set no watch.
            if !heard {
                continue;
            }
            let reply = match request {
                Request::Ping => Ok(Reply::Empty),
                // A server answers a request that it does not know, and closes the connection.
                Request::GetEphemerals { .. } if self.plan.is_before_3_6 => {
                    self.reply(id, xid, &Err(Code::Unimplemented));
                    return self.close_from_server(id);
                }
                request => known.read(&request, session, id),
            };
            self.reply(id, xid, &reply);
        }
    }

    fn reply(&mut self, id: u64, xid: i32, reply: &Result<Reply, Code>) {
        let Some(conn) = self.conns.get(&id) else { return };
        let zxid = self.servers[conn.server].state.zxid.0;
        let err = reply.as_ref().err().map_or(0, |code| code.number());
        self.trace.note(self.now, "answer", &[id, u64::from(err.unsigned_abs())], "");
        self.send_frame(id, ChunkContent::Reply, |writer| {
            ReplyHeader { xid, zxid, err }.encode(writer);
            if let Ok(reply) = reply {
                reply.encode(writer);
            }
        });
    }

    /// Sends a watch event.
    pub(super) fn send_event(&mut self, id: u64, event: &FiredWatch) {
        self.trace.note(self.now, "told", &[id, event.kind.code() as u64], &event.path);
        self.send_frame(id, ChunkContent::Event, |writer| {
            ReplyHeader { xid: op::XID_EVENT, zxid: -1, err: 0 }.encode(writer);
            WatchEvent { kind: event.kind, path: event.path.clone() }.encode(writer);
        });
    }

    /// Replies to the first request in the queue of a connection, which needed the leader.
    pub(super) fn answer(&mut self, id: u64, xid: i32, reply: &Result<Reply, Code>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.busy = false;
        if conn.work.front().is_some_and(|(first, _)| *first == xid) {
            conn.work.pop_front();
        }
        self.reply(id, xid, reply);
        self.handle_queued_requests(id);
    }

    /// Replies to a sync, if it is the first request in the queue of the connection.
    pub(super) fn answer_sync(&mut self, id: u64, xid: i32) {
        let first = self.conns.get(&id).and_then(|conn| conn.work.front());
        if let Some((_, Request::Sync { path })) = first.filter(|(first, _)| *first == xid) {
            let reply = Ok(Reply::Path(path.clone()));
            self.answer(id, xid, &reply);
        }
    }

    /// Tells a client that its session is attached.
    pub(super) fn accept_session(&mut self, id: u64, session: i64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.session = session;
        let timeout = conn.timeout;
        self.trace.note(self.now, "attached", &[id, session as u64 & 0xffff, timeout], "");
        self.send_connect_response(id, session, timeout, ChunkContent::Granted(session));
    }

    fn send_connect_response(&mut self, id: u64, session: i64, timeout: u64, content: ChunkContent) {
        let response = ConnectResponse {
            protocol: 0,
            timeout_ms: i32::try_from(timeout).unwrap_or(i32::MAX),
            session,
            password: Hidden(vec![0; 16]),
            read_only: Some(false),
        };
        self.send_frame(id, content, |writer| response.encode(writer));
    }

    /// Handles the leader's answer to an attach: whether the session exists.
    pub(super) fn handle_validation(&mut self, server: usize, id: u64, is_alive: bool) {
        let Some(conn) = self.conns.get(&id) else { return };
        if !conn.server_open || self.now < self.servers[server].down_until {
            return;
        }
        let session = conn.requested.unwrap_or(0);
        if is_alive {
            return self.accept_session(id, session);
        }
        self.trace.note(self.now, "unknown", &[id, session as u64 & 0xffff], "");
        if self.plan.replaces_unknown_session {
            // Answer with a new session, as ClickHouse Keeper does.
            let (life, timeout) = (self.servers[server].life, conn.timeout);
            self.record_session_end(session);
            let ask = LeaderRequest::Session { conn: id, session: 0, timeout };
            return self.schedule_after(1, WorldEvent::ToLeader(server, life, ask));
        }
        self.refuse_session(id, session);
    }

    fn refuse_session(&mut self, id: u64, session: i64) {
        self.send_connect_response(id, 0, 0, ChunkContent::Unknown(session));
        self.close_from_server(id);
    }

    /// Returns the open connections of a session at a server.
    pub(super) fn open_connections_of(&self, server: usize, session: i64) -> Vec<u64> {
        let conns = self.conns.iter();
        let attached =
            conns.filter(|(_, conn)| conn.server == server && conn.server_open && conn.session == session);
        attached.map(|(id, _)| *id).collect()
    }
}
