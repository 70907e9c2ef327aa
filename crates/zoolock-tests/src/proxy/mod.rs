//! A TCP proxy before a server that counts ZooKeeper's requests and misbehaves on command.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::own_runtime::OwnRuntime;
use crate::ports::Port;
use crate::{Failure, Result};

mod connection;
mod faults;
mod frames;
mod stats;

pub use faults::Direction;
use faults::Faults;
use stats::Meter;
pub use stats::{Connection, Counts, Stats};

const UNTIL_BOUND: Duration = Duration::from_secs(30);

/// A proxy on 127.0.0.1; dropping it cuts its connections and joins its threads.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    orders: mpsc::Sender<Order>,
    shared: Arc<Shared>,
    // Runs apart from the test, so that a test that blocks does not stall its own network.
    _runtime: OwnRuntime,
}

impl Proxy {
    /// Starts a proxy before the server at `upstream` (`host:port`).
    ///
    /// # Errors
    /// When no port can be had.
    pub async fn start(upstream: &str) -> Result<Self> {
        let upstream = upstream.parse::<SocketAddr>();
        let upstream =
            upstream.map_err(|error| Failure::during("a proxy needs an address with a port", error))?;
        let runtime = OwnRuntime::new("proxy", 1);
        let port = Port::reserve()?;
        let addr = port.addr();
        let shared = Arc::new(Shared { meter: Meter::default(), faults: Faults::none() });
        let (orders, received) = mpsc::channel(16);
        let gate =
            Gate { port, upstream, shared: shared.clone(), connections: JoinSet::new(), listener: None };
        runtime.handle().spawn(gate.run(received));
        let proxy = Self { addr, orders, shared, _runtime: runtime };
        proxy.refuse(false).await;
        Ok(proxy)
    }

    /// Where it listens, as `host:port`.
    pub fn addr(&self) -> String {
        self.addr.to_string()
    }

    /// What went through so far.
    pub fn stats(&self) -> Stats {
        self.shared.meter.read().clone()
    }

    /// What went through all connections so far.
    pub fn counts(&self) -> Counts {
        self.shared.meter.read().total.clone()
    }

    /// Waits until the statistics are as `condition` wants them.
    ///
    /// # Panics
    /// When they are not within 30 s.
    pub async fn until(&self, what: &str, condition: impl Fn(&Stats) -> bool) {
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

    /// Closes all connections; when it returns they are closed. New ones are accepted.
    pub async fn cut(&self) {
        self.order(Order::Cut).await;
    }

    /// Refuses new connections, as a machine without the server does, or listens again. Those that are open
    /// stay.
    pub async fn refuse(&self, on: bool) {
        self.order(|done| Order::Refuse(on, done)).await;
    }

    /// Keeps all connections and forwards nothing, or forwards again what has waited. A connection that is
    /// closed meanwhile is not seen to be closed on the other side.
    pub fn blackhole(&self, on: bool) {
        self.blackhole_towards(Direction::ToServer, on);
        self.blackhole_towards(Direction::ToClient, on);
    }

    /// [`Proxy::blackhole`] for one direction.
    pub fn blackhole_towards(&self, direction: Direction, on: bool) {
        self.shared.faults.blackhole(direction, on);
    }

    /// Loses the reply to the next request of this kind, and with it the connection: the server has done it,
    /// the client cannot know. Orders add up; [`Stats::dropped_replies`] counts those carried out.
    pub fn drop_next_reply(&self, opcode: i32) {
        self.shared.faults.drop_next_reply(opcode);
    }

    /// Loses the next request of this kind, and with it the connection: the server never sees it.
    pub fn drop_next_request(&self, opcode: i32) {
        self.shared.faults.drop_next_request(opcode);
    }

    /// Forwards everything this much later, both ways.
    pub fn delay(&self, delay: Duration) {
        self.shared.faults.set_delay(delay);
    }

    async fn order(&self, order: impl FnOnce(oneshot::Sender<()>) -> Order) {
        let (done, carried_out) = oneshot::channel();
        let sent = self.orders.send(order(done)).await;
        sent.expect("the gate runs as long as the proxy lives");
        carried_out.await.expect("the gate carries out what it receives, or panicked and said why");
    }
}

/// What connections and the proxy both see.
#[derive(Debug)]
struct Shared {
    meter: Meter,
    faults: Faults,
}

#[derive(Debug)]
enum Order {
    Cut(oneshot::Sender<()>),
    Refuse(bool, oneshot::Sender<()>),
}

/// The task that listens and owns the connections.
struct Gate {
    port: Port,
    upstream: SocketAddr,
    shared: Arc<Shared>,
    connections: JoinSet<()>,
    listener: Option<TcpListener>,
}

impl Gate {
    async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    None => return,
                    Some(Order::Cut(done)) => {
                        self.cut().await;
                        let _ = done.send(());
                    }
                    Some(Order::Refuse(on, done)) => {
                        self.listener = if on { None } else { Some(self.listen().await) };
                        let _ = done.send(());
                    }
                },
                accepted = accept(self.listener.as_ref()) => {
                    self.connections.spawn(connection::serve(accepted, self.upstream, self.shared.clone()));
                }
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    async fn cut(&mut self) {
        self.connections.shutdown().await;
    }

    /// The port is reserved among tests, so whoever sits on it goes away again.
    async fn listen(&mut self) -> TcpListener {
        if let Some(listening) = self.listener.take() {
            return listening;
        }
        for _ in 0..500 {
            if let Ok(listener) = TcpListener::bind(self.port.addr()).await {
                return listener;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("somebody else listens on {}", self.port.addr());
    }
}

async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // The client left before it was let in, or there are no descriptors for a moment.
            Err(_) => sleep(Duration::from_millis(1)).await,
        }
    }
}
