//! A port that forwards its bytes to another port: at once, late, or not at all.
//!
//! Two things differ from a broken network. A connection that is opened while the link is shut is accepted, so its
//! client waits for a reply and not for the connection. Bytes that are sent meanwhile are acknowledged and kept, so TCP
//! does not send them again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use zoolock_tests::lock;
use zoolock_tests::ports::Port;

use crate::Outcome;
use crate::clock::now;
use crate::usable_spans::TimeSpan;

/// The largest number of chunks of bytes that are kept while the link is shut.
const IN_FLIGHT: usize = 256;
const CHUNK: usize = 16 << 10;
/// The time in nanoseconds for which a link counts as broken after its connections were closed.
const CUT: i64 = 200_000_000;
/// The largest size of an address in the first message of a connection for elections, in bytes.
const LONGEST_NAME: usize = 1024;

/// A fault of a link. Requests are the bytes from the client to the listener, and replies the bytes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkFault {
    pub(crate) blocks_requests: bool,
    pub(crate) blocks_replies: bool,
    pub(crate) delay: Duration,
}

/// A link. Dropping it closes its connections.
#[derive(Debug)]
pub(crate) struct Link {
    port: Port,
    state: Arc<LinkState>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct LinkState {
    to: SocketAddr,
    /// The address to put into the first message. A connection for elections begins with the address on which its
    /// client listens. A connection to that address would bypass the link.
    return_address: Option<SocketAddr>,
    /// The longest time to wait until the listener accepts a connection.
    patience: Duration,
    fault: watch::Sender<LinkFault>,
    /// The number of times that bytes of a client were forwarded.
    forwarded: watch::Sender<u64>,
    cuts: watch::Sender<u64>,
    open: AtomicUsize,
    /// The spans in which the link was broken. The last span has no end while the link is broken.
    broken: Mutex<Vec<(i64, Option<i64>)>>,
}

impl Link {
    /// Opens a link to `to` on this port.
    pub(crate) async fn open(
        port: Port,
        to: SocketAddr,
        return_address: Option<SocketAddr>,
        patience: Duration,
    ) -> Outcome<Self> {
        let listener = TcpListener::bind(port.addr()).await?;
        let (fault, cuts) = (watch::Sender::new(LinkFault::default()), watch::Sender::new(0));
        let forwarded = watch::Sender::new(0);
        let state = Arc::new(LinkState {
            to,
            return_address,
            patience,
            fault,
            forwarded,
            cuts,
            open: AtomicUsize::new(0),
            broken: Mutex::default(),
        });
        let task = tokio::spawn(listen(listener, state.clone()));
        Ok(Link { port, state, task })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    pub(crate) fn set_fault(&self, fault: LinkFault) {
        let mut broken = lock(&self.state.broken);
        match broken.last_mut().filter(|(_, until)| until.is_none()) {
            Some((_, until)) if fault == LinkFault::default() => *until = Some(now()),
            None if fault != LinkFault::default() => broken.push((now(), None)),
            _ => {}
        }
        self.state.fault.send_replace(fault);
    }

    /// Returns the spans in which the link was broken.
    pub(crate) fn broken_spans(&self) -> Vec<TimeSpan> {
        let broken = lock(&self.state.broken);
        broken.iter().map(|(from, until)| (*from, until.unwrap_or(i64::MAX))).collect()
    }

    pub(crate) fn fault(&self) -> LinkFault {
        *self.state.fault.borrow()
    }

    /// Closes all connections. New ones are accepted.
    pub(crate) fn close_connections(&self) {
        let at = now();
        let mut broken = lock(&self.state.broken);
        // The cut is inserted before a fault that continues, because that fault must stay the last
        // one in the list.
        let place = broken.iter().position(|(_, until)| until.is_none()).unwrap_or(broken.len());
        broken.insert(place, (at, Some(at + CUT)));
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.state.open.load(Ordering::Relaxed)
    }

    /// Waits until bytes of a client are forwarded.
    pub(crate) async fn wait_until_forwarded(&self) {
        let mut forwarded = self.state.forwarded.subscribe();
        forwarded.changed().await.expect("the sender is in self");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(listener: TcpListener, state: Arc<LinkState>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve(stream, state.clone()))),
                Err(_) => sleep(Duration::from_millis(1)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(from: TcpStream, state: Arc<LinkState>) {
    state.open.fetch_add(1, Ordering::Relaxed);
    let mut cuts = state.cuts.subscribe();
    tokio::select! {
        _ = cuts.changed() => {}
        _ = forward(from, &state) => {}
    }
    state.open.fetch_sub(1, Ordering::Relaxed);
}

async fn forward(mut from: TcpStream, state: &LinkState) -> std::io::Result<()> {
    state.wait_until_open(|fault| !fault.blocks_requests).await;
    // If nothing listens, the connection is closed. A kernel would refuse it.
    let mut to = state.connect().await?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    if let Some(return_address) = state.return_address {
        forward_first_message(&mut from, &mut to, return_address).await?;
    }
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    let done = tokio::try_join!(
        forward_bytes(state, |fault| !fault.blocks_requests, from_read, to_write, Some(&state.forwarded)),
        forward_bytes(state, |fault| !fault.blocks_replies, to_read, from_write, None),
    );
    // A shut link also holds back the end of a connection.
    state.wait_until_open(|fault| !fault.blocks_requests && !fault.blocks_replies).await;
    done.map(|_| ())
}

/// Forwards the first message of a connection for elections. The message contains a version, and
/// the number and the address of a node. Replaces the address by `return_address`.
async fn forward_first_message(
    from: &mut TcpStream,
    to: &mut TcpStream,
    return_address: SocketAddr,
) -> std::io::Result<()> {
    let mut head = [0; 20];
    from.read_exact(&mut head).await?;
    let [.., a, b, c, d] = head;
    let mut name = vec![0; (u32::from_be_bytes([a, b, c, d]) as usize).min(LONGEST_NAME)];
    from.read_exact(&mut name).await?;
    let name = return_address.to_string();
    to.write_all(&head[..16]).await?;
    to.write_all(&(name.len() as u32).to_be_bytes()).await?;
    to.write_all(name.as_bytes()).await
}

async fn forward_bytes(
    state: &LinkState,
    open: impl Fn(&LinkFault) -> bool + Copy,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    forwarded: Option<&watch::Sender<u64>>,
) -> std::io::Result<()> {
    let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
    let read = async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            if from.read_buf(&mut chunk).await? == 0 || sender.send((Instant::now(), chunk)).await.is_err() {
                return Ok(());
            }
        }
    };
    let write = async {
        while let Some((arrived, chunk)) = receiver.recv().await {
            let delay = state.fault.borrow().delay;
            if !delay.is_zero() {
                sleep_until(arrived + delay).await;
            }
            state.wait_until_open(open).await;
            to.write_all(&chunk).await?;
            if let Some(forwarded) = forwarded {
                forwarded.send_modify(|count| *count += 1);
            }
        }
        state.wait_until_open(open).await;
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(|_| ())
}

impl LinkState {
    /// Connects to the listener, and retries for the patience of the link. A new leader starts to listen a little after
    /// its followers connect. A follower retries after a refusal, but begins a new election if its connection is
    /// accepted and closed.
    async fn connect(&self) -> std::io::Result<TcpStream> {
        let deadline = Instant::now() + self.patience;
        loop {
            match TcpStream::connect(self.to).await {
                Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(10)).await,
                ended => return ended,
            }
        }
    }

    async fn wait_until_open(&self, open: impl Fn(&LinkFault) -> bool) {
        self.fault.subscribe().wait_for(open).await.expect("the sender is in self");
    }
}
