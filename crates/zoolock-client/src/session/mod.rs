//! One ZooKeeper session, as a state machine.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the session: its requests, the network, its timers and its end |
//! | `types.rs` | the public types of settings, outputs and errors |
//! | `dialing.rs` | how a session finds, changes and loses its connection, with the time spans of moves |
//! | `connection.rs` | one connection: its handshake, the requests in flight, bytes in and out |
//! | `replies.rs` | handling of connect responses, replies and watch events |
//! | `to_end.rs` | the end of an existing session of another process |
//! | `pace.rs` | the time spans of dials, attaches, pauses and silence |
//!
//! A dial is an attempt to connect to a server. A session has at most one connection on which it is
//! attached, and at most one dial under way. A dial that succeeds replaces the connection: first
//! the requests of the old connection fail, then the old connection is closed, then the connect
//! request is written. So at most one connect request of a session is under way, and the leader
//! gives the session to the newest connection.

mod connection;
mod dialing;
mod pace;
mod replies;
#[cfg(test)]
mod tests;
mod to_end;
mod types;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use zoolock_wire::{Hidden, Request};

use crate::Instant;
use connection::{ConnectionStage, LostRequests, SessionConnection};
use pace::SessionPace;
pub use to_end::SessionKey;
pub use types::{
    ConnectionId, DisconnectReason, End, Output, RequestError, RequestNumber, SaslStep, SessionConfig,
    SessionState,
};

/// The minimum timeout from which the time limits of the first handshake are computed. A shorter
/// requested timeout counts as this one.
const MIN_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(6);

/// The state of the dials: no dial is planned, the next dial waits until a point in time, or a dial
/// is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dial {
    Idle,
    Waiting { until: Instant },
    Dialing { id: ConnectionId, deadline: Instant },
}

/// One ZooKeeper session. The documentation of the [crate] lists the promises of a session.
///
/// Each method that may schedule a dial takes `random`, a random number that spreads the dials of many sessions over
/// time.
#[derive(Debug, Clone)]
pub struct Session {
    config: SessionConfig,
    pace: SessionPace,
    /// The session id, zero before the first connect response.
    id: i64,
    password: Hidden,
    /// The timeout that was granted at the creation of the session. A reattach (an attach on
    /// another connection) requests the same timeout.
    created_with: Option<Duration>,
    newest_zxid: i64,
    /// The longest timeout that was granted.
    longest: Duration,
    /// Set once the session has been attached for the first time. Then a server has accepted the
    /// credentials.
    was_attached: bool,
    /// The time at which the newest answered request was sent. A server knew the session at that time or later.
    last_known: Instant,
    /// The xid of the last request. Xids do not start over on a new connection, because a request with a repeated xid could
    /// get the reply of an older one: when a write is committed, the server finds the waiting request by session and xid alone
    /// (`CommitProcessor`).
    last_xid: i32,
    last_connection: u64,
    last_request: u64,
    dial: Dial,
    /// The number of failed dials and handshakes since a connection last worked. A connection works
    /// once a ping is answered.
    failures: u32,
    /// The number of times that a server closed the connection during the handshake, since a
    /// connection last worked.
    hang_ups: u32,
    /// Set if the server of the next connection may have just started, because a dial reached no server, or a server closed
    /// the connection during the handshake of an existing session.
    follows_outage: bool,
    /// The number of connections in a row that ended soon after the session was attached.
    short_connections: u32,
    /// The number of attaches since the last working connection that no server answered in time.
    slow_attaches: u32,
    /// The round-trip time of the last ping.
    ping_time: Duration,
    /// The time until which a reply does not stop the dial of a reattach.
    must_move_until: Option<Instant>,
    /// Set if the dial of a reattach should begin with the connected server.
    same_first: bool,
    connection: Option<SessionConnection>,
    /// Set if the session has created an ephemeral znode. Until then, the session may be a local
    /// session, which only one server knows.
    has_ephemeral: bool,
    last_move: Option<Instant>,
    /// The time at which the close was requested.
    closing: Option<Instant>,
    end: Option<End>,
    outputs: VecDeque<Output>,
}

impl Session {
    /// Starts a new session. The first output is a dial.
    pub fn new(config: SessionConfig, now: Instant) -> Session {
        let mut session = Session {
            // The requested timeout may be too short for a handshake, and the server may grant a
            // longer timeout.
            pace: SessionPace::new(config.timeout.max(MIN_HANDSHAKE_TIMEOUT)),
            config,
            id: 0,
            password: Hidden(vec![0; 16]),
            created_with: None,
            newest_zxid: 0,
            longest: Duration::ZERO,
            was_attached: false,
            last_known: now,
            last_xid: 0,
            last_connection: 0,
            last_request: 0,
            dial: Dial::Idle,
            failures: 0,
            hang_ups: 0,
            follows_outage: false,
            short_connections: 0,
            slow_attaches: 0,
            ping_time: Duration::ZERO,
            must_move_until: None,
            same_first: false,
            connection: None,
            has_ephemeral: false,
            last_move: None,
            closing: None,
            end: None,
            outputs: VecDeque::new(),
        };
        if let Some(key) = session.config.to_end.take() {
            session.become_closing(key, now);
        }
        session.start_dial(now);
        session
    }

    /// Returns the next output.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the bytes to write, and their connection. Call this method after each call of
    /// another method.
    pub fn take_bytes(&mut self) -> Option<(ConnectionId, Bytes)> {
        let connection = self.connection.as_mut()?;
        let bytes = connection.take_bytes()?;
        Some((connection.id, bytes))
    }

    /// Returns the session id, zero before the session exists.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Returns the shortest timeout that was granted. Before the session exists, returns the
    /// requested timeout, or six seconds if that is longer.
    pub fn timeout(&self) -> Duration {
        self.pace.timeout
    }

    /// Sets the number of servers whose addresses are known.
    pub fn set_servers(&mut self, servers: usize) {
        self.config.servers = u32::try_from(servers).unwrap_or(u32::MAX);
    }

    /// Returns whether a request would be accepted.
    pub fn is_connected(&self) -> bool {
        self.closing.is_none() && self.connection.as_ref().is_some_and(SessionConnection::is_attached)
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.connection.as_ref().map_or(0, SessionConnection::in_flight)
    }

    /// Returns the reason for the end of the session. `None` if the session has not ended.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    // ---- requests ----

    /// Sends a request. Its result is an [`Output::Reply`].
    ///
    /// # Errors
    /// [`RequestError::NotSent`] without a connection, [`RequestError::SessionEnded`] after the end
    /// of the session or a call of [`Session::close`], and [`RequestError::Refused`] after the
    /// server refused the credentials.
    pub fn request(&mut self, request: &Request, now: Instant) -> Result<RequestNumber, RequestError> {
        self.send(|connection, id, last_xid, max_in_flight| {
            connection.write_or_queue(id, request, max_in_flight, last_xid, now);
        })
    }

    fn send(
        &mut self,
        write: impl FnOnce(&mut SessionConnection, RequestNumber, &mut i32, usize),
    ) -> Result<RequestNumber, RequestError> {
        if let Some(end) = self.end {
            return Err(end.request_error());
        }
        if self.closing.is_some() {
            return Err(RequestError::SessionEnded);
        }
        let Some(connection) = self.connection.as_mut().filter(|connection| connection.is_attached()) else {
            return Err(RequestError::NotSent);
        };
        self.last_request += 1;
        let id = RequestNumber(self.last_request);
        write(connection, id, &mut self.last_xid, self.config.max_in_flight);
        Ok(id)
    }

    /// Sends a ping, and after it a request that renews a lease. Both are sent before the requests
    /// that are queued because too many requests are in flight.
    ///
    /// The reply to the ping proves that the server works. The reply to the request also needs the
    /// leader, so it may be late although the server works.
    ///
    /// # Errors
    /// As [`Session::request`].
    pub fn renew(&mut self, request: &Request, now: Instant) -> Result<RequestNumber, RequestError> {
        self.send(|connection, id, last_xid, _| {
            connection.write_ping(now);
            connection.write_request(id, request, last_xid, now);
        })
    }

    /// Sends a request in place of a ping, before the requests that are queued because too many requests are in flight.
    ///
    /// # Errors
    /// As [`Session::request`].
    pub fn keep_alive(&mut self, request: &Request, now: Instant) -> Result<RequestNumber, RequestError> {
        self.send(|connection, id, last_xid, _| {
            connection.last_ping = now;
            connection.write_request(id, request, last_xid, now);
        })
    }

    /// Closes the session. The server then deletes the ephemeral znodes of the session.
    /// [`Output::State`] reports the end.
    ///
    /// If the connection is lost before the reply, the session attaches on another connection, and
    /// sends nothing but the close there. If no close is answered within the session timeout, the
    /// session ends without a reply, because the server then expires the session anyway.
    pub fn close(&mut self, now: Instant) {
        if self.end.is_some() || self.closing.is_some() {
            return;
        }
        self.closing = Some(now);
        if self.id == 0 {
            return self.end_session(End::Closed);
        }
        if let Some(connection) = self.connection.as_mut().filter(|connection| connection.is_attached()) {
            // No request may follow the close on the connection.
            let unwritten = connection.take_queue();
            connection.write_close(&mut self.last_xid, now);
            for request in unwritten {
                self.fail_unwritten(request, RequestError::NotSent);
            }
        }
    }

    /// Ends the session without a close request, because no task drives the session any more. The
    /// server expires the session after the session timeout.
    pub fn abandon(&mut self) {
        self.end_session(End::Abandoned);
    }

    // ---- the network ----

    /// Reports that the other side closed a connection, or that the connection broke.
    pub fn handle_connection_end(&mut self, id: ConnectionId, now: Instant, random: u64) {
        if self.connection.as_ref().is_some_and(|connection| connection.id == id) {
            self.drop_and_redial(DisconnectReason::Closed, now, random);
        } else {
            self.dial_failed(id, now, random);
        }
    }

    /// Reports received bytes.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8], now: Instant, random: u64) {
        let Some(connection) = self.connection.as_mut().filter(|connection| connection.id == id) else {
            return;
        };
        connection.receive(bytes, now);
        self.handle_frames(id, now, random);
        self.stop_needless_move(now);
    }

    /// Reports the next step of the SASL exchange, after [`Output::SaslChallenge`].
    pub fn sasl_step(&mut self, id: ConnectionId, step: SaslStep, now: Instant, random: u64) {
        let Some(connection) = self.connection.as_mut().filter(|connection| connection.id == id) else {
            return;
        };
        let ConnectionStage::Authenticating { deadline, .. } = connection.stage else { return };
        match step {
            SaslStep::Send(token) => connection.write_sasl(token, false, &mut self.last_xid, now),
            SaslStep::SendLast(token) => connection.write_sasl(token, true, &mut self.last_xid, now),
            SaslStep::Done => self.present_credentials(deadline, now),
            SaslStep::NoToken => self.drop_and_redial(DisconnectReason::Unauthenticated, now, random),
            SaslStep::Failed if self.was_attached => {
                self.drop_and_redial(DisconnectReason::Unauthenticated, now, random)
            }
            SaslStep::Failed => self.end_session(End::AuthFailed),
        }
    }

    // ---- time ----

    /// Returns the time at which [`Session::run_due_timers`] must be called.
    pub fn next_timer(&self) -> Option<Instant> {
        if self.end.is_some() {
            return None;
        }
        let dial = match self.dial {
            Dial::Idle => None,
            Dial::Waiting { until } => Some(until),
            Dial::Dialing { deadline, .. } => Some(deadline),
        };
        let connection = self.connection.as_ref().and_then(|connection| self.connection_timer(connection));
        let closing = self.closing.map(|since| since.after(self.pace.timeout));
        [dial, connection, closing, self.give_up_time()].into_iter().flatten().min()
    }

    /// Carries out the timers that are due. The caller must first pass all bytes that have arrived
    /// to [`Session::receive`]. After the process was stopped for a while, every deadline has
    /// passed, but replies may wait in the socket.
    pub fn run_due_timers(&mut self, now: Instant, random: u64) {
        if self.end.is_some() {
            return;
        }
        if self.closing.is_some_and(|since| since.after(self.pace.timeout) <= now) {
            return self.end_session(End::Closed);
        }
        if self.give_up_time().is_some_and(|at| at <= now) {
            return self.end_session(End::NotAttached);
        }
        match self.dial {
            Dial::Waiting { until } if until <= now => self.start_dial(now),
            Dial::Dialing { id, deadline } if deadline <= now => {
                self.outputs.push_back(Output::AbortDial { id, is_late: true });
                self.dial_failed(id, now, random);
            }
            _ => {}
        }
        match self.connection.as_ref().map(|connection| connection.stage) {
            Some(
                ConnectionStage::Connecting { deadline } | ConnectionStage::Authenticating { deadline, .. },
            ) if deadline <= now => {
                let silent = self.connection.as_ref().map_or(Duration::ZERO, |c| c.silent_for(now));
                self.slow_attaches = self.slow_attaches.saturating_add(1);
                self.drop_and_redial(DisconnectReason::Silent(silent), now, random);
            }
            Some(ConnectionStage::Attached) => {
                self.send_due_ping(now);
                if self.dial == Dial::Idle && self.move_time().is_some_and(|at| at <= now) {
                    self.start_dial(now);
                }
            }
            _ => {}
        }
    }

    /// Returns the time at which the session is given up, if no server attaches it until then.
    /// `None` while the session is attached, or before it exists.
    ///
    /// The time counts from the moment at which the newest answered request was sent, and not from the read of the reply,
    /// because a process that was stopped for a while reads old replies.
    fn give_up_time(&self) -> Option<Instant> {
        let is_attached = self.connection.as_ref().is_some_and(SessionConnection::is_attached);
        (self.id != 0 && !is_attached).then(|| self.last_known.after(self.longest * 7 / 4))
    }

    fn connection_timer(&self, connection: &SessionConnection) -> Option<Instant> {
        match connection.stage {
            ConnectionStage::Connecting { deadline } | ConnectionStage::Authenticating { deadline, .. } => {
                Some(deadline)
            }
            ConnectionStage::Attached => {
                let ping = self.next_ping(connection);
                let silence = if self.dial == Dial::Idle { self.move_time() } else { None };
                [ping, silence].into_iter().flatten().min()
            }
        }
    }

    // ---- keeping the session alive ----

    fn next_ping(&self, connection: &SessionConnection) -> Option<Instant> {
        self.closing.is_none().then(|| connection.last_ping.after(self.pace.ping_interval()))
    }

    fn send_due_ping(&mut self, now: Instant) {
        let ping = self.connection.as_ref().and_then(|connection| self.next_ping(connection));
        if ping.is_some_and(|at| at <= now)
            && let Some(connection) = &mut self.connection
        {
            connection.write_ping(now);
        }
    }

    // ---- the end ----

    fn fail_requests(&mut self, lost: LostRequests, written: RequestError, unwritten: RequestError) {
        for (request, sent) in lost.written {
            self.outputs.push_back(Output::Reply { request, sent, result: Err(written) });
        }
        for request in lost.unwritten {
            self.fail_unwritten(request, unwritten);
        }
    }

    fn fail_unwritten(&mut self, request: RequestNumber, error: RequestError) {
        let sent = Instant::default();
        self.outputs.push_back(Output::Reply { request, sent, result: Err(error) });
    }

    /// Ends the session for good.
    fn end_session(&mut self, end: End) {
        if self.end.is_some() {
            return;
        }
        // A close also succeeds if the session ends in another way, such as by expiry.
        let keeps_reason = matches!(end, End::AuthFailed | End::Replaced);
        let end = if self.closing.is_some() && !keeps_reason { End::Closed } else { end };
        self.end = Some(end);
        if let Dial::Dialing { id, .. } = self.dial {
            self.outputs.push_back(Output::AbortDial { id, is_late: false });
        }
        self.dial = Dial::Idle;
        if let Some(connection) = self.connection.take() {
            let id = connection.id;
            self.fail_requests(connection.into_lost_requests(), end.request_error(), end.request_error());
            self.outputs.push_back(Output::Close { id, leaves_write: false });
        }
        self.outputs.push_back(Output::State(SessionState::Ended(end)));
    }
}
