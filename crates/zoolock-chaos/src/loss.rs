//! Whether who has lost its lock knows it in time: many holders at once, each a process, each with a rival in its queue
//! that comes by another node.
//!
//! Each round takes the holders from the ensemble in one way, waits until every rival has its lock, and puts all right
//! again. Everybody reads the same clock, so that the last moment at which a holder believed can be put beside the one at
//! which its rival was granted.

pub(crate) mod holder;
mod judge;
mod post;
mod report;
mod words;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fastrand::Rng;
use rustix::process::Signal;
use serde::Serialize;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use zookeeper_client::Client;
use zoolock::{Guard, Zoolock};

use crate::Outcome;
use crate::binary;
use crate::clock::{now, seconds};
use crate::ensemble::{Ensemble, NODES};
use crate::faults::isolate;
use crate::mend::mend;
use crate::tree;
use judge::Case;
use post::{Ground, Post};

/// The shortest session that the command takes, which cannot see the tick of the ensemble.
pub(crate) const SESSION: Duration = Duration::from_secs(6);
/// Ten seconds, as of a ZooKeeper that nobody has configured: a follower that was cut off serves its clients for longer
/// than their sessions live.
pub(crate) const SYNC_LIMIT: u32 = 20;
/// One holder of so many is `zoolock run`.
const RUNS: usize = 4;
/// A machine under load starts three virtual machines slowly.
const START: Duration = Duration::from_secs(120);
const WHOLE: Duration = Duration::from_secs(60);
/// How long it may take until all hold and their rivals wait.
const READY: Duration = Duration::from_secs(60);
/// How long rivals may wait: the session has to end, on a tick, and the answer to come.
const SERVED: Duration = Duration::from_secs(20);
/// How long holders have to hear what they could not hear before.
const KNOWN: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);

/// What is done to all holders of a round at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
pub(crate) enum Fault {
    /// Nothing passes between them and their node: in every other round their connections are closed first.
    Cut,
    /// SIGSTOP, and SIGCONT when their rivals have the locks.
    Stopped,
    /// The follower that they all are on is cut off from the other two, and they still reach it.
    Isolated,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Cut => "link cut",
            Fault::Stopped => "holder stopped",
            Fault::Isolated => "follower isolated",
        }
    }
}

/// What holders do wrong, so that the judge is seen to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Break {
    /// They say that their guards are valid, whatever those say; commands go on when their lock is lost.
    NeverLost,
}

/// The settings of the drill.
#[derive(Args, Debug)]
pub(crate) struct Settings {
    /// How many rounds of each fault.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// How many hold at once; every fourth is `zoolock run` with a command.
    #[arg(long, default_value_t = 20)]
    holders: usize,
    /// What decides who is hit when; a random one unless given. It is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these faults.
    #[arg(long, value_delimiter = ',', value_name = "FAULT")]
    only: Vec<Fault>,
    /// Does something wrong on purpose: the drill must fail.
    #[arg(long = "break", value_name = "WHAT")]
    broken: Option<Break>,
    /// Where to leave the table, all figures as JSON and the logs of the servers.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs it, and says whether everybody knew in time.
pub(crate) async fn run(settings: &Settings) -> Outcome<bool> {
    let seed = settings.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}, {} holders, {} rounds of each fault", settings.holders, settings.rounds);
    let dir = TempDir::with_prefix("zoolock-loss-")?;
    let ground = Ground { dir: dir.path().to_owned(), zoolock: binary::zoolock()?, broken: settings.broken };
    let mut ensemble = Ensemble::lay_out(dir.path(), SYNC_LIMIT).await?;
    ensemble.whole(START).await?;
    let mut drill = Drill {
        holders: settings.holders,
        rng: Rng::with_seed(seed),
        ground,
        ensemble,
        cases: Vec::new(),
        violations: Vec::new(),
        diverged: Vec::new(),
    };
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = drill.rounds(settings) => ended?,
        _ = tokio::signal::ctrl_c() => return Err("interrupted".into()),
        _ = terminated.recv() => return Err("terminated".into()),
    }
    let Drill { ensemble, cases, mut violations, diverged, .. } = drill;
    drop(ensemble);
    violations.extend(cases.iter().flat_map(Case::violations));
    let text = report::text(settings, seed, &cases, &diverged, &violations);
    println!("{text}");
    if let Some(out) = &settings.out {
        std::fs::create_dir_all(out)?;
        std::fs::write(out.join("loss.md"), &text)?;
        std::fs::write(out.join("loss.json"), report::json(seed, &cases, &violations)?)?;
        std::fs::copy(dir.path().join("holders.log"), out.join("holders.log"))?;
        for node in 1..=NODES {
            std::fs::copy(dir.path().join(format!("node{node}/log")), out.join(format!("node{node}.log")))?;
        }
    }
    Ok(violations.is_empty())
}

struct Drill {
    holders: usize,
    rng: Rng,
    ground: Ground,
    ensemble: Ensemble,
    cases: Vec<Case>,
    /// What no holder is to blame for.
    violations: Vec<String>,
    diverged: Vec<String>,
}

/// When a rival had its lock.
type Granted = Result<(i64, Guard), zoolock::Error>;

/// The rivals of one round. Those of a node share a session.
struct Rivals {
    clients: Vec<Zoolock>,
    waiting: JoinSet<(usize, Granted)>,
    granted: Vec<Option<i64>>,
    guards: Vec<Guard>,
    /// What did not go well with them; the round goes on, and its table is not lost.
    failed: Vec<String>,
}

impl Drill {
    async fn rounds(&mut self, settings: &Settings) -> Outcome<()> {
        for round in 1..=settings.rounds {
            for fault in Fault::value_variants() {
                if settings.only.is_empty() || settings.only.contains(fault) {
                    let begun = now();
                    self.round(*fault, round).await?;
                    let (name, took) = (fault.name(), seconds(now() - begun));
                    eprintln!("{round:3} {name:18} {took:5.1} s");
                }
            }
        }
        Ok(())
    }

    async fn round(&mut self, fault: Fault, round: usize) -> Outcome<()> {
        let leader = self.ensemble.leader(START).await?;
        let follower = (leader + self.rng.usize(1..NODES)) % NODES;
        let mut posts = Vec::new();
        for number in 0..self.holders {
            let runs = number % RUNS == RUNS - 1 || self.holders < RUNS && number + 1 == self.holders;
            let (lock, node) = (format!("l{number:02}"), self.ensemble.client_addr(follower));
            posts.push(Post::start(&self.ground, node, &lock, runs && self.holders > 1).await?);
        }
        until("all hold", READY, || posts.iter().all(|post| post.record().held.is_some())).await?;
        let client = tree::connect(&self.ensemble.client_addr(leader).to_string()).await?;
        let mut rivals = self.rivals(follower, &posts).await?;
        queued(&client, &posts).await?;
        // At any time between two renewals.
        sleep(Duration::from_millis(self.rng.u64(1_000..2_000))).await;
        let mut struck = Vec::new();
        match fault {
            Fault::Cut => {
                if posts.iter().any(|post| post.connections() == 0) {
                    return Err("a holder has no connection that could be cut".into());
                }
                for post in &posts {
                    post.shut(round.is_multiple_of(2));
                    struck.push(now());
                }
            }
            Fault::Stopped => {
                for post in &mut posts {
                    post.signal(Signal::STOP);
                    struck.push(now());
                }
            }
            Fault::Isolated => {
                isolate(&self.ensemble, follower);
                struck.resize(posts.len(), now());
            }
        }
        rivals.until_granted(Instant::now() + SESSION + SERVED).await?;
        sleep(Duration::from_millis(self.rng.u64(300..1_000))).await;
        let mut continued = vec![None; posts.len()];
        match fault {
            Fault::Cut => posts.iter().for_each(Post::open),
            Fault::Stopped => {
                for (post, continued) in posts.iter_mut().zip(&mut continued) {
                    *continued = Some(now());
                    post.signal(Signal::CONT);
                }
            }
            Fault::Isolated => self.ensemble.open_ways(),
        }
        self.ensemble.whole(WHOLE).await?;
        // Who never hears of it is judged, not waited for.
        let _ = until("all know", KNOWN, || posts.iter_mut().all(Post::knows)).await;
        let mut ending = JoinSet::new();
        for (number, post) in posts.into_iter().enumerate() {
            let (lock, runs) = (post.lock().to_owned(), post.runs());
            let (struck, continued, rival) = (struck[number], continued[number], rivals.granted[number]);
            ending.spawn(async move {
                let (record, exit) = post.end().await;
                Case { fault, round, lock, runs, struck, continued, rival, exit, record }
            });
        }
        while let Some(case) = ending.join_next().await {
            self.cases.push(case?);
        }
        let failed = rivals.release().await;
        self.violations
            .extend(failed.into_iter().map(|error| format!("round {round}, {}: {error}", fault.name())));
        self.diverged.extend(mend(&mut self.ensemble, WHOLE).await?);
        let client = tree::connect(&self.ensemble.connect_string()).await?;
        let left = left(&client).await?;
        self.violations
            .extend(left.into_iter().map(|it| format!("round {round}, {}: {it} is left", fault.name())));
        Ok(())
    }

    /// Those who wait for the locks of all, each by one of the nodes that nothing is done to.
    async fn rivals(&self, follower: usize, posts: &[Post]) -> Outcome<Rivals> {
        let mut clients = Vec::new();
        for node in (0..NODES).filter(|node| *node != follower) {
            clients.push(holder::connect(&self.ensemble.client_addr(node).to_string()).await?);
        }
        let mut waiting = JoinSet::new();
        for (number, post) in posts.iter().enumerate() {
            let mutex = clients[number % clients.len()].mutex(post.lock());
            waiting.spawn(async move {
                let guard = mutex.lock().await;
                (number, guard.map(|guard| (now(), guard)))
            });
        }
        Ok(Rivals {
            clients,
            waiting,
            granted: vec![None; posts.len()],
            guards: Vec::new(),
            failed: Vec::new(),
        })
    }
}

impl Rivals {
    /// Until all have what they wait for, or that time. An early grant is one, too.
    async fn until_granted(&mut self, deadline: Instant) -> Outcome<()> {
        while let Ok(Some(ended)) = timeout_at(deadline, self.waiting.join_next()).await {
            let (number, granted) = ended?;
            match granted {
                Ok((at, guard)) => {
                    self.granted[number] = Some(at);
                    self.guards.push(guard);
                }
                Err(error) => self.failed.push(format!("a rival is not served: {error}")),
            }
        }
        Ok(())
    }

    /// Lets all go. What did not go well.
    async fn release(mut self) -> Vec<String> {
        self.waiting.shutdown().await;
        for guard in self.guards {
            if let Err(error) = guard.release().await {
                self.failed.push(format!("a rival could not let go: {error}"));
            }
        }
        for client in self.clients {
            client.close().await;
        }
        self.failed
    }
}

/// Waits until behind each holder there is a rival.
async fn queued(client: &Client, posts: &[Post]) -> Outcome<()> {
    let deadline = Instant::now() + READY;
    loop {
        let contenders = tree::contenders(client).await?;
        let queue = |post: &Post| {
            let dir = format!("{}/{}/", tree::ROOT, post.lock());
            contenders.iter().filter(|contender| contender.path.starts_with(&dir)).count()
        };
        if posts.iter().all(|post| queue(post) == 2) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("not everybody is in its queue after {READY:?}").into());
        }
        sleep(LOOK).await;
    }
}

/// Whoever is left when all should be gone.
async fn left(client: &Client) -> Outcome<Vec<String>> {
    let deadline = Instant::now() + 3 * SESSION;
    loop {
        let left = tree::contenders(client).await?;
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left.into_iter().map(|contender| contender.path).collect());
        }
        sleep(LOOK).await;
    }
}

async fn until(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) -> Outcome<()> {
    let deadline = Instant::now() + patience;
    while !is_so() {
        if Instant::now() > deadline {
            return Err(format!("not so after {patience:?}: {what}").into());
        }
        sleep(LOOK).await;
    }
    Ok(())
}
