//! A TCP proxy that counts ZooKeeper requests and injects faults.
//!
//! It holds back, delays and cuts the bytes of any protocol. It also counts and drops single requests and replies of
//! ZooKeeper's clients. Bytes that are held back are acknowledged to the kernel of their sender, so TCP does not send
//! them again.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::own_runtime::OwnRuntime;
use crate::ports::Port;
use crate::{Result, TestFailure, lock};

mod connection;
mod election;
mod faults;
mod frames;
mod stats;

use connection::ProxyState;
use faults::Faults;
pub use faults::{Direction, LinkFault};
use stats::Meter;
pub use stats::{ConnectionStats, FrameCounts, ProxyStats};

const UNTIL_BOUND: Duration = Duration::from_secs(30);

/// The settings of a proxy.
#[derive(Debug)]
pub struct ProxySettings {
    /// The port on which the proxy listens.
    pub port: Port,
    /// The address of the server.
    pub upstream: SocketAddr,
    /// The protocol of the connections.
    pub protocol: ProxiedProtocol,
    /// The longest time to wait until the server accepts a connection. A proxy closes a connection that the server does
    /// not accept, and a kernel would refuse it.
    pub patience: Duration,
}

/// The protocol of the connections of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxiedProtocol {
    /// ZooKeeper's protocol for clients. Its requests and replies are counted, and can be dropped. Other bytes pass, too,
    /// if they do not begin like a frame.
    Client,
    /// Any protocol. Only its bytes are counted.
    Any,
    /// The protocol for the elections of an ensemble. A connection begins with the address on which its client listens.
    /// The proxy replaces this address, because a connection to it would bypass the proxy of the other direction.
    Election {
        /// The address of the proxy of the other direction.
        return_address: SocketAddr,
    },
}

/// A running proxy. Dropping it closes its connections and joins its threads.
#[derive(Debug)]
pub struct Proxy {
    orders: mpsc::Sender<ProxyOrder>,
    shared: Arc<ProxyState>,
    // Separate from the runtime of the test, so that a test body that blocks does not stall the proxy.
    _runtime: OwnRuntime,
}

impl Proxy {
    /// Starts a proxy for clients of the server at `upstream` (`host:port`).
    ///
    /// # Errors
    /// Fails if no port is free.
    pub async fn start(upstream: &str) -> Result<Self> {
        let upstream = upstream.parse::<SocketAddr>();
        let upstream =
            upstream.map_err(|error| TestFailure::during("a proxy needs an address with a port", error))?;
        let (port, protocol) = (Port::reserve()?, ProxiedProtocol::Client);
        let settings = ProxySettings { port, upstream, protocol, patience: Duration::ZERO };
        Ok(Self::start_with(settings).await)
    }

    /// Starts a proxy with these settings.
    ///
    /// # Panics
    /// Panics if another process listens on the port.
    pub async fn start_with(settings: ProxySettings) -> Self {
        let runtime = OwnRuntime::new("proxy", 1);
        let shared = Arc::new(ProxyState {
            settings,
            meter: Meter::default(),
            faults: Faults::default(),
            recording: Mutex::default(),
        });
        let (orders, received) = mpsc::channel(16);
        let task = ProxyTask { shared: shared.clone(), connections: JoinSet::new(), listener: None };
        runtime.handle().spawn(task.run(received));
        let proxy = Self { orders, shared, _runtime: runtime };
        proxy.refuse(false).await;
        proxy
    }

    /// Returns the address on which the proxy listens.
    pub fn socket_addr(&self) -> SocketAddr {
        self.shared.settings.port.addr()
    }

    /// Returns the address on which the proxy listens, as `host:port`.
    pub fn addr(&self) -> String {
        self.socket_addr().to_string()
    }

    /// Returns the statistics so far.
    pub fn stats(&self) -> ProxyStats {
        self.shared.meter.read().clone()
    }

    /// Returns the counts of all connections so far.
    pub fn counts(&self) -> FrameCounts {
        self.shared.meter.read().total.clone()
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.shared.meter.read().open()
    }

    /// Records the requests of all connections from here on.
    pub fn record_requests(&self) {
        *lock(&self.shared.recording) = Some(Vec::new());
    }

    /// Returns the requests since [`Proxy::record_requests`] without their length fields, in the order in which the proxy
    /// got them. Leaves out connect requests.
    pub fn recorded_requests(&self) -> Vec<Bytes> {
        lock(&self.shared.recording).clone().unwrap_or_default()
    }

    /// Waits until `condition` is true for the statistics.
    ///
    /// # Panics
    /// Panics if `condition` is not true within 30 s.
    pub async fn until(&self, what: &str, condition: impl Fn(&ProxyStats) -> bool) {
        let reached = timeout(UNTIL_BOUND, async {
            loop {
                let changed = self.shared.meter.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if condition(&self.shared.meter.read()) {
                    return;
                }
                changed.await;
            }
        });
        if reached.await.is_err() {
            panic!("waited {UNTIL_BOUND:?} for the proxy to see {what}: {:#?}", self.counts());
        }
    }

    /// Closes all connections, and returns when they are closed. The proxy continues to accept new connections.
    pub async fn close_connections(&self) {
        self.order(ProxyOrder::Cut).await;
    }

    /// If `on` is true, refuses new connections, like a machine on which no server listens.
    /// Otherwise, accepts them again.
    ///
    /// Open connections stay open.
    pub async fn refuse(&self, on: bool) {
        self.order(|done| ProxyOrder::Refuse(on, done)).await;
    }

    /// If `on` is true, holds back all bytes of all connections. Otherwise, forwards bytes again,
    /// first those that were held back.
    ///
    /// While bytes are held back, one side of a connection does not see that the other side closes
    /// it.
    pub fn blackhole(&self, on: bool) {
        self.blackhole_towards(Direction::ToServer, on);
        self.blackhole_towards(Direction::ToClient, on);
    }

    /// Does the same as [`Proxy::blackhole`] for one direction.
    pub fn blackhole_towards(&self, direction: Direction, on: bool) {
        self.shared.faults.link.send_modify(|fault| match direction {
            Direction::ToServer => fault.blocks_requests = on,
            Direction::ToClient => fault.blocks_replies = on,
        });
    }

    /// Drops the reply to the next request with this opcode, and closes the connection.
    ///
    /// The server executes the request, but the client does not learn of it. Each call drops one more reply.
    /// [`ProxyStats::dropped_replies`] counts the dropped replies.
    pub fn drop_next_reply(&self, opcode: i32) {
        self.shared.faults.drop_next_reply(opcode);
    }

    /// Drops the next request with this opcode before the server receives it, and closes the connection.
    pub fn drop_next_request(&self, opcode: i32) {
        self.shared.faults.drop_next_request(opcode);
    }

    /// Delays all bytes by this time in each direction.
    pub fn delay(&self, delay: Duration) {
        self.shared.faults.link.send_modify(|fault| fault.delay = delay);
    }

    /// Returns the fault of all connections, which black holes and delays are parts of.
    pub fn fault(&self) -> LinkFault {
        *self.shared.faults.link.borrow()
    }

    /// Sets the fault of all connections. Replaces the black holes and the delay.
    pub fn set_fault(&self, fault: LinkFault) {
        self.shared.faults.link.send_replace(fault);
    }

    async fn order(&self, order: impl FnOnce(oneshot::Sender<()>) -> ProxyOrder) {
        let (done, executed) = oneshot::channel();
        let sent = self.orders.send(order(done)).await;
        sent.expect("the task runs as long as the proxy exists");
        executed.await.expect("the task executes every order unless it panics");
    }
}

#[derive(Debug)]
enum ProxyOrder {
    Cut(oneshot::Sender<()>),
    Refuse(bool, oneshot::Sender<()>),
}

/// The task that listens and owns the connections.
struct ProxyTask {
    shared: Arc<ProxyState>,
    connections: JoinSet<io::Result<()>>,
    listener: Option<TcpListener>,
}

impl ProxyTask {
    async fn run(mut self, mut orders: mpsc::Receiver<ProxyOrder>) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return,
                    Some(ProxyOrder::Cut(done)) => {
                        self.cut().await;
                        let _ = done.send(());
                    }
                    Some(ProxyOrder::Refuse(on, done)) => {
                        self.listener = if on { None } else { Some(self.listen().await) };
                        let _ = done.send(());
                    }
                },
                accepted = accept(self.listener.as_ref()) => {
                    self.connections.spawn(connection::serve(accepted, self.shared.clone()));
                }
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    async fn cut(&mut self) {
        self.connections.shutdown().await;
    }

    /// Listens on the port. If another process uses the port, tries again for about 5 s. Tests
    /// reserve their ports, so that process is no test, and uses the port only for a moment.
    async fn listen(&mut self) -> TcpListener {
        if let Some(listening) = self.listener.take() {
            return listening;
        }
        let addr = self.shared.settings.port.addr();
        for _ in 0..500 {
            if let Ok(listener) = TcpListener::bind(addr).await {
                return listener;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("another process listens on {addr}");
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // The client closed the connection before it was accepted, or this process is out of descriptors.
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    }
}
