//! A process that contends for a lock with this library, beside processes of other client libraries.
//!
//! Usage: `interop-peer CONNECT KIND LOCK REFEREE SECTIONS CONTENDERS`. `tests/foreign/interop/peer.rs` describes the
//! arguments, the input and the output. KIND is `mutex`, `read` or `write`, then `@` and a
//! naming. `+pattern` follows if kazoo's clients are configured to see our znodes.

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

/// Length of a critical section.
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
    let (start, started) = watch::channel(false);
    let controlled = plan.clone();
    std::thread::spawn(move || read_orders(&controlled, &start));
    let (ready, mut ready_contenders) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    let contenders: usize = contenders.parse()?;
    for _ in 0..contenders {
        tasks.spawn(contend(plan.clone(), ready.clone(), started.clone()));
    }
    let mut not_ready = contenders;
    let mut logs = Vec::new();
    while logs.len() < contenders {
        tokio::select! {
            Some(()) = ready_contenders.recv() => {
                not_ready -= 1;
                if not_ready == 0 {
                    say("ready");
                }
            }
            Some(done) = tasks.join_next() => logs.push(done??),
        }
    }
    say(&report(logs));
    exit(0);
}

struct Plan {
    connect: String,
    kind: String,
    lock: String,
    referee: String,
    /// Number of critical sections of each contender. 0 means until the order to stop.
    sections: usize,
    stopped: AtomicBool,
}

/// The critical sections of a contender. Moments are transaction ids of the server.
#[derive(Default)]
struct SectionLog {
    /// The moments before the contender asked for the lock.
    asked: Vec<i64>,
    /// The moments when it held the lock.
    entered: Vec<i64>,
    waits: Vec<Duration>,
}

/// More contenders held the lock than may hold it together.
#[derive(Debug)]
struct Violation(String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// Prints a line.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // The parent kills this process before it closes the pipe, so a failed write does not matter.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Executes the orders on stdin, and ends the process at the end of stdin.
fn read_orders(plan: &Plan, start: &watch::Sender<bool>) {
    for order in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
        plan.stopped.fetch_or(order == "stop", Ordering::Relaxed);
        start.send_replace(true);
    }
    exit(3);
}

fn report(logs: Vec<SectionLog>) -> String {
    let ms = |wait: &Duration| wait.as_secs_f64() * 1000.0;
    let mut waits: Vec<Duration> = logs.iter().flat_map(|log| log.waits.iter().copied()).collect();
    waits.sort();
    let contenders: Vec<_> = logs
        .into_iter()
        .map(|log| serde_json::json!({ "asked": log.asked, "entered": log.entered }))
        .collect();
    let report = serde_json::json!({
        "sections": waits.len(),
        "longest_ms": waits.last().map_or(0.0, ms),
        "median_ms": waits.get(waits.len() / 2).map_or(0.0, ms),
        "contenders": contenders,
    });
    report.to_string()
}

/// Contends with its own session and its own handle of the lock.
async fn contend(
    plan: Arc<Plan>,
    ready: mpsc::Sender<()>,
    mut started: watch::Receiver<bool>,
) -> Result<SectionLog> {
    let (kind, naming) = plan.kind.split_once('@').ok_or_else(|| Failure::new("KIND has no @NAMING"))?;
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
    // The first section is slower. It runs before the sections that are measured.
    section(&handle, &client, &plan, &mut SectionLog::default()).await?;
    ready.send(()).await?;
    started.wait_for(|started| *started).await?;
    let mut log = SectionLog::default();
    let more = |done| match plan.sections {
        0 => !plan.stopped.load(Ordering::Relaxed),
        sections => done < sections,
    };
    while more(log.entered.len()) {
        section(&handle, &client, &plan, &mut log).await?;
    }
    zl.close().await;
    Ok(log)
}

/// Acquires the lock, checks with the referee that the hold is allowed, and releases it.
async fn section(handle: &Handle, client: &Client, plan: &Plan, log: &mut SectionLog) -> Result<()> {
    let referee = Referee { client, plan };
    log.asked.push(referee.now().await?);
    let asked = Instant::now();
    let held = handle.acquire().await?;
    log.waits.push(asked.elapsed());
    let entered = match &held {
        Held::Mutex(_) | Held::Write(_) => referee.exclusive().await?,
        Held::Read(_) => referee.shared().await?,
    };
    log.entered.push(entered);
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
            _ => return Err(Failure::new(format!("unknown kind {kind}")).into()),
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

/// Znodes outside the lock directory that show all contenders which of them hold the lock.
struct Referee<'a> {
    client: &'a Client,
    plan: &'a Plan,
}

impl Referee<'_> {
    /// Returns the last transaction on the children of the referee's znode.
    async fn now(&self) -> Result<i64> {
        let stat = self.client.check_stat(&self.plan.referee).await?;
        Ok(stat.ok_or("the referee's znode does not exist")?.pzxid)
    }

    /// Holds an exclusive lock: checks that no other contender holds it. Returns the moment when this contender held
    /// it.
    async fn exclusive(&self) -> Result<i64> {
        let entered = match self.create("inside").await {
            Ok(entered) => entered,
            Err(zookeeper_client::Error::NodeExists) => {
                let owner = self.data("inside").await;
                return Err(self.violation(&format!("somebody else is alone inside: {owner}")).await);
            }
            Err(error) => return Err(error.into()),
        };
        self.expect_none("reader-").await?;
        tokio::time::sleep(INSIDE).await;
        self.delete("inside").await?;
        // This contender still holds the lock.
        self.expect_none("reader-").await?;
        Ok(entered)
    }

    /// Holds a read lock: checks that no writer holds it. Returns the moment when this contender held it.
    async fn shared(&self) -> Result<i64> {
        let name = unique("reader");
        let entered = self.create(&name).await?;
        self.expect_none("inside").await?;
        tokio::time::sleep(INSIDE).await;
        self.expect_none("inside").await?;
        self.delete(&name).await?;
        Ok(entered)
    }

    async fn create(&self, name: &str) -> std::result::Result<i64, zookeeper_client::Error> {
        let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        let contender = self.contender();
        let (stat, _) = self.client.create(&self.path(name), contender.as_bytes(), &options).await?;
        Ok(stat.czxid)
    }

    async fn delete(&self, name: &str) -> Result<()> {
        Ok(self.client.delete(&self.path(name), None).await?)
    }

    async fn names_with(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = self.client.list_children(&self.plan.referee).await?;
        names.retain(|name| name.starts_with(prefix));
        Ok(names)
    }

    async fn expect_none(&self, prefix: &str) -> Result<()> {
        match self.names_with(prefix).await?.first() {
            None => Ok(()),
            Some(name) => {
                let owner = self.data(name).await;
                Err(self.violation(&format!("beside us is {name}: {owner}")).await)
            }
        }
    }

    async fn data(&self, name: &str) -> String {
        match self.client.get_data(&self.path(name)).await {
            Ok((data, _)) => String::from_utf8_lossy(&data).into_owned(),
            Err(error) => error.to_string(),
        }
    }

    async fn violation(&self, problem: &str) -> Box<dyn std::error::Error + Send + Sync> {
        let mut queue = self.client.list_children(&self.plan.lock).await.unwrap_or_default();
        queue.sort();
        Violation(format!("{}: {problem}; at the lock are {queue:?}", self.contender())).into()
    }

    fn contender(&self) -> String {
        format!("{} of process {}", self.plan.kind, std::process::id())
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.plan.referee)
    }
}

fn unique(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{prefix}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
