//! The public types of a session: its settings, its outputs and its errors.

use std::time::Duration;

use bytes::Bytes;
use zoolock_wire::{Code, Hidden, Reply, WatchEvent};

use super::to_end::SessionKey;
use crate::Instant;

/// The settings of a session.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// The session timeout to request. The server may grant another timeout.
    pub timeout: Duration,
    /// Credentials for `addAuth`, as pairs of scheme and secret. They are presented on every connection.
    pub credentials: Vec<(String, Hidden)>,
    /// Set if a SASL exchange comes first on every connection.
    pub sasl: bool,
    /// The largest number of requests in flight. A server with the default settings stops reading
    /// requests when 1,000 requests wait in it. A new connection begins with a limit of 16, which
    /// adapts to the pace of the replies.
    pub max_in_flight: usize,
    /// The number of servers. Each known address of a name counts as a server.
    /// [`Session::set_servers`](crate::Session::set_servers) changes it.
    pub servers: u32,
    /// An existing session to end, in place of a new one: the session attaches, and sends nothing but a close.
    ///
    /// The server ends the session whichever connection sends the close, and refuses later requests of the session
    /// (`PrepRequestProcessor` of ZooKeeper). The caller must know that the session is not needed any more. It must limit
    /// the time, because the session timeout begins anew with the attach.
    pub to_end: Option<SessionKey>,
}

impl SessionConfig {
    /// Returns settings with this session timeout, and defaults for the rest.
    pub fn new(timeout: Duration) -> SessionConfig {
        SessionConfig {
            timeout,
            credentials: Vec::new(),
            sasl: false,
            max_in_flight: 800,
            servers: 1,
            to_end: None,
        }
    }
}

/// The number of a dial, and of the connection that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u64);

/// The number of a request of this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestNumber(pub(super) u64);

/// An action for the caller, or a change of the session. Outputs must be handled in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Connect to the next server. Report [`Session::dial_succeeded`](crate::Session::dial_succeeded) or
    /// [`Session::dial_failed`](crate::Session::dial_failed).
    Dial {
        /// The number of the dial.
        id: ConnectionId,
        /// Set if the connected server must not be dialed, because it has just become silent.
        avoid_current: bool,
        /// Set if the connected server should be dialed first: it works, and only a new connection is needed.
        same_first: bool,
    },
    /// Stop this dial. No report is needed.
    AbortDial {
        /// The number of the dial.
        id: ConnectionId,
        /// Set if no server has accepted in time. Otherwise the dial is not needed any more.
        is_late: bool,
    },
    /// Close this connection. Nothing more is sent on it.
    Close {
        /// The number of the connection.
        id: ConnectionId,
        /// Set if a write has waited long for its reply. The server may hang, or confirm nothing, and may carry the write out
        /// minutes later.
        leaves_write: bool,
    },
    /// Compute the next SASL token for this connection. The value is the challenge of the server,
    /// or `None` for the first token. Report it with
    /// [`Session::sasl_step`](crate::Session::sasl_step).
    SaslChallenge(ConnectionId, Option<Bytes>),
    /// A server has granted a session timeout. The session is not attached yet.
    Granted {
        /// The shortest timeout that was granted so far.
        timeout: Duration,
        /// The time at which the connect request was written.
        sent: Instant,
    },
    /// The state of the session changed.
    State(SessionState),
    /// A request was answered or has failed.
    Reply {
        /// The request.
        request: RequestNumber,
        /// The time at which the request was written, or zero if it was never written.
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
    /// There is no token for this server. The session tries the next server, because the credentials may be renewed
    /// meanwhile.
    NoToken,
    /// The server did not continue the exchange, or has not proved its identity. A new session ends. A session that was
    /// attached before tries the next server.
    Failed,
}

/// The state of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionState {
    /// The session is attached to a server.
    Connected {
        /// The session id. Servers may give negative ids.
        session: i64,
        /// The shortest timeout that was granted since the creation of the session. Leases are computed from it.
        timeout: Duration,
        /// The time at which the connect request was written.
        sent: Instant,
    },
    /// The connection is lost. The watches that were set on it are lost, too.
    Disconnected(DisconnectReason),
    /// The session has ended for good.
    Ended(End),
}

/// The reason for the loss of a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DisconnectReason {
    /// The server or the network closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The server did not answer in time.
    #[error("no reply from the server for {0:?}")]
    Silent(Duration),
    /// The lease ends soon, so the session attached on a new connection
    /// ([`Session::reattach`](crate::Session::reattach)).
    #[error("the session changed its connection because the lease ends soon")]
    LeaseEndsSoon,
    /// The server sent bytes that are no valid reply.
    #[error("the server sent an invalid reply: {0}")]
    Protocol(String),
    /// The server says that the session was attached on another connection.
    #[error("the session was attached on another connection")]
    Moved,
    /// The server is read-only: it has no quorum.
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
    /// [`Session::close`](crate::Session::close) was called. After that, the server closed the
    /// session, the session ended in another way, or the session timeout passed.
    #[error("the session was closed")]
    Closed,
    /// The server says that the session has expired.
    #[error("the session expired")]
    Expired,
    /// No server attached the session for seven quarters of the session timeout. One possible
    /// cause: the servers have gone back to an older state, in which the session does not exist,
    /// and close each connection without an answer.
    #[error("no server attached the session for longer than its timeout")]
    NotAttached,
    /// The server answered a connect request with another session id.
    #[error("the server replaced the session with another one")]
    Replaced,
    /// The zxid of a reply is lower than the zxid of an earlier reply on the same connection. So
    /// the server has gone back to an older state, for example because a backup was restored.
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
    pub(super) fn request_error(self) -> RequestError {
        match self {
            // The server carries out no request of such a session, so its requests count as refused.
            End::AuthFailed => RequestError::Refused(Code::AuthFailed.number()),
            _ => RequestError::SessionEnded,
        }
    }
}

/// The reason why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The server refused the request with this error code.
    #[error("the server refused the request: {}", format_error_code(.0))]
    Refused(i32),
    /// The connection ended after the request was written. Its outcome is unknown.
    #[error("the connection ended before the reply")]
    ConnectionLoss,
    /// The request was never written.
    #[error("there is no connection")]
    NotSent,
    /// The session has ended. The request may have been carried out before.
    #[error("the session has ended")]
    SessionEnded,
}

impl RequestError {
    /// Returns the error code, if the server refused the request with a known code.
    pub fn code(&self) -> Option<Code> {
        match self {
            RequestError::Refused(number) => Code::from_number(*number),
            _ => None,
        }
    }
}

/// Returns the name of an error code, or its number.
fn format_error_code(number: &i32) -> String {
    Code::from_number(*number).map_or_else(|| format!("error {number}"), |code| code.to_string())
}
