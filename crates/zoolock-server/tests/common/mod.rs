//! A client that sends and reads single frames, so that tests see exactly what is on the wire.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its part")]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use zoolock_server::acl::{Acl, perms};
use zoolock_server::wire::{
    ConnectRequest, ConnectResponse, CreateRequest, Reader, Reply, ReplyHeader, Request, RequestHeader,
    WatchEvent, Writer, op,
};
use zoolock_server::{Builder, Hidden, Server, ServerHandle};

pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn builder() -> Builder {
    Server::builder().listen(([127, 0, 0, 1], 0).into())
}

pub async fn server() -> ServerHandle {
    builder().start().await.expect("a free port on the loopback address")
}

/// Waits for what must happen, but not for ever.
pub async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it happens in time")
}

/// A socket, or TLS over one.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub struct Raw {
    socket: Box<dyn Stream>,
    input: BytesMut,
    next_xid: i32,
    pub granted: ConnectResponse,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    Event(WatchEvent),
    Reply(ReplyHeader, Reply),
    Closed,
}

pub fn connect_request() -> ConnectRequest {
    let password = Hidden(vec![0; 16]);
    ConnectRequest {
        protocol: 0,
        last_zxid_seen: 0,
        timeout_ms: 10_000,
        session: 0,
        password,
        read_only: Some(false),
    }
}

impl Raw {
    pub async fn connect(addr: SocketAddr) -> Raw {
        Raw::connect_with(addr, &connect_request()).await.expect("a session")
    }

    /// `None` when the server closes instead of answering.
    pub async fn connect_with(addr: SocketAddr, request: &ConnectRequest) -> Option<Raw> {
        let socket = TcpStream::connect(addr).await.expect("the server listens");
        socket.set_nodelay(true).expect("a socket");
        Raw::over(socket, request).await
    }

    /// The same over a stream that is there.
    pub async fn over(socket: impl Stream + 'static, request: &ConnectRequest) -> Option<Raw> {
        let granted = ConnectResponse {
            protocol: 0,
            timeout_ms: 0,
            session: 0,
            password: Hidden::default(),
            read_only: None,
        };
        let mut raw = Raw { socket: Box::new(socket), input: BytesMut::new(), next_xid: 1, granted };
        let mut out = BytesMut::new();
        Writer::frame(&mut out, |writer| request.encode(writer));
        raw.write(&out).await;
        let frame = raw.frame().await?;
        raw.granted = ConnectResponse::decode(&frame).expect("a connect response");
        Some(raw)
    }

    pub async fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("the server reads");
        self.socket.flush().await.expect("the server reads");
    }

    /// Sends what the server may not want to have.
    pub async fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes).await?;
        self.socket.flush().await
    }

    /// Sends a request and does not wait.
    pub async fn send(&mut self, request: &Request) -> i32 {
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

    /// Sends a request and reads up to its reply.
    pub async fn call(&mut self, request: Request) -> (ReplyHeader, Reply, Vec<WatchEvent>) {
        let xid = self.send(&request).await;
        let mut events = Vec::new();
        loop {
            match self.hear(request.op()).await {
                Heard::Event(event) => events.push(event),
                Heard::Reply(header, reply) => {
                    assert_eq!(header.xid, xid, "replies come in the order of the requests");
                    return (header, reply, events);
                }
                Heard::Closed => panic!("the server closed the connection on {request:?}"),
            }
        }
    }

    /// The reply, where no error is expected.
    pub async fn ok(&mut self, request: Request) -> Reply {
        let (header, reply, _) = self.call(request.clone()).await;
        assert_eq!(header.err, 0, "{request:?}");
        reply
    }

    /// The error code in the reply.
    pub async fn err(&mut self, request: Request) -> i32 {
        self.call(request).await.0.err
    }

    /// Reads one frame, a reply to operation `code` or an event.
    pub async fn hear(&mut self, code: i32) -> Heard {
        let Some(frame) = self.frame().await else { return Heard::Closed };
        let mut reader = Reader::new(&frame);
        let header = ReplyHeader::decode(&mut reader).expect("a reply header");
        if header.xid == op::XID_EVENT {
            assert_eq!((header.zxid, header.err), (-1, 0));
            return Heard::Event(WatchEvent::decode(&mut reader).expect("an event"));
        }
        let reply = if header.err == 0 { Reply::decode(code, &mut reader) } else { Ok(Reply::Empty) };
        Heard::Reply(header, reply.expect("the reply that the operation has"))
    }

    /// Reads one frame, or `None` at the end of the connection.
    pub async fn frame(&mut self) -> Option<Bytes> {
        let read = async {
            loop {
                if let Some(len) = self.input.first_chunk().map(|len| u32::from_be_bytes(*len) as usize)
                    && self.input.len() >= 4 + len
                {
                    let mut frame = self.input.split_to(4 + len).freeze();
                    return Some(frame.split_off(4));
                }
                match self.socket.read_buf(&mut self.input).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the server answers in time")
    }

    pub async fn closed(&mut self) -> bool {
        self.frame().await.is_none()
    }
}

pub fn create(path: &str, flags: i32) -> Request {
    create_op(op::CREATE, path, flags)
}

pub fn create_op(op: i32, path: &str, flags: i32) -> Request {
    let acl = vec![Acl::anyone(perms::ALL)];
    Request::Create(CreateRequest {
        op,
        path: path.into(),
        data: Some(Bytes::from_static(b"x")),
        acl,
        flags,
        ttl: -1,
    })
}

pub fn delete(path: &str, version: i32) -> Request {
    Request::Delete { path: path.into(), version }
}

pub fn exists(path: &str, watch: bool) -> Request {
    Request::Exists { path: path.into(), watch }
}

pub fn get(path: &str, watch: bool) -> Request {
    Request::GetData { path: path.into(), watch }
}

pub fn children(path: &str, watch: bool) -> Request {
    Request::GetChildren2 { path: path.into(), watch }
}

pub fn set(path: &str, data: &str, version: i32) -> Request {
    Request::SetData { path: path.into(), data: Some(Bytes::copy_from_slice(data.as_bytes())), version }
}

pub fn check(path: &str, version: i32) -> Request {
    Request::Check { path: path.into(), version }
}

pub fn auth(scheme: &str, credentials: &str) -> Request {
    Request::Auth { kind: 0, scheme: scheme.into(), credentials: Hidden(credentials.into()) }
}
