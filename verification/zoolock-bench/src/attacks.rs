//! Attacks on the embedded server by clients with ordinary rights, and the time that another session waits meanwhile. Apache
//! ZooKeeper is attacked beside it where the attack suits both.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zoolock_tests::four_letter::send_four_letter_word;
use zoolock_wire::{Acl, CreateRequest, Hidden, Identity, Request, SetWatches, op, perms};

use crate::Outcome;
use crate::blocking_client::BlockingClient;
use crate::process::resident;
use crate::servers::{RunningServer, ServerKind};

/// Longest time that the other session may wait.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// Maximum number of operations of a multi that the server accepts.
const MAX_OPERATIONS: usize = 16_384;
/// Longest time that the other session may wait beside a flood from a thousand connections.
const LONGEST_WAIT_BESIDE_THOUSAND: Duration = Duration::from_millis(300);
/// Pause between two requests of the other session.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum time for an answer to an attacker.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of requests that a client has in flight while it prepares an attack.
const WINDOW: usize = 500;

/// The settings of the attacks.
pub(crate) struct AttackSettings {
    pub(crate) duration: Duration,
    pub(crate) only: String,
    pub(crate) dir: PathBuf,
    pub(crate) zoolock: PathBuf,
}

/// An attack on the server at an address. It prepares itself, calls the function, and then attacks.
struct Attack {
    name: &'static str,
    run: fn(SocketAddr, Duration, &dyn Fn()) -> Outcome<()>,
    longest_wait: Duration,
    /// The servers to attack, one after the other.
    servers: &'static [ServerKind],
}

impl Attack {
    const fn new(name: &'static str, run: fn(SocketAddr, Duration, &dyn Fn()) -> Outcome<()>) -> Self {
        Attack { name, run, longest_wait: LONGEST_WAIT, servers: &[ServerKind::Ours] }
    }

    /// Also attacks Apache ZooKeeper.
    const fn beside_apache(self) -> Self {
        Attack { servers: &ServerKind::ZOOKEEPER, ..self }
    }
}

const ATTACKS: [Attack; 13] = [
    Attack::new("none", nothing),
    Attack::new("multi of 1 MiB on a list of 1,024 entries", long_lists),
    Attack::new("8 clients with multis of 1 MiB", large_multis),
    Attack::new("end of a session with 100,000 ephemerals, 3,000 watchers", large_session),
    Attack::new("writes at a depth of 4,000 below recursive watches", deep_writes),
    Attack::new("131,000 watches of each of 8 connections", many_watches),
    Attack::new("lists of 200,000 children", long_children),
    Attack::new("expiry of 100,000 TTL znodes", expiring_znodes),
    Attack::new("16 clients with requests of 1 MiB", large_data),
    Attack::new("flood of small reads, 8 connections", flood::<8>).beside_apache(),
    Attack::new("flood of small reads, 128 connections", flood::<128>).beside_apache(),
    Attack {
        longest_wait: LONGEST_WAIT_BESIDE_THOUSAND,
        ..Attack::new("flood of small reads, 1,000 connections", flood::<1000>).beside_apache()
    },
    Attack::new("siege: 64 clients with all of these", siege),
];

/// Runs the attacks, each on a new server, and prints a table.
pub(crate) fn run(settings: &AttackSettings) -> Outcome<()> {
    println!(
        "| attack | server | requests of the other session | median wait | longest wait | memory | expired sessions | |\n\
         |-|-|-|-|-|-|-|-|"
    );
    let mut missed = 0;
    for attack in ATTACKS.iter().filter(|attack| attack.name.contains(&settings.only)) {
        for &kind in attack.servers {
            missed += usize::from(!run_on(attack, kind, settings)?);
        }
    }
    println!("\n{missed} missed");
    Ok(())
}

/// Runs an attack on a new server, and prints its row. Returns whether no session was lost, and no wait was too long. The
/// waits on Apache ZooKeeper are only printed.
fn run_on(attack: &Attack, kind: ServerKind, settings: &AttackSettings) -> Outcome<bool> {
    let server = RunningServer::start(kind, &settings.zoolock, &settings.dir)?;
    let (attacking, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (mut waits, memory) = thread::scope(|scope| {
        let witness = scope.spawn(|| watch_waits(&server, &attacking, &over));
        let attacker = scope.spawn(|| {
            lower_priority()?;
            (attack.run)(server.addr, settings.duration, &|| attacking.store(true, Ordering::Relaxed))
        });
        let attacked = attacker.join().map_err(|_| "the attacker panicked")?;
        over.store(true, Ordering::Relaxed);
        let witnessed = witness.join().map_err(|_| "the witness panicked")?;
        attacked.map_err(|error| format!("{}: {error}", attack.name))?;
        witnessed
    })?;
    waits.sort_unstable();
    let longest = waits.last().copied().unwrap_or_default();
    let expired = reported(server.addr, "zk_stale_sessions_expired")?.unwrap_or(0);
    let is_good = kind != ServerKind::Ours || longest <= attack.longest_wait;
    println!(
        "| {} | {} | {} | {:.2} ms | {:.1} ms | {} MiB | {expired} | {} |",
        attack.name,
        kind.name(),
        waits.len(),
        waits.get(waits.len() / 2).map_or(0.0, |wait| wait.as_secs_f64() * 1e3),
        longest.as_secs_f64() * 1e3,
        memory >> 20,
        if is_good { "" } else { "missed" }
    );
    Ok(is_good)
}

/// Returns a number that the server reports, if it does.
fn reported(addr: SocketAddr, name: &str) -> Outcome<Option<u64>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = runtime.block_on(send_four_letter_word(addr, "mntr"))?;
    let number = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('\t'));
    Ok(number.map(str::parse).transpose()?)
}

/// Gives this thread, and the threads that it starts, the lowest priority. Attackers usually run on other machines, so
/// they must not take processor time from the server and from the other session.
fn lower_priority() -> Outcome<()> {
    rustix::process::nice(19)?;
    Ok(())
}

/// Sends small requests until `over` is set. Returns the time that each request took while `attacking` was set, and the
/// highest resident memory of the server.
fn watch_waits(
    server: &RunningServer,
    attacking: &AtomicBool,
    over: &AtomicBool,
) -> Outcome<(Vec<Duration>, u64)> {
    let mut client = BlockingClient::connect(server.addr)?;
    client.ask(open("/witness".to_owned()))?;
    let (mut waits, mut memory) = (Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        let is_attacked = attacking.load(Ordering::Relaxed);
        for request in [
            Request::Exists { path: "/witness".into(), watch: false },
            Request::SetData { path: "/witness".into(), data: None, version: -1 },
        ] {
            let begun = Instant::now();
            client.exchange(std::iter::once(request))?;
            if is_attacked {
                waits.push(begun.elapsed());
            }
        }
        memory = memory.max(resident(server.pid())?);
        thread::sleep(PAUSE);
    }
    Ok((waits, memory))
}

fn create(path: String, acl: Vec<Acl>, op: i32, flags: i32) -> Request {
    Request::Create(CreateRequest { op, path, data: None, acl, flags, ttl: 1000 })
}

fn open(path: String) -> Request {
    create(path, vec![Acl::anyone(perms::ALL)], op::CREATE, 0)
}

fn ephemeral(path: String) -> Request {
    create(path, vec![Acl::anyone(perms::ALL)], op::CREATE, 1)
}

/// Sends requests in windows.
fn send_windows(client: &mut BlockingClient, requests: impl Iterator<Item = Request>) -> Outcome<()> {
    let mut requests = requests.peekable();
    while requests.peek().is_some() {
        client.exchange(requests.by_ref().take(WINDOW))?;
    }
    Ok(())
}

/// Repeats requests for a while.
fn repeat(client: &mut BlockingClient, requests: &[Request], duration: Duration) -> Outcome<()> {
    let end = Instant::now() + duration;
    for request in requests.iter().cycle() {
        if Instant::now() >= end {
            break;
        }
        client.ask(request.clone())?;
    }
    Ok(())
}

/// Runs an attack on several connections at once.
fn on_each(
    clients: &mut [BlockingClient],
    attack: impl Fn(&mut BlockingClient) -> Outcome<()> + Sync,
) -> Outcome<()> {
    thread::scope(|scope| {
        let workers: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| attack(client))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
    })
}

fn connect_all(addr: SocketAddr, count: usize, chunk: usize) -> Outcome<Vec<BlockingClient>> {
    (0..count).map(|_| BlockingClient::connect_with_buffer(addr, PATIENCE, chunk)).collect()
}

fn nothing(_: SocketAddr, duration: Duration, begin: &dyn Fn()) -> Outcome<()> {
    begin();
    thread::sleep(duration);
    Ok(())
}

/// The number of operations of this size that fit into a frame.
fn in_one_frame(size: usize) -> usize {
    (1_000_000 / size).min(MAX_OPERATIONS)
}

fn long_lists(addr: SocketAddr, duration: Duration, begin: &dyn Fn()) -> Outcome<()> {
    let mut client = BlockingClient::connect(addr)?;
    for number in 0..63 {
        let credentials = Hidden(format!("{}:{number}", "u".repeat(900)).into_bytes());
        client.ask(Request::Auth { kind: 0, scheme: "digest".into(), credentials })?;
    }
    let digest = |number| Identity::new("digest", format!("{}{number}:x", "u".repeat(900)));
    let mut acl: Vec<Acl> =
        (0..1023).map(|number| Acl { perms: perms::READ, identity: digest(number) }).collect();
    acl.push(Acl::anyone(perms::ALL));
    client.exchange(std::iter::once(create("/list".into(), acl, op::CREATE, 0)))?;
    let checks = |count| Request::Multi(vec![Request::Check { path: "/list".into(), version: -1 }; count]);
    let reads =
        |count| Request::MultiRead(vec![Request::GetData { path: "/list".into(), watch: false }; count]);
    let full = in_one_frame(22);
    let requests =
        [checks(full), reads(full), checks(full / 10), reads(full / 10), checks(2000), reads(2000)];
    begin();
    repeat(&mut client, &requests, duration)
}

fn large_multis(addr: SocketAddr, duration: Duration, begin: &dyn Fn()) -> Outcome<()> {
    let mut clients = connect_all(addr, 8, 256 << 10)?;
    clients[0].ask(open("/m".into()))?;
    let multi = |count: usize| {
        let creates = (0..count / 2).map(|number| open(format!("/m/{number}")));
        let deletes =
            (0..count / 2).map(|number| Request::Delete { path: format!("/m/{number}"), version: -1 });
        Request::Multi(creates.chain(deletes).collect())
    };
    let requests = [multi(MAX_OPERATIONS), multi(4000), multi(2000)];
    begin();
    on_each(&mut clients, |client| repeat(client, &requests, duration))
}

fn large_session(addr: SocketAddr, _: Duration, begin: &dyn Fn()) -> Outcome<()> {
    let mut owner = BlockingClient::connect(addr)?;
    owner.ask(open("/locks".into()))?;
    send_windows(&mut owner, (0..100_000).map(|number| ephemeral(format!("/locks/{number}"))))?;
    let mut watchers = connect_all(addr, 3000, 16 << 10)?;
    for watcher in &mut watchers {
        watcher.ask(Request::AddWatch { path: "/locks".into(), mode: 1 })?;
    }
    begin();
    let begun = Instant::now();
    owner.send_all(std::iter::once(Request::CloseSession))?;
    // Half of the watchers read their events. Their sessions may expire, because they send nothing.
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_secs(2) && begun.elapsed() < PATIENCE {
        for watcher in watchers.iter_mut().step_by(2) {
            if watcher.drop_input().is_ok_and(|read| read > 0) {
                quiet = Instant::now();
            }
        }
    }
    Ok(())
}

fn deep_writes(addr: SocketAddr, duration: Duration, begin: &dyn Fn()) -> Outcome<()> {
    let mut client = BlockingClient::connect(addr)?;
    let mut path = String::new();
    for _ in 0..4000 {
        path.push_str("/a");
        client
            .exchange([open(path.clone()), Request::AddWatch { path: path.clone(), mode: 1 }].into_iter())?;
    }
    let set = Request::SetData { path: path.clone(), data: None, version: -1 };
    let requests =
        [Request::Multi(vec![set.clone(); in_one_frame(path.len())]), Request::Multi(vec![set; 5])];
    begin();
    let end = Instant::now() + duration;
    while Instant::now() < end {
        for request in &requests {
            client.send_all(std::iter::once(request.clone()))?;
            thread::sleep(Duration::from_millis(1));
            client.drop_input()?;
        }
    }
    Ok(())
}

fn many_watches(addr: SocketAddr, _: Duration, begin: &dyn Fn()) -> Outcome<()> {
    // More connections may exceed the limit of all watches, which depends on the memory of the machine.
    let mut clients = connect_all(addr, 8, 256 << 10)?;
    begin();
    on_each(&mut clients, |client| {
        for first in (0..131_000).step_by(32_750) {
            let set = SetWatches {
                relative_zxid: 1,
                data: Vec::new(),
                exist: (first..first + 32_750).map(|number| format!("/w{number}")).collect(),
                child: Vec::new(),
                persistent: None,
                recursive: None,
            };
            client.ask(Request::SetWatches(set))?;
        }
        Ok(())
    })?;
    drop(clients);
    thread::sleep(Duration::from_secs(3));
    Ok(())
}

fn long_children(addr: SocketAddr, duration: Duration, begin: &dyn Fn()) -> Outcome<()> {
    let mut clients = connect_all(addr, 4, 256 << 10)?;
    clients[0].ask(open("/d".into()))?;
    send_windows(&mut clients[0], (0..200_000).map(|number| open(format!("/d/child-{number}"))))?;
    let requests = [
        Request::GetChildren { path: "/d".into(), watch: false },
        Request::GetAllChildrenNumber { path: "/d".into() },
        Request::GetChildren2 { path: "/d".into(), watch: true },
    ];
    begin();
    on_each(&mut clients, |client| repeat(client, &requests, duration))
}

fn expiring_znodes(addr: SocketAddr, _: Duration, begin: &dyn Fn()) -> Outcome<()> {
    let mut client = BlockingClient::connect(addr)?;
    client.ask(open("/ttl".into()))?;
    let anyone = || vec![Acl::anyone(perms::ALL)];
    send_windows(
        &mut client,
        (0..100_000).map(|number| create(format!("/ttl/{number}"), anyone(), op::CREATE_TTL, 5)),
    )?;
    begin();
    // The server looks for znodes to remove once a minute.
    thread::sleep(Duration::from_secs(64));
    Ok(())
}

fn large_data(addr: SocketAddr, duration: Duration, begin: &dyn Fn()) -> Outcome<()> {
    let mut clients = connect_all(addr, 16, 256 << 10)?;
    clients[0].ask(open("/large".into()))?;
    let data = Some(vec![7; 1_000_000].into());
    let requests = [
        Request::SetData { path: "/large".into(), data, version: -1 },
        Request::GetData { path: "/large".into(), watch: false },
    ];
    begin();
    on_each(&mut clients, |client| repeat(client, &requests, duration))
}

/// Sends small reads without a pause on several connections.
fn flood<const CONNECTIONS: usize>(addr: SocketAddr, duration: Duration, begin: &dyn Fn()) -> Outcome<()> {
    let mut clients = connect_all(addr, CONNECTIONS, 64 << 10)?;
    begin();
    let end = Instant::now() + duration;
    on_each(&mut clients, |client| {
        let read = Request::Exists { path: "/witness".into(), watch: false };
        while Instant::now() < end {
            client.exchange(std::iter::repeat_n(read.clone(), WINDOW))?;
        }
        Ok(())
    })
}

/// Attacks with 64 clients, which change their attack and their connection all the time. Each client ignores refusals and
/// closed connections.
fn siege(addr: SocketAddr, duration: Duration, begin: &dyn Fn()) -> Outcome<()> {
    begin();
    let end = Instant::now() + duration;
    thread::scope(|scope| {
        for number in 0..64_usize {
            scope.spawn(move || {
                for round in 0.. {
                    if Instant::now() >= end {
                        break;
                    }
                    if besiege(addr, number, number + round).is_err() {
                        thread::sleep(Duration::from_millis(20));
                    }
                }
            });
        }
    });
    Ok(())
}

/// Opens a connection and sends expensive requests of one kind.
fn besiege(addr: SocketAddr, number: usize, kind: usize) -> Outcome<()> {
    let mut client = BlockingClient::connect_with_buffer(addr, Duration::from_secs(5), 64 << 10)?;
    let own = format!("/siege-{number}");
    client.ask(open(own.clone()))?;
    let names = |count: usize| (0..count).map(|at| format!("{own}/{kind}.{at}"));
    match kind % 9 {
        0 => (0..20).try_for_each(|_| client.ask(Request::Multi(names(2000).map(open).collect()))),
        1 => {
            send_windows(&mut client, names(5000).map(ephemeral))?;
            client.ask(Request::CloseSession)
        }
        2 => {
            let set = |exist| SetWatches {
                relative_zxid: 1,
                data: Vec::new(),
                exist,
                child: Vec::new(),
                persistent: None,
                recursive: None,
            };
            (0..10).try_for_each(|_| client.ask(Request::SetWatches(set(names(20_000).collect()))))
        }
        3 => {
            let data = Some(vec![7; 1_000_000].into());
            client.ask(Request::SetData { path: own.clone(), data, version: -1 })?;
            // The replies are not read.
            client.send_all((0..50).map(|_| Request::GetData { path: own.clone(), watch: false }))?;
            thread::sleep(Duration::from_secs(1));
            Ok(())
        }
        4 => {
            client.ask(Request::AddWatch { path: "/".into(), mode: 1 })?;
            // The events are not read.
            thread::sleep(Duration::from_secs(3));
            Ok(())
        }
        5 => (0..20).try_for_each(|_| client.ask(Request::GetChildren2 { path: own.clone(), watch: true })),
        6 => {
            let check = Request::Check { path: own.clone(), version: -1 };
            (0..20).try_for_each(|_| client.ask(Request::Multi(vec![check.clone(); MAX_OPERATIONS])))
        }
        7 => {
            client.send_part(900_000)?;
            thread::sleep(Duration::from_secs(1));
            Ok(())
        }
        _ => {
            let delete = |path| Request::Delete { path, version: -1 };
            (0..9).try_for_each(|back| {
                let old = kind.saturating_sub(back);
                client.ask(Request::Multi((0..2000).map(|at| delete(format!("{own}/{old}.{at}"))).collect()))
            })
        }
    }
}
