//! Reads commands from standard input, and executes them with the locks of this library:
//! `lock-client CONNECT`. Tests run this program beside clients of other libraries.
//!
//! `tests/foreign/clients/mod.rs` describes the commands and the answers. In a command, KIND is
//! `mutex`, `read` or `write`, then `@`, then the naming (the form of znode names), for example
//! `mutex@native`. KIND ends with `+pattern` if kazoo's clients are configured to see zoolock's
//! znodes.

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::process::exit;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use zoolock::{AnyGuard, Mutex, RwLock, Zoolock};
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
    let mut held: Option<AnyGuard> = None;
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

enum Handle {
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
            "mutex" => Handle::Mutex(session.mutex(path)),
            "read" => Handle::Read(session.rwlock(path)),
            "write" => Handle::Write(session.rwlock(path)),
            _ => return Err(TestFailure::new(format!("unknown kind {kind}")).into()),
        };
        Ok(OpenedLock { session, handle })
    }

    async fn acquire(&self) -> Outcome<AnyGuard> {
        Ok(match &self.handle {
            Handle::Mutex(lock) => lock.lock().await?.into(),
            Handle::Read(lock) => lock.read().await?.into(),
            Handle::Write(lock) => lock.write().await?.into(),
        })
    }
}
