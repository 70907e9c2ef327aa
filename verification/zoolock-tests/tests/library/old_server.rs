//! Old servers: before ZooKeeper 3.7.2 and 3.8.2, the reply to a transaction lacks the zxids of the znodes that the
//! transaction created (ZOOKEEPER-4026).

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use zoolock_tests::locks::{await_guard, connect, directory, lock_and_release, settings};
use zoolock_tests::wait::finish_in_time;
use zoolock_tests::{on_both_servers, opcode, tree};
use zoolock_wire::{OpResult, Reader, Reply, ReplyHeader, RequestHeader, Writer};

/// A proxy that changes the replies of the server to those of an old server. It can hold back
/// `exists` requests.
struct OldServer {
    addr: String,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    /// Set while the proxy holds back `exists` requests.
    holds: watch::Sender<bool>,
    /// Set once the proxy has held back a request.
    has_held: watch::Sender<bool>,
}

impl OldServer {
    async fn start(upstream: String) -> OldServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listening");
        let addr = listener.local_addr().expect("bound").to_string();
        let shared = Arc::new(Shared::default());
        let of_connections = shared.clone();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, upstream.clone(), of_connections.clone()));
            }
        });
        OldServer { addr, shared, serving }
    }
}

impl Drop for OldServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The xids of the transactions that have no reply yet.
type Transactions = Mutex<HashSet<i32>>;

/// Forwards frames until one side ends.
async fn serve(client: TcpStream, upstream: String, shared: Arc<Shared>) -> io::Result<()> {
    let server = TcpStream::connect(upstream).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    // The connect request and its reply have no header.
    write_frame(&mut to_server, &read_frame(&mut from_client).await?).await?;
    write_frame(&mut to_client, &read_frame(&mut from_server).await?).await?;
    let transactions = Transactions::default();
    let requests = forward_requests(from_client, to_server, &shared, &transactions);
    let replies = forward_replies(from_server, to_client, &transactions);
    tokio::try_join!(requests, replies).map(|_| ())
}

async fn forward_requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    shared: &Shared,
    transactions: &Transactions,
) -> io::Result<()> {
    loop {
        let frame = read_frame(&mut from).await?;
        let header = RequestHeader::decode(&mut Reader::new(&frame)).map_err(io::Error::other)?;
        if header.op == opcode::MULTI {
            transactions.lock().expect("no task panics").insert(header.xid);
        }
        if header.op == opcode::EXISTS && *shared.holds.borrow() {
            shared.has_held.send_replace(true);
            let _ = shared.holds.subscribe().wait_for(|holds| !holds).await;
        }
        write_frame(&mut to, &frame).await?;
    }
}

async fn forward_replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    transactions: &Transactions,
) -> io::Result<()> {
    loop {
        let frame = read_frame(&mut from).await?;
        let mut reader = Reader::new(&frame);
        let header = ReplyHeader::decode(&mut reader).map_err(io::Error::other)?;
        let is_transaction = transactions.lock().expect("no task panics").remove(&header.xid);
        if !is_transaction || header.err != 0 {
            write_frame(&mut to, &frame).await?;
            continue;
        }
        let mut reply = Reply::decode(opcode::MULTI, &mut reader).map_err(io::Error::other)?;
        if let Reply::Multi(results) = &mut reply {
            results.iter_mut().for_each(forget_zxid);
        }
        let mut bytes = BytesMut::new();
        Writer::frame(&mut bytes, |writer| {
            header.encode(writer);
            reply.encode(writer);
        });
        to.write_all(&bytes).await?;
    }
}

fn forget_zxid(result: &mut OpResult) {
    if let OpResult::Create2 { path, .. } = result {
        *result = OpResult::Create { path: std::mem::take(path) };
    }
}

async fn read_frame(from: &mut OwnedReadHalf) -> io::Result<Vec<u8>> {
    let length = from.read_i32().await?;
    let mut frame = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    from.read_exact(&mut frame).await?;
    Ok(frame)
}

async fn write_frame(to: &mut OwnedWriteHalf, frame: &[u8]) -> io::Result<()> {
    let length = i32::try_from(frame.len()).map_err(io::Error::other)?;
    to.write_all(&[&length.to_be_bytes(), frame].concat()).await
}

on_both_servers!(grant_waits_for_zxid_of_created_znode, |place| async move {
    let old = OldServer::start(place.addr()).await;
    let rival = connect(&place).await;
    let zl = settings().connect(&place.connect_string_through(&old.addr)).await.expect("session starts");
    // These two acquisitions create both lock directories.
    lock_and_release(&rival.mutex("b")).await;
    let held = rival.mutex("a").lock().await.expect("lock acquired");
    let before = held.token();
    old.shared.holds.send_replace(true);
    let waiting = tokio::spawn({
        let multi = zl.multi(["a", "b"]);
        async move { multi.lock().await }
    });
    // The waiter sends the creates together with reads of the directories. The reply to the creates
    // lacks the zxids, so the waiter then sends an `exists` for one of its znodes. By then it has
    // the replies to the reads.
    finish_in_time(old.shared.has_held.subscribe().wait_for(|held| *held)).await.expect("the proxy runs");
    held.release().await.expect("release succeeds");
    assert!(!waiting.is_finished(), "granted before the zxid is known");
    old.shared.holds.send_replace(false);
    let guard = finish_in_time(await_guard(waiting)).await;
    assert!(guard.is_valid() && guard.token() > before, "{} after {before}", guard.token());
    for name in ["a", "b"] {
        assert!(rival.mutex(name).try_lock().await.expect("attempt succeeds").is_none(), "two holders");
    }
    guard.release().await.expect("release succeeds");
    for name in ["a", "b"] {
        lock_and_release(&rival.mutex(name)).await;
        tree::assert_no_contenders(&place.addr(), &directory(&place, name)).await;
    }
});
