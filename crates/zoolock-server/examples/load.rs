//! Measures pipelined throughput: `cargo run --release --example load -- 127.0.0.1:2181 [connections] [rounds]`.
//!
//! Works against any server that speaks the protocol. Each connection keeps a batch of 500 requests in flight.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use zoolock_server::Hidden;
use zoolock_server::acl::{Acl, perms};
use zoolock_server::wire::{ConnectRequest, CreateRequest, Request, RequestHeader, Writer, op};

const BATCH: usize = 500;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let addr: SocketAddr = args.next().ok_or("usage: load ADDR [CONNECTIONS] [ROUNDS]")?.parse()?;
    let conns: usize = args.next().map_or(Ok(8), |n| n.parse())?;
    let rounds: usize = args.next().map_or(Ok(20), |n| n.parse())?;
    let mut sockets = (0..conns).map(|_| connect(addr)).collect::<Outcome<Vec<_>>>()?;
    if let Some(first) = sockets.first_mut() {
        exchange(first, std::iter::once(create("/load".into())))?;
    }
    for what in ["create", "set", "get", "delete"] {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let workers = sockets.iter_mut().enumerate().map(|(conn, socket)| {
                scope.spawn(move || -> Outcome<()> {
                    for round in 0..rounds {
                        exchange(
                            socket,
                            (0..BATCH).map(|i| request(what, format!("/load/{conn}-{round}-{i}"))),
                        )?;
                    }
                    Ok(())
                })
            });
            let workers: Vec<_> = workers.collect();
            workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
        })?;
        let count = (conns * rounds * BATCH) as f64;
        println!("{what:>6} {:>9.0}/s", count / begun.elapsed().as_secs_f64());
    }
    Ok(())
}

fn create(path: String) -> Request {
    let data = Some(Bytes::from_static(&[7; 64]));
    Request::Create(CreateRequest {
        op: op::CREATE,
        path,
        data,
        acl: vec![Acl::anyone(perms::ALL)],
        flags: 0,
        ttl: -1,
    })
}

fn request(what: &str, path: String) -> Request {
    match what {
        "create" => create(path),
        "set" => Request::SetData { path, data: Some(Bytes::from_static(&[8; 64])), version: -1 },
        "get" => Request::GetData { path, watch: false },
        _ => Request::Delete { path, version: -1 },
    }
}

fn connect(addr: SocketAddr) -> Outcome<TcpStream> {
    let mut socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    let (password, read_only) = (Hidden(vec![0; 16]), Some(false));
    let hello = ConnectRequest {
        protocol: 0,
        last_zxid_seen: 0,
        timeout_ms: 30_000,
        session: 0,
        password,
        read_only,
    };
    let mut out = BytesMut::new();
    Writer::frame(&mut out, |writer| hello.encode(writer));
    socket.write_all(&out)?;
    frames(&mut socket, 1)?;
    Ok(socket)
}

fn exchange(socket: &mut TcpStream, requests: impl Iterator<Item = Request>) -> Outcome<()> {
    let (mut out, mut count) = (BytesMut::new(), 0);
    for request in requests {
        Writer::frame(&mut out, |writer| {
            RequestHeader { xid: 1, op: request.op() }.encode(writer);
            request.encode(writer);
        });
        count += 1;
    }
    socket.write_all(&out)?;
    frames(socket, count)
}

fn frames(socket: &mut TcpStream, count: usize) -> Outcome<()> {
    let (mut input, mut chunk, mut seen, mut at) = (Vec::new(), vec![0; 256 << 10], 0, 0);
    while seen < count {
        let read = socket.read(&mut chunk)?;
        if read == 0 {
            return Err("the server closed the connection".into());
        }
        input.extend_from_slice(&chunk[..read]);
        while let Some(len) = input.get(at..).and_then(|rest| rest.first_chunk()) {
            let end = at + 4 + u32::from_be_bytes(*len) as usize;
            if end > input.len() {
                break;
            }
            // xid, zxid, err; a connect response has its session there, or is shorter.
            if count > 1 && input.get(at + 16..at + 20) != Some(&[0; 4]) {
                return Err("the server answered with an error".into());
            }
            (at, seen) = (end, seen + 1);
        }
    }
    Ok(())
}
