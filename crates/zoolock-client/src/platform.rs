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
use crate::hosts::{Host, race};
use crate::socket_path::SocketPath;
use crate::threads::resolve;

/// A byte stream to a server.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A task that drives a session.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An attempt to connect to a server. The error is a text in lower case.
pub type Connecting = Pin<Box<dyn Future<Output = Result<Box<dyn Stream>, String>> + Send>>;

/// The machine on which a session runs.
///
/// [`Os`] is the real one. A simulation has another one, and so runs everything above the socket unchanged.
pub trait Platform: Send + Sync + 'static {
    /// Reads a clock that counts suspend, because the server's clock does.
    fn now(&self) -> Instant;
    /// Returns a random number.
    fn random(&self) -> u64;
    /// Runs the task that drives a session until it ends. Attempts to connect are tasks of the current tokio runtime.
    fn spawn(&self, task: Task);
    /// Connects to a server. Each of its addresses gets `head_start` before the next one is tried beside it.
    fn connect(&self, host: &Host, head_start: Duration) -> Connecting;
}

/// The operating system, with a tokio runtime.
#[derive(Debug, Clone)]
pub struct Os {
    runtime: Handle,
}

impl Os {
    /// Returns the platform whose tasks run on this runtime. It needs the drivers for I/O and time.
    pub fn on(runtime: &Handle) -> Arc<dyn Platform> {
        Arc::new(Os { runtime: runtime.clone() })
    }
}

impl Platform for Os {
    fn now(&self) -> Instant {
        let time = clock_gettime(ClockId::Boottime);
        Instant((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
    }

    fn random(&self) -> u64 {
        // The standard library seeds its hash maps from the operating system.
        RandomState::new().build_hasher().finish()
    }

    fn spawn(&self, task: Task) {
        self.runtime.spawn(task);
    }

    fn connect(&self, host: &Host, head_start: Duration) -> Connecting {
        Box::pin(connect(host.clone(), head_start))
    }
}

/// Returns whether a server has accepted a connection, and has closed it before `connect` returned.
pub fn closes_at_once(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Connects to a server, racing its addresses (RFC 8305). Names are resolved on each call.
async fn connect(host: Host, head_start: Duration) -> Result<Box<dyn Stream>, String> {
    match host {
        Host::Unix(path) => {
            let connected = match SocketPath::new(&path) {
                Ok(path) => UnixStream::connect(&path).await,
                Err(error) => Err(error),
            };
            let stream = connected.map_err(|error| format!("cannot connect ({error})"))?;
            Ok(Box::new(stream))
        }
        Host::Tcp { name, port } => {
            let addresses = resolve(&name, port).await?;
            let connected = race(addresses.into_iter().map(TcpStream::connect), head_start).await;
            let stream = connected.map_err(|errors| match errors.first() {
                Some(error) if closes_at_once(error) => format!(
                    "accepts the connection and closes it at once ({error}); is it at its limit of connections \
                     (maxClientCnxns)?"
                ),
                Some(error) => format!("cannot connect ({error})"),
                None => "the name has no address".to_owned(),
            })?;
            // A request never waits for the acknowledgement of the previous one.
            stream.set_nodelay(true).map_err(|error| format!("cannot set TCP_NODELAY ({error})"))?;
            Ok(Box::new(stream))
        }
    }
}
