//! One blocking socket and one thread, without a lock: the least time that two awaited writes take, and that the requests
//! of zoolock's lock take.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use zoolock_tests::lock;
use zoolock_wire::{
    ConnectRequest, MAX_FRAME, Reader, Reply, ReplyHeader, Request, RequestHeader, Writer, split_frame,
};

use super::peer::SESSION_TIMEOUT;
use super::raw::{create_request, created_path, read_request, release_request};
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
        let mut frame = BytesMut::new();
        Writer::frame(&mut frame, |writer| request.encode(writer));
        connection.stream.write_all(&frame)?;
        connection.read_frame()?;
        Ok(connection)
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

    /// Sends the requests in one packet, and returns their replies.
    fn call<const N: usize>(&mut self, requests: [&Request; N]) -> Outcome<[Reply; N]> {
        let mut frames = BytesMut::new();
        let headers = requests.map(|request| {
            self.last_xid += 1;
            let header = RequestHeader { xid: self.last_xid, op: request.op() };
            Writer::frame(&mut frames, |writer| {
                header.encode(writer);
                request.encode(writer);
            });
            header
        });
        self.stream.write_all(&frames)?;
        let replies: Vec<Reply> =
            headers.iter().map(|header| self.read_reply(header)).collect::<Outcome<_>>()?;
        replies.try_into().map_err(|_| "a reply is missing".into())
    }

    fn read_reply(&mut self, request: &RequestHeader) -> Outcome<Reply> {
        let frame = self.read_frame()?;
        let mut reader = Reader::new(&frame);
        let answer = ReplyHeader::decode(&mut reader)?;
        if answer.xid != request.xid || answer.err != 0 {
            return Err(format!("the server answered {answer:?}").into());
        }
        Ok(Reply::decode(request.op, &mut reader)?)
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
        let [created] = connection.call([&create_request(path)])?;
        created_path(created)
    }

    async fn release(client: &Self::Client, _: &str, held: String) -> Outcome<()> {
        let mut connection = lock(client);
        connection.call([&Request::Delete { path: held, version: -1 }]).map(drop)
    }
}

/// The requests that zoolock sends for a lock that is released at once. The calls block their thread.
#[derive(Clone)]
pub(super) struct SameFloor;

impl LockRequests for SameFloor {
    type Client = Arc<Mutex<BlockingConnection>>;
    type Held = String;

    async fn open(address: &str) -> Outcome<Self::Client> {
        Floor::open(address).await
    }

    async fn acquire(client: &Self::Client, path: &str) -> Outcome<String> {
        let mut connection = lock(client);
        let [created, _] = connection.call([&create_request(path), &read_request(path)])?;
        created_path(created)
    }

    async fn release(client: &Self::Client, path: &str, held: String) -> Outcome<()> {
        let mut connection = lock(client);
        connection.call([&release_request(path, held)]).map(drop)
    }
}
