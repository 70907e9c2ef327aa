//! A blocking client for measurements, which needs little processor time. It only counts answers,
//! and checks them for errors.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use zoolock_wire::{Acl, ConnectRequest, CreateRequest, Request, RequestHeader, Writer, op, perms};

use crate::Outcome;

/// A session.
pub(crate) struct BlockingClient {
    socket: TcpStream,
    chunk: Vec<u8>,
    input: Vec<u8>,
    output: BytesMut,
}

impl BlockingClient {
    /// Opens a session.
    pub(crate) fn connect(addr: SocketAddr) -> Outcome<Self> {
        BlockingClient::connect_within(addr, Duration::from_secs(60))
    }

    /// Opens a session. Fails if the server does not answer within `patience`.
    pub(crate) fn connect_within(addr: SocketAddr, patience: Duration) -> Outcome<Self> {
        BlockingClient::connect_with_buffer(addr, patience, 256 << 10)
    }

    /// Opens a session that reads `chunk` bytes at once. Fails if the server does not answer within `patience`.
    pub(crate) fn connect_with_buffer(addr: SocketAddr, patience: Duration, chunk: usize) -> Outcome<Self> {
        let socket = TcpStream::connect(addr)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        let mut client =
            BlockingClient { socket, chunk: vec![0; chunk], input: Vec::new(), output: BytesMut::new() };
        Writer::frame(&mut client.output, |writer| ConnectRequest::new_session(30_000).encode(writer));
        client.send()?;
        client.receive(1, false)?;
        client.socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(client)
    }

    /// Sends requests in one piece and waits for all answers. Fails if the server answers a request
    /// with an error.
    pub(crate) fn exchange(&mut self, requests: impl Iterator<Item = Request>) -> Outcome<()> {
        let count = self.send_all(requests)?;
        self.receive(count, true)
    }

    /// Sends a request and waits for its answer, which may be an error.
    pub(crate) fn ask(&mut self, request: Request) -> Outcome<()> {
        self.send_all(std::iter::once(request))?;
        self.receive(1, false)
    }

    /// Sends requests in one piece. Returns their number.
    pub(crate) fn send_all(&mut self, requests: impl Iterator<Item = Request>) -> Outcome<usize> {
        let mut count = 0;
        for request in requests {
            Writer::frame(&mut self.output, |writer| {
                RequestHeader { xid: 1, op: request.op() }.encode(writer);
                request.encode(writer);
            });
            count += 1;
        }
        self.send()?;
        Ok(count)
    }

    /// Sends the first bytes of a frame that announces 1,000,000 bytes.
    pub(crate) fn send_part(&mut self, len: usize) -> Outcome<()> {
        let mut part = 1_000_000_u32.to_be_bytes().to_vec();
        part.resize(4 + len, 0);
        self.socket.write_all(&part)?;
        Ok(())
    }

    /// Reads and drops the output of the server that has arrived. Returns the number of bytes.
    pub(crate) fn drop_input(&mut self) -> Outcome<usize> {
        self.socket.set_nonblocking(true)?;
        let mut dropped = 0;
        let ended = loop {
            match self.socket.read(&mut self.chunk) {
                Ok(0) => break Err("the server closed the connection".into()),
                Ok(read) => dropped += read,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break Ok(dropped),
                Err(error) => break Err(error.into()),
            }
        };
        self.socket.set_nonblocking(false)?;
        ended
    }

    fn send(&mut self) -> Outcome<()> {
        self.socket.write_all(&self.output)?;
        self.output.clear();
        Ok(())
    }

    fn receive(&mut self, count: usize, replies: bool) -> Outcome<()> {
        let (mut seen, mut at) = (0, 0);
        self.input.clear();
        while seen < count {
            let read = self.socket.read(&mut self.chunk)?;
            if read == 0 {
                return Err("the server closed the connection".into());
            }
            self.input.extend_from_slice(&self.chunk[..read]);
            while let Some(len) = self.input.get(at..).and_then(|rest| rest.first_chunk()) {
                let end = at + 4 + u32::from_be_bytes(*len) as usize;
                if end > self.input.len() {
                    break;
                }
                // The reply header: xid, zxid, err.
                if replies && self.input.get(at + 16..at + 20) != Some(&[0; 4]) {
                    return Err("the server answered with an error".into());
                }
                (at, seen) = (end, seen + 1);
            }
        }
        Ok(())
    }
}

/// Returns the request to create a persistent znode of 100 bytes that every client may use.
pub(crate) fn create_request(path: String) -> Request {
    Request::Create(CreateRequest {
        op: op::CREATE,
        path,
        data: Some(Bytes::from_static(&[7; 100])),
        acl: vec![Acl::anyone(perms::ALL)],
        flags: 0,
        ttl: -1,
    })
}
