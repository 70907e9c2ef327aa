//! The machine below a session: its clock, random numbers, tasks and network.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::{ClockId, TimerfdClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;

use crate::Instant;
use crate::host::{DialFailure, Endpoint, Host};
use crate::socket_path::SocketPath;
use crate::threads::resolve;

/// A byte stream to a server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A task that drives a session.
pub type SessionFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The reason why a connection to a server was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectError {
    /// The kind of the failure.
    pub failure: DialFailure,
    /// The problem, in lower case.
    pub message: String,
}

impl ConnectError {
    /// Creates an error of this kind.
    pub fn new(failure: DialFailure, message: impl Into<String>) -> ConnectError {
        ConnectError { failure, message: message.into() }
    }
}

/// A look-up of the endpoints of a host. The error is a text in lower case.
pub type LookupFuture = Pin<Box<dyn Future<Output = Result<Vec<Endpoint>, String>> + Send>>;

/// An attempt to connect to a server.
pub type ConnectFuture = Pin<Box<dyn Future<Output = Result<Box<dyn Stream>, ConnectError>> + Send>>;

/// The machine on which a session runs.
///
/// [`Os`] is the real machine. A simulation implements this trait itself, and so runs all code above the socket
/// unchanged.
pub trait Platform: Send + Sync + 'static {
    /// Reads a clock that never stops while the server's clock goes on.
    fn now(&self) -> Instant;
    /// Returns a random number.
    fn random(&self) -> u64;
    /// Spawns the task that drives a session. The task must run on a tokio runtime, because it
    /// spawns its attempts to connect there.
    fn spawn(&self, task: SessionFuture);
    /// Looks up the endpoints of a host. This may take long, because the session dials known endpoints meanwhile.
    fn resolve(&self, host: &Host) -> LookupFuture;
    /// Connects to a server.
    fn connect(&self, endpoint: &Endpoint) -> ConnectFuture;
}

/// The operating system, with a tokio runtime.
#[derive(Debug, Clone)]
pub struct Os {
    runtime: Handle,
}

impl Os {
    /// Returns the platform whose tasks run on this runtime. The runtime needs the drivers for I/O and time.
    pub fn with_runtime(runtime: &Handle) -> Arc<dyn Platform> {
        Arc::new(Os { runtime: runtime.clone() })
    }
}

impl Platform for Os {
    fn now(&self) -> Instant {
        session_time()
    }

    fn random(&self) -> u64 {
        // The standard library takes the keys of this hasher from the operating system, so the hash
        // is random.
        RandomState::new().build_hasher().finish()
    }

    fn spawn(&self, task: SessionFuture) {
        self.runtime.spawn(task);
    }

    fn resolve(&self, host: &Host) -> LookupFuture {
        let host = host.clone();
        Box::pin(async move {
            let addresses = match &host {
                Host::Tcp { name, port } => resolve(name, *port).await?.into_iter().map(Some).collect(),
                Host::Unix(_) => vec![None],
            };
            Ok(addresses.into_iter().map(|address| Endpoint { host: host.clone(), address }).collect())
        })
    }

    fn connect(&self, endpoint: &Endpoint) -> ConnectFuture {
        Box::pin(connect(endpoint.clone()))
    }
}

/// Set if the clock of sessions stops during suspend.
static STOPS_IN_SUSPEND: AtomicBool = AtomicBool::new(false);

/// Lets the clock of this process's sessions stop while the machine is suspended. Call it before the first session, and only
/// if each server of this process runs on this machine and stops its clock, too, as `zoolock serve` does.
pub fn stop_session_clock_in_suspend() {
    STOPS_IN_SUSPEND.store(true, Ordering::Relaxed);
}

/// Returns whether [`stop_session_clock_in_suspend`] was called.
pub fn stops_in_suspend() -> bool {
    STOPS_IN_SUSPEND.load(Ordering::Relaxed)
}

/// Returns the clock of sessions, for a timer on it.
pub fn session_timer_clock() -> TimerfdClockId {
    if stops_in_suspend() { TimerfdClockId::Monotonic } else { TimerfdClockId::Boottime }
}

/// Reads the clock of sessions: the boot-time clock, which goes on during suspend, or the monotonic clock.
pub fn session_time() -> Instant {
    let time = clock_gettime(if stops_in_suspend() { ClockId::Monotonic } else { ClockId::Boottime });
    Instant((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// Returns whether the error means that a server accepted a connection and closed it before `connect` returned.
pub fn closes_at_once(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

async fn connect(endpoint: Endpoint) -> Result<Box<dyn Stream>, ConnectError> {
    if let Host::Unix(path) = &endpoint.host {
        let path = SocketPath::new(path).map_err(connect_error)?;
        return Ok(Box::new(UnixStream::connect(&path).await.map_err(connect_error)?));
    }
    let missing = || ConnectError::new(DialFailure::NotConnected, "the name has no address");
    let address = endpoint.address.ok_or_else(missing)?;
    let stream = TcpStream::connect(address).await.map_err(connect_error)?;
    // A request must not wait for the TCP acknowledgement of the previous one.
    stream.set_nodelay(true).map_err(connect_error)?;
    Ok(Box::new(stream))
}

fn connect_error(error: io::Error) -> ConnectError {
    if closes_at_once(&error) {
        let message = format!(
            "accepts the connection and closes it at once ({error}); is it at its limit of connections \
             (maxClientCnxns)?"
        );
        return ConnectError::new(DialFailure::HungUp, message);
    }
    let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
    let failure = if is_refused { DialFailure::Refused } else { DialFailure::NotConnected };
    ConnectError::new(failure, format!("cannot connect ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reset_and_broken_pipe_are_hang_ups() {
        for (kind, failure) in [
            (io::ErrorKind::ConnectionReset, DialFailure::HungUp),
            (io::ErrorKind::BrokenPipe, DialFailure::HungUp),
            (io::ErrorKind::ConnectionRefused, DialFailure::Refused),
            (io::ErrorKind::TimedOut, DialFailure::NotConnected),
        ] {
            assert_eq!(connect_error(kind.into()).failure, failure, "{kind:?}");
        }
    }
}
