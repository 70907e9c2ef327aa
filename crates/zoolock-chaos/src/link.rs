//! One way between two of us: a port whose bytes go on to another, later, not now, or not at all.
//!
//! What it does not do as a broken network does: a connection that is opened while the way is shut is accepted here, so
//! that whoever opened it waits for an answer rather than for the connection; what is sent meanwhile is acknowledged and
//! kept, not sent again. Nothing passes all the same.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use zoolock_tests::ports::Port;

use crate::Outcome;

/// How many reads may be on their way, which bounds what is kept while the way is shut.
const IN_FLIGHT: usize = 256;
const CHUNK: usize = 16 << 10;
/// Longer than any address that a node names.
const LONGEST_NAME: usize = 1024;

/// What is wrong with a way. `forth` is from who connects to who listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) no_way_forth: bool,
    pub(crate) no_way_back: bool,
    pub(crate) delay: Duration,
}

/// A way; it ends with this value.
#[derive(Debug)]
pub(crate) struct Link {
    port: Port,
    way: Arc<Way>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Way {
    to: SocketAddr,
    /// The address that the node behind us is to hear of: connections between nodes for elections begin with the address
    /// at which who connects wants to be called back, and that one would go past us.
    call_back: Option<SocketAddr>,
    /// How long to wait for who is to listen.
    patience: Duration,
    fault: watch::Sender<Fault>,
    cuts: watch::Sender<u64>,
    open: AtomicUsize,
}

impl Link {
    /// Opens a way to `to` on a port of its own.
    pub(crate) async fn open(
        port: Port,
        to: SocketAddr,
        call_back: Option<SocketAddr>,
        patience: Duration,
    ) -> Outcome<Self> {
        let listener = TcpListener::bind(port.addr()).await?;
        let (fault, cuts) = (watch::Sender::new(Fault::default()), watch::Sender::new(0));
        let way = Arc::new(Way { to, call_back, patience, fault, cuts, open: AtomicUsize::new(0) });
        let task = tokio::spawn(listen(listener, way.clone()));
        Ok(Link { port, way, task })
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.way.fault.send_replace(fault);
    }

    pub(crate) fn fault(&self) -> Fault {
        *self.way.fault.borrow()
    }

    /// Ends all connections, and lets new ones come.
    pub(crate) fn cut(&self) {
        self.way.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.way.open.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(listener: TcpListener, way: Arc<Way>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(connections.spawn(serve(stream, way.clone()))),
                Err(_) => sleep(Duration::from_millis(1)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(from: TcpStream, way: Arc<Way>) {
    way.open.fetch_add(1, Ordering::Relaxed);
    let mut cuts = way.cuts.subscribe();
    tokio::select! {
        _ = cuts.changed() => {}
        _ = carry(from, &way) => {}
    }
    way.open.fetch_sub(1, Ordering::Relaxed);
}

async fn carry(mut from: TcpStream, way: &Way) -> std::io::Result<()> {
    way.passable(|fault| !fault.no_way_forth).await;
    // Nobody there: the connection is closed, as a kernel would refuse it.
    let mut to = way.connect().await?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    if let Some(call_back) = way.call_back {
        introduce(&mut from, &mut to, call_back).await?;
    }
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    let done = tokio::try_join!(
        pump(way, |fault| !fault.no_way_forth, from_read, to_write),
        pump(way, |fault| !fault.no_way_back, to_read, from_write),
    );
    // The word that it is over does not travel where nothing does.
    way.passable(|fault| !fault.no_way_forth && !fault.no_way_back).await;
    done.map(|_| ())
}

/// Passes on version, number and address of a node, with another address.
async fn introduce(from: &mut TcpStream, to: &mut TcpStream, call_back: SocketAddr) -> std::io::Result<()> {
    let mut head = [0; 20];
    from.read_exact(&mut head).await?;
    let [.., a, b, c, d] = head;
    let mut name = vec![0; (u32::from_be_bytes([a, b, c, d]) as usize).min(LONGEST_NAME)];
    from.read_exact(&mut name).await?;
    let name = call_back.to_string();
    to.write_all(&head[..16]).await?;
    to.write_all(&(name.len() as u32).to_be_bytes()).await?;
    to.write_all(name.as_bytes()).await
}

async fn pump(
    way: &Way,
    open: impl Fn(&Fault) -> bool + Copy,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
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
            let delay = way.fault.borrow().delay;
            if !delay.is_zero() {
                sleep_until(arrived + delay).await;
            }
            way.passable(open).await;
            to.write_all(&chunk).await?;
        }
        way.passable(open).await;
        to.shutdown().await
    };
    tokio::try_join!(read, write).map(|_| ())
}

impl Way {
    /// A node that was just elected listens a little later than those who look for it; they try again where they are
    /// refused, and begin a new election where they are let in and then dropped.
    async fn connect(&self) -> std::io::Result<TcpStream> {
        let deadline = Instant::now() + self.patience;
        loop {
            match TcpStream::connect(self.to).await {
                Err(_) if Instant::now() < deadline => sleep(Duration::from_millis(10)).await,
                ended => return ended,
            }
        }
    }

    async fn passable(&self, open: impl Fn(&Fault) -> bool) {
        self.fault.subscribe().wait_for(open).await.expect("the sender is in self");
    }
}
