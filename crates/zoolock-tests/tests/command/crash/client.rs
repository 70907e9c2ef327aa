//! A client for which the end of the server is no surprise.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zoolock_server::Hidden;
use zoolock_server::wire::{
    ConnectRequest, ConnectResponse, Reader, Reply, ReplyHeader, Request, RequestHeader, Writer, op,
};

/// A server that lives answers sooner.
const PATIENCE: Duration = Duration::from_secs(30);

/// What re-attaches to a session.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    pub(crate) session: i64,
    pub(crate) password: Hidden,
}

#[derive(Debug)]
pub(crate) struct Client {
    socket: TcpStream,
    input: BytesMut,
    next_xid: i32,
    pub(crate) ticket: Ticket,
}

/// The server is gone.
#[derive(Debug)]
pub(crate) struct Dead;

pub(crate) type Alive<T> = Result<T, Dead>;

impl Client {
    /// Begins a session.
    pub(crate) async fn begin(addr: SocketAddr, timeout_ms: i32, seen: i64) -> Alive<Client> {
        let none = Ticket { session: 0, password: Hidden(vec![0; 16]) };
        Client::connect(addr, timeout_ms, seen, &none).await
    }

    /// Takes up a session again; `None` where the server knows of none.
    pub(crate) async fn resume(
        addr: SocketAddr,
        timeout_ms: i32,
        seen: i64,
        ticket: &Ticket,
    ) -> Alive<Option<Client>> {
        let client = Client::connect(addr, timeout_ms, seen, ticket).await?;
        Ok((client.ticket.session != 0).then_some(client))
    }

    async fn connect(addr: SocketAddr, timeout_ms: i32, seen: i64, ticket: &Ticket) -> Alive<Client> {
        let socket = TcpStream::connect(addr).await.map_err(|_| Dead)?;
        socket.set_nodelay(true).map_err(|_| Dead)?;
        let mut client = Client { socket, input: BytesMut::new(), next_xid: 1, ticket: ticket.clone() };
        let request = ConnectRequest {
            protocol: 0,
            last_zxid_seen: seen,
            timeout_ms,
            session: ticket.session,
            password: ticket.password.clone(),
            read_only: Some(false),
        };
        let mut out = BytesMut::new();
        Writer::frame(&mut out, |writer| request.encode(writer));
        client.write(&out).await?;
        let granted = ConnectResponse::decode(&client.frame().await?).expect("a connect response");
        client.ticket = Ticket { session: granted.session, password: granted.password };
        Ok(client)
    }

    /// Appends the frame of a request.
    pub(crate) fn encode(&mut self, request: &Request, out: &mut BytesMut) {
        let xid = self.next_xid;
        self.next_xid += 1;
        Writer::frame(out, |writer| {
            RequestHeader { xid, op: request.op() }.encode(writer);
            request.encode(writer);
        });
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Alive<()> {
        self.socket.write_all(bytes).await.map_err(|_| Dead)
    }

    /// The reply to the oldest request that has none.
    pub(crate) async fn reply(&mut self, code: i32) -> Alive<(ReplyHeader, Reply)> {
        let frame = self.frame().await?;
        let mut reader = Reader::new(&frame);
        let header = ReplyHeader::decode(&mut reader).expect("a reply header");
        assert_ne!(header.xid, op::XID_EVENT, "nothing is watched");
        let reply = if header.err == 0 { Reply::decode(code, &mut reader) } else { Ok(Reply::Empty) };
        Ok((header, reply.expect("the reply that the operation has")))
    }

    /// Sends requests of one kind, and reads their replies.
    pub(crate) async fn all(&mut self, requests: &[Request]) -> Alive<Vec<(ReplyHeader, Reply)>> {
        let mut out = BytesMut::new();
        requests.iter().for_each(|request| self.encode(request, &mut out));
        self.write(&out).await?;
        let mut replies = Vec::new();
        for request in requests {
            replies.push(self.reply(request.op()).await?);
        }
        Ok(replies)
    }

    pub(crate) async fn call(&mut self, request: Request) -> Alive<(ReplyHeader, Reply)> {
        self.all(&[request]).await?.pop().ok_or(Dead)
    }

    async fn frame(&mut self) -> Alive<Bytes> {
        let read = async {
            loop {
                if let Some(len) = self.input.first_chunk().map(|len| u32::from_be_bytes(*len) as usize)
                    && self.input.len() >= 4 + len
                {
                    let mut frame = self.input.split_to(4 + len).freeze();
                    return Ok(frame.split_off(4));
                }
                match self.socket.read_buf(&mut self.input).await {
                    Ok(0) | Err(_) => return Err(Dead),
                    Ok(_) => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("a server that lives answers in time")
    }
}
