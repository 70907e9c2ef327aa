//! A client that sends single requests. If the server ends, a call returns an ordinary error.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zoolock_wire::{
    ConnectRequest, ConnectResponse, Hidden, Reader, Reply, ReplyHeader, Request, RequestHeader, Writer, op,
};

use crate::TestFailure;

/// Time limit for a reply of a running server.
const REPLY_BOUND: Duration = Duration::from_secs(30);

/// The id and the password of a session, with which a client attaches to it.
#[derive(Debug, Clone)]
pub struct SessionTicket {
    /// The id of the session.
    pub session: i64,
    /// The password of the session.
    pub password: Hidden,
}

/// Computes the password that Apache ZooKeeper gives to a session, with the algorithm of `java.util.Random`.
pub fn password_on_apache(session: i64) -> Hidden {
    const SECRET: i64 = 0xB341_5C00;
    let mut seed = ((session ^ SECRET) ^ 0x5_DEEC_E66D) & ((1 << 48) - 1);
    let mut password = vec![0_u8; 16];
    for word in password.chunks_mut(4) {
        seed = seed.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB) & ((1 << 48) - 1);
        let next = (seed >> 16) as i32;
        word.copy_from_slice(&next.to_le_bytes());
    }
    Hidden(password)
}

/// A connection with a session.
#[derive(Debug)]
pub struct RawClient {
    socket: TcpStream,
    input: BytesMut,
    next_xid: i32,
    /// The id and the password of this client's session.
    pub ticket: SessionTicket,
}

/// An error: the server closed the connection, or does not listen.
#[derive(Debug)]
pub struct ServerGone;

impl From<ServerGone> for TestFailure {
    fn from(_: ServerGone) -> Self {
        TestFailure::new(
            "the running server closed the connection, perhaps because a client has seen a newer zxid",
        )
    }
}

/// A result of a request to a server that can end at any time.
pub type ServerResult<T> = Result<T, ServerGone>;

impl RawClient {
    /// Opens a session. `seen` is the last zxid that the client has seen.
    pub async fn open_session(addr: SocketAddr, timeout_ms: i32, seen: i64) -> ServerResult<RawClient> {
        let none = SessionTicket { session: 0, password: Hidden(vec![0; 16]) };
        RawClient::connect(addr, timeout_ms, seen, &none).await
    }

    /// Attaches to an existing session. Returns `None` if the server does not know the session.
    pub async fn attach_session(
        addr: SocketAddr,
        timeout_ms: i32,
        seen: i64,
        ticket: &SessionTicket,
    ) -> ServerResult<Option<RawClient>> {
        let client = RawClient::connect(addr, timeout_ms, seen, ticket).await?;
        Ok((client.ticket.session != 0).then_some(client))
    }

    async fn connect(
        addr: SocketAddr,
        timeout_ms: i32,
        seen: i64,
        ticket: &SessionTicket,
    ) -> ServerResult<RawClient> {
        let socket = TcpStream::connect(addr).await.map_err(|_| ServerGone)?;
        socket.set_nodelay(true).map_err(|_| ServerGone)?;
        let mut client = RawClient { socket, input: BytesMut::new(), next_xid: 1, ticket: ticket.clone() };
        let request = ConnectRequest {
            last_zxid_seen: seen,
            session: ticket.session,
            password: ticket.password.clone(),
            ..ConnectRequest::new_session(timeout_ms)
        };
        let mut out = BytesMut::new();
        Writer::frame(&mut out, |writer| request.encode(writer));
        client.write(&out).await?;
        let granted = ConnectResponse::decode(&client.read_frame().await?).expect("valid connect response");
        client.ticket = SessionTicket { session: granted.session, password: granted.password };
        Ok(client)
    }

    /// Appends the frame of a request to `out`, with the next xid.
    pub fn encode(&mut self, request: &Request, out: &mut BytesMut) {
        let xid = self.next_xid;
        self.next_xid += 1;
        Writer::frame(out, |writer| {
            RequestHeader { xid, op: request.op() }.encode(writer);
            request.encode(writer);
        });
    }

    /// Sends encoded frames.
    pub async fn write(&mut self, bytes: &[u8]) -> ServerResult<()> {
        self.socket.write_all(bytes).await.map_err(|_| ServerGone)
    }

    /// Reads the reply to the oldest unanswered request, whose operation code is `code`.
    pub async fn read_reply(&mut self, code: i32) -> ServerResult<(ReplyHeader, Reply)> {
        let frame = self.read_frame().await?;
        let mut reader = Reader::new(&frame);
        let header = ReplyHeader::decode(&mut reader).expect("valid reply header");
        assert_ne!(header.xid, op::XID_EVENT, "no watch is set");
        let reply = if header.err == 0 { Reply::decode(code, &mut reader) } else { Ok(Reply::Empty) };
        Ok((header, reply.expect("valid reply")))
    }

    /// Sends requests in one write.
    pub async fn send(&mut self, requests: &[Request]) -> ServerResult<()> {
        let mut out = BytesMut::new();
        requests.iter().for_each(|request| self.encode(request, &mut out));
        self.write(&out).await
    }

    /// Sends requests in one write, and reads their replies.
    pub async fn call_all(&mut self, requests: &[Request]) -> ServerResult<Vec<(ReplyHeader, Reply)>> {
        self.send(requests).await?;
        let mut replies = Vec::new();
        for request in requests {
            replies.push(self.read_reply(request.op()).await?);
        }
        Ok(replies)
    }

    /// Sends a request and reads its reply.
    pub async fn call(&mut self, request: Request) -> ServerResult<(ReplyHeader, Reply)> {
        self.call_all(&[request]).await?.pop().ok_or(ServerGone)
    }

    /// Closes the session. Returns the header of the reply.
    pub async fn close(&mut self) -> ServerResult<ReplyHeader> {
        Ok(self.call(Request::CloseSession).await?.0)
    }

    async fn read_frame(&mut self) -> ServerResult<Bytes> {
        let read = async {
            loop {
                if let Some(len) = self.input.first_chunk().map(|len| u32::from_be_bytes(*len) as usize)
                    && self.input.len() >= 4 + len
                {
                    let mut frame = self.input.split_to(4 + len).freeze();
                    return Ok(frame.split_off(4));
                }
                match self.socket.read_buf(&mut self.input).await {
                    Ok(0) | Err(_) => return Err(ServerGone),
                    Ok(_) => {}
                }
            }
        };
        tokio::time::timeout(REPLY_BOUND, read).await.expect("a running server answers in time")
    }
}
