//! One session with ZooKeeper, made for locks.
//!
//! [`Session`] is the protocol as a state machine: it contains no socket, clock, task or random source. The caller
//! passes it the time, received bytes and requests, and carries out its [`Output`]s. So the same code runs on a network
//! and in a simulation, and each order of events can be tested. [`Client`] runs a session on the network, with the
//! machine's clock.
//!
//! # Promises
//! - **One order.** Replies, watch events and state changes leave [`Session::next_output`] in the order in which the
//!   server sent them. Requests reach the server in the order of the calls of [`Session::request`].
//! - **Nothing is sent twice.** A request that was written and not answered fails with
//!   [`RequestError::ConnectionLoss`]: its outcome is unknown. A request that was never written fails with
//!   [`RequestError::NotSent`]. The caller repeats requests; the session does not.
//! - **Nothing waits for a connection.** Without a connection, a request is refused at once.
//! - **A session is never replaced.** If the server answers a reattach with another session, this session has ended.
//! - **Watches end with the connection.** The caller reads and watches again after [`SessionState::Connected`].
//! - **A hostile server costs little.** Frames have a limit, and no length in a frame is trusted. Bytes that are no
//!   reply end the connection.

#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("zoolock runs on Linux only, because its leases need timers on a clock that counts suspend");

mod driver;
mod end_session;
mod host;
mod hosts;
mod platform;
mod race;
mod regular_file;
mod request_session;
pub mod sasl;
mod session;
mod socket_path;
mod threads;

/// Types that a test replaces, to run the code under many interleavings of the threads.
mod sync {
    pub(crate) use std::sync::{Mutex, MutexGuard};

    pub(crate) use tokio::sync::Notify;
}
#[cfg(feature = "tls")]
mod tls;

pub use driver::{Client, Handler, RequestBatch, Servers, Work};
pub use end_session::end_session;
pub use host::{DialFailure, Endpoint, Host};
pub use hosts::DialError;
pub use platform::{
    ConnectError, ConnectFuture, LookupFuture, Os, Platform, SessionFuture, Stream, closes_at_once,
    session_time, session_timer_clock, stop_session_clock_in_suspend, stops_in_suspend,
};
pub use regular_file::open_regular_file;
pub use request_session::{Notice, Notices, OpenError, RequestSession};
pub use session::{
    ConnectionId, DisconnectReason, End, Output, RequestError, RequestNumber, SaslStep, Session,
    SessionConfig, SessionKey, SessionState,
};
pub use socket_path::SocketPath;
pub use threads::{add_limit_advice, limit_advice, resolve, run_on_thread, start_thread};
#[cfg(feature = "tls")]
pub use tls::TlsSource;
pub use zoolock_wire::Instant;
