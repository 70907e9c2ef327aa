//! One connection: two pumps, and the requests whose answers are still to come.

use std::collections::{HashMap, VecDeque};
use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::Shared;
use super::faults::Direction;
use super::frames::{Frames, Piece};
use super::stats::Connection;
use crate::opcode;

/// The xid of an event, which answers no request.
const NOTIFICATION: i32 = -1;

/// How many pieces may be on their way in a pump, which bounds how far it reads ahead under a delay.
const IN_FLIGHT: usize = 1_024;

/// Carries one client's bytes to the server and back until both ends are done, an error, or a fault.
pub(super) async fn serve(client: TcpStream, upstream: SocketAddr, shared: Arc<Shared>) {
    let link = Link::open(shared);
    link.shared.faults.passable(Direction::ToServer).await;
    // A server that is not there closes the client's connection, as its kernel would.
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let _ = tokio::try_join!(
        link.pump(Direction::ToServer, from_client, to_server),
        link.pump(Direction::ToClient, from_server, to_client),
    );
}

struct Link {
    shared: Arc<Shared>,
    /// The place in `Stats::connections`.
    id: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: bool,
    welcomed: bool,
    /// Unanswered requests by xid; pings and re-set watches share theirs, so there may be several.
    pending: HashMap<i32, VecDeque<Request>>,
}

struct Request {
    opcode: i32,
    lose_reply: bool,
}

impl Link {
    fn open(shared: Arc<Shared>) -> Self {
        let mut id = 0;
        shared.meter.update(|stats| {
            id = stats.connections.len();
            stats.connections.push(Connection::default());
        });
        Self { shared, id, state: Mutex::default() }
    }

    async fn pump(&self, direction: Direction, from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Result<()> {
        let (sender, mut receiver) = mpsc::channel::<Piece>(IN_FLIGHT);
        let read = async move {
            let mut frames = Frames::new(from);
            while let Some(piece) = frames.next().await? {
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        let write = async {
            while let Some(piece) = receiver.recv().await {
                let delay = self.shared.faults.delay();
                if !delay.is_zero() {
                    sleep_until(piece.arrived + delay).await;
                }
                self.shared.faults.passable(direction).await;
                match direction {
                    Direction::ToServer => self.request(&piece)?,
                    Direction::ToClient => self.reply(&piece)?,
                }
                to.write_all(&piece.bytes).await?;
            }
            // An end does not travel through a black hole either.
            self.shared.faults.passable(direction).await;
            to.shutdown().await
        };
        tokio::try_join!(read, write).map(|_| ())
    }

    /// Counts a request and remembers it; an error where it is to be lost.
    fn request(&self, piece: &Piece) -> Result<()> {
        let bytes = piece.bytes.len() as u64;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let first = !std::mem::replace(&mut state.asked, true);
        let header =
            if first { Some((0, opcode::CREATE_SESSION)) } else { piece.number(0).zip(piece.number(4)) };
        let Some((xid, opcode)) = header.filter(|_| piece.is_frame) else {
            self.shared.meter.count(self.id, |counts| counts.bytes_to_server += bytes);
            return Ok(());
        };
        if self.shared.faults.takes_request(opcode) {
            self.shared.meter.update(|stats| stats.dropped_requests += 1);
            return Err(cut());
        }
        let lose_reply = self.shared.faults.takes_reply(opcode);
        state.pending.entry(xid).or_default().push_back(Request { opcode, lose_reply });
        self.shared.meter.count(self.id, |counts| counts.add_request(opcode, bytes));
        Ok(())
    }

    /// Counts a reply for its request; an error where it is to be lost.
    fn reply(&self, piece: &Piece) -> Result<()> {
        let bytes = piece.bytes.len() as u64;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let first = !std::mem::replace(&mut state.welcomed, true);
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
            Some(Request { lose_reply: true, .. }) => {
                self.shared.meter.update(|stats| stats.dropped_replies += 1);
                Err(cut())
            }
            Some(Request { opcode, .. }) => {
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

impl Drop for Link {
    fn drop(&mut self) {
        let id = self.id;
        self.shared.meter.update(|stats| stats.connections[id].closed = true);
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::ConnectionAborted, "cut on purpose")
}
