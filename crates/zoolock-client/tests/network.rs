//! Tests of the driver, which runs a client's session on real sockets. The servers are the embedded
//! server (`zoolock-server`), and small servers in this file, for example one that never answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, JoinSet};
use zoolock_client::sasl::{SaslClient, SaslExchange, StepFuture};
use zoolock_client::{
    Client, DialError, DialFailure, End, Handler, Host, Instant, Os, RequestError, RequestNumber, SaslStep,
    Servers, SessionConfig, SessionState,
};
use zoolock_server::{Server, ServerHandle};
use zoolock_wire::{
    Acl, ConnectResponse, CreateRequest, EventKind, Hidden, OpResult, Reply, ReplyHeader, Request,
    WatchEvent, Writer, op, perms, split_frame,
};

/// The session timeout of the tests.
const T: Duration = Duration::from_secs(12);

/// The longest wait for an expected event, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, PartialEq)]
enum Happened {
    Reply(RequestNumber, Result<Reply, RequestError>),
    Event(WatchEvent),
    State(SessionState),
}

/// A handler that passes everything to the test, in order.
struct Recorder {
    happened: UnboundedSender<Happened>,
}

impl Handler for Recorder {
    fn handle_reply(&mut self, request: RequestNumber, _: Instant, result: Result<Reply, RequestError>) {
        let _ = self.happened.send(Happened::Reply(request, result));
    }

    fn handle_event(&mut self, event: WatchEvent) {
        let _ = self.happened.send(Happened::Event(event));
    }

    fn handle_state_change(&mut self, state: SessionState) {
        let _ = self.happened.send(Happened::State(state));
    }
}

struct Session {
    client: Client<Recorder>,
    happened: UnboundedReceiver<Happened>,
}

impl Session {
    fn start(hosts: Vec<Host>) -> Session {
        Session::start_with(Servers::from(hosts))
    }

    fn start_with(servers: Servers) -> Session {
        let (happened_sender, happened) = unbounded_channel();
        let recorder = Recorder { happened: happened_sender };
        let platform = Os::with_runtime(&tokio::runtime::Handle::current());
        let client = Client::start(SessionConfig::new(T), servers, recorder, platform);
        Session { client, happened }
    }

    async fn next(&mut self) -> Happened {
        let next = tokio::time::timeout(PATIENCE, self.happened.recv());
        next.await.expect("an output arrives in time").expect("the driver runs")
    }

    async fn connected(&mut self) -> i64 {
        loop {
            if let Happened::State(SessionState::Connected { session, .. }) = self.next().await {
                return session;
            }
        }
    }

    async fn call(&mut self, request: Request) -> Result<Reply, RequestError> {
        let id = self.client.request(&request)?;
        loop {
            match self.next().await {
                Happened::Reply(replied, result) if replied == id => return result,
                Happened::Event(event) => panic!("unexpected {event:?}"),
                _ => {}
            }
        }
    }
}

fn tcp(addr: SocketAddr) -> Host {
    Host::Tcp { name: addr.ip().to_string(), port: addr.port() }
}

async fn server() -> ServerHandle {
    Server::builder().listen(([127, 0, 0, 1], 0).into()).start().await.expect("server starts")
}

fn create(path: &str, flags: i32) -> Request {
    let acl = vec![Acl::anyone(perms::ALL)];
    Request::Create(CreateRequest { op: op::CREATE2, path: path.to_owned(), data: None, acl, flags, ttl: -1 })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_and_events_arrive_in_order() {
    let server = server().await;
    let mut session = Session::start(vec![tcp(server.local_addr())]);
    session.connected().await;
    session.call(create("/a", 0)).await.expect("znode is created");
    session.call(Request::GetData { path: "/a".to_owned(), watch: true }).await.expect("znode is read");
    let write = session.client.request(&Request::SetData {
        path: "/a".to_owned(),
        data: Some("x".into()),
        version: -1,
    });
    let event = WatchEvent { kind: EventKind::DataChanged, path: "/a".to_owned() };
    assert_eq!(session.next().await, Happened::Event(event), "the event comes before the reply");
    assert!(matches!(session.next().await, Happened::Reply(id, Ok(_)) if Ok(id) == write));
    session.client.close();
    assert_eq!(session.next().await, Happened::State(SessionState::Ended(End::Closed)));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_are_answered_once_each() {
    let server = server().await;
    let mut session = Session::start(vec![tcp(server.local_addr())]);
    session.connected().await;
    let mut pending: HashMap<RequestNumber, ()> = HashMap::new();
    for n in 0..10_000 {
        let path = format!("/n{n}");
        let request = if n % 2 == 0 { create(&path, 0) } else { Request::Exists { path, watch: false } };
        pending.insert(session.client.request(&request).expect("request is sent"), ());
    }
    while !pending.is_empty() {
        if let Happened::Reply(id, result) = session.next().await {
            assert!(pending.remove(&id).is_some(), "a second reply");
            assert!(
                !matches!(result, Err(RequestError::ConnectionLoss | RequestError::NotSent)),
                "{result:?}"
            );
        }
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_survives_a_lost_connection() {
    let server = server().await;
    let proxy = Gate::open(server.local_addr()).await;
    let mut session = Session::start(vec![tcp(proxy.addr)]);
    let id = session.connected().await;
    session.call(create("/e", 1)).await.expect("znode is created");
    proxy.cut();
    assert!(matches!(session.next().await, Happened::State(SessionState::Disconnected(_))));
    assert_eq!(session.connected().await, id, "the same session");
    let Ok(Reply::Stat(stat)) = session.call(Request::Exists { path: "/e".to_owned(), watch: false }).await
    else {
        panic!("the ephemeral znode is missing");
    };
    assert_eq!(stat.ephemeral_owner, id);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_never_answers_is_left() {
    let server = server().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let silent_addr = silent.local_addr().expect("listener has an address");
    let accepting = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = silent.accept().await {
            kept.push(stream);
        }
    });
    // The order of the servers is random, so several sessions try both orders.
    for _ in 0..6 {
        let mut session = Session::start(vec![tcp(silent_addr), tcp(server.local_addr())]);
        session.connected().await;
    }
    accepting.abort();
    server.shutdown().await;
}

/// A server that hangs may carry out the write of a lost connection once the session is attached there again. So the session
/// returns to a server that has not answered a read before it returns to a server that has not answered a write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_an_old_write_is_dialed_after_others() {
    let bind = || std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let listeners = [bind(), bind(), bind()].map(|listener| {
        listener.set_nonblocking(true).expect("listener has no blocking calls");
        TcpListener::from_std(listener).expect("listener is registered")
    });
    let addr = |listener: &TcpListener| listener.local_addr().expect("listener has an address");
    let mut session = Session::start(listeners.iter().map(|listener| tcp(addr(listener))).collect());
    let mut attached = Vec::new();
    while attached.len() < 4 {
        let accepted = listeners.iter().map(|listener| Box::pin(listener.accept()));
        let (accepted, at, _) = futures_util::future::select_all(accepted).await;
        let (mut stream, _) = accepted.expect("connection is accepted");
        // A dial closes the connections that it does not need.
        if read_frame(&mut stream, &mut BytesMut::new()).await.is_none() {
            continue;
        }
        write_connect_response(&mut stream, 7).await;
        session.connected().await;
        let request = match attached.len() {
            0 => create("/late", 0),
            _ => Request::Exists { path: "/late".to_owned(), watch: false },
        };
        session.client.request(&request).expect("request is sent");
        attached.push(at);
        // The request is old when the connection ends.
        tokio::time::sleep(T / 20).await;
    }
    let [write, read, other, last] = attached[..] else { unreachable!("there are four") };
    assert!(write != read && write != other && read != other, "{attached:?}: a silent server is left");
    assert_eq!(last, read, "{attached:?}: the server of the write comes last");
}

/// Listens on this socket, and passes at most `places` connections at a time on to the server.
/// Closes all other connections at once, as a server with `maxClientCnxns` does.
fn serve_with_places(socket: &Path, server: SocketAddr, places: usize) -> JoinHandle<()> {
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).expect("socket is bound");
    let places = Arc::new(Semaphore::new(places));
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            let Ok(place) = places.clone().try_acquire_owned() else { continue };
            connections.spawn(async move {
                let mut upstream = TcpStream::connect(server).await.expect("the server listens");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
                drop(place);
            });
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomers_take_no_places_of_holders_after_a_restart() {
    const HOLDERS: usize = 4;
    const NEWCOMERS: usize = 24;
    let server = server().await;
    let socket = std::env::temp_dir().join(format!("zoolock-places-{}", std::process::id()));
    let serving = serve_with_places(&socket, server.local_addr(), HOLDERS);
    let mut holders = Vec::new();
    for number in 0..HOLDERS {
        let mut holder = Session::start(vec![Host::Unix(socket.clone())]);
        let id = holder.connected().await;
        holder.call(create(&format!("/e{number}"), 1)).await.expect("znode is created");
        holders.push((id, holder));
    }
    let mut newcomers: Vec<Session> =
        (0..NEWCOMERS).map(|_| Session::start(vec![Host::Unix(socket.clone())])).collect();
    serving.abort();
    let _ = serving.await;
    for newcomer in &newcomers {
        let end = Clock::now() + PATIENCE;
        while newcomer.client.dial_errors().is_empty() {
            assert!(Clock::now() < end, "a newcomer does not try again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let serving = serve_with_places(&socket, server.local_addr(), HOLDERS);
    for (id, holder) in &mut holders {
        assert_eq!(holder.connected().await, *id, "a holder lost its session");
    }
    // A holder gives up its connection. Then the server accepts the connection of a newcomer, which
    // is a new session.
    drop(holders.pop());
    let connected = newcomers.iter_mut().map(|newcomer| Box::pin(newcomer.connected()));
    futures_util::future::select_all(connected).await;
    serving.abort();
    let _ = std::fs::remove_file(&socket);
    server.shutdown().await;
}

#[tokio::test]
async fn dial_errors_name_host_and_cause() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        listener.local_addr().expect("listener has an address")
    };
    let unknown = Host::Tcp { name: "no-such-host.invalid".to_owned(), port: 2181 };
    let session = Session::start(vec![tcp(closed), unknown, Host::Unix("/nonexistent/socket".into())]);
    let end = Clock::now() + PATIENCE;
    let errors = loop {
        let errors = session.client.dial_errors();
        if errors.len() == 3 || Clock::now() > end {
            break errors;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let refused = |error: &&DialError| error.failure == DialFailure::Refused;
    assert_eq!(errors.iter().filter(refused).count(), 1, "{errors:?}");
    let mut shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
    shown.sort();
    assert!(shown[0].contains("refused"), "{shown:?}");
    assert!(shown[1].starts_with("no-such-host.invalid:2181: the name does not resolve"), "{shown:?}");
    assert!(shown[2].starts_with("unix:/nonexistent/socket: cannot connect"), "{shown:?}");
    assert!(matches!(session.client.request(&create("/a", 0)), Err(RequestError::NotSent)));
}

/// After the process was stopped for a while, every deadline has passed, but the replies wait in
/// the socket.
#[test]
fn session_survives_a_pause_of_the_process() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("runtime starts");
    let server = runtime.block_on(server());
    let addr = server.local_addr();
    // The session runs on this thread, which the test blocks for longer than any deadline.
    let paused = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime starts");
    paused.block_on(async {
        let mut session = Session::start(vec![tcp(addr)]);
        session.connected().await;
        session.call(create("/e", 1)).await.expect("znode is created");
        let check = Request::Multi(vec![Request::Check { path: "/e".to_owned(), version: -1 }]);
        let renewal =
            session.client.with(|session, _, now| session.renew(&check, now)).expect("renewal is sent");
        // The driver writes the renewal, and then does not run for half of the session timeout.
        tokio::task::yield_now().await;
        std::thread::sleep(T / 2);
        let next =
            tokio::time::timeout(PATIENCE, session.happened.recv()).await.expect("an output arrives in time");
        assert_eq!(next, Some(Happened::Reply(renewal, Ok(Reply::Multi(vec![OpResult::Check])))));
        assert!(session.happened.try_recv().is_err(), "nothing else has happened");
    });
    runtime.block_on(server.shutdown());
}

#[test]
fn caller_writes_without_the_driver() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("runtime starts");
    let server = runtime.block_on(server());
    let host = tcp(server.local_addr());
    let stopped = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime starts");
    let mut session = stopped.block_on(async {
        let mut session = Session::start(vec![host.clone()]);
        session.connected().await;
        session.call(create("/a", 0)).await.expect("znode is created");
        session
    });
    // The driver does not run now, because its runtime is not polled.
    let request = session.client.request(&create("/b", 0)).expect("request is sent");
    runtime.block_on(async {
        let mut other = Session::start(vec![host]);
        other.connected().await;
        let is_there = async {
            while other.call(Request::Exists { path: "/b".to_owned(), watch: false }).await.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, is_there).await.expect("the request reached the server");
    });
    let reply = stopped.block_on(session.next());
    assert!(matches!(reply, Happened::Reply(id, Ok(_)) if id == request), "{reply:?}");
    runtime.block_on(server.shutdown());
}

#[test]
fn stopped_runtime_ends_the_session() {
    let runtime = tokio::runtime::Runtime::new().expect("runtime starts");
    let (_server, mut session) = runtime.block_on(async {
        let server = server().await;
        let mut session = Session::start(vec![tcp(server.local_addr())]);
        session.connected().await;
        (server, session)
    });
    let pending = session.client.request(&create("/a", 0)).expect("request is sent");
    drop(runtime);
    let happened: Vec<Happened> = std::iter::from_fn(|| session.happened.try_recv().ok()).collect();
    assert!(
        happened.iter().any(|h| matches!(h, Happened::Reply(id, _) if *id == pending))
            && happened.contains(&Happened::State(SessionState::Ended(End::Abandoned))),
        "{happened:?}"
    );
    assert_eq!(session.client.request(&create("/b", 0)), Err(RequestError::SessionEnded));
}

/// A server may answer a reattach with a new session, as ClickHouse Keeper does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_session_is_never_adopted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let addr = listener.local_addr().expect("listener has an address");
    let serving = tokio::spawn(async move {
        let mut after_replacement = Vec::new();
        for session in [7, 8] {
            let (mut stream, _) = listener.accept().await.expect("connection is accepted");
            let mut input = BytesMut::new();
            read_frame(&mut stream, &mut input).await.expect("connect request arrives");
            write_connect_response(&mut stream, session).await;
            if session == 7 {
                // Answers the first ping, then closes the connection.
                read_frame(&mut stream, &mut input).await.expect("ping arrives");
                let mut frame = BytesMut::new();
                Writer::frame(&mut frame, |writer| {
                    ReplyHeader { xid: op::XID_PING, zxid: 5, err: 0 }.encode(writer);
                });
                stream.write_all(&frame).await.expect("frame is written");
                continue;
            }
            while let Some(frame) = read_frame(&mut stream, &mut input).await {
                after_replacement.push(frame);
            }
        }
        after_replacement
    });
    let mut session = Session::start(vec![tcp(addr)]);
    session.connected().await;
    let end = loop {
        if let Happened::State(SessionState::Ended(end)) = session.next().await {
            break end;
        }
    };
    assert_eq!(end, End::Replaced);
    assert!(serving.await.expect("server task ends").is_empty(), "a request was sent on the other session");
}

/// A Kerberos ticket may take long to fetch. Until then the session stays on its old connection, and sends no connect
/// request on the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_sasl_token_is_ready_before_the_connect_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let host = tcp(listener.local_addr().expect("listener has an address"));
    let permits = Arc::new(Semaphore::new(0));
    let sasl: Arc<dyn SaslClient> = Arc::new(Slow { permits: permits.clone() });
    let servers = Servers { hosts: vec![host], sasl: Some(sasl), ..Servers::default() };
    let _session = Session::start_with(servers);
    let (mut stream, _) = listener.accept().await.expect("connection is accepted");
    let mut input = BytesMut::new();
    let early = tokio::time::timeout(Duration::from_millis(200), read_frame(&mut stream, &mut input));
    assert!(early.await.is_err(), "the connect request was sent before the token was ready");
    permits.add_permits(1);
    read_frame(&mut stream, &mut input).await.expect("connect request arrives");
    write_connect_response(&mut stream, 7).await;
    let frame = read_frame(&mut stream, &mut input).await.expect("SASL request arrives");
    assert_eq!(frame[4..8], op::SASL.to_be_bytes());
}

/// A SASL mechanism whose tokens each wait for a permit.
struct Slow {
    permits: Arc<Semaphore>,
}

impl SaslClient for Slow {
    fn start_exchange(&self, _: &str) -> Box<dyn SaslExchange> {
        Box::new(SlowExchange { permits: self.permits.clone() })
    }
}

struct SlowExchange {
    permits: Arc<Semaphore>,
}

impl SaslExchange for SlowExchange {
    fn step(&mut self, _: Option<bytes::Bytes>) -> StepFuture<'_> {
        Box::pin(async move {
            self.permits.acquire().await.expect("the semaphore is never closed").forget();
            SaslStep::Send(bytes::Bytes::from_static(b"token"))
        })
    }
}

async fn write_connect_response(stream: &mut TcpStream, session: i64) {
    let response = ConnectResponse {
        protocol: 0,
        timeout_ms: 12_000,
        session,
        password: Hidden(vec![1; 16]),
        read_only: Some(false),
    };
    let mut frame = BytesMut::new();
    Writer::frame(&mut frame, |writer| response.encode(writer));
    stream.write_all(&frame).await.expect("frame is written");
}

async fn read_frame(stream: &mut TcpStream, input: &mut BytesMut) -> Option<bytes::Bytes> {
    loop {
        if let Some(frame) = split_frame(input, 1 << 20).expect("frame is valid") {
            return Some(frame);
        }
        if stream.read_buf(input).await.ok()? == 0 {
            return None;
        }
    }
}

/// A proxy whose connections can be cut.
struct Gate {
    addr: SocketAddr,
    cut: tokio::sync::watch::Sender<u32>,
}

impl Gate {
    async fn open(server: SocketAddr) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let addr = listener.local_addr().expect("listener has an address");
        let (cut, watched) = tokio::sync::watch::channel(0);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut watched = watched.clone();
                watched.borrow_and_update();
                tokio::spawn(async move {
                    let Ok(mut upstream) = TcpStream::connect(server).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
                        _ = watched.changed() => {}
                    }
                });
            }
        });
        Gate { addr, cut }
    }

    fn cut(&self) {
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}
