//! Locks while name servers fail, and while some addresses of a name are bad, on three servers of Apache ZooKeeper, one
//! of which is stopped.
//!
//! The test runs itself again in namespaces of its own, with its own `/etc/resolv.conf` and name servers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};
use zoolock::{Connection, Guard, Zoolock};
use zoolock_tests::apache::{self, EnsembleMember, availability};
use zoolock_tests::four_letter::send_four_letter_word;
use zoolock_tests::name_servers::{Answers, NameServers};
use zoolock_tests::namespaces::{Namespaces, is_inside};
use zoolock_tests::ports::Port;
use zoolock_tests::proxy::{LinkFault, ProxiedProtocol, ProxySettings};
use zoolock_tests::skip::is_long;
use zoolock_tests::wait::retry_until_ok;
use zoolock_tests::{Proxy, ServerOptions, ServerProcess, TestFailure};

const NAME: &str = "apache_locks_survive_bad_names";

/// The session timeout. The lease of a holder lasts for about half of it.
const T: Duration = Duration::from_secs(12);

/// The number of holders, and then of newcomers, at the same time.
const ROUNDS: usize = 20;

/// The longest start of the servers, and the longest step, on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

#[test]
fn apache_locks_survive_bad_names() {
    if is_inside() {
        let runtime = tokio::runtime::Runtime::new().expect("runtime starts");
        return runtime.block_on(run_scenes());
    }
    let namespaces = Namespaces::new().expect("files are written");
    if availability().or_skip(NAME) && namespaces.availability().or_skip(NAME) {
        let this = std::env::current_exe().expect("path of the test binary is known");
        let mut inside = namespaces.command(this);
        let status = inside.args(["--exact", &format!("names::{NAME}"), "--nocapture"]).status();
        assert!(status.expect("unshare starts").success(), "the test failed in its namespaces");
    }
}

/// The behaviour of an address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// Passes connections on to the server.
    Open,
    Refuses,
    HangsUp,
    /// Accepts connections and does not answer.
    Silent,
}

fn door_address(number: usize) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, u8::try_from(number).expect("few doors"))
}

/// Returns the address of the door that a name such as `zk1.test` stands for.
fn right_address(name: &str) -> Ipv4Addr {
    door_address(usize::from(name.as_bytes()[2] - b'0'))
}

/// Three proxies, each in front of a server.
struct Doors(Vec<Proxy>);

impl Doors {
    async fn open() -> Doors {
        let mut doors = Vec::new();
        for number in 1..=3 {
            let settings = ProxySettings {
                port: Port::in_namespace(SocketAddr::from((door_address(number), 2181))),
                upstream: server_address(number),
                protocol: ProxiedProtocol::Client,
                patience: Duration::ZERO,
            };
            doors.push(Proxy::start_with(settings).await);
        }
        Doors(doors)
    }

    /// Sets the modes, and cuts all connections.
    async fn set(&self, modes: [Mode; 3]) {
        for (door, mode) in self.0.iter().zip(modes) {
            door.refuse(true).await;
            door.close_connections().await;
            door.set_fault(LinkFault {
                blocks_requests: mode == Mode::Silent,
                hangs_up: mode == Mode::HangsUp,
                ..LinkFault::default()
            });
            door.refuse(mode == Mode::Refuses).await;
        }
    }
}

fn server_address(number: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(127, 0, 0, u8::try_from(number).expect("few servers")), 2181))
}

/// Three servers of Apache ZooKeeper. Dropping them kills the processes.
struct Ensemble(Vec<ServerProcess>, TempDir);

impl Ensemble {
    async fn start() -> Ensemble {
        let dir = TempDir::new().expect("a directory is made");
        let mut ensemble = Ensemble(Vec::new(), dir);
        let options = ServerOptions {
            tick: Duration::from_millis(500),
            max_session_timeout: Duration::from_secs(40),
            ..ServerOptions::default()
        };
        let servers = [1, 2, 3]
            .map(server_address)
            .map(|server| [2888, 3888].map(|port| SocketAddr::new(server.ip(), port)));
        for number in 1..=3 {
            let dir = ensemble.1.path().join(number.to_string());
            let member = EnsembleMember { number, init_limit: 20, sync_limit: 10, servers: servers.to_vec() };
            let command = apache::command(&dir, server_address(number), None, &options, Some(&member));
            let server = ServerProcess::start(command.expect("files are written"), &dir.join("log"));
            ensemble.0.push(server.expect("java starts"));
        }
        for number in 1..=3 {
            let serves = async || {
                let answer = timeout(T, send_four_letter_word(server_address(number), "srvr")).await;
                match answer.map_err(|_| TestFailure::new("no answer"))?? {
                    answer if answer.contains("Mode: ") => Ok(()),
                    answer => Err(TestFailure::new(answer)),
                }
            };
            retry_until_ok("the servers start", BOUND, serves).await.expect("the ensemble serves");
        }
        ensemble
    }

    /// Stops the third server. The other two are a quorum.
    fn stop_third(&self) {
        self.0[2].signal(Signal::STOP);
    }
}

async fn acquire(connect: &str, lock: String) -> (Zoolock, Guard) {
    let settings = Zoolock::builder().tick_time(Duration::from_millis(500)).session_timeout(T);
    let client = settings.connect(connect).await.expect("a session starts");
    let guard = client.mutex(lock).lock().await.expect("the lock is free");
    (client, guard)
}

/// Lets holders acquire locks, calls `disturb`, and restarts all servers as clients see it. Checks that the holders
/// keep their locks. Then lets newcomers acquire locks, unless no name resolves. Prints the longest times.
async fn run_scene(
    scene: &str,
    connect: &str,
    doors: &Doors,
    modes: [Mode; 3],
    disturb: impl Fn(),
    newcomers: bool,
) {
    let holders = join_all((0..ROUNDS).map(|number| acquire(connect, format!("held-{number}")))).await;
    disturb();
    doors.set([Mode::Refuses; 3]).await;
    let cut = Instant::now();
    let noticed = join_all(holders.iter().map(async |(_, guard)| {
        let mut connection = guard.connection_changes();
        let is_down = connection.wait_for(|connection| connection != Connection::Connected);
        timeout(BOUND, is_down).await.expect("in time");
    }));
    noticed.await;
    // The time of the restart. It is not a wait for a condition.
    sleep(Duration::from_millis(300)).await;
    doors.set(modes).await;
    let reconnected = join_all(holders.iter().map(async |(_, guard)| {
        let mut connection = guard.connection_changes();
        let is_up = connection.wait_for(|connection| connection != Connection::Suspect);
        timeout(BOUND, is_up).await.expect("in time");
        assert_eq!(guard.loss(), None, "{scene}: a lock was lost");
        cut.elapsed()
    }));
    let slowest_holder = reconnected.await.into_iter().max().expect("there are holders");
    let began = Instant::now();
    let acquired = join_all((0..ROUNDS).filter(|_| newcomers).map(async |number| {
        drop(acquire(connect, format!("new-{number}")).await);
        began.elapsed()
    }));
    let slowest_newcomer = acquired.await.into_iter().max();
    println!(
        "{scene}: {ROUNDS} holders kept, slowest after {slowest_holder:?}; newcomers {slowest_newcomer:?}"
    );
}

async fn run_scenes() {
    let names = NameServers::start(right_address).await.expect("port 53 is free");
    let doors = Doors::open().await;
    let ensemble = Ensemble::start().await;
    ensemble.stop_third();
    let open = [Mode::Open; 3];
    let right = Answers::Right(Duration::ZERO);
    let wrong = Answers::Fixed(vec![Ipv4Addr::new(127, 0, 9, 9)]);
    let troubles = [
        ("dead first", Answers::Silent, right.clone(), true),
        ("dead", Answers::Silent, Answers::Silent, false),
        ("wrong", wrong.clone(), wrong, false),
        ("failing", Answers::Fails, Answers::Fails, false),
        ("flapping", Answers::Flaps(false), Answers::Flaps(true), true),
    ];
    let few = if is_long() { usize::MAX } else { 2 };
    for (trouble, first, second, newcomers) in troubles.into_iter().take(few) {
        names.set(right.clone(), right.clone());
        let connect = "zk1.test:2181,zk2.test:2181,zk3.test:2181";
        let disturb = || names.set(first.clone(), second.clone());
        run_scene(&format!("name server: {trouble}"), connect, &doors, open, disturb, newcomers).await;
        if trouble == "dead" {
            let settings = Zoolock::builder().connect_timeout(Duration::from_secs(1));
            let error = settings.connect(connect).await.expect_err("no name resolves").to_string();
            for number in 1..=3 {
                let cause = format!("zk{number}.test:2181: the name does not resolve");
                assert!(error.contains(&cause), "{error}");
            }
        }
    }
    use Mode::{HangsUp, Open, Refuses, Silent};
    let scenes = [
        [Open, HangsUp, Silent],
        [Open, Refuses, Silent],
        [Open, Refuses, Refuses],
        [Open, HangsUp, HangsUp],
        [Open, Silent, Silent],
        [Open, Open, Open],
    ];
    for modes in scenes.into_iter().take(few) {
        for count in (if is_long() { 1 } else { 3 })..=3 {
            doors.set(modes).await;
            // A resolver returns the bad addresses first.
            let addresses = (1..=count).rev().map(door_address).collect();
            names.set(Answers::Fixed(addresses), Answers::Silent);
            let scene = format!("addresses: {:?}", &modes[..count]);
            run_scene(&scene, "zk.test:2181", &doors, modes, || {}, true).await;
        }
    }
}
