//! Contends for one lock by this library, as a process of its own beside those of other makes.
//!
//! `interop-peer CONNECT KIND LOCK REFEREE SECTIONS CONTENDERS`; what it is told and what it says is in
//! `tests/foreign/interop/peer.rs`. A kind is `mutex`, `read` or `write`, then `@` and a naming, and `+pattern` where
//! kazoo's clients were told to look for our names.

use std::io::{BufRead as _, Write as _};
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::{Guard, Mutex, ReadGuard, RwLock, WriteGuard, Zoolock};
use zoolock_tests::{Failure, ServerOptions, tree};

/// How long a section lasts.
const INSIDE: Duration = Duration::from_millis(1);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() {
    if let Err(error) = run().await {
        let code = match error.downcast_ref::<Violation>() {
            Some(violation) => {
                say(&format!("violation: {violation}"));
                1
            }
            None => {
                eprintln!("{error}");
                2
            }
        };
        exit(code);
    }
}

async fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [connect, kind, lock, referee, sections, contenders] = arguments.as_slice() else {
        return Err("interop-peer CONNECT KIND LOCK REFEREE SECTIONS CONTENDERS".into());
    };
    let plan = Arc::new(Plan {
        connect: connect.clone(),
        kind: kind.clone(),
        lock: lock.clone(),
        referee: referee.clone(),
        sections: sections.parse()?,
        stopped: AtomicBool::new(false),
    });
    let (go, begun) = watch::channel(false);
    let obedient = plan.clone();
    std::thread::spawn(move || obey(&obedient, &go));
    let (ready, mut are_ready) = mpsc::channel(1);
    let mut all = JoinSet::new();
    let contenders: usize = contenders.parse()?;
    for _ in 0..contenders {
        all.spawn(contend(plan.clone(), ready.clone(), begun.clone()));
    }
    let mut missing = contenders;
    let mut diaries = Vec::new();
    while diaries.len() < contenders {
        tokio::select! {
            Some(()) = are_ready.recv() => {
                missing -= 1;
                if missing == 0 {
                    say("ready");
                }
            }
            Some(done) = all.join_next() => diaries.push(done??),
        }
    }
    say(&report(diaries));
    exit(0);
}

struct Plan {
    connect: String,
    kind: String,
    lock: String,
    referee: String,
    /// None: until it is told to stop.
    sections: usize,
    stopped: AtomicBool,
}

/// By the service's transactions: when a contender asked for the lock, when it was inside.
#[derive(Default)]
struct Diary {
    asked: Vec<i64>,
    entered: Vec<i64>,
    waits: Vec<Duration>,
}

/// Somebody was inside who may not have been.
#[derive(Debug)]
struct Violation(String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    // Who listens has killed us before it stops to.
    let _ = writeln!(out, "{what}").and_then(|()| out.flush());
}

fn obey(plan: &Plan, go: &watch::Sender<bool>) {
    for order in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
        plan.stopped.fetch_or(order == "stop", Ordering::Relaxed);
        go.send_replace(true);
    }
    exit(3);
}

fn report(diaries: Vec<Diary>) -> String {
    let ms = |wait: &Duration| wait.as_secs_f64() * 1000.0;
    let mut waits: Vec<Duration> = diaries.iter().flat_map(|diary| diary.waits.iter().copied()).collect();
    waits.sort();
    let contenders: Vec<_> = diaries
        .into_iter()
        .map(|diary| serde_json::json!({ "asked": diary.asked, "entered": diary.entered }))
        .collect();
    let report = serde_json::json!({
        "sections": waits.len(),
        "longest_ms": waits.last().map_or(0.0, ms),
        "median_ms": waits.get(waits.len() / 2).map_or(0.0, ms),
        "contenders": contenders,
    });
    report.to_string()
}

/// One session, one handle of the lock.
async fn contend(
    plan: Arc<Plan>,
    ready: mpsc::Sender<()>,
    mut begun: watch::Receiver<bool>,
) -> Result<Diary> {
    let (kind, naming) = plan.kind.split_once('@').ok_or_else(|| Failure::new("a kind is KIND@NAMING"))?;
    let mut settings = Zoolock::builder()
        .tick_time(ServerOptions::default().tick)
        .session_timeout(Duration::from_secs(10))
        .naming(naming.trim_end_matches("+pattern").parse()?);
    if naming.ends_with("+pattern") {
        settings = settings.kazoo_pattern();
    }
    let zl = settings.connect(&plan.connect).await?;
    let client = tree::connect(&plan.connect).await?;
    let handle = Handle::of(&zl, kind, &plan.lock)?;
    // What is slow the first time is over before the others wait for it.
    section(&handle, &client, &plan, &mut Diary::default()).await?;
    ready.send(()).await?;
    begun.wait_for(|begun| *begun).await?;
    let mut diary = Diary::default();
    let more = |done| match plan.sections {
        0 => !plan.stopped.load(Ordering::Relaxed),
        sections => done < sections,
    };
    while more(diary.entered.len()) {
        section(&handle, &client, &plan, &mut diary).await?;
    }
    zl.close().await;
    Ok(diary)
}

async fn section(handle: &Handle, client: &Client, plan: &Plan, diary: &mut Diary) -> Result<()> {
    let referee = Referee { client, plan };
    diary.asked.push(referee.now().await?);
    let began = Instant::now();
    let held = handle.acquire().await?;
    diary.waits.push(began.elapsed());
    let entered = match &held {
        Held::Mutex(_) | Held::Write(_) => referee.alone().await?,
        Held::Read(_) => referee.reading().await?,
    };
    diary.entered.push(entered);
    held.release().await?;
    Ok(())
}

enum Handle {
    Mutex(Mutex),
    Read(RwLock),
    Write(RwLock),
}

enum Held {
    Mutex(Guard),
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Handle {
    fn of(zl: &Zoolock, kind: &str, lock: &str) -> Result<Handle> {
        Ok(match kind {
            "mutex" => Handle::Mutex(zl.mutex(lock)),
            "read" => Handle::Read(zl.rwlock(lock)),
            "write" => Handle::Write(zl.rwlock(lock)),
            _ => return Err(Failure::new(format!("no such kind: {kind}")).into()),
        })
    }

    async fn acquire(&self) -> Result<Held> {
        Ok(match self {
            Handle::Mutex(lock) => Held::Mutex(lock.lock().await?),
            Handle::Read(lock) => Held::Read(lock.read().await?),
            Handle::Write(lock) => Held::Write(lock.write().await?),
        })
    }
}

impl Held {
    async fn release(self) -> Result<()> {
        match self {
            Held::Mutex(guard) => guard.release().await?,
            Held::Read(guard) => guard.release().await?,
            Held::Write(guard) => guard.release().await?,
        }
        Ok(())
    }
}

/// Nodes beside the lock, from which everybody sees who else is inside.
struct Referee<'a> {
    client: &'a Client,
    plan: &'a Plan,
}

impl Referee<'_> {
    /// The last transaction here.
    async fn now(&self) -> Result<i64> {
        let stat = self.client.check_stat(&self.plan.referee).await?;
        Ok(stat.ok_or("there is no referee")?.pzxid)
    }

    async fn alone(&self) -> Result<i64> {
        let entered = match self.create("inside").await {
            Ok(entered) => entered,
            Err(zookeeper_client::Error::NodeExists) => {
                let whose = self.data("inside").await;
                return Err(self.violation(&format!("somebody else is alone inside: {whose}")).await);
            }
            Err(error) => return Err(error.into()),
        };
        self.expect_none("reader-").await?;
        tokio::time::sleep(INSIDE).await;
        self.delete("inside").await?;
        // The lock is still ours.
        self.expect_none("reader-").await?;
        Ok(entered)
    }

    async fn reading(&self) -> Result<i64> {
        let node = unique("reader");
        let entered = self.create(&node).await?;
        self.expect_none("inside").await?;
        tokio::time::sleep(INSIDE).await;
        self.expect_none("inside").await?;
        self.delete(&node).await?;
        Ok(entered)
    }

    async fn create(&self, node: &str) -> std::result::Result<i64, zookeeper_client::Error> {
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        let who = self.who();
        let (stat, _) = self.client.create(&self.path(node), who.as_bytes(), &options).await?;
        Ok(stat.czxid)
    }

    async fn delete(&self, node: &str) -> Result<()> {
        Ok(self.client.delete(&self.path(node), None).await?)
    }

    async fn found(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = self.client.list_children(&self.plan.referee).await?;
        names.retain(|name| name.starts_with(prefix));
        Ok(names)
    }

    async fn expect_none(&self, prefix: &str) -> Result<()> {
        match self.found(prefix).await?.first() {
            None => Ok(()),
            Some(name) => {
                let whose = self.data(name).await;
                Err(self.violation(&format!("beside us is {name}: {whose}")).await)
            }
        }
    }

    async fn data(&self, node: &str) -> String {
        match self.client.get_data(&self.path(node)).await {
            Ok((data, _)) => String::from_utf8_lossy(&data).into_owned(),
            Err(error) => error.to_string(),
        }
    }

    async fn violation(&self, what: &str) -> Box<dyn std::error::Error + Send + Sync> {
        let mut queue = self.client.list_children(&self.plan.lock).await.unwrap_or_default();
        queue.sort();
        Violation(format!("{}: {what}; at the lock are {queue:?}", self.who())).into()
    }

    fn who(&self) -> String {
        format!("{} of process {}", self.plan.kind, std::process::id())
    }

    fn path(&self, node: &str) -> String {
        format!("{}/{node}", self.plan.referee)
    }
}

fn unique(what: &str) -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}
