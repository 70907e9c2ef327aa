//! What is seen of a real server.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tokio::task::JoinSet;
use tokio::time::sleep;
use zoolock::{Guard, Zoolock};

use super::figures::{Each, Server};
use super::fit::Point;
use crate::Outcome;
use crate::process::{cpu, resident};
use crate::servers::{Kind, Running};

/// For the locks: nobody loses one here.
const TIMEOUT: Duration = Duration::from_secs(30);
/// For sessions that only stay: the shortest that a server with its defaults grants to who asks for as much.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// As a service has them: few for all its tasks.
const SESSIONS: usize = 8;
/// Connecting all at once would measure how a server turns them away.
const CONNECTING: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);

/// How much there is to do.
pub(super) struct Sizes {
    clients: Vec<usize>,
    warm_up: Duration,
    counted: Duration,
    sessions: usize,
    settle: Duration,
    watched: Duration,
    locks: usize,
    waiters: usize,
}

impl Sizes {
    pub(super) fn full() -> Self {
        Self {
            clients: vec![1, 2, 4, 8, 16, 32, 64, 128, 256],
            warm_up: Duration::from_secs(2),
            counted: Duration::from_secs(5),
            sessions: 3_000,
            settle: Duration::from_secs(5),
            watched: Duration::from_secs(20),
            locks: 50_000,
            waiters: 10_000,
        }
    }

    pub(super) fn quick() -> Self {
        Self {
            clients: vec![1, 8, 32],
            warm_up: Duration::from_millis(200),
            counted: Duration::from_millis(300),
            sessions: 50,
            settle: Duration::from_millis(300),
            watched: Duration::from_secs(1),
            locks: 500,
            waiters: 200,
        }
    }
}

/// One kind of server, and how much to do with it.
pub(super) struct Stage<'a> {
    pub(super) kind: Kind,
    pub(super) zoolock: &'a Path,
    pub(super) dir: &'a Path,
    pub(super) sizes: &'a Sizes,
}

impl Stage<'_> {
    pub(super) async fn measure(&self) -> Outcome<Server> {
        let (points, turn_cpu_us) = self.turns().await?;
        // What a session or a lock costs is the same on each of three.
        let each = if self.kind == Kind::Ensemble { None } else { Some(self.each().await?) };
        Ok(Server { kind: self.kind, points, turn_cpu_us, each })
    }

    async fn start(&self) -> Outcome<Running> {
        let mut server = Running::launch(self.kind, self.zoolock, self.dir)?;
        while !server.serves()? {
            sleep(PAUSE).await;
        }
        Ok(server)
    }

    /// How many turns a second there are, with more and more clients; and the processor time that the server takes for
    /// one, with the most of them.
    async fn turns(&self) -> Outcome<(Vec<Point>, f64)> {
        let server = self.start().await?;
        // Java compiles what it runs often.
        self.point(&server, 32).await?;
        let (mut points, mut turn_cpu_us) = (Vec::new(), 0.0);
        for clients in &self.sizes.clients {
            eprintln!("{}: {clients} at once", self.kind.name());
            let before = cpu(server.pid())?;
            let (point, turns) = self.point(&server, *clients).await?;
            turn_cpu_us = (cpu(server.pid())? - before).as_secs_f64() * 1e6 / turns as f64;
            points.push(point);
        }
        Ok((points, turn_cpu_us))
    }

    async fn point(&self, server: &Running, clients: usize) -> Outcome<(Point, u64)> {
        let sessions = connect(server.addr, clients.min(SESSIONS), TIMEOUT).await?;
        let (turns, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for client in 0..clients {
            let lock = sessions[client % sessions.len()].mutex(format!("scale/{client}"));
            let (turns, over) = (turns.clone(), over.clone());
            tasks.spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    lock.lock().await?.release().await?;
                    turns.fetch_add(1, Ordering::Relaxed);
                }
                Outcome::Ok(())
            });
        }
        sleep(self.sizes.warm_up).await;
        let (before, begun) = (turns.load(Ordering::Relaxed), Instant::now());
        sleep(self.sizes.counted).await;
        let counted = turns.load(Ordering::Relaxed) - before;
        let rate = counted as f64 / begun.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        close(sessions).await;
        Ok((Point { clients, rate }, turns.load(Ordering::Relaxed)))
    }

    /// What each session, each lock and each waiter costs the server while nothing happens.
    async fn each(&self) -> Outcome<Each> {
        let Sizes { sessions, settle, watched, .. } = *self.sizes;
        eprintln!("{}: {sessions} idle sessions", self.kind.name());
        let server = self.start().await?;
        sleep(settle).await;
        let (resting, empty) = (self.rate_of_work(&server, watched).await?, self.memory(&server).await?);
        let idle = connect(server.addr, sessions, IDLE_TIMEOUT).await?;
        sleep(settle).await;
        let work = self.rate_of_work(&server, watched).await?;
        let session_bytes = (self.memory(&server).await? - empty) / sessions as f64;
        close(idle).await;
        drop(server);
        Ok(Each {
            session_timeout_s: IDLE_TIMEOUT.as_secs_f64(),
            session_cpu_us: (work - resting).max(0.0) * 1e6 / sessions as f64,
            session_bytes,
            lock_bytes: self.lock_bytes().await?,
            waiter_bytes: self.waiter_bytes().await?,
        })
    }

    async fn lock_bytes(&self) -> Outcome<f64> {
        let locks = self.sizes.locks;
        eprintln!("{}: {locks} held locks", self.kind.name());
        let server = self.start().await?;
        let sessions = connect(server.addr, SESSIONS, TIMEOUT).await?;
        sleep(self.sizes.settle).await;
        let empty = self.memory(&server).await?;
        let taken = stream::iter(0..locks).map(|lock| {
            let lock = sessions[lock % sessions.len()].mutex(format!("scale/{lock}"));
            async move { lock.lock().await }
        });
        let held: Vec<Guard> = taken.buffer_unordered(CONNECTING).try_collect().await?;
        sleep(self.sizes.settle).await;
        let bytes = (self.memory(&server).await? - empty) / locks as f64;
        // They end with their sessions, not one after the other.
        held.into_iter().for_each(std::mem::forget);
        close(sessions).await;
        Ok(bytes)
    }

    async fn waiter_bytes(&self) -> Outcome<f64> {
        let waiters = self.sizes.waiters;
        eprintln!("{}: {waiters} waiters on one lock", self.kind.name());
        let server = self.start().await?;
        let sessions = connect(server.addr, SESSIONS, TIMEOUT).await?;
        let holder = sessions[0].mutex("scale/one").lock().await?;
        sleep(self.sizes.settle).await;
        let empty = self.memory(&server).await?;
        let mut tasks = JoinSet::new();
        for waiter in 0..waiters {
            let lock = sessions[waiter % sessions.len()].mutex("scale/one");
            tasks.spawn(async move { lock.lock().await.map(drop) });
        }
        let begun = Instant::now();
        while sessions[0].mutex("scale/one").snapshot().await?.waiters.len() < waiters {
            if begun.elapsed() > TIMEOUT * 4 {
                return Err(format!("{waiters} waiters are not all in line after {:?}", TIMEOUT * 4).into());
            }
            sleep(Duration::from_millis(500)).await;
        }
        sleep(self.sizes.settle).await;
        let bytes = (self.memory(&server).await? - empty) / waiters as f64;
        tasks.abort_all();
        std::mem::forget(holder);
        close(sessions).await;
        Ok(bytes)
    }

    /// Processor time a second.
    async fn rate_of_work(&self, server: &Running, watched: Duration) -> Outcome<f64> {
        let (before, begun) = (cpu(server.pid())?, Instant::now());
        sleep(watched).await;
        Ok((cpu(server.pid())? - before).as_secs_f64() / begun.elapsed().as_secs_f64())
    }

    /// Bytes in use: of Java, those that are left after a collection.
    async fn memory(&self, server: &Running) -> Outcome<f64> {
        if self.kind == Kind::Ours {
            return Ok(resident(server.pid())? as f64);
        }
        jcmd(server.pid(), "GC.run").await?;
        let told = jcmd(server.pid(), "GC.heap_info").await?;
        used_kib(&told).map(|kib| kib * 1024.0).ok_or_else(|| format!("jcmd said {told:?}").into())
    }
}

async fn jcmd(pid: u32, what: &str) -> Outcome<String> {
    let output = tokio::process::Command::new("jcmd").arg(pid.to_string()).arg(what).output().await;
    let output = output.map_err(|error| format!("no jcmd, install default-jdk-headless ({error})"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() { Ok(said) } else { Err(format!("jcmd {what}: {said}").into()) }
}

/// Of all parts of the heap; the classes, which are told behind it, do not grow.
fn used_kib(told: &str) -> Option<f64> {
    let heap = told.split("Metaspace").next()?;
    let numbers = heap.match_indices("used ").filter_map(|(at, word)| {
        let rest = &heap[at + word.len()..];
        let (digits, _) = rest.split_once('K')?;
        digits.parse::<f64>().ok()
    });
    let numbers: Vec<f64> = numbers.collect();
    (!numbers.is_empty()).then(|| numbers.iter().sum())
}

async fn connect(addr: SocketAddr, count: usize, timeout: Duration) -> Outcome<Vec<Zoolock>> {
    let address = addr.to_string();
    let sessions = stream::iter(0..count)
        .map(|_| Zoolock::builder().session_timeout(timeout).connect(&address))
        .buffer_unordered(CONNECTING);
    Ok(sessions.try_collect().await?)
}

async fn close(sessions: Vec<Zoolock>) {
    for some in sessions.chunks(CONNECTING) {
        let _: Result<Vec<()>, ()> = try_join_all(some.iter().map(|session| async {
            session.close().await;
            Ok(())
        }))
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::used_kib;

    #[test]
    fn what_a_heap_uses_is_read_of_each_collector() {
        let g1 = " garbage-first heap   total 262144K, used 14336K [0x0, 0x1)\n  region size 2048K, 8 young (16384K), 0 survivors (0K)\n Metaspace       used 5000K, committed 5184K\n  class space    used 500K";
        assert_eq!(used_kib(g1), Some(14336.0));
        let serial = " def new generation   total 9216K, used 100K\n  eden space 8192K\n tenured generation   total 10240K, used 23K\n Metaspace       used 5000K";
        assert_eq!(used_kib(serial), Some(123.0));
        assert_eq!(used_kib("no such process"), None);
    }
}
