//! One connection of a session: its handshake, the requests in flight, bytes in and out.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use zoolock_wire::{
    ConnectRequest, FrameError, Hidden, MAX_FRAME, Request, RequestHeader, Writer, op, split_frame,
};

use super::pace::{OldestUnanswered, ReplyPace, SessionPace};
use super::types::{ConnectionId, RequestNumber};
use crate::Instant;

/// The maximum length of a connect response, in bytes. ZooKeeper's connect response has 37 bytes.
const MAX_CONNECT_RESPONSE: usize = 1024;

/// The largest frame that is accepted from a server, in bytes.
const MAX_REPLY: usize = 4 * MAX_FRAME;

/// The window of a new connection. The window is the maximum number of requests in flight on a
/// connection.
const FIRST_WINDOW: usize = 16;

/// The smallest window, for the slowest connections.
const SMALLEST_WINDOW: usize = 4;

/// The create flag of an ephemeral znode. A sequential znode has the flag 2. Both flags may be set.
const EPHEMERAL: i32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionStage {
    /// The connect request was written, and is not answered.
    Connecting { deadline: Instant },
    /// The server has answered the connect request. The SASL exchange or the credentials are not
    /// complete. `pending` is the number of credentials without a reply.
    Authenticating { deadline: Instant, pending: usize },
    /// Requests may be sent.
    Attached,
}

/// A written request without a reply.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    pub(super) xid: i32,
    pub(super) op: i32,
    pub(super) sent: Instant,
    pub(super) purpose: RequestPurpose,
    /// Set if the request counts in the window. Pings, renewals, SASL tokens and the close do not count, because they must
    /// be sent even if the window is full.
    is_in_window: bool,
}

/// The origin of a request: the caller, or the session itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestPurpose {
    Caller { request: RequestNumber, creates_ephemeral: bool },
    Ping,
    Sasl { is_last: bool },
    Close,
}

/// A request that waits for room in the window.
#[derive(Clone)]
struct QueuedRequest {
    request: RequestNumber,
    op: i32,
    creates_ephemeral: bool,
    /// The frame, with a zero in place of the xid.
    frame: BytesMut,
}

/// The caller's requests that have no reply when their connection is lost. The written requests
/// have the time at which they were written.
pub(super) struct LostRequests {
    pub(super) written: Vec<(RequestNumber, Instant)>,
    pub(super) unwritten: Vec<RequestNumber>,
}

#[derive(Clone)]
pub(super) struct SessionConnection {
    pub(super) id: ConnectionId,
    pub(super) stage: ConnectionStage,
    pub(super) connect_sent: Instant,
    /// The time at which the session was attached.
    pub(super) attached_at: Option<Instant>,
    /// A random number that spreads the times at which many sessions move to another server.
    random: u64,
    last_received: Instant,
    /// The time of the last ping, or of a request in its place.
    pub(super) last_ping: Instant,
    /// The window: the largest number of requests in flight, adapted to the pace of the server.
    window: usize,
    /// The number of requests in flight that count in the window.
    in_window: usize,
    /// The time that the fastest reply took.
    fastest: Option<Duration>,
    /// The newest zxid of this connection's replies.
    pub(super) newest_zxid: i64,
    in_flight: VecDeque<InFlight>,
    queue: VecDeque<QueuedRequest>,
    input: BytesMut,
    output: BytesMut,
}

/// Omits the buffered bytes, which may contain credentials and the session's password.
impl std::fmt::Debug for SessionConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionConnection")
            .field("id", &self.id)
            .field("stage", &self.stage)
            .field("in_flight", &self.in_flight.len())
            .field("window", &self.window)
            .field("in_window", &self.in_window)
            .field("fastest", &self.fastest)
            .field("queue", &self.queue.len())
            .field("input", &self.input.len())
            .field("output", &self.output.len())
            .finish_non_exhaustive()
    }
}

impl SessionConnection {
    pub(super) fn new(id: ConnectionId, now: Instant, deadline: Instant, random: u64) -> SessionConnection {
        SessionConnection {
            id,
            stage: ConnectionStage::Connecting { deadline },
            connect_sent: now,
            attached_at: None,
            random,
            last_received: now,
            last_ping: now,
            newest_zxid: 0,
            window: FIRST_WINDOW,
            in_window: 0,
            fastest: None,
            in_flight: VecDeque::new(),
            queue: VecDeque::new(),
            input: BytesMut::new(),
            output: BytesMut::new(),
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        self.stage == ConnectionStage::Attached
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the oldest request without a reply. `None` if all requests are answered.
    pub(super) fn oldest_unanswered(&self) -> Option<OldestUnanswered> {
        let oldest = self.in_flight.front()?;
        let is_write = op::is_write(oldest.op) || matches!(oldest.op, op::SYNC | op::CLOSE_SESSION);
        let (last_received, random) = (self.last_received, self.random);
        Some(OldestUnanswered { sent: oldest.sent, is_write, last_received, random })
    }

    /// Returns the time since the oldest unanswered request was sent. If all requests are answered,
    /// returns the time since the connect request was sent.
    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        let since = self.in_flight.front().map_or(self.connect_sent, |oldest| oldest.sent);
        since.until(now)
    }

    /// Returns whether a write has waited for its reply for longer than `time`. A renewal counts, too: it changes nothing,
    /// but its server may be unable to confirm the next one.
    pub(super) fn has_write_older_than(&self, time: Duration, now: Instant) -> bool {
        self.in_flight.iter().any(|entry| op::is_write(entry.op) && entry.sent.until(now) > time)
    }

    pub(super) fn into_lost_requests(self) -> LostRequests {
        let written = self.in_flight.into_iter().filter_map(|entry| match entry.purpose {
            RequestPurpose::Caller { request, .. } => Some((request, entry.sent)),
            _ => None,
        });
        let unwritten = self.queue.into_iter().map(|queued| queued.request);
        LostRequests { written: written.collect(), unwritten: unwritten.collect() }
    }

    // ---- bytes in ----

    pub(super) fn receive(&mut self, bytes: &[u8], now: Instant) {
        self.input.extend_from_slice(bytes);
        self.last_received = now;
    }

    /// Removes and returns the next frame.
    pub(super) fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let limit = match self.stage {
            ConnectionStage::Connecting { .. } => MAX_CONNECT_RESPONSE,
            _ => MAX_REPLY,
        };
        split_frame(&mut self.input, limit)
    }

    /// Removes and returns the request with this xid. It is nearly always the oldest request in
    /// flight.
    ///
    /// Two kinds of replies may overtake the replies to earlier requests: replies to SASL tokens,
    /// and refusals by the connected server. Servers from 3.6 on with `enableEagerACLCheck` refuse
    /// a create, delete, setData or setACL (NoAuth, InvalidACL) before they answer earlier writes.
    pub(super) fn take_in_flight(&mut self, xid: i32) -> Option<InFlight> {
        let at = self.in_flight.iter().position(|entry| entry.xid == xid)?;
        let entry = self.in_flight.remove(at)?;
        self.in_window -= usize::from(entry.is_in_window);
        Some(entry)
    }

    // ---- bytes out ----

    pub(super) fn take_bytes(&mut self) -> Option<Bytes> {
        (!self.output.is_empty()).then(|| self.output.split().freeze())
    }

    pub(super) fn write_connect(
        &mut self,
        session: i64,
        password: &Hidden,
        newest_zxid: i64,
        timeout: Duration,
    ) {
        let request = ConnectRequest {
            protocol: 0,
            last_zxid_seen: newest_zxid,
            timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            session,
            password: password.clone(),
            read_only: Some(false),
        };
        Writer::frame(&mut self.output, |writer| request.encode(writer));
    }

    /// Writes the credentials. Returns their number.
    pub(super) fn write_credentials(&mut self, credentials: &[(String, Hidden)]) -> usize {
        for (scheme, secret) in credentials {
            let request = Request::Auth { kind: 0, scheme: scheme.clone(), credentials: secret.clone() };
            write_frame(&mut self.output, op::XID_AUTH, &request);
        }
        credentials.len()
    }

    pub(super) fn write_sasl(&mut self, token: Bytes, is_last: bool, last_xid: &mut i32, now: Instant) {
        let request = Request::Sasl { token: Some(token) };
        self.write(&request, RequestPurpose::Sasl { is_last }, next_xid(last_xid), now);
    }

    pub(super) fn write_close(&mut self, last_xid: &mut i32, now: Instant) {
        self.write(&Request::CloseSession, RequestPurpose::Close, next_xid(last_xid), now);
    }

    pub(super) fn write_ping(&mut self, now: Instant) {
        self.last_ping = now;
        self.write(&Request::Ping, RequestPurpose::Ping, op::XID_PING, now);
    }

    /// Writes a request of the caller, even if the window is full.
    pub(super) fn write_request(
        &mut self,
        id: RequestNumber,
        request: &Request,
        last_xid: &mut i32,
        now: Instant,
    ) {
        let purpose = RequestPurpose::Caller { request: id, creates_ephemeral: creates_ephemeral(request) };
        self.write(request, purpose, next_xid(last_xid), now);
    }

    fn has_room(&self, max_in_flight: usize) -> bool {
        self.in_window < self.window.min(max_in_flight)
    }

    /// Writes a request of the caller, or queues it if the window is full.
    pub(super) fn write_or_queue(
        &mut self,
        id: RequestNumber,
        request: &Request,
        max_in_flight: usize,
        last_xid: &mut i32,
        now: Instant,
    ) {
        if self.queue.is_empty() && self.has_room(max_in_flight) {
            self.write_request(id, request, last_xid, now);
            return self.occupy_window();
        }
        let creates_ephemeral = creates_ephemeral(request);
        let mut frame = BytesMut::new();
        write_frame(&mut frame, 0, request);
        self.queue.push_back(QueuedRequest { request: id, op: request.op(), creates_ephemeral, frame });
    }

    /// Adapts the window to the time that one reply took. A quick reply enlarges the window by one,
    /// if requests are queued. A slow reply reduces the window by one.
    pub(super) fn adapt_window(&mut self, pace: &SessionPace, sent: Instant, now: Instant) {
        let took = sent.until(now);
        let fastest = self.fastest.map_or(took, |fastest| fastest.min(took));
        self.fastest = Some(fastest);
        match pace.classify_reply(took, fastest) {
            ReplyPace::Quick if !self.queue.is_empty() => self.window = self.window.saturating_add(1),
            ReplyPace::Slow => self.window = (self.window - 1).max(SMALLEST_WINDOW),
            ReplyPace::Quick | ReplyPace::Usual => {}
        }
    }

    /// Writes queued requests while the window has room.
    pub(super) fn fill_window(&mut self, max_in_flight: usize, last_xid: &mut i32, now: Instant) {
        while self.has_room(max_in_flight)
            && let Some(QueuedRequest { request, op, creates_ephemeral, mut frame }) = self.queue.pop_front()
        {
            let xid = next_xid(last_xid);
            // The first four bytes are the length of the frame, and the next four are the xid.
            frame[4..8].copy_from_slice(&xid.to_be_bytes());
            self.output.extend_from_slice(&frame);
            let purpose = RequestPurpose::Caller { request, creates_ephemeral };
            self.in_flight.push_back(InFlight { xid, op, sent: now, purpose, is_in_window: false });
            self.occupy_window();
        }
    }

    /// Counts the last written request in the window.
    fn occupy_window(&mut self) {
        if let Some(last) = self.in_flight.back_mut() {
            last.is_in_window = true;
            self.in_window += 1;
        }
    }

    /// Removes and returns the requests that were not written.
    pub(super) fn take_queue(&mut self) -> Vec<RequestNumber> {
        std::mem::take(&mut self.queue).into_iter().map(|queued| queued.request).collect()
    }

    fn write(&mut self, request: &Request, purpose: RequestPurpose, xid: i32, now: Instant) {
        write_frame(&mut self.output, xid, request);
        let op = request.op();
        self.in_flight.push_back(InFlight { xid, op, sent: now, purpose, is_in_window: false });
    }
}

fn write_frame(output: &mut BytesMut, xid: i32, request: &Request) {
    Writer::frame(output, |writer| {
        RequestHeader { xid, op: request.op() }.encode(writer);
        request.encode(writer);
    });
}

/// Returns the next xid. It is positive, because zero and negative xids have special meanings.
fn next_xid(last: &mut i32) -> i32 {
    *last = last.checked_add(1).unwrap_or(1);
    *last
}

fn creates_ephemeral(request: &Request) -> bool {
    match request {
        Request::Create(create) => {
            create.op != op::CREATE_CONTAINER && create.flags & EPHEMERAL != 0 && create.flags <= 3
        }
        Request::Multi(parts) => parts.iter().any(creates_ephemeral),
        _ => false,
    }
}
