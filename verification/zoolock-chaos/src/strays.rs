//! Checks that no znode blocks a queue because its create was carried out late.
//!
//! ZooKeeper's leader accepts a write if the server that passes it on owns the session. Each attach gives the session to
//! the server that reports it to the leader, and attaches overtake the creates that wait in the queues of their server.
//! Each round uses this:
//!
//! 1. A client is attached to a follower. SIGSTOP stops the follower, and the client calls `lock()` several times. The
//!    creates wait in the follower.
//! 2. Four times, all connections of the client are closed. Each time, only the stopped follower accepts a connection
//!    until the client has tried to attach there and has given up. Then the client attaches to another server.
//! 3. All calls of `lock()` end before the second of these cuts. Half of them are cancelled. The others are granted the
//!    lock and release it. The queue is empty.
//! 4. SIGCONT continues the follower. An abandoned attach takes the session back, and the leader carries out creates that
//!    no call waits for. The znodes of these creates are strays.
//!
//! The client stays open. Two thirds of the session timeout later, the queue must be empty, and another client must be
//! granted the lock. In every other round the client holds another lock, otherwise it is idle.
//!
//! Strays do not appear in every round, because the attach must overtake a create. So the drill counts the rounds with
//! strays. A run of twenty rounds without a stray has tested nothing, and fails.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use zookeeper_client::{AddWatchMode, Client, CreateMode, Error, EventType};
use zoolock::{Guard, Zoolock};
use zoolock_tests::raw_client::{RawClient, SessionTicket, password_on_apache};
use zoolock_tests::wait::{retry_until_ok, wait_until};
use zoolock_tests::{Proxy, TestFailure, lock, opcode};
use zoolock_wire::{Acl, CreateRequest, Request, perms};

use crate::Outcome;
use crate::clock::{now, seconds};
use crate::ensemble::{Ensemble, NODES, NodeRole, START, TICK, WHOLE};
use crate::interrupt::until_interrupted;
use crate::tree;

/// The number of ticks after which the leader drops a silent follower: twenty seconds, longer than a stop.
const SYNC_LIMIT: u32 = 40;
const SESSION: Duration = Duration::from_secs(24);
/// The longest time after the follower continues until the queue is empty.
const CLEAN: Duration = SESSION.saturating_mul(2).checked_div(3).unwrap();
/// The number of times that the client's connections are closed.
const BLIPS: usize = 4;
/// The longest time for each step of a round.
const STEP: Duration = Duration::from_secs(30);
/// The number of rounds of which one must have strays.
const ROUNDS_WITH_STRAY: usize = 20;
/// The time for which a client without the library waits for the answer to an attach.
const ABANDONED: Duration = Duration::from_millis(20);
/// The mode of an ephemeral sequential znode.
const EPHEMERAL_SEQUENTIAL: i32 = 3;

/// A deliberate bug, which the drill must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StraysBug {
    /// A client without the library sends the creates, and never looks for their znodes. The drill ends after the first
    /// violation.
    NoSearch,
}

/// The settings of the drill.
#[derive(Args, Debug)]
pub(crate) struct StraysArgs {
    /// The number of rounds.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// The number of calls of `lock()` whose creates wait in the stopped follower, at most 8.
    #[arg(long, default_value_t = 8)]
    calls: usize,
    /// The number of times that the client tries to attach to the stopped follower before it attaches elsewhere.
    #[arg(long, default_value_t = 3)]
    attaches: usize,
    /// Adds a deliberate bug: the drill must fail.
    #[arg(long = "break", value_name = "WHAT")]
    broken: Option<StraysBug>,
}

/// The result of one round.
struct RoundResult {
    /// The number of attaches that the client abandoned.
    attaches: usize,
    /// The time for which the follower was stopped.
    stopped: Duration,
    /// The znodes that were created after the follower continued.
    strays: usize,
    /// The time from the end of the stop until no znode of the session was in the queue.
    emptied: Option<Duration>,
    /// Set if another client was granted the lock.
    is_rival_served: bool,
}

/// Runs the drill. Returns whether no znode was left.
pub(crate) async fn run(settings: &StraysArgs) -> Outcome<bool> {
    until_interrupted(run_rounds(settings)).await
}

async fn run_rounds(settings: &StraysArgs) -> Outcome<bool> {
    let dir = TempDir::with_prefix("zoolock-strays-")?;
    let mut ensemble = Ensemble::configure(dir.path(), SYNC_LIMIT).await?;
    ensemble.wait_until_whole(START).await?;
    let (mut results, mut violations) = (Vec::new(), Vec::new());
    for round in 1..=settings.rounds {
        let begun = now();
        let result = run_round(&mut ensemble, settings, round).await?;
        eprintln!(
            "{round:3} {} abandoned attaches in {:.1} s, {} strays, queue empty after {}; {:.1} s",
            result.attaches,
            result.stopped.as_secs_f64(),
            result.strays,
            result
                .emptied
                .map_or("more than the limit".to_owned(), |time| format!("{:.1} s", time.as_secs_f64())),
            seconds(now() - begun),
        );
        violations.extend(result.violations(round));
        results.push(result);
        if settings.broken.is_some() && !violations.is_empty() {
            break;
        }
        ensemble.wait_until_whole(WHOLE).await?;
    }
    if results.len() >= ROUNDS_WITH_STRAY && results.iter().all(|result| result.strays == 0) {
        violations.push("no round had a stray, so nothing was tested".to_owned());
    }
    let mut text =
        "| rounds | with strays | strays | with strays left | longest time until the queue is empty |\n"
            .to_owned();
    text += "|-|-|-|-|-|\n";
    let _ = writeln!(
        text,
        "| {} | {} | {} | {} | {:.1} s |",
        results.len(),
        results.iter().filter(|result| result.strays > 0).count(),
        results.iter().map(|result| result.strays).sum::<usize>(),
        results.iter().filter(|result| result.emptied.is_none()).count(),
        results.iter().filter_map(|result| result.emptied).max().unwrap_or_default().as_secs_f64(),
    );
    for violation in &violations {
        let _ = writeln!(text, "\nVIOLATION: {violation}");
    }
    println!("{text}");
    Ok(violations.is_empty())
}

impl RoundResult {
    fn violations(&self, round: usize) -> Vec<String> {
        let mut found = Vec::new();
        if self.emptied.is_none() {
            found.push(format!("round {round}: of {} strays some are left after {CLEAN:?}", self.strays));
        }
        if !self.is_rival_served {
            found.push(format!("round {round}: another client was not granted the lock within {CLEAN:?}"));
        }
        found
    }
}

async fn run_round(ensemble: &mut Ensemble, settings: &StraysArgs, round: usize) -> Outcome<RoundResult> {
    let leader = ensemble.leader(WHOLE).await?;
    let stalled = (leader + 1 + round % 2) % NODES;
    let address = ensemble.client_addr(stalled);
    let name = format!("strays{round}");
    let observer = Observer::start(ensemble.client_addr(leader), &name).await?;
    let mut client = match settings.broken {
        None => {
            AnyClient::Library(LibraryClient::open(ensemble, stalled, &name, round.is_multiple_of(2)).await?)
        }
        Some(StraysBug::NoSearch) => {
            observer.create_directory().await?;
            let opened = RawClient::open_session(address, session_millis(), 0).await;
            AnyClient::Raw(opened.map_err(TestFailure::from)?)
        }
    };
    let session = client.session();

    ensemble.stop(stalled).await?;
    let stopped = Instant::now();
    let attaches = match &mut client {
        AnyClient::Library(client) => client.lose_creates(settings, &name).await?,
        AnyClient::Raw(client) => {
            let requests = vec![create_contender(&observer.directory); settings.calls];
            client.send(&requests).await.map_err(TestFailure::from)?;
            for _ in 0..settings.attaches {
                let _ = timeout(ABANDONED, attach(address, session)).await;
            }
            // Dropping the first connection closes it.
            *client = attach(ensemble.client_addr(leader), session).await?;
            settings.attaches
        }
    };
    retry_until_ok("the queue is empty before the follower continues", STEP, || {
        observer.check_empty(session)
    })
    .await?;
    let created = observer.created();
    ensemble.signal(stalled, Signal::CONT);
    let continued = Instant::now();

    wait_until_follower(ensemble, stalled).await?;
    // The follower passes on writes in their order, so the leader has handled the creates before it opens this session.
    tree::connect(&address.to_string()).await?.sync(tree::ROOT).await?;
    let left = CLEAN.saturating_sub(continued.elapsed());
    let emptied = retry_until_ok("the queue is empty", left, || observer.check_empty(session)).await;
    let emptied = emptied.is_ok().then(|| continued.elapsed());
    let strays = observer.created() - created;
    let rival = async {
        let builder = Zoolock::builder().tick_time(TICK).session_timeout(SESSION);
        let rival = builder.connect(&ensemble.connect_string()).await?;
        rival.mutex(&name).lock().await?.release().await?;
        rival.close().await;
        Outcome::Ok(())
    };
    let is_rival_served = timeout_at(continued + CLEAN, rival).await.is_ok_and(|served| served.is_ok());
    client.close().await;
    Ok(RoundResult { attaches, stopped: continued - stopped, strays, emptied, is_rival_served })
}

/// Attaches to a session.
async fn attach(server: SocketAddr, session: i64) -> Outcome<RawClient> {
    let ticket = SessionTicket { session, password: password_on_apache(session) };
    let attached =
        RawClient::attach_session(server, session_millis(), 0, &ticket).await.map_err(TestFailure::from)?;
    Ok(attached.ok_or("the session has ended")?)
}

/// Returns the request that creates a contender's znode.
fn create_contender(directory: &str) -> Request {
    Request::Create(CreateRequest {
        op: opcode::CREATE2,
        path: format!("{directory}/lock-"),
        data: None,
        acl: vec![Acl::anyone(perms::ALL)],
        flags: EPHEMERAL_SEQUENTIAL,
        ttl: 0,
    })
}

async fn wait_until_follower(ensemble: &Ensemble, node: usize) -> Outcome<()> {
    let check = async || match ensemble.role(node).await {
        NodeRole::Follower => Ok(()),
        role => Err(TestFailure::new(format!("its role is {role:?}"))),
    };
    Ok(retry_until_ok("the follower serves again", STEP, check).await?)
}

fn session_millis() -> i32 {
    i32::try_from(SESSION.as_millis()).expect("the session timeout is short")
}

/// A client of the leader that watches the queue.
struct Observer {
    client: Client,
    directory: String,
    created: Arc<Mutex<usize>>,
    task: JoinHandle<()>,
}

impl Observer {
    async fn start(leader: SocketAddr, name: &str) -> Outcome<Observer> {
        let client = tree::connect(&leader.to_string()).await?;
        let directory = format!("{}/{name}", tree::ROOT);
        let mut watcher = client.watch(&directory, AddWatchMode::PersistentRecursive).await?;
        let created = Arc::new(Mutex::new(0));
        let (below, counter) = (format!("{directory}/"), created.clone());
        let task = tokio::spawn(async move {
            loop {
                let event = watcher.changed().await;
                if event.session_state.is_terminated() {
                    return;
                }
                if event.event_type == EventType::NodeCreated && event.path.starts_with(&below) {
                    *lock(&counter) += 1;
                }
            }
        });
        Ok(Observer { client, directory, created, task })
    }

    /// Returns the number of znodes that were ever created in the queue.
    fn created(&self) -> usize {
        *lock(&self.created)
    }

    /// Checks that the session has no znode in the queue.
    async fn check_empty(&self, session: i64) -> zoolock_tests::Result<()> {
        let contenders =
            tree::contenders(&self.client).await.map_err(|error| TestFailure::new(error.to_string()))?;
        let below = format!("{}/", self.directory);
        let own = contenders.iter().filter(|it| it.session == session && it.path.starts_with(&below)).count();
        if own == 0 {
            Ok(())
        } else {
            Err(TestFailure::new(format!("{own} znodes of the session are there")))
        }
    }

    async fn create_directory(&self) -> Outcome<()> {
        let mode = CreateMode::Persistent.with_acls(zookeeper_client::Acls::anyone_all());
        for path in [tree::ROOT, &self.directory] {
            match self.client.create(path, &[], &mode).await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum AnyClient {
    Library(LibraryClient),
    Raw(RawClient),
}

impl AnyClient {
    fn session(&self) -> i64 {
        match self {
            AnyClient::Library(client) => client.session,
            AnyClient::Raw(client) => client.ticket.session,
        }
    }

    async fn close(self) {
        match self {
            AnyClient::Library(client) => {
                drop(client.kept);
                client.zoolock.close().await;
            }
            AnyClient::Raw(mut client) => {
                let _ = client.close().await;
            }
        }
    }
}

/// A client of the library, which reaches each node through a proxy.
struct LibraryClient {
    proxies: Vec<Proxy>,
    stalled: usize,
    zoolock: Zoolock,
    session: i64,
    /// The guard of another lock.
    kept: Option<Guard>,
}

impl LibraryClient {
    /// Opens a client that is attached to the node `stalled`, and creates the lock's directory.
    async fn open(
        ensemble: &Ensemble,
        stalled: usize,
        name: &str,
        is_in_use: bool,
    ) -> Outcome<LibraryClient> {
        let mut proxies = Vec::new();
        for node in 0..NODES {
            proxies.push(Proxy::start(&ensemble.client_addr(node).to_string()).await?);
        }
        for proxy in others(&proxies, stalled) {
            proxy.refuse(true).await;
        }
        let addresses = proxies.iter().map(Proxy::addr).collect::<Vec<_>>().join(",");
        let builder = Zoolock::builder().tick_time(TICK).session_timeout(SESSION);
        let zoolock = timeout(STEP, builder.connect(&addresses)).await??;
        let guard = timeout(STEP, zoolock.mutex(name).lock()).await??;
        let session = guard.session_id();
        guard.release().await?;
        let kept = if is_in_use { Some(zoolock.mutex(format!("{name}-kept")).lock().await?) } else { None };
        for proxy in others(&proxies, stalled) {
            proxy.refuse(false).await;
        }
        Ok(LibraryClient { proxies, stalled, zoolock, session, kept })
    }

    /// Calls `lock()` while the node is stopped, cuts the client's connections, and waits until the calls have ended.
    /// Returns the number of attaches that the client abandoned.
    async fn lose_creates(&self, settings: &StraysArgs, name: &str) -> Outcome<usize> {
        let stalled = &self.proxies[self.stalled];
        let creates = || stalled.counts().requests(opcode::CREATE2);
        let (connects, sent) = (self.connects(), creates());
        let (mut calls, mut cancelled) = (JoinSet::new(), Vec::new());
        for call in 0..settings.calls {
            let mutex = self.zoolock.mutex(name);
            let handle = calls.spawn(async move { mutex.lock().await?.release().await });
            if call % 2 == 1 {
                cancelled.push(handle);
            }
        }
        wait_until("the creates are sent", STEP, || creates() >= sent + settings.calls as u64).await?;
        cancelled.iter().for_each(|call| call.abort());
        for blip in 0..BLIPS {
            self.cut(if blip == 0 { settings.attaches } else { 1 }).await?;
            while let Some(ended) = timeout(STEP, calls.join_next()).await? {
                match ended {
                    Err(error) if error.is_cancelled() => {}
                    ended => ended??,
                }
            }
        }
        Ok(self.connects() - connects)
    }

    /// Closes all connections. Refuses new ones to the working nodes until the client has sent `attaches` connect requests
    /// to the stopped node. Then waits until the client is attached to a working node.
    async fn cut(&self, attaches: usize) -> Outcome<()> {
        for proxy in others(&self.proxies, self.stalled) {
            proxy.refuse(true).await;
        }
        let connects = self.connects();
        for proxy in &self.proxies {
            proxy.close_connections().await;
        }
        wait_until("the client tries to attach to the stopped node", STEP, || {
            self.connects() >= connects + attaches
        })
        .await?;
        for proxy in others(&self.proxies, self.stalled) {
            proxy.refuse(false).await;
        }
        let is_attached = |proxy: &Proxy| {
            let connections = proxy.stats().connections;
            connections.iter().any(|it| !it.closed && it.counts.replies(opcode::CREATE_SESSION) > 0)
        };
        let attached = || others(&self.proxies, self.stalled).any(is_attached);
        Ok(wait_until("the client is attached to a working node", STEP, attached).await?)
    }

    /// Returns the number of connect requests to the node that is stopped.
    fn connects(&self) -> usize {
        self.proxies[self.stalled].counts().requests(opcode::CREATE_SESSION) as usize
    }
}

fn others(proxies: &[Proxy], stalled: usize) -> impl Iterator<Item = &Proxy> {
    proxies.iter().enumerate().filter(move |(node, _)| *node != stalled).map(|(_, proxy)| proxy)
}
