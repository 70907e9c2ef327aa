//! The machine below a session: its clock, random numbers, tasks and network.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Handle;

use crate::Instant;
use crate::host::{DialFailure, Host};
use crate::race::race;
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

/// An attempt to connect to a server.
pub type ConnectFuture = Pin<Box<dyn Future<Output = Result<Box<dyn Stream>, ConnectError>> + Send>>;

/// The machine on which a session runs.
///
/// [`Os`] is the real machine. A simulation implements this trait itself, and so runs all code above the socket
/// unchanged.
pub trait Platform: Send + Sync + 'static {
    /// Reads a clock that goes on during suspend, as the server's clock does.
    fn now(&self) -> Instant;
    /// Returns a random number.
    fn random(&self) -> u64;
    /// Spawns the task that drives a session. The task must run on a tokio runtime, because it
    /// spawns its attempts to connect there.
    fn spawn(&self, task: SessionFuture);
    /// Connects to a server. Tries each address of the server alone for `head_start`. After that,
    /// also tries the next address, while the earlier attempts go on.
    fn connect(&self, host: &Host, head_start: Duration) -> ConnectFuture;
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
        boot_time()
    }

    fn random(&self) -> u64 {
        // The standard library takes the keys of this hasher from the operating system, so the hash
        // is random.
        RandomState::new().build_hasher().finish()
    }

    fn spawn(&self, task: SessionFuture) {
        self.runtime.spawn(task);
    }

    fn connect(&self, host: &Host, head_start: Duration) -> ConnectFuture {
        Box::pin(connect(host.clone(), head_start))
    }
}

/// Reads the boot-time clock, which goes on during suspend.
pub fn boot_time() -> Instant {
    let time = clock_gettime(ClockId::Boottime);
    Instant((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// Returns whether the error means that a server accepted a connection and closed it before `connect` returned.
pub fn closes_at_once(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Connects to a server, racing its addresses (RFC 8305). Names are resolved on each call.
async fn connect(host: Host, head_start: Duration) -> Result<Box<dyn Stream>, ConnectError> {
    match host {
        Host::Unix(path) => {
            let connected = match SocketPath::new(&path) {
                Ok(path) => UnixStream::connect(&path).await,
                Err(error) => Err(error),
            };
            let stream = connected.map_err(|error| not_connected(format!("cannot connect ({error})")))?;
            Ok(Box::new(stream))
        }
        Host::Tcp { name, port } => {
            let addresses = resolve(&name, port).await.map_err(not_connected)?;
            let connected = race(addresses.into_iter().map(TcpStream::connect), head_start).await;
            let stream = connected.map_err(|errors| tcp_connect_error(&errors))?;
            // A request must not wait for the TCP acknowledgement of the previous one.
            let set = stream.set_nodelay(true);
            set.map_err(|error| not_connected(format!("cannot set TCP_NODELAY ({error})")))?;
            Ok(Box::new(stream))
        }
    }
}

fn not_connected(message: String) -> ConnectError {
    ConnectError::new(DialFailure::NotConnected, message)
}

/// Returns the error of a host whose addresses failed with these errors. The first error decides.
fn tcp_connect_error(errors: &[io::Error]) -> ConnectError {
    match errors.first() {
        Some(error) if closes_at_once(error) => ConnectError::new(
            DialFailure::HungUp,
            format!(
                "accepts the connection and closes it at once ({error}); is it at its limit of connections \
                 (maxClientCnxns)?"
            ),
        ),
        Some(error) => not_connected(format!("cannot connect ({error})")),
        None => not_connected("the name has no address".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reset_and_broken_pipe_are_hang_ups() {
        for (kind, failure) in [
            (io::ErrorKind::ConnectionReset, DialFailure::HungUp),
            (io::ErrorKind::BrokenPipe, DialFailure::HungUp),
            (io::ErrorKind::ConnectionRefused, DialFailure::NotConnected),
            (io::ErrorKind::TimedOut, DialFailure::NotConnected),
        ] {
            assert_eq!(tcp_connect_error(&[kind.into()]).failure, failure, "{kind:?}");
        }
        assert_eq!(tcp_connect_error(&[]).failure, DialFailure::NotConnected);
    }
}
