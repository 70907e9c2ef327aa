//! Reads commands from standard input, and executes them with the locks of this library:
//! `lock-client CONNECT`. Tests run this program beside clients of other libraries.
//!
//! `tests/foreign/clients/mod.rs` describes the commands and the answers. In a command, KIND is
//! `mutex`, `read`, `write` or `election`, then `@`, then the naming (the form of znode names), for example
//! `mutex@native`. KIND ends with `+pattern` if kazoo's clients are configured to see zoolock's
//! znodes.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::process::exit;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use zoolock::{AnyGuard, Election, Ended, Error, Mutex, RwLock, Zoolock};
use zoolock_tests::failure::Outcome;
use zoolock_tests::{ServerOptions, TestFailure};

fn main() {
    let connect = std::env::args().nth(1).expect("usage: lock-client CONNECT");
    let runtime = Runtime::new().expect("threads can be started");
    let mut workers = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("commands are text");
        let (id, command) = line.split_once(' ').expect("a command follows the id");
        let worker = workers.entry(id.to_owned()).or_insert_with(|| {
            let (sender, commands) = unbounded_channel();
            runtime.spawn(work(connect.clone(), id.to_owned(), commands));
            sender
        });
        // The send fails only if the worker has failed, and then the process ends.
        let _ = worker.send(command.to_owned());
    }
    exit(0);
}

/// Executes the commands for one lock. A failure ends the process.
async fn work(connect: String, id: String, commands: UnboundedReceiver<String>) {
    if let Err(error) = execute(&connect, &id, commands).await {
        eprintln!("{error}");
        exit(1);
    }
}

async fn execute(connect: &str, id: &str, mut commands: UnboundedReceiver<String>) -> Outcome<()> {
    let mut lock: Option<OpenedLock> = None;
    let mut held: Option<HeldLock> = None;
    while let Some(command) = commands.recv().await {
        let words: Vec<&str> = command.split(' ').collect();
        match words.as_slice() {
            ["acquire", kind, path] => {
                if lock.is_none() {
                    lock = Some(OpenedLock::open(connect, kind, path).await?);
                }
                let opened = lock.as_ref().expect("the lock has been opened");
                held = Some(opened.acquire().await?);
                answer(id, "acquired");
            }
            ["release"] => {
                held.take().ok_or("the lock is not held")?.release().await?;
                answer(id, "released");
            }
            ["close"] => {
                if let Some(OpenedLock { session, .. }) = lock.take() {
                    session.close().await;
                }
                answer(id, "closed");
            }
            _ => return Err(TestFailure::new(format!("unknown command {command}")).into()),
        }
    }
    Ok(())
}

/// Prints an answer.
fn answer(id: &str, answer: &str) {
    let mut out = std::io::stdout().lock();
    // An error is ignored: the test closes the pipe only when it ends this process.
    let _ = writeln!(out, "{id} {answer}").and_then(|()| out.flush());
}

/// A lock with its own session.
struct OpenedLock {
    session: Zoolock,
    handle: Handle,
}

/// A lock that is held, or a term whose work goes on until it is told to end.
enum HeldLock {
    Guard(AnyGuard),
    Term { end: oneshot::Sender<()>, running: JoinHandle<Result<Ended<()>, Error>> },
}

impl HeldLock {
    async fn release(self) -> Outcome<()> {
        match self {
            HeldLock::Guard(guard) => Ok(guard.release().await?),
            HeldLock::Term { end, running } => {
                let _ = end.send(());
                running.await??;
                Ok(())
            }
        }
    }
}

enum Handle {
    Election(Election),
    Mutex(Mutex),
    Read(RwLock),
    Write(RwLock),
}

impl OpenedLock {
    async fn open(connect: &str, kind: &str, path: &str) -> Outcome<OpenedLock> {
        let (kind, naming) = kind.split_once('@').ok_or("KIND has no @NAMING")?;
        let mut settings = Zoolock::builder()
            .tick_time(ServerOptions::default().tick)
            .session_timeout(Duration::from_secs(10))
            .naming(naming.trim_end_matches("+pattern").parse()?);
        if naming.ends_with("+pattern") {
            settings = settings.kazoo_pattern();
        }
        let session = settings.connect(connect).await?;
        let handle = match kind {
            "election" => Handle::Election(session.election(path)),
            "mutex" => Handle::Mutex(session.mutex(path)),
            "read" => Handle::Read(session.rwlock(path)),
            "write" => Handle::Write(session.rwlock(path)),
            _ => return Err(TestFailure::new(format!("unknown kind {kind}")).into()),
        };
        Ok(OpenedLock { session, handle })
    }

    async fn acquire(&self) -> Outcome<HeldLock> {
        let guard: AnyGuard = match &self.handle {
            Handle::Election(election) => return lead(election.clone()).await,
            Handle::Mutex(lock) => lock.lock().await?.into(),
            Handle::Read(lock) => lock.read().await?.into(),
            Handle::Write(lock) => lock.write().await?.into(),
        };
        Ok(HeldLock::Guard(guard))
    }
}

/// Stands in an election, and returns when the work of the first term has begun.
async fn lead(election: Election) -> Outcome<HeldLock> {
    let ((begun, has_begun), (end, ended)) = (oneshot::channel(), oneshot::channel::<()>());
    let mut first = Some((begun, ended));
    let running = tokio::spawn(async move {
        let work = |_| {
            let first = first.take();
            async move {
                // A second term ends at once. Then the first was lost, which the judge finds.
                if let Some((begun, ended)) = first {
                    let _ = begun.send(());
                    let _ = ended.await;
                }
            }
        };
        election.run(work).await
    });
    has_begun.await?;
    Ok(HeldLock::Term { end, running })
}
