//! A client that sends and reads single frames, so that tests check the exact bytes and their order.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use zoolock_server::{Builder, Server, ServerHandle};
use zoolock_wire::{
    Acl, ConnectRequest, ConnectResponse, CreateRequest, Hidden, Reader, Reply, ReplyHeader, Request,
    RequestHeader, WatchEvent, Writer, op, perms,
};

/// Maximum time to wait for an event in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn builder() -> Builder {
    Server::builder().listen(([127, 0, 0, 1], 0).into())
}

pub(crate) async fn server() -> ServerHandle {
    builder().start().await.expect("a free port on the loopback address")
}

/// Waits for `work`, at most [`PATIENCE`].
pub(crate) async fn finish_in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("finished in time")
}

/// A socket, or TLS over a socket.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A reader of the frames of a stream.
pub(crate) struct Frames<S> {
    pub(crate) stream: S,
    input: BytesMut,
}

impl<S: AsyncRead + Unpin> Frames<S> {
    pub(crate) fn new(stream: S) -> Self {
        Frames { stream, input: BytesMut::new() }
    }

    /// Reads a frame. Returns `None` at the end of the stream, or if the read fails.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(len) = self.input.first_chunk().map(|len| u32::from_be_bytes(*len) as usize)
                && self.input.len() >= 4 + len
            {
                return Some(self.input.split_to(4 + len).freeze().split_off(4));
            }
            match self.stream.read_buf(&mut self.input).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}

pub(crate) struct RawClient {
    frames: Frames<Box<dyn Stream>>,
    next_xid: i32,
    pub(crate) granted: ConnectResponse,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Received {
    Event(WatchEvent),
    Reply(ReplyHeader, Reply),
    Closed,
}

pub(crate) fn connect_request() -> ConnectRequest {
    ConnectRequest::new_session(10_000)
}

impl RawClient {
    pub(crate) async fn connect(addr: SocketAddr) -> RawClient {
        RawClient::connect_with(addr, &connect_request()).await.expect("a session")
    }

    /// Connects, and opens a session. Returns `None` if the server closes the connection instead of answering.
    pub(crate) async fn connect_with(addr: SocketAddr, request: &ConnectRequest) -> Option<RawClient> {
        let socket = TcpStream::connect(addr).await.expect("the server listens");
        socket.set_nodelay(true).expect("a socket");
        RawClient::connect_over(socket, request).await
    }

    /// Opens a session over an open stream. Returns `None` if the server closes the stream instead
    /// of answering.
    pub(crate) async fn connect_over(
        socket: impl Stream + 'static,
        request: &ConnectRequest,
    ) -> Option<RawClient> {
        let granted = ConnectResponse {
            protocol: 0,
            timeout_ms: 0,
            session: 0,
            password: Hidden::default(),
            read_only: None,
        };
        let mut raw = RawClient { frames: Frames::new(Box::new(socket)), next_xid: 1, granted };
        let mut out = BytesMut::new();
        Writer::frame(&mut out, |writer| request.encode(writer));
        raw.write(&out).await;
        let frame = raw.frame().await?;
        raw.granted = ConnectResponse::decode(&frame).expect("a connect response");
        Some(raw)
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.frames.stream.write_all(bytes).await.expect("the server reads");
        self.frames.stream.flush().await.expect("the server reads");
    }

    /// Sends bytes. Returns an error if the write fails, because the server may close the stream
    /// before it reads them.
    pub(crate) async fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.frames.stream.write_all(bytes).await?;
        self.frames.stream.flush().await
    }

    /// Sends a request and returns its xid, without waiting for the reply.
    pub(crate) async fn send(&mut self, request: &Request) -> i32 {
        let xid = match request {
            Request::Ping => op::XID_PING,
            Request::Auth { .. } => op::XID_AUTH,
            Request::SetWatches(_) => op::XID_SET_WATCHES,
            _ => self.next_xid,
        };
        self.next_xid += 1;
        let mut out = BytesMut::new();
        Writer::frame(&mut out, |writer| {
            RequestHeader { xid, op: request.op() }.encode(writer);
            request.encode(writer);
        });
        self.write(&out).await;
        xid
    }

    /// Sends a request, and reads its reply and the events before it.
    pub(crate) async fn call(&mut self, request: Request) -> (ReplyHeader, Reply, Vec<WatchEvent>) {
        let xid = self.send(&request).await;
        let mut events = Vec::new();
        loop {
            match self.receive(request.op()).await {
                Received::Event(event) => events.push(event),
                Received::Reply(header, reply) => {
                    assert_eq!(header.xid, xid, "replies come in the order of the requests");
                    return (header, reply, events);
                }
                Received::Closed => panic!("the server closed the connection on {request:?}"),
            }
        }
    }

    /// Sends a request and returns its reply, which must not be an error.
    pub(crate) async fn call_ok(&mut self, request: Request) -> Reply {
        let (header, reply, _) = self.call(request.clone()).await;
        assert_eq!(header.err, 0, "{request:?}");
        reply
    }

    /// Sends a request and returns the error code of its reply.
    pub(crate) async fn call_error(&mut self, request: Request) -> i32 {
        self.call(request).await.0.err
    }

    /// Reads one frame. The frame must be an event, or a reply to a request with the operation
    /// `code`.
    pub(crate) async fn receive(&mut self, code: i32) -> Received {
        let Some(frame) = self.frame().await else { return Received::Closed };
        let mut reader = Reader::new(&frame);
        let header = ReplyHeader::decode(&mut reader).expect("a reply header");
        if header.xid == op::XID_EVENT {
            assert_eq!((header.zxid, header.err), (-1, 0));
            return Received::Event(WatchEvent::decode(&mut reader).expect("an event"));
        }
        let reply = if header.err == 0 { Reply::decode(code, &mut reader) } else { Ok(Reply::Empty) };
        Received::Reply(header, reply.expect("the reply that the operation has"))
    }

    /// Reads one frame. Returns `None` at the end of the connection, or if the read fails.
    pub(crate) async fn frame(&mut self) -> Option<Bytes> {
        tokio::time::timeout(PATIENCE, self.frames.next()).await.expect("the server answers in time")
    }

    pub(crate) async fn reads_end(&mut self) -> bool {
        self.frame().await.is_none()
    }
}

pub(crate) fn create(path: &str, flags: i32) -> Request {
    create_op(op::CREATE, path, flags)
}

pub(crate) fn create_op(op: i32, path: &str, flags: i32) -> Request {
    create_with(op, path, flags, -1)
}

pub(crate) fn create_with(op: i32, path: &str, flags: i32, ttl: i64) -> Request {
    let (data, acl) = (Some(Bytes::from_static(b"x")), vec![Acl::anyone(perms::ALL)]);
    Request::Create(CreateRequest { op, path: path.into(), data, acl, flags, ttl })
}

pub(crate) fn delete(path: &str, version: i32) -> Request {
    Request::Delete { path: path.into(), version }
}

pub(crate) fn exists(path: &str, watch: bool) -> Request {
    Request::Exists { path: path.into(), watch }
}

pub(crate) fn get(path: &str, watch: bool) -> Request {
    Request::GetData { path: path.into(), watch }
}

pub(crate) fn children(path: &str, watch: bool) -> Request {
    Request::GetChildren2 { path: path.into(), watch }
}

pub(crate) fn set(path: &str, data: &str, version: i32) -> Request {
    Request::SetData { path: path.into(), data: Some(Bytes::copy_from_slice(data.as_bytes())), version }
}

pub(crate) fn check(path: &str, version: i32) -> Request {
    Request::Check { path: path.into(), version }
}

pub(crate) fn auth(scheme: &str, credentials: &str) -> Request {
    Request::Auth { kind: 0, scheme: scheme.into(), credentials: Hidden(credentials.into()) }
}
