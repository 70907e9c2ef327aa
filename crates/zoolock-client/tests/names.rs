//! Tests of the driver with names: slow and wrong name servers, and names with several addresses. The network and the
//! clock are simulated, so each round takes milliseconds.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};
use zoolock_client::{
    Client, ConnectError, ConnectFuture, DialError, DialFailure, Endpoint, Handler, Host, Instant,
    LookupFuture, Platform, RequestError, RequestNumber, SessionConfig, SessionFuture, SessionState,
};
use zoolock_wire::{
    Acl, ConnectRequest, ConnectResponse, CreateRequest, Hidden, Reader, Reply, ReplyHeader, Request,
    RequestHeader, Stat, WatchEvent, Writer, op, perms, split_frame,
};

/// The session timeout of the tests.
const T: Duration = Duration::from_secs(12);

/// The number of rounds of each scene, each with other random numbers.
const ROUNDS: u64 = 20;

/// The behaviour of an address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Server {
    Works,
    Refuses,
    /// Does not answer the TCP handshake.
    Unreachable,
    /// Accepts connections and does not answer.
    Silent,
    HangsUp,
}

/// The answers of the name server.
#[derive(Clone, Debug)]
enum Names {
    /// These addresses after a time. The last number of each address is its position in [`Network::servers`].
    After(Duration, Vec<u8>),
    Fails,
    Never,
}

struct Network {
    servers: Mutex<Vec<Server>>,
    names: Mutex<Names>,
    lookups: AtomicU64,
    random: Mutex<u64>,
    start: tokio::time::Instant,
    /// Ends the connections that are open.
    cut: tokio::sync::watch::Sender<()>,
}

/// A network as the platform of a session.
struct Machine(Arc<Network>);

impl Network {
    fn new(seed: u64, names: Names, servers: &[Server]) -> Arc<Network> {
        Arc::new(Network {
            servers: Mutex::new(servers.to_vec()),
            names: Mutex::new(names),
            lookups: AtomicU64::new(0),
            random: Mutex::new(seed),
            start: tokio::time::Instant::now(),
            cut: tokio::sync::watch::Sender::new(()),
        })
    }

    fn set_names(&self, names: Names) {
        *self.names.lock().expect("no test panics here") = names;
    }

    fn set_servers(&self, servers: &[Server]) {
        *self.servers.lock().expect("no test panics here") = servers.to_vec();
    }

    /// Cuts all connections, refuses new ones for 300 ms, and then sets the servers.
    async fn restart(&self, servers: &[Server]) {
        self.set_servers(&vec![Server::Refuses; servers.len()]);
        self.cut.send_replace(());
        sleep(Duration::from_millis(300)).await;
        self.set_servers(servers);
    }
}

impl Platform for Machine {
    fn now(&self) -> Instant {
        Instant(1 + u64::try_from(self.0.start.elapsed().as_nanos()).expect("a test is short"))
    }

    fn random(&self) -> u64 {
        let random = &mut *self.0.random.lock().expect("no test panics here");
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *random >> 33
    }

    fn spawn(&self, task: SessionFuture) {
        tokio::spawn(task);
    }

    fn resolve(&self, host: &Host) -> LookupFuture {
        self.0.lookups.fetch_add(1, Ordering::Relaxed);
        let (host, names) = (host.clone(), self.0.names.lock().expect("no test panics here").clone());
        Box::pin(async move {
            match names {
                Names::After(time, addresses) => {
                    sleep(time).await;
                    let address = |last| Some(SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), 2181)));
                    let endpoint = |last| Endpoint { host: host.clone(), address: address(last) };
                    Ok(addresses.into_iter().map(endpoint).collect())
                }
                Names::Fails => Err("the name server fails".to_owned()),
                Names::Never => std::future::pending().await,
            }
        })
    }

    fn connect(&self, endpoint: &Endpoint) -> ConnectFuture {
        let Some(SocketAddr::V4(address)) = endpoint.address else { panic!("the address is missing") };
        let server =
            self.0.servers.lock().expect("no test panics here")[usize::from(address.ip().octets()[3])];
        let cut = self.0.cut.subscribe();
        Box::pin(async move {
            let (ours, mut theirs) = tokio::io::duplex(1 << 16);
            match server {
                Server::Refuses => return Err(ConnectError::new(DialFailure::Refused, "refused")),
                Server::Unreachable => std::future::pending().await,
                Server::HangsUp => {}
                Server::Silent | Server::Works => {
                    tokio::spawn(async move {
                        let mut cut = cut;
                        tokio::select! {
                            () = serve(&mut theirs, server == Server::Works) => {}
                            _ = cut.changed() => {}
                        }
                    });
                }
            }
            Ok(Box::new(ours) as _)
        })
    }
}

/// Serves a connection. A server that does not answer reads only.
async fn serve(stream: &mut DuplexStream, answers: bool) {
    let mut input = BytesMut::new();
    let mut is_attached = false;
    loop {
        while let Some(frame) = split_frame(&mut input, 1 << 20).expect("frame is valid") {
            if !answers {
                continue;
            }
            let mut output = BytesMut::new();
            if std::mem::replace(&mut is_attached, true) {
                let mut reader = Reader::new(&frame);
                let header = RequestHeader::decode(&mut reader).expect("header is decoded");
                let reply = match Request::decode(header.op, &mut reader).expect("request is decoded") {
                    Request::Create(create) => Reply::PathStat { path: create.path, stat: Stat::default() },
                    _ => Reply::Empty,
                };
                Writer::frame(&mut output, |writer| {
                    ReplyHeader { xid: header.xid, zxid: 1, err: 0 }.encode(writer);
                    reply.encode(writer);
                });
            } else {
                let request = ConnectRequest::decode(&frame).expect("connect request is decoded");
                let session = if request.session == 0 { 7 } else { request.session };
                let timeout_ms = i32::try_from(T.as_millis()).expect("timeout fits in i32");
                let password = Hidden(vec![1; 16]);
                let response =
                    ConnectResponse { protocol: 0, timeout_ms, session, password, read_only: Some(false) };
                Writer::frame(&mut output, |writer| response.encode(writer));
            }
            if stream.write_all(&output).await.is_err() {
                return;
            }
        }
        if !stream.read_buf(&mut input).await.is_ok_and(|bytes| bytes > 0) {
            return;
        }
    }
}

/// Passes state changes and failed dials to the test.
struct States(UnboundedSender<Result<SessionState, Vec<DialError>>>, Arc<Mutex<Vec<String>>>);

impl Handler for States {
    fn handle_reply(&mut self, _: RequestNumber, _: Instant, _: Result<Reply, RequestError>) {}

    fn handle_event(&mut self, _: WatchEvent) {}

    fn handle_state_change(&mut self, state: SessionState) {
        let _ = self.0.send(Ok(state));
    }

    fn handle_dial(&mut self, endpoint: &Endpoint) {
        self.1.lock().expect("no test panics here").push(endpoint.to_string());
    }

    fn handle_failed_dial(&mut self, errors: &[DialError]) {
        let _ = self.0.send(Err(errors.to_vec()));
    }
}

struct Session {
    client: Client<States>,
    states: UnboundedReceiver<Result<SessionState, Vec<DialError>>>,
    reached: Arc<Mutex<Vec<String>>>,
}

impl Session {
    fn start(network: &Arc<Network>) -> Session {
        let (sender, states) = unbounded_channel();
        let reached = Arc::new(Mutex::new(Vec::new()));
        let hosts = vec![Host::Tcp { name: "zk".to_owned(), port: 2181 }];
        let handler = States(sender, reached.clone());
        let client = Client::start(SessionConfig::new(T), hosts, handler, Arc::new(Machine(network.clone())));
        Session { client, states, reached }
    }

    /// Returns the time until the session is attached.
    async fn attached(&mut self) -> Duration {
        let start = tokio::time::Instant::now();
        loop {
            match timeout(T * 10, self.states.recv()).await.expect("the session is attached") {
                Some(Ok(SessionState::Connected { .. })) => return start.elapsed(),
                Some(Ok(SessionState::Ended(end))) => panic!("the session ended: {end}"),
                Some(_) => {}
                None => panic!("the driver ended"),
            }
        }
    }

    /// Starts a session with an ephemeral znode, as a holder has one.
    async fn holder(network: &Arc<Network>) -> Session {
        let mut session = Session::start(network);
        session.attached().await;
        let create = CreateRequest {
            op: op::CREATE2,
            path: "/e".to_owned(),
            data: None,
            acl: vec![Acl::anyone(perms::ALL)],
            flags: 1,
            ttl: -1,
        };
        session.client.request(&Request::Create(create)).expect("request is sent");
        // The reply arrives, and the connection lasts for a while.
        sleep(T / 2).await;
        session
    }
}

fn soon(addresses: &[u8]) -> Names {
    Names::After(Duration::from_millis(2), addresses.to_vec())
}

/// The answers of a name server to a holder whose name had the addresses 0, 1 and 2.
fn troubles() -> Vec<Names> {
    let slow = Names::After(Duration::from_secs(5), vec![0, 1, 2]);
    vec![slow, Names::Never, Names::Fails, soon(&[]), soon(&[3, 4])]
}

#[tokio::test(start_paused = true)]
async fn holder_reconnects_while_name_server_fails() {
    for trouble in troubles() {
        for seed in 0..ROUNDS {
            let servers = [Server::Works, Server::Refuses, Server::Refuses, Server::Refuses, Server::HangsUp];
            let network = Network::new(seed, soon(&[0, 1, 2]), &servers);
            let mut holder = Session::holder(&network).await;
            network.set_names(trouble.clone());
            let restarted = network.restart(&servers);
            let ((), took) = tokio::join!(restarted, holder.attached());
            assert!(took < T / 6, "reconnected after {took:?} with {trouble:?}, seed {seed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bad_address_does_not_hide_good_one() {
    use Server::{HangsUp, Refuses, Silent, Unreachable, Works};
    let mut worst = Vec::new();
    for bad in [
        &[][..],
        &[Refuses],
        &[Unreachable],
        &[Silent],
        &[HangsUp],
        &[Refuses, Refuses],
        &[Unreachable, Unreachable],
        &[Silent, Silent],
        &[HangsUp, HangsUp],
        &[HangsUp, Silent],
        &[Refuses, Silent],
        &[Unreachable, HangsUp],
    ] {
        let (mut slowest_holder, mut slowest_newcomer) = (Duration::ZERO, Duration::ZERO);
        for seed in 0..ROUNDS {
            let servers = [&[Works], bad].concat();
            let addresses: Vec<u8> =
                (0..servers.len()).map(|at| u8::try_from(at).expect("few servers")).collect();
            let network = Network::new(seed, soon(&addresses), &servers);
            slowest_newcomer = slowest_newcomer.max(Session::start(&network).attached().await);
            let mut holder = Session::holder(&network).await;
            let ((), took) = tokio::join!(network.restart(&servers), holder.attached());
            slowest_holder = slowest_holder.max(took);
        }
        println!("{bad:?}: holder {slowest_holder:?}, newcomer {slowest_newcomer:?}");
        worst.push((bad, slowest_holder, slowest_newcomer));
    }
    for (bad, holder, newcomer) in worst {
        // A newcomer waits for a quarter of the timeout for a server that accepts the connection and does not answer.
        let silent = u32::try_from(bad.iter().filter(|bad| **bad == Silent).count()).expect("few servers");
        assert!(holder < T / 3, "{bad:?}: a holder reconnected after {holder:?}");
        let bound = Duration::from_secs(2) + T / 4 * silent;
        assert!(newcomer < bound, "{bad:?}: a newcomer was attached after {newcomer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_answer_serves_a_later_dial() {
    let time = Duration::from_secs(5);
    let network = Network::new(1, Names::After(time, vec![0]), &[Server::Works]);
    let mut newcomer = Session::start(&network);
    let took = newcomer.attached().await;
    // The first dials end before the name resolves. That is no outage, so the newcomer does not let others go first.
    assert!(took >= time && took < time + T / 10, "attached after {took:?}");
    assert_eq!(network.lookups.load(Ordering::Relaxed), 1, "one look-up at a time");
}

#[tokio::test(start_paused = true)]
async fn moved_name_is_followed() {
    for seed in 0..ROUNDS {
        let network = Network::new(seed, soon(&[0]), &[Server::Works, Server::Works]);
        let mut holder = Session::holder(&network).await;
        network.set_names(soon(&[1]));
        network.cut.send_replace(());
        let took = holder.attached().await;
        let last = holder.reached.lock().expect("no test panics here").last().cloned();
        // The old address still works, and belongs to another server by now.
        assert_eq!(last.as_deref(), Some("zk:2181 (10.0.0.1)"));
        assert!(took < Duration::from_secs(1), "followed after {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_dial_names_addresses_and_names() {
    let network = Network::new(1, soon(&[0, 1]), &[Server::Refuses, Server::Refuses]);
    let mut session = Session::start(&network);
    let Some(Err(errors)) = session.states.recv().await else { panic!("the dial fails") };
    let mut shown: Vec<String> = errors.iter().map(ToString::to_string).collect();
    shown.sort();
    assert_eq!(shown, ["zk:2181 (10.0.0.0): refused", "zk:2181 (10.0.0.1): refused"]);
    network.set_names(Names::Fails);
    let mut session = Session::start(&network);
    let Some(Err(errors)) = session.states.recv().await else { panic!("the dial fails") };
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].to_string(), "zk:2181: the name server fails");
}
