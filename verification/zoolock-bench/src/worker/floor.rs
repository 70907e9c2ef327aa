//! One blocking socket and one thread, without a lock. This client measures the least time that two
//! awaited writes take.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use zoolock_tests::lock;
use zoolock_wire::{
    ConnectRequest, MAX_FRAME, Reader, Reply, ReplyHeader, Request, RequestHeader, Writer, split_frame,
};

use super::peer::SESSION_TIMEOUT;
use super::raw::{create_request, created_path};
use super::session::LockRequests;
use crate::Outcome;

/// One create and one delete, each awaited. The calls block their thread.
#[derive(Clone)]
pub(super) struct Floor;

pub(super) struct BlockingConnection {
    stream: TcpStream,
    input: BytesMut,
    last_xid: i32,
}

impl BlockingConnection {
    fn open(address: &str) -> Outcome<BlockingConnection> {
        let first = address.split(',').next().unwrap_or(address);
        let stream = TcpStream::connect(first)?;
        stream.set_nodelay(true)?;
        let mut connection = BlockingConnection { stream, input: BytesMut::new(), last_xid: 0 };
        let request = ConnectRequest::new_session(i32::try_from(SESSION_TIMEOUT.as_millis())?);
        connection.send(|writer| request.encode(writer))?;
        connection.read_frame()?;
        Ok(connection)
    }

    fn send(&mut self, body: impl FnOnce(&mut Writer<'_>)) -> Outcome<()> {
        let mut frame = BytesMut::new();
        Writer::frame(&mut frame, body);
        Ok(self.stream.write_all(&frame)?)
    }

    fn read_frame(&mut self) -> Outcome<bytes::Bytes> {
        loop {
            if let Some(frame) = split_frame(&mut self.input, MAX_FRAME)? {
                return Ok(frame);
            }
            let mut bytes = [0; 4096];
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                return Err("the server closed the connection".into());
            }
            self.input.extend_from_slice(&bytes[..count]);
        }
    }

    fn call(&mut self, request: &Request) -> Outcome<Reply> {
        self.last_xid += 1;
        let header = RequestHeader { xid: self.last_xid, op: request.op() };
        self.send(|writer| {
            header.encode(writer);
            request.encode(writer);
        })?;
        let frame = self.read_frame()?;
        let mut reader = Reader::new(&frame);
        let answer = ReplyHeader::decode(&mut reader)?;
        if answer.xid != header.xid || answer.err != 0 {
            return Err(format!("the server answered {answer:?}").into());
        }
        Ok(Reply::decode(header.op, &mut reader)?)
    }
}

impl LockRequests for Floor {
    type Client = Arc<Mutex<BlockingConnection>>;
    type Held = String;

    async fn open(address: &str) -> Outcome<Self::Client> {
        Ok(Arc::new(Mutex::new(BlockingConnection::open(address)?)))
    }

    async fn acquire(client: &Self::Client, path: &str) -> Outcome<String> {
        let mut connection = lock(client);
        created_path(connection.call(&create_request(path))?)
    }

    async fn release(client: &Self::Client, _: &str, held: String) -> Outcome<()> {
        let mut connection = lock(client);
        connection.call(&Request::Delete { path: held, version: -1 }).map(drop)
    }
}
