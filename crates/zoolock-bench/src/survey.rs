//! What it costs a server when somebody looks at all locks: our way, Curator's and kazoo's, on Apache ZooKeeper.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Args;
use futures_util::StreamExt as _;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use zookeeper_client::{Acls, Client, CreateMode};
use zoolock::Zoolock;
use zoolock_tests::Proxy;

use crate::servers::{Kind, Running};
use crate::stats::{median, short};
use crate::{Outcome, PAGE, page, process};

const ROOT: &str = "/locks";
const JARS: &str = "/usr/share/java/curator-recipes.jar:/usr/share/java/slf4j-nop.jar";
/// Debian's, which has Debian's kazoo.
const INTERPRETER: &str = "/usr/bin/python3";
/// All three read these names: kazoo with the pattern that its users give it for that.
const NODE: &str = "_c_3f2504e0-4f89-11d3-9a0c-0305e82c3301-lock-";
/// How many are made at a time.
const AT_ONCE: usize = 512;
/// How long one look may take.
const PATIENCE: Duration = Duration::from_secs(900);

#[derive(Debug, Args)]
pub(crate) struct Settings {
    /// How many locks there are, each with somebody who holds it.
    #[arg(long, default_value_t = 100_000)]
    locks: usize,
    /// How many wait for one of them.
    #[arg(long, default_value_t = 10_000)]
    waiters: usize,
    /// How often each looks; they take turns.
    #[arg(long, default_value_t = 2)]
    rounds: usize,
    /// Where the server keeps its data.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only print; leave docs/BENCHMARKS.md alone.
    #[arg(long)]
    dry_run: bool,
}

/// What one look took.
struct Taken {
    requests: u64,
    bytes: u64,
    server: Duration,
    elapsed: Duration,
}

pub(crate) fn main(settings: &Settings) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let table = runtime.block_on(measured(settings))?;
    print!("{table}");
    if settings.dry_run { Ok(()) } else { page::put(Path::new(PAGE), "survey", &table) }
}

async fn measured(settings: &Settings) -> Outcome<String> {
    if let Some(missing) = Kind::Apache.missing(Path::new("")) {
        return Err(missing.into());
    }
    let dir = settings.dir.clone().unwrap_or_else(std::env::temp_dir);
    let server = tokio::task::block_in_place(|| Running::start(Kind::Apache, Path::new(""), &dir))?;
    let holders = fill(&server.addr.to_string(), settings).await?;
    let proxy = Proxy::start(&server.addr.to_string()).await?;
    let zoolock = Zoolock::connect(&proxy.addr()).await?;
    let mut lookers = [
        Looker::Ours(zoolock.clone()),
        Looker::start("Curator, `getParticipantNodes`", &proxy.addr(), java)?,
        Looker::start("kazoo, `contenders`", &proxy.addr(), python)?,
    ];
    for looker in &mut lookers {
        looker.ready().await?;
    }
    let mut taken: Vec<Vec<Taken>> = lookers.iter().map(|_| Vec::new()).collect();
    for round in 0..settings.rounds {
        let count = lookers.len();
        for turn in 0..count {
            let at = (turn + round) % count;
            eprintln!("round {} of {}: {}", round + 1, settings.rounds, lookers[at].name());
            taken[at].push(looked(&mut lookers[at], &server, &proxy, settings).await?);
        }
    }
    zoolock.close().await;
    drop(holders);
    Ok(table(settings, &lookers, &taken))
}

/// Locks that somebody holds; he does as long as what is returned.
async fn fill(address: &str, settings: &Settings) -> Outcome<Client> {
    let client = Client::connect(address).await?;
    let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let sequential = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (persistent, sequential) = (&persistent, &sequential);
    client.create(ROOT, b"", persistent).await?;
    let lock = |number: usize| format!("{ROOT}/{number:06}");
    let made = futures_util::stream::iter(0..settings.locks).map(|number| {
        let (client, lock) = (&client, lock(number));
        async move {
            client.create(&lock, b"", persistent).await?;
            client.create(&format!("{lock}/{NODE}"), b"10.0.0.7", sequential).await
        }
    });
    let mut made = made.buffer_unordered(AT_ONCE);
    while let Some(made) = made.next().await {
        made?;
    }
    let queued = futures_util::stream::iter(0..settings.waiters).map(|_| {
        let (client, node) = (&client, format!("{}/{NODE}", lock(0)));
        async move { client.create(&node, b"10.0.0.7", sequential).await }
    });
    let mut queued = queued.buffer_unordered(AT_ONCE);
    while let Some(queued) = queued.next().await {
        queued?;
    }
    drop((made, queued));
    Ok(client)
}

/// Who looks.
enum Looker {
    Ours(Zoolock),
    Peer(Box<Peer>),
}

/// A process of another make.
struct Peer {
    name: &'static str,
    _child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Looker {
    fn start(name: &'static str, address: &str, command: impl FnOnce(&str) -> Command) -> Outcome<Self> {
        let mut command = command(address);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("{name}: {command:?}: {error}"))?;
        let orders = child.stdin.take().ok_or("no input")?;
        let said = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
        Ok(Looker::Peer(Box::new(Peer { name, _child: child, orders, said })))
    }

    fn name(&self) -> &'static str {
        match self {
            Looker::Ours(_) => "**zoolock**, `survey`",
            Looker::Peer(peer) => peer.name,
        }
    }

    /// What it tells of each lock.
    fn tells(&self) -> &'static str {
        match self {
            Looker::Ours(_) => "holder, the next in turn, how many wait, how the last one left",
            Looker::Peer(peer) if peer.name.starts_with("Curator") => "the names of the nodes",
            Looker::Peer(_) => "what each contender says",
        }
    }

    async fn ready(&mut self) -> Outcome<()> {
        match self {
            Looker::Ours(_) => Ok(()),
            Looker::Peer(_) => match self.line().await?.as_str() {
                "ready" => Ok(()),
                other => Err(format!("{}: {other}", self.name()).into()),
            },
        }
    }

    async fn line(&mut self) -> Outcome<String> {
        let name = self.name();
        let Looker::Peer(peer) = self else { return Err("it is no process".into()) };
        let line = tokio::time::timeout(PATIENCE, peer.said.next_line()).await;
        let line = line.map_err(|_| format!("{name}: not done within {PATIENCE:?}"))??;
        line.ok_or_else(|| format!("{name}: it ended, as said above").into())
    }

    /// Looks once: how many locks and contenders it finds.
    async fn look(&mut self) -> Outcome<(usize, usize)> {
        if let Looker::Ours(zoolock) = self {
            let locks = zoolock.survey(None, 1).await?;
            let stand =
                |lock: &zoolock::Snapshot| lock.holder.iter().chain(&lock.beside).count() + lock.waiting;
            return Ok((locks.len(), locks.iter().map(stand).sum()));
        }
        if let Looker::Peer(peer) = self {
            peer.orders.write_all(b"look\n").await?;
        }
        let line = self.line().await?;
        let found =
            line.split_once(' ').and_then(|(locks, all)| Some((locks.parse().ok()?, all.parse().ok()?)));
        found.ok_or_else(|| format!("{}: {line}", self.name()).into())
    }
}

fn java(address: &str) -> Command {
    let mut java = Command::new("java");
    java.args([
        "-Xmx512m",
        "-cp",
        JARS,
        concat!(env!("CARGO_MANIFEST_DIR"), "/peers/Survey.java"),
        address,
        ROOT,
    ]);
    java
}

fn python(address: &str) -> Command {
    let mut python = Command::new(INTERPRETER);
    python.args(["-B", concat!(env!("CARGO_MANIFEST_DIR"), "/peers/survey.py"), address, ROOT]);
    python
}

async fn looked(looker: &mut Looker, server: &Running, proxy: &Proxy, settings: &Settings) -> Outcome<Taken> {
    let (before, cpu, begun) = (proxy.counts(), process::cpu(server.pid())?, Instant::now());
    let found = looker.look().await?;
    let (elapsed, after, server) = (begun.elapsed(), proxy.counts(), process::cpu(server.pid())? - cpu);
    let expected = (settings.locks, settings.locks + settings.waiters);
    if found != expected {
        return Err(format!("{} found {found:?} locks and contenders of {expected:?}", looker.name()).into());
    }
    let requests = after.all_requests() - before.all_requests();
    Ok(Taken { requests, bytes: after.bytes_to_client - before.bytes_to_client, server, elapsed })
}

fn table(settings: &Settings, lookers: &[Looker], taken: &[Vec<Taken>]) -> String {
    let mut text = format!(
        "\n{}.\n\n{} locks, each with a holder, {} more who wait for one of them; the medians of {} looks, in turns.\n\n\
         | | requests | from the server | server's processor time | until it is there | of each lock it tells |\n\
         |-|-|-|-|-|-|\n",
        process::machine(),
        settings.locks,
        settings.waiters,
        settings.rounds
    );
    for (looker, taken) in lookers.iter().zip(taken) {
        let of = |figure: fn(&Taken) -> f64| median(&taken.iter().map(figure).collect::<Vec<_>>());
        let _ = writeln!(
            text,
            "| {} | {:.0} | {} MB | {} s | {} s | {} |",
            looker.name(),
            of(|taken| taken.requests as f64),
            short(of(|taken| taken.bytes as f64 / 1e6)),
            short(of(|taken| taken.server.as_secs_f64())),
            short(of(|taken| taken.elapsed.as_secs_f64())),
            looker.tells()
        );
    }
    text.push('\n');
    text
}
