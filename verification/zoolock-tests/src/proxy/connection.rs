//! A proxied connection: a loop that forwards bytes in each direction (a pump), and the requests
//! without a reply yet.

use std::collections::{HashMap, VecDeque};
use std::io::{Error, ErrorKind, Result};
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::election::forward_first_message;
use super::faults::{Direction, Faults};
use super::frames::{Frames, StreamPiece};
use super::stats::{ConnectionStats, Meter};
use super::{ProxiedProtocol, ProxySettings};
use crate::{lock, opcode};

/// The xid of a watch event.
const NOTIFICATION: i32 = -1;

/// Maximum number of pieces that a pump has read and not yet written. If the proxy delays bytes,
/// this limits how far a pump reads ahead.
const IN_FLIGHT: usize = 1_024;

/// Pause between two attempts to connect to the server.
const PAUSE: Duration = Duration::from_millis(10);

/// State shared by the proxy and its connections.
#[derive(Debug)]
pub(super) struct ProxyState {
    pub(super) settings: ProxySettings,
    pub(super) meter: Meter,
    pub(super) faults: Faults,
    /// The requests since the recording began.
    pub(super) recording: Mutex<Option<Vec<Bytes>>>,
}

impl ProxyState {
    /// Connects to the server. Retries a refused attempt for the patience of the proxy.
    async fn connect(&self) -> Result<TcpStream> {
        let deadline = Instant::now() + self.settings.patience;
        loop {
            match TcpStream::connect(self.settings.upstream).await {
                Err(_) if Instant::now() < deadline => sleep(PAUSE).await,
                ended => return ended,
            }
        }
    }
}

/// Forwards the bytes of one client until both sides have ended, or until an error or a fault.
///
/// The caller can ignore an error, because the end of this future closes both connections.
pub(super) async fn serve(mut client: TcpStream, shared: Arc<ProxyState>) -> Result<()> {
    let link = ForwardedConnection::open(shared);
    if link.shared.faults.link.borrow().hangs_up {
        return Ok(());
    }
    link.shared.faults.wait_until_passable(Direction::ToServer).await;
    let mut server = link.shared.connect().await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    if let ProxiedProtocol::Election { return_address } = link.shared.settings.protocol {
        forward_first_message(&mut client, &mut server, return_address).await?;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let pumps = tokio::try_join!(
        link.pump(Direction::ToServer, from_client, to_server),
        link.pump(Direction::ToClient, from_server, to_client),
    );
    pumps.map(|_| ())
}

struct ForwardedConnection {
    shared: Arc<ProxyState>,
    /// The index in `ProxyStats::connections`.
    id: usize,
    state: Mutex<ForwardingState>,
}

#[derive(Default)]
struct ForwardingState {
    connect_requested: bool,
    connect_answered: bool,
    /// Unanswered requests by xid. All pings have the same xid, and so have all `setWatches` requests.
    pending: HashMap<i32, VecDeque<ForwardedRequest>>,
}

struct ForwardedRequest {
    opcode: i32,
    drop_reply: bool,
}

impl ForwardedConnection {
    fn open(shared: Arc<ProxyState>) -> Self {
        let mut id = 0;
        shared.meter.update(|stats| {
            id = stats.connections.len();
            stats.connections.push(ConnectionStats::default());
        });
        Self { shared, id, state: Mutex::default() }
    }

    async fn pump(&self, direction: Direction, from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Result<()> {
        let (sender, mut receiver) = mpsc::channel::<StreamPiece>(IN_FLIGHT);
        let raw = self.shared.settings.protocol != ProxiedProtocol::Client;
        let read = async move {
            let mut frames = Frames::new(from, raw);
            while let Some(piece) = frames.next().await? {
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let write = async {
            while let Some(piece) = receiver.recv().await {
                // Each piece is delayed from its own arrival, so pipelined requests share one delay.
                sleep_exactly_until(piece.arrived + self.shared.faults.delay()).await?;
                self.shared.faults.wait_until_passable(direction).await;
                match direction {
                    Direction::ToServer => self.record_request(&piece)?,
                    Direction::ToClient => self.record_reply(&piece)?,
                }
                to.write_all(&piece.bytes).await?;
            }
            // While a fault holds back the bytes of this direction, it also holds back the end of
            // the stream.
            self.shared.faults.wait_until_passable(direction).await;
            to.shutdown().await
        };
        tokio::try_join!(read, write).map(|_| ())
    }

    /// Counts a request and records it as unanswered. Returns an error if the request is to be dropped.
    fn record_request(&self, piece: &StreamPiece) -> Result<()> {
        let bytes = piece.bytes.len() as u64;
        let mut state = lock(&self.state);
        let first = !std::mem::replace(&mut state.connect_requested, true);
        let header =
            if first { Some((0, opcode::CREATE_SESSION)) } else { piece.number(0).zip(piece.number(4)) };
        // A client can send a lease renewal at any time. A renewal is a transaction that begins
        // with a check. Tests expect exact numbers of the other transactions. So a transaction that
        // begins with a check is counted as a check.
        let header = match (header, piece.number(8)) {
            (Some((xid, opcode::MULTI)), Some(opcode::CHECK)) => Some((xid, opcode::CHECK)),
            (header, _) => header,
        };
        let Some((xid, opcode)) = header.filter(|_| piece.is_frame) else {
            self.shared.meter.count(self.id, |counts| counts.bytes_to_server += bytes);
            return Ok(());
        };
        if let Some(recording) = lock(&self.shared.recording).as_mut().filter(|_| !first) {
            recording.push(Bytes::copy_from_slice(&piece.bytes[4..]));
        }
        if self.shared.faults.take_request_drop(opcode) {
            self.shared.meter.update(|stats| stats.dropped_requests += 1);
            return Err(dropped());
        }
        let drop_reply = self.shared.faults.take_reply_drop(opcode);
        state.pending.entry(xid).or_default().push_back(ForwardedRequest { opcode, drop_reply });
        self.shared.meter.count(self.id, |counts| counts.add_request(opcode, bytes));
        Ok(())
    }

    /// Counts a reply or a watch event. Returns an error if it is a reply that is to be dropped.
    fn record_reply(&self, piece: &StreamPiece) -> Result<()> {
        let bytes = piece.bytes.len() as u64;
        let mut state = lock(&self.state);
        let first = !std::mem::replace(&mut state.connect_answered, true);
        let xid = if first { Some(0) } else { piece.number(0) };
        let Some(xid) = xid.filter(|_| piece.is_frame) else {
            self.shared.meter.count(self.id, |counts| counts.bytes_to_client += bytes);
            return Ok(());
        };
        if xid == NOTIFICATION {
            self.shared.meter.count(self.id, |counts| counts.add_notification(bytes));
            return Ok(());
        }
        match state.pending.get_mut(&xid).and_then(VecDeque::pop_front) {
            Some(ForwardedRequest { drop_reply: true, .. }) => {
                self.shared.meter.update(|stats| stats.dropped_replies += 1);
                Err(dropped())
            }
            Some(ForwardedRequest { opcode, .. }) => {
                self.shared.meter.count(self.id, |counts| counts.add_reply(opcode, bytes));
                Ok(())
            }
            None => {
                self.shared.meter.count(self.id, |counts| counts.bytes_to_client += bytes);
                Ok(())
            }
        }
    }
}

impl Drop for ForwardedConnection {
    fn drop(&mut self) {
        let id = self.id;
        self.shared.meter.update(|stats| stats.connections[id].closed = true);
    }
}

/// Waits until this time. Returns at once if it has passed.
///
/// Tokio's timers count whole milliseconds. So a thread waits for the rest of the time.
async fn sleep_exactly_until(time: Instant) -> Result<()> {
    if time <= Instant::now() {
        return Ok(());
    }
    if let Some(earlier) = time.checked_sub(Duration::from_millis(2)) {
        sleep_until(earlier).await;
    }
    let rest = move || {
        // With the default timer slack, the kernel may wake the thread 50 µs late.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        std::thread::sleep(time.saturating_duration_since(Instant::now()));
    };
    spawn_blocking(rest).await.map_err(Error::other)
}

fn dropped() -> Error {
    Error::new(ErrorKind::ConnectionAborted, "dropped on purpose")
}
