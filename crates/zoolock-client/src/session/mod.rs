//! One ZooKeeper session, as a state machine.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the public types; how a session finds, changes and ends its connection |
//! | `connection.rs` | one connection: its handshake, the requests in flight, bytes in and out |
//! | `replies.rs` | what a reply, a watch event or a connect response changes |
//! | `pace.rs` | every time span: keep-alive, silence, retries |
//!
//! A session has at most one connection on which it is attached, and at most one dial under way. A dial that succeeds
//! replaces the connection: first the requests of the old connection fail, then the old connection is closed, then the
//! connect request is written. So at most one connect request of a session is under way, and the leader gives the
//! session to the newest connection.

mod connection;
mod pace;
mod replies;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use zoolock_wire::{Code, Hidden, MAX_FRAME, Reply, Request, WatchEvent};

use crate::Instant;
use connection::{Connection, LostRequests, Stage};
use pace::Pace;

/// The settings of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The session timeout to request. The server may grant another one.
    pub timeout: Duration,
    /// Credentials for `addAuth`, as pairs of scheme and secret. They are presented on every connection.
    pub credentials: Vec<(String, Hidden)>,
    /// Set if a SASL exchange comes first on every connection.
    pub sasl: bool,
    /// The largest frame that is accepted from the server, in bytes.
    pub max_frame: usize,
    /// The largest number of requests in flight. A server stops reading at 1,000 by default. A new connection begins with 16.
    pub max_in_flight: usize,
    /// The number of servers. [`Client`](crate::Client) sets it.
    pub servers: u32,
}

impl SessionConfig {
    /// Returns settings with this session timeout, and defaults for the rest.
    pub fn new(timeout: Duration) -> SessionConfig {
        SessionConfig {
            timeout,
            credentials: Vec::new(),
            sasl: false,
            max_frame: 4 * MAX_FRAME,
            max_in_flight: 800,
            servers: 1,
        }
    }
}

/// The number of a dial, and of the connection that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// The number of a request of this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// A change of the session, to be carried out or passed on in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Connect to the next server. Report [`Session::connected`] or [`Session::dial_failed`].
    Dial {
        /// The number of the dial.
        id: ConnectionId,
        /// Set if the connected server is silent for a short time only: another one is wanted.
        avoid_current: bool,
        /// Set if the connected server works, and only a new connection is wanted.
        same_first: bool,
    },
    /// Stop this dial. No report is needed.
    AbortDial(ConnectionId),
    /// Close this connection, without a farewell.
    Close(ConnectionId),
    /// Compute the next SASL token for this connection. Report it with [`Session::sasl_step`].
    SaslChallenge(ConnectionId, Option<Bytes>),
    /// A server has granted a session timeout. The session is not attached yet.
    Granted {
        /// The shortest timeout that was granted so far.
        timeout: Duration,
        /// The time at which the connect request was written.
        sent: Instant,
    },
    /// The state of the session changed.
    State(State),
    /// A request was answered or has failed.
    Reply {
        /// The request.
        request: RequestId,
        /// The time at which it was written.
        sent: Instant,
        /// The result.
        result: Result<Reply, RequestError>,
    },
    /// A watch fired.
    Event(WatchEvent),
}

/// A step of the SASL exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SaslStep {
    /// Send this token and wait for the next challenge.
    Send(Bytes),
    /// Send this token. The exchange is complete with the server's reply.
    SendLast(Bytes),
    /// The exchange is complete.
    Done,
    /// There is no token for this server. The session tries the next one, because the credentials may be renewed.
    NoToken,
    /// The server did not continue the exchange, or has not proved its identity. A new session ends. A session that was
    /// attached before tries the next server.
    Failed,
}

/// The state of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The session is attached to a server.
    Connected {
        /// The session id. Servers may give negative ids.
        session: i64,
        /// The shortest timeout that was granted since the creation of the session. A lease counts with it.
        timeout: Duration,
        /// The time at which the connect request was written.
        sent: Instant,
    },
    /// The connection is lost, and its watches with it.
    Disconnected(Loss),
    /// The session has ended for good.
    Over(End),
}

/// The reason for the loss of a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The server or the network closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The server did not answer in time, and another server was found.
    #[error("no reply from the server for {0:?}")]
    Silent(Duration),
    /// The lease ends soon, so another server is tried ([`Session::reattach`]).
    #[error("the session changed its connection because the lease ends soon")]
    LeaseEndsSoon,
    /// The server sent bytes that are no reply.
    #[error("the server sent an invalid reply: {0}")]
    Protocol(String),
    /// The session is attached to another connection.
    #[error("the session was attached on another connection")]
    Moved,
    /// The server is read-only: it has lost its quorum.
    #[error("the server is read-only")]
    ReadOnly,
    /// The server refused to close the session.
    #[error("the server refused to close the session")]
    CloseRefused,
    /// The SASL exchange failed.
    #[error("the SASL exchange failed")]
    Unauthenticated,
}

/// The reason for the end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// [`Session::close`] was called, and the server has closed the session or does not know it any more.
    #[error("the session was closed")]
    Closed,
    /// The server says that the session has expired.
    #[error("the session expired")]
    Expired,
    /// No server attached the session for seven quarters of its timeout. A server that hangs up without an answer may have
    /// gone back to an older state, in which the session does not exist.
    #[error("no server attached the session for longer than its timeout")]
    NotAttached,
    /// The server answered with another session.
    #[error("the server replaced the session with another one")]
    Replaced,
    /// The server's transactions went back to an older state, such as a restored backup.
    #[error("the server has an older state than before, such as a restored backup")]
    WentBack,
    /// The server refused the credentials.
    #[error("the server refused the credentials")]
    AuthFailed,
    /// The runtime that drives the session has stopped.
    #[error("the runtime that drives the session has stopped")]
    Abandoned,
}

impl End {
    /// Returns the error of the requests that this end leaves without a reply.
    fn of_requests(self) -> RequestError {
        match self {
            // The server carries nothing out for such a session, and its ephemeral znodes are deleted.
            End::AuthFailed => RequestError::Refused(Code::AuthFailed.number()),
            _ => RequestError::Over,
        }
    }
}

/// The reason why a request has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The server refused the request with this error code.
    #[error("the server refused the request: {}", name_of(.0))]
    Refused(i32),
    /// The connection was lost after the request was written. Its outcome is unknown.
    #[error("the connection was lost before the reply")]
    ConnectionLoss,
    /// The request was never written.
    #[error("there is no connection")]
    NotSent,
    /// The session has ended. The request may have been carried out before.
    #[error("the session has ended")]
    Over,
}

impl RequestError {
    /// Returns the error code of the server, if it refused the request with a known one.
    pub fn code(&self) -> Option<Code> {
        match self {
            RequestError::Refused(number) => Code::from_number(*number),
            _ => None,
        }
    }
}

/// Returns the name of an error code, or its number.
fn name_of(number: &i32) -> String {
    Code::from_number(*number).map_or_else(|| format!("error {number}"), |code| code.to_string())
}

/// The session timeout that sets the pace until a server has granted one, at least.
const LONGEST_HANDSHAKE: Duration = Duration::from_secs(6);

/// The number of short connections in a row that are replaced at once.
const MAX_SHORT_CONNECTIONS: u32 = 3;

/// A dial under way, or the time of the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dial {
    Idle,
    Waiting { until: Instant },
    Dialing { id: ConnectionId, deadline: Instant },
}

/// One ZooKeeper session. The [crate] documentation lists its promises.
///
/// Each method that may start a dial takes `random`: any random number, with which the session spreads its dials in time.
#[derive(Debug, Clone)]
pub struct Session {
    config: SessionConfig,
    pace: Pace,
    /// The session id, zero before the first connect response.
    id: i64,
    password: Hidden,
    /// The timeout at the creation of the session. A reattach never asks for more.
    created_with: Option<Duration>,
    newest_zxid: i64,
    /// The longest timeout that was granted.
    longest: Duration,
    /// Set if a server has accepted the credentials.
    was_attached: bool,
    /// The time at which the newest answered request was sent. The server knew the session then, or later.
    last_known: Instant,
    /// The xid of the last request. Xids go on over all connections: a server matches a commit with its pending write by
    /// session and xid alone (`CommitProcessor`). So a repeated xid could get the reply of an older request.
    last_xid: i32,
    last_connection: u64,
    last_request: u64,
    dial: Dial,
    /// Failed dials and handshakes since the session was attached.
    failures: u32,
    /// The number of times that a server hung up during the handshake since the session was attached.
    hang_ups: u32,
    /// Set if the server of the next connection may have just started: the last dial reached no server, or the server hung
    /// up during the handshake of a session that exists.
    follows_outage: bool,
    /// The number of connections in a row that ended soon after the session was attached.
    short_connections: u32,
    /// The number of attaches that were not answered in time since the last working connection.
    slow_attaches: u32,
    /// The time that the last ping took.
    ping_time: Duration,
    /// The time until which an answer of the connected server does not stop the dial.
    must_move_until: Option<Instant>,
    /// Set if that dial should begin with the connected server.
    same_first: bool,
    connection: Option<Connection>,
    /// Set if the session has created an ephemeral znode. Before, it may be local to one server.
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
            // The requested timeout may be too short for a handshake: a server grants a longer one.
            pace: Pace::new(config.timeout.max(LONGEST_HANDSHAKE)),
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
        session.start_dial(now);
        session
    }

    /// Returns the next output.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the bytes to write, and their connection. Call it after every other method.
    pub fn take_bytes(&mut self) -> Option<(ConnectionId, Bytes)> {
        let connection = self.connection.as_mut()?;
        let bytes = connection.take_bytes()?;
        Some((connection.id, bytes))
    }

    /// Returns the session id, zero before the session exists.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Returns the shortest timeout that was granted, or the requested one before the session exists.
    pub fn timeout(&self) -> Duration {
        self.pace.timeout
    }

    /// Returns whether a request would be accepted.
    pub fn is_connected(&self) -> bool {
        self.closing.is_none() && self.connection.as_ref().is_some_and(Connection::is_attached)
    }

    /// Returns the number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.connection.as_ref().map_or(0, Connection::in_flight)
    }

    /// Returns the end of the session, if it has ended.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    // ---- requests ----

    /// Sends a request. Its result is an [`Output::Reply`].
    ///
    /// # Errors
    /// [`RequestError::NotSent`] without a connection, [`RequestError::Over`] after the end or [`Session::close`], and
    /// [`RequestError::Refused`] after the server refused the credentials.
    pub fn request(&mut self, request: &Request, now: Instant) -> Result<RequestId, RequestError> {
        self.send(|connection, id, last_xid, max_in_flight| {
            connection.send(id, request, max_in_flight, last_xid, now);
        })
    }

    fn send(
        &mut self,
        write: impl FnOnce(&mut Connection, RequestId, &mut i32, usize),
    ) -> Result<RequestId, RequestError> {
        if let Some(end) = self.end {
            return Err(end.of_requests());
        }
        if self.closing.is_some() {
            return Err(RequestError::Over);
        }
        let Some(connection) = self.connection.as_mut().filter(|connection| connection.is_attached()) else {
            return Err(RequestError::NotSent);
        };
        self.last_request += 1;
        let id = RequestId(self.last_request);
        write(connection, id, &mut self.last_xid, self.config.max_in_flight);
        Ok(id)
    }

    /// Sends a request that renews a lease, behind a ping. It passes the requests that wait for the server.
    ///
    /// The ping is in front because a slow write holds back all later replies: without it, a silent server could not be told
    /// from a slow leader.
    ///
    /// # Errors
    /// As [`Session::request`].
    pub fn renew(&mut self, request: &Request, now: Instant) -> Result<RequestId, RequestError> {
        self.send(|connection, id, last_xid, _| {
            connection.write_ping(now);
            connection.write_request(id, request, last_xid, now);
        })
    }

    /// Attaches the session on a new connection: at the connected server if that `works`, or else at another one. For a lease
    /// that ends soon: the leader counts the session's timeout from the attach on. If not `is_hopeless`, answers that are under
    /// way can still renew the lease. Then this does nothing unless no answer has come for an eighth of the timeout.
    ///
    /// Does nothing until the session has been attached for a fifteenth of its timeout, and for twice as long as the attach
    /// took: before, no request can have been answered. A sixth of the timeout is enough in any case. A session without an
    /// ephemeral znode stays, too, because it may be local to its server.
    pub fn reattach(&mut self, is_hopeless: bool, works: bool, now: Instant) {
        let Some(connection) = self.connection.as_ref().filter(|_| self.has_ephemeral) else { return };
        let Some(attached_at) = connection.attached_at else { return };
        let attach_time = connection.connect_sent.until(attached_at);
        let answer_time = (attach_time * 2).clamp(self.pace.timeout / 15, self.pace.timeout / 6);
        let has_had_time = attached_at.until(now) >= answer_time;
        let oldest = connection.oldest_pending();
        let is_silent = oldest.is_some_and(|(sent, _)| sent.until(now) > self.pace.timeout / 8);
        let is_hopeless = is_hopeless || is_silent;
        if self.is_connected() && has_had_time && is_hopeless {
            self.same_first = works && !is_silent;
            self.must_move_until = Some(now.after(self.pace.timeout / 6));
            if self.dial == Dial::Idle {
                self.start_dial(now);
            }
        }
    }

    /// Closes the session: the server deletes its ephemeral znodes. The end is [`Output::State`].
    ///
    /// If the connection is lost before the reply, the session attaches once more, only to close. It gives up after the
    /// session timeout, when the server ends the session by itself.
    pub fn close(&mut self, now: Instant) {
        if self.end.is_some() || self.closing.is_some() {
            return;
        }
        self.closing = Some(now);
        if self.id == 0 {
            return self.finish(End::Closed);
        }
        if let Some(connection) = self.connection.as_mut().filter(|connection| connection.is_attached()) {
            // Nothing is sent behind the close.
            let unwritten = connection.take_queue();
            connection.write_close(&mut self.last_xid, now);
            for request in unwritten {
                self.fail_unwritten(request, RequestError::NotSent);
            }
        }
    }

    /// Ends the session without the server, because nothing drives it any more. The server ends it after its timeout.
    pub fn abandon(&mut self) {
        self.finish(End::Abandoned);
    }

    // ---- the network ----

    /// Reports that a dial succeeded, TLS included. Returns whether the session uses the connection: it does not if the
    /// dial was aborted meanwhile, or if sessions that exist come first.
    #[must_use]
    pub fn connected(&mut self, id: ConnectionId, now: Instant, random: u64) -> bool {
        if !matches!(self.dial, Dial::Dialing { id: dialed, .. } if dialed == id) {
            return false;
        }
        self.dial = Dial::Idle;
        let follows_outage = std::mem::take(&mut self.follows_outage);
        if follows_outage && self.id == 0 {
            // Holders attach meanwhile.
            self.dial = Dial::Waiting { until: now.after(self.pace.newcomer_delay(random)) };
            return false;
        }
        if let Some(old) = &self.connection {
            let loss =
                if self.must_move(now) { Loss::LeaseEndsSoon } else { Loss::Silent(old.silent_for(now)) };
            self.last_move = Some(now);
            self.drop_connection(loss);
        }
        // A SASL exchange may need a ticket first.
        let is_in_haste = self.has_ephemeral && !self.config.sasl;
        let others = self.config.servers.saturating_sub(1);
        // A server that starts may forget a connect request: Apache ZooKeeper 3.8.0 does before it has its database.
        let deadline = if is_in_haste && (others > 0 || follows_outage) {
            let longer = self.ping_time * 3;
            let slow_attaches = if others > 0 { self.slow_attaches } else { 0 };
            self.pace.short_attach_deadline(now, longer, slow_attaches, self.config.servers)
        } else {
            self.pace.attach_deadline(now)
        };
        let mut connection = Connection::new(id, now, deadline, random);
        connection.write_connect(self.id, &self.password, self.newest_zxid, self.requested_timeout());
        self.connection = Some(connection);
        true
    }

    /// Reports that a dial failed.
    pub fn dial_failed(&mut self, id: ConnectionId, now: Instant, random: u64) {
        if matches!(self.dial, Dial::Dialing { id: dialed, .. } if dialed == id) {
            self.dial = Dial::Idle;
            self.follows_outage = true;
            self.retry_dial(now, random);
        }
    }

    /// Reports that the other side closed a connection, or that it broke.
    pub fn disconnected(&mut self, id: ConnectionId, now: Instant, random: u64) {
        if self.connection.as_ref().is_some_and(|connection| connection.id == id) {
            self.lose(Loss::Closed, now, random);
        } else {
            self.dial_failed(id, now, random);
        }
    }

    /// Reports received bytes.
    pub fn received(&mut self, id: ConnectionId, bytes: &[u8], now: Instant, random: u64) {
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
        let Stage::Authenticating { deadline, .. } = connection.stage else { return };
        match step {
            SaslStep::Send(token) => connection.write_sasl(token, false, &mut self.last_xid, now),
            SaslStep::SendLast(token) => connection.write_sasl(token, true, &mut self.last_xid, now),
            SaslStep::Done => self.present_credentials(deadline, now),
            SaslStep::NoToken => self.lose(Loss::Unauthenticated, now, random),
            SaslStep::Failed if self.was_attached => self.lose(Loss::Unauthenticated, now, random),
            SaslStep::Failed => self.finish(End::AuthFailed),
        }
    }

    // ---- time ----

    /// Returns the time at which [`Session::timer`] must be called.
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

    /// Acts on the time. Before, the caller must pass all bytes that have arrived: after a pause of the process every
    /// deadline is past, while the replies wait in the socket.
    pub fn timer(&mut self, now: Instant, random: u64) {
        if self.end.is_some() {
            return;
        }
        if self.closing.is_some_and(|since| since.after(self.pace.timeout) <= now) {
            return self.finish(End::Closed);
        }
        if self.give_up_time().is_some_and(|at| at <= now) {
            return self.finish(End::NotAttached);
        }
        match self.dial {
            Dial::Waiting { until } if until <= now => self.start_dial(now),
            Dial::Dialing { id, deadline } if deadline <= now => {
                self.outputs.push_back(Output::AbortDial(id));
                self.dial_failed(id, now, random);
            }
            _ => {}
        }
        match self.connection.as_ref().map(|connection| connection.stage) {
            Some(Stage::Connecting { deadline } | Stage::Authenticating { deadline, .. })
                if deadline <= now =>
            {
                let silent = self.connection.as_ref().map_or(Duration::ZERO, |c| c.silent_for(now));
                self.slow_attaches = self.slow_attaches.saturating_add(1);
                self.lose(Loss::Silent(silent), now, random);
            }
            Some(Stage::Attached) => {
                self.send_due_ping(now);
                if self.dial == Dial::Idle && self.move_time().is_some_and(|at| at <= now) {
                    self.start_dial(now);
                }
            }
            _ => {}
        }
    }

    /// Returns the time at which a session that no server attaches is given up.
    ///
    /// It counts from the time at which a request was sent, and not from the reply: a process that was stopped reads old replies.
    fn give_up_time(&self) -> Option<Instant> {
        let is_attached = self.connection.as_ref().is_some_and(Connection::is_attached);
        (self.id != 0 && !is_attached).then(|| self.last_known.after(self.longest * 7 / 4))
    }

    fn connection_timer(&self, connection: &Connection) -> Option<Instant> {
        match connection.stage {
            Stage::Connecting { deadline } | Stage::Authenticating { deadline, .. } => Some(deadline),
            Stage::Attached => {
                let ping = self.ping_time(connection);
                let silence = if self.dial == Dial::Idle { self.move_time() } else { None };
                [ping, silence].into_iter().flatten().min()
            }
        }
    }

    // ---- keeping the session alive ----

    fn ping_time(&self, connection: &Connection) -> Option<Instant> {
        self.closing.is_none().then(|| connection.last_ping.after(self.pace.ping_interval()))
    }

    fn send_due_ping(&mut self, now: Instant) {
        let Some(connection) = self.connection.as_ref().filter(|connection| connection.is_attached()) else {
            return;
        };
        if self.ping_time(connection).is_some_and(|at| at <= now) {
            self.send_ping(now);
        }
    }

    fn send_ping(&mut self, now: Instant) {
        if let Some(connection) = &mut self.connection {
            connection.write_ping(now);
        }
    }

    // ---- changing the connection ----

    /// Returns the time at which the session looks for another server, if the connected one stays silent.
    fn move_time(&self) -> Option<Instant> {
        let connection = self.connection.as_ref().filter(|connection| connection.is_attached())?;
        let silent = self.pace.silence_deadline(connection, self.has_ephemeral)?;
        // At most one move per third of the session timeout.
        let earliest = self.last_move.map_or(silent, |last| last.after(self.pace.timeout / 3));
        Some(silent.max(earliest))
    }

    fn must_move(&self, now: Instant) -> bool {
        self.must_move_until.is_some_and(|until| now < until)
    }

    /// Stops a dial if the connected server has answered meanwhile.
    fn stop_needless_move(&mut self, now: Instant) {
        let is_attached = self.connection.as_ref().is_some_and(Connection::is_attached);
        if is_attached
            && !self.must_move(now)
            && self.dial != Dial::Idle
            && self.move_time().is_none_or(|at| now < at)
        {
            if let Dial::Dialing { id, .. } = self.dial {
                self.outputs.push_back(Output::AbortDial(id));
            }
            self.dial = Dial::Idle;
            self.failures = 0;
        }
    }

    fn start_dial(&mut self, now: Instant) {
        self.last_connection += 1;
        let id = ConnectionId(self.last_connection);
        let is_in_haste = self.has_ephemeral && self.config.servers > 1;
        self.dial =
            Dial::Dialing { id, deadline: self.pace.dial_deadline(now, is_in_haste, self.config.sasl) };
        let attached = self.connection.as_ref().filter(|connection| connection.is_attached());
        // After a third of the timeout, the silent connection may be half open, and its server may work.
        let is_fresh = attached.is_some_and(|connection| connection.silent_for(now) < self.pace.timeout / 3);
        let avoid_current = is_fresh && !self.must_move(now);
        let same_first = self.same_first && self.must_move(now);
        self.outputs.push_back(Output::Dial { id, avoid_current, same_first });
    }

    fn retry_dial(&mut self, now: Instant, random: u64) {
        self.failures = self.failures.saturating_add(1);
        let hang_ups = self.hang_ups / self.config.servers.max(1);
        let delay = if self.id == 0 && hang_ups > 0 {
            self.pace.hang_up_delay(hang_ups, random)
        } else {
            // A session without an ephemeral znode holds no lock.
            self.pace.retry_delay(self.failures, self.has_ephemeral, random)
        };
        self.dial = Dial::Waiting { until: now.after(delay) };
    }

    /// Drops the connection, and dials unless a dial is under way.
    fn lose(&mut self, loss: Loss, now: Instant, random: u64) {
        // A connection that was attached is replaced at once. A server that hangs up during the handshake counts as a
        // failed dial: it may be full, behind, read-only or without a leader. The next server is tried at once, until all
        // of them have hung up. A server that hangs up soon after each handshake counts as a failed dial, too.
        let attached = self.connection.as_ref().and_then(|connection| connection.attached_at);
        let is_urgent = match attached.filter(|_| loss == Loss::Closed) {
            Some(since) if since.until(now) >= self.pace.shortest_retry() => {
                self.short_connections = 0;
                true
            }
            Some(_) => {
                self.short_connections = self.short_connections.saturating_add(1);
                self.short_connections <= MAX_SHORT_CONNECTIONS
            }
            None if loss == Loss::Closed => {
                self.hang_ups = self.hang_ups.saturating_add(1);
                self.follows_outage |= self.id != 0;
                !self.hang_ups.is_multiple_of(self.config.servers.max(1))
            }
            None => false,
        };
        self.drop_connection(loss);
        match self.dial {
            Dial::Dialing { .. } => {}
            Dial::Idle | Dial::Waiting { .. } if is_urgent => self.start_dial(now),
            Dial::Waiting { .. } => {}
            Dial::Idle => self.retry_dial(now, random),
        }
    }

    /// Fails the requests of the connection and closes it.
    fn drop_connection(&mut self, loss: Loss) {
        let Some(connection) = self.connection.take() else { return };
        self.must_move_until = None;
        let was_attached = connection.is_attached();
        let id = connection.id;
        self.fail_requests(
            connection.into_lost_requests(),
            RequestError::ConnectionLoss,
            RequestError::NotSent,
        );
        self.outputs.push_back(Output::Close(id));
        if was_attached {
            self.outputs.push_back(Output::State(State::Disconnected(loss)));
        }
    }

    fn fail_requests(&mut self, lost: LostRequests, written: RequestError, unwritten: RequestError) {
        for (request, sent) in lost.written {
            self.outputs.push_back(Output::Reply { request, sent, result: Err(written) });
        }
        for request in lost.unwritten {
            self.fail_unwritten(request, unwritten);
        }
    }

    fn fail_unwritten(&mut self, request: RequestId, error: RequestError) {
        let sent = Instant::default();
        self.outputs.push_back(Output::Reply { request, sent, result: Err(error) });
    }

    /// Ends the session for good.
    fn finish(&mut self, end: End) {
        if self.end.is_some() {
            return;
        }
        // A session that was to be closed is closed if the server does not know it any more.
        let end = if self.closing.is_some() && end != End::AuthFailed { End::Closed } else { end };
        self.end = Some(end);
        if let Dial::Dialing { id, .. } = self.dial {
            self.outputs.push_back(Output::AbortDial(id));
        }
        self.dial = Dial::Idle;
        if let Some(connection) = self.connection.take() {
            let id = connection.id;
            self.fail_requests(connection.into_lost_requests(), end.of_requests(), end.of_requests());
            self.outputs.push_back(Output::Close(id));
        }
        self.outputs.push_back(Output::State(State::Over(end)));
    }

    /// Returns the timeout to ask for. A reattach never asks for more than the creation granted.
    fn requested_timeout(&self) -> Duration {
        self.created_with.unwrap_or(self.config.timeout)
    }
}
