//! Replies, events and sessions reach a client only after the writes that they show are synced.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::{sleep, timeout};
use zoolock_server::log::{Disk, DiskFile, Nonce, RealDisk};
use zoolock_server::{Builder, Limits, ServerHandle};
use zoolock_wire::{Acl, Code, ConnectRequest, EventKind, Reply, Request, SetWatches, op, perms};

use crate::common::{
    RawClient, Received, auth, builder, check, children, connect_request, create, delete, exists,
    finish_in_time, get, set,
};

/// Time within which a server sends replies that do not wait for a sync.
const PAUSE: Duration = Duration::from_millis(300);

/// The behaviour of the syncs of a [`GatedDisk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syncs {
    Succeed,
    Wait,
    Fail,
}

/// The name of the server's thread that syncs.
const LOG_THREAD: &str = "zoolock-log";

#[derive(Debug)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug)]
struct GateState {
    syncs: Syncs,
    /// The name of the thread whose sync waits.
    waiting: Option<String>,
    /// Number of syncs by threads other than [`LOG_THREAD`].
    by_connections: usize,
}

impl Gate {
    fn new() -> Arc<Self> {
        let state = GateState { syncs: Syncs::Succeed, waiting: None, by_connections: 0 };
        Arc::new(Gate { state: Mutex::new(state), changed: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().expect("no thread panicked")
    }

    fn set(&self, syncs: Syncs) {
        self.lock().syncs = syncs;
        self.changed.notify_all();
    }

    /// Returns the name of the thread whose sync waits, when one does.
    async fn wait_for_sync(&self) -> String {
        loop {
            if let Some(thread) = self.lock().waiting.clone() {
                return thread;
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn pass(&self) -> io::Result<()> {
        let thread = std::thread::current().name().unwrap_or_default().to_owned();
        let mut state = self.lock();
        state.by_connections += usize::from(thread != LOG_THREAD);
        while state.syncs == Syncs::Wait {
            state.waiting = Some(thread.clone());
            state = self.changed.wait(state).expect("no thread panicked");
        }
        state.waiting = None;
        if state.syncs == Syncs::Fail { Err(io::Error::other("the disk is gone")) } else { Ok(()) }
    }
}

/// A guard that lets syncs succeed when a test ends, also by a panic. Otherwise the server, which waits for its log,
/// would never stop.
struct OpenAtEnd(Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.set(Syncs::Succeed);
    }
}

/// A directory whose syncs are controlled by a [`Gate`].
#[derive(Debug)]
struct GatedDisk {
    disk: RealDisk,
    gate: Arc<Gate>,
}

impl GatedDisk {
    fn file(&self, file: Box<dyn DiskFile>) -> Box<dyn DiskFile> {
        Box::new(GatedFile { file, gate: Arc::clone(&self.gate) })
    }
}

impl Disk for GatedDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.disk.open(name)?))
    }
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(self.file(self.disk.create(name)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn nonce(&self) -> io::Result<Nonce> {
        self.disk.nonce()
    }
    fn describe(&self, name: &str) -> String {
        self.disk.describe(name)
    }
}

#[derive(Debug)]
struct GatedFile {
    file: Box<dyn DiskFile>,
    gate: Arc<Gate>,
}

impl DiskFile for GatedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(buffer, offset)
    }
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }
    fn allocate(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }
    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn sync_data(&mut self) -> io::Result<()> {
        self.gate.pass()?;
        self.file.sync_data()
    }
    fn sync_all(&mut self) -> io::Result<()> {
        self.gate.pass()?;
        self.file.sync_all()
    }
}

#[tokio::test]
async fn nothing_is_sent_before_sync() {
    check_sent_after(Syncs::Succeed, builder()).await;
}

#[tokio::test]
async fn nothing_is_sent_after_failed_sync() {
    check_sent_after(Syncs::Fail, builder()).await;
}

/// Here a connection blocks a worker of the runtime while it syncs. Other connections must be served meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_before_sync_by_connection() {
    check_sent_after(Syncs::Succeed, builder().owns_runtime()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_after_failed_sync_by_connection() {
    check_sent_after(Syncs::Fail, builder().owns_runtime()).await;
}

/// A client that has the server for itself syncs on the thread of its connection, if the runtime allows it. Clients
/// that write in turn leave this to the thread of the log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_lone_connection_syncs() {
    let (server, gate, _dir) = start(builder().owns_runtime()).await;
    let mut writers =
        [RawClient::connect(server.local_addr()).await, RawClient::connect(server.local_addr()).await];
    writers[0].call_ok(create("/a", 0)).await;
    for _ in 0..50 {
        for writer in writers.iter_mut().rev() {
            writer.call_ok(set("/a", "new", -1)).await;
        }
    }
    assert_eq!(gate.lock().by_connections, 0);
    finish_in_time(async {
        while gate.lock().by_connections == 0 {
            writers[0].call_ok(set("/a", "new", -1)).await;
        }
    })
    .await;
    server.shutdown().await;

    let (server, gate, _dir) = start(builder()).await;
    let mut writer = RawClient::connect(server.local_addr()).await;
    writer.call_ok(create("/a", 0)).await;
    for _ in 0..50 {
        writer.call_ok(set("/a", "new", -1)).await;
    }
    assert_eq!(gate.lock().by_connections, 0, "the runtime may serve others");
    server.shutdown().await;
}

/// Requests whose replies show no transaction that waits for the disk are answered while the disk hangs.
#[tokio::test]
async fn durable_reads_and_pings_do_not_wait_for_the_disk() {
    let (server, gate, _dir) = start(builder()).await;
    // The guard is declared after the server, and so dropped before it.
    let _open = OpenAtEnd(Arc::clone(&gate));
    let addr = server.local_addr();
    let (mut writer, mut holder) = (RawClient::connect(addr).await, RawClient::connect(addr).await);
    for path in ["/locks", "/busy"] {
        writer.call_ok(create(path, 0)).await;
    }
    holder.call_ok(create("/locks/held", 1)).await;
    gate.set(Syncs::Wait);
    writer.send(&create("/busy/new", 0)).await;
    finish_in_time(gate.wait_for_sync()).await;
    let path = || "/locks/held".to_owned();
    // The renewals of a lease are a ping, a check and a sync.
    let requests = [
        Request::Ping,
        Request::Multi(vec![check("/locks", -1)]),
        Request::Multi(vec![check("/locks", -1), check("/locks/held", 0)]),
        check("/locks", -1),
        Request::Sync { path: path() },
        exists("/locks/held", true),
        get("/locks/held", true),
        children("/locks", true),
        Request::GetChildren { path: "/locks".to_owned(), watch: false },
        Request::GetAcl { path: path() },
        Request::MultiRead(vec![get("/locks/held", false)]),
        Request::AddWatch { path: path(), mode: 0 },
        Request::RemoveWatches { path: path(), kind: 2 },
        Request::WhoAmI,
        auth("digest", "me:pw"),
    ];
    for request in requests {
        holder.call_ok(request).await;
    }
    assert_eq!(holder.call_error(exists("/locks/gone", true)).await, Code::NoNode.number());
    assert_eq!(holder.call_error(Request::Multi(vec![check("/locks", 7)])).await, 0, "a refused check");
    let again = ConnectRequest {
        session: holder.granted.session,
        password: holder.granted.password.clone(),
        ..connect_request()
    };
    let mut holder = RawClient::connect_with(addr, &again).await.expect("an answer");
    assert_eq!(holder.granted.session, again.session);
    let set = SetWatches {
        relative_zxid: i64::MAX,
        data: vec![path()],
        exist: Vec::new(),
        child: Vec::new(),
        persistent: None,
        recursive: None,
    };
    holder.call_ok(Request::SetWatches(set)).await;
    holder.call_ok(get("/locks/held", false)).await;
    gate.set(Syncs::Succeed);
    assert!(matches!(writer.receive(op::CREATE).await, Received::Reply(header, _) if header.err == 0));
    server.shutdown().await;
}

/// Replies to all kinds of requests wait until the disk has the transactions that they show. Later replies of the same
/// connection wait behind them.
#[tokio::test]
async fn reads_of_unsynced_changes_wait_for_the_disk() {
    let (server, gate, _dir) = start(builder()).await;
    // The guard is declared after the server, and so dropped before it.
    let _open = OpenAtEnd(Arc::clone(&gate));
    let addr = server.local_addr();
    let mut writer = RawClient::connect(addr).await;
    for path in ["/set", "/parent", "/parent/deleted", "/acl", "/full"] {
        writer.call_ok(create(path, 0)).await;
    }
    assert!(server.set_child_counter("/full", i32::MAX));
    let acl = vec![Acl::anyone(perms::ALL)];
    let rows = [
        (
            set("/set", "new", -1),
            vec![
                get("/set", false),
                exists("/set", false),
                Request::Multi(vec![check("/set", -1)]),
                Request::MultiRead(vec![get("/set", false)]),
            ],
        ),
        (
            delete("/parent/deleted", -1),
            vec![
                exists("/parent/deleted", false),
                exists("/parent/deleted/child", false),
                children("/parent", false),
            ],
        ),
        (
            create("/created", 1),
            vec![
                exists("/created", false),
                Request::GetAllChildrenNumber { path: "/".to_owned() },
                Request::GetEphemerals { prefix: "/".to_owned() },
            ],
        ),
        (create("/full/child", 0), vec![children("/full", false), exists("/full", false)]),
        (
            Request::SetAcl { path: "/acl".to_owned(), acl, version: -1 },
            vec![Request::GetAcl { path: "/acl".to_owned() }, get("/acl", false)],
        ),
    ];
    for (write, reads) in rows {
        let mut readers = Vec::new();
        for _ in &reads {
            readers.push(RawClient::connect(addr).await);
        }
        gate.set(Syncs::Wait);
        let received = server.stats().received;
        writer.send(&write).await;
        finish_in_time(gate.wait_for_sync()).await;
        for (reader, read) in readers.iter_mut().zip(&reads) {
            reader.send(read).await;
            reader.send(&Request::Ping).await;
        }
        finish_in_time(async {
            while server.stats().received < received + 1 + 2 * reads.len() as u64 {
                sleep(Duration::from_millis(5)).await
            }
        })
        .await;
        sleep(PAUSE).await;
        for (reader, read) in readers.iter_mut().zip(&reads) {
            let early = timeout(Duration::from_millis(10), reader.frame()).await;
            assert!(early.is_err(), "sent before the sync: {read:?}");
        }
        gate.set(Syncs::Succeed);
        writer.receive(write.op()).await;
        for (mut reader, read) in readers.into_iter().zip(&reads) {
            assert!(matches!(reader.receive(read.op()).await, Received::Reply(..)), "{read:?}");
            assert!(matches!(reader.receive(op::PING).await, Received::Reply(..)));
        }
    }
    server.shutdown().await;
}

/// The server reads no requests while too much data waits for the disk. Meanwhile the sessions do not expire.
#[tokio::test]
async fn session_lives_while_the_log_is_full() {
    let (server, gate, _dir) = start(builder()).await;
    // The guard is declared after the server, and so dropped before it.
    let _open = OpenAtEnd(Arc::clone(&gate));
    let mut writer = RawClient::connect(server.local_addr()).await;
    let mut holder = RawClient::connect(server.local_addr()).await;
    writer.call_ok(create("/a", 0)).await;
    holder.call_ok(create("/held", 1)).await;
    gate.set(Syncs::Wait);
    let text = "x".repeat(1_000_000);
    let writing = tokio::spawn(async move {
        for _ in 0..40 {
            writer.send(&set("/a", &text, -1)).await;
        }
        for _ in 0..40 {
            writer.receive(op::SET_DATA).await;
        }
    });
    // The writer also waits for its turns before the log is full. Until then the holder gets answers.
    let mut asked = 0;
    finish_in_time(async {
        while server.stats().waiting < 2 {
            holder.send(&exists("/held", false)).await;
            asked += 1;
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    server.advance(Duration::from_secs(60));
    assert_eq!(server.sessions(), 2, "a session expired although its request was unread");
    gate.set(Syncs::Succeed);
    for _ in 0..asked {
        let answer = holder.receive(op::EXISTS).await;
        assert!(matches!(answer, Received::Reply(header, _) if header.err == 0), "{answer:?}");
    }
    finish_in_time(writing).await.expect("no panic");
    server.shutdown().await;
}

/// Starts a server whose syncs a gate controls. Files that were synced before the start do not count.
async fn start(builder: Builder) -> (ServerHandle, Arc<Gate>, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let gate = Gate::new();
    let disk = GatedDisk {
        disk: RealDisk::open(dir.path()).expect("an existing directory"),
        gate: Arc::clone(&gate),
    };
    let limits = Limits { disk: Some(Arc::new(disk)), ..Limits::default() };
    let server = builder.data_dir(dir.path()).limits(limits).start().await.expect("starts");
    gate.lock().by_connections = 0;
    (server, gate, dir)
}

/// Sends requests while a sync waits. Clients must receive replies only after the sync succeeds,
/// and no replies if it fails.
async fn check_sent_after(result: Syncs, builder: Builder) {
    let by_connection = Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread;
    let (server, gate, _dir) = start(builder).await;
    // The guard is declared after the server, and so dropped before it.
    let _open = OpenAtEnd(Arc::clone(&gate));
    let addr = server.local_addr();
    let mut writer = RawClient::connect(addr).await;
    writer.call_ok(create("/a", 0)).await;
    let (mut reader, mut watcher) = (RawClient::connect(addr).await, RawClient::connect(addr).await);
    let (mut creator, mut leaver) = (RawClient::connect(addr).await, RawClient::connect(addr).await);
    writer.call_ok(create("/other", 0)).await;
    let mut received = 0;
    let text = "x".repeat(20_000);
    finish_in_time(async {
        loop {
            watcher.call_ok(get("/a", true)).await;
            // Now the writer is the last active connection.
            writer.call_ok(set("/other", "new", -1)).await;
            gate.set(Syncs::Wait);
            received = server.stats().received;
            // A request of this size may have a long turn.
            writer.send(&set("/a", &text, -1)).await;
            if (gate.wait_for_sync().await != LOG_THREAD) == by_connection {
                break;
            }
            // The thread of the log syncs after a slow batch.
            gate.set(Syncs::Succeed);
            writer.receive(op::SET_DATA).await;
            watcher.receive(op::PING).await;
        }
    })
    .await;
    reader.send(&get("/a", false)).await;
    creator.send(&Request::Multi(vec![create("/b", 0), create("/c", 1), set("/b", &text, -1)])).await;
    leaver.send(&Request::CloseSession).await;
    let newcomer = tokio::spawn(async move { RawClient::connect_with(addr, &connect_request()).await });
    finish_in_time(async {
        while server.stats().received < received + 5 {
            sleep(Duration::from_millis(5)).await
        }
    })
    .await;
    sleep(PAUSE).await;
    for raw in [&mut writer, &mut reader, &mut watcher, &mut creator, &mut leaver] {
        let early = timeout(Duration::from_millis(10), raw.frame()).await;
        assert!(early.is_err(), "sent before the sync: {early:?}");
    }
    assert!(!newcomer.is_finished(), "a session was granted before the sync");

    gate.set(result);
    if result == Syncs::Fail {
        let why = finish_in_time(server.wait_for_failure()).await;
        assert!(why.contains("the disk is gone"), "{why}");
        for mut raw in [writer, reader, watcher, creator, leaver] {
            assert!(raw.reads_end().await, "sent without a sync");
        }
        assert!(newcomer.await.expect("no panic").is_none(), "a session was granted without a sync");
        server.shutdown().await;
        return;
    }
    assert!(matches!(writer.receive(op::SET_DATA).await, Received::Reply(header, _) if header.err == 0));
    let Received::Reply(_, Reply::Data { data, .. }) = reader.receive(op::GET_DATA).await else {
        panic!("data")
    };
    assert_eq!(data, Some(Bytes::from(text)));
    let Received::Event(event) = watcher.receive(op::PING).await else { panic!("an event") };
    assert_eq!((event.kind, event.path.as_str()), (EventKind::DataChanged, "/a"));
    assert!(matches!(creator.receive(op::MULTI).await, Received::Reply(header, _) if header.err == 0));
    assert!(matches!(leaver.receive(op::CLOSE_SESSION).await, Received::Reply(header, _) if header.err == 0));
    let newcomer = newcomer.await.expect("no panic").expect("an answer");
    assert_ne!(newcomer.granted.session, 0);
    server.shutdown().await;
}
