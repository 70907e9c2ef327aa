use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use zoolock_core::names::Name;
use zoolock_server::{Server, ServerHandle, State};

use super::InProcessServer;
use crate::api::builder::{Builder, LONGEST};
use crate::api::zoolock::Zoolock;
use crate::base::error::Error;

/// A server for tests of your own lock code, without a JVM. It can expire sessions, cut connections, stop, start again
/// with all its znodes and sessions, and move its clock forward.
///
/// Any ZooKeeper client may connect to the server. It listens on the loopback address only, and ends when this value is
/// dropped.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), zoolock::Error> {
/// let server = zoolock::TestServer::start().await?;
/// let zl = server.connect().await?;
/// let guard = zl.mutex("nightly").lock().await?;
/// assert!(server.expire_holder("/locks/nightly"));
/// // Your program has lost its lock here: test its reaction.
/// assert_eq!(guard.lost().await, zoolock::LossReason::SessionExpired);
/// # Ok(()) }
/// ```
pub struct TestServer {
    addr: SocketAddr,
    state: Mutex<ServerState>,
}

/// The running server, or the znodes and sessions of a stopped one.
enum ServerState {
    Running(InProcessServer),
    Stopped(Box<State>),
    /// While `stop` or `start_again` runs.
    Changing,
}

impl TestServer {
    /// The server's tick. A session expires at most one tick after its timeout.
    pub const TICK: Duration = Duration::from_millis(100);

    /// Starts a server with an empty tree on a free port.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no port or thread is available.
    pub async fn start() -> Result<TestServer, Error> {
        let server = InProcessServer::start(builder(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).await?;
        Ok(TestServer { addr: server.handle.local_addr(), state: Mutex::new(ServerState::Running(server)) })
    }

    /// Returns the server's address, as a connect string. The address stays the same when the
    /// server stops and starts again.
    pub fn address(&self) -> String {
        self.addr.to_string()
    }

    /// Returns client settings with this server's tick and a session timeout of 10 s. Pass
    /// [`TestServer::address`] to [`Builder::connect`].
    pub fn client(&self) -> Builder {
        Zoolock::builder().tick_time(Self::TICK).session_timeout(Duration::from_secs(10))
    }

    /// Connects a client.
    ///
    /// # Errors
    /// As [`Builder::connect`].
    pub async fn connect(&self) -> Result<Zoolock, Error> {
        self.client().connect(&self.address()).await
    }

    /// Expires the session of the first contender in the lock directory `path`, such as `/locks/nightly`: the holder,
    /// if the lock is held. Returns false if there is no contender.
    pub fn expire_holder(&self, path: &str) -> bool {
        self.with(false, |server| {
            let contenders = server.children(path).into_iter();
            let first = contenders
                .filter_map(|(name, session)| Some((Name::parse(&name)?.position(), session)))
                .filter(|(_, session)| *session != 0)
                .min();
            first.is_some_and(|(_, session)| server.expire_session(session))
        })
    }

    /// Expires all sessions and returns their number.
    pub fn expire_sessions(&self) -> usize {
        self.with(0, ServerHandle::expire_sessions)
    }

    /// Ends all connections. Clients reconnect at once, and keep their sessions and locks.
    pub fn cut_connections(&self) {
        self.with((), ServerHandle::cut_connections);
    }

    /// Moves the server's clocks forward, as if no client had sent anything for this time. Sessions with a shorter
    /// timeout expire, and empty container znodes are deleted.
    pub fn advance(&self, by: Duration) {
        self.with((), |server| server.advance(by));
    }

    /// Returns the number of live sessions.
    pub fn sessions(&self) -> usize {
        self.with(0, ServerHandle::sessions)
    }

    /// Stops the server. Keeps its znodes and sessions for [`TestServer::start_again`]. Session timeouts do not run
    /// while the server is stopped. Does nothing if the server is stopped already.
    pub async fn stop(&self) {
        let state = std::mem::replace(&mut *self.state(), ServerState::Changing);
        let state = match state {
            ServerState::Running(InProcessServer { thread, mut handle }) => {
                let stopped = thread.handle().spawn(async move {
                    handle.stop().await;
                    handle
                });
                match stopped.await {
                    Ok(handle) => ServerState::Stopped(Box::new(handle.state())),
                    Err(error) => std::panic::resume_unwind(error.into_panic()),
                }
            }
            state => state,
        };
        *self.state() = state;
    }

    /// Starts the server again on the same port, with its znodes and sessions. Does nothing if the server runs.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if another program has taken the port.
    pub async fn start_again(&self) -> Result<(), Error> {
        let state = std::mem::replace(&mut *self.state(), ServerState::Changing);
        let (state, result) = match state {
            ServerState::Stopped(saved) => {
                match InProcessServer::start(builder(self.addr).resume((*saved).clone())).await {
                    Ok(server) => (ServerState::Running(server), Ok(())),
                    Err(error) => (ServerState::Stopped(saved), Err(error)),
                }
            }
            state => (state, Ok(())),
        };
        *self.state() = state;
        result
    }

    fn with<T>(&self, stopped: T, act: impl FnOnce(&ServerHandle) -> T) -> T {
        match &*self.state() {
            ServerState::Running(server) => act(&server.handle),
            ServerState::Stopped(_) | ServerState::Changing => stopped,
        }
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn builder(addr: SocketAddr) -> zoolock_server::Builder {
    Server::builder().listen(addr).tick(TestServer::TICK).max_session_timeout(LONGEST)
}

impl std::fmt::Debug for TestServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestServer").field("addr", &self.addr).finish_non_exhaustive()
    }
}
