//! A process that contends for a lock: ours, kazoo's, or one of Java's.
//!
//! They all take the same arguments and speak the same words. `CONNECT KIND LOCK REFEREE SECTIONS CONTENDERS`: each
//! contender has its own session, takes the lock once, and the process says `ready`. On `go` each takes the lock so
//! many times, or, where that is none, until `stop`. Then the process says in one line of JSON how it went ([`Report`]),
//! and ends. It ends with 1 and a line `violation: …` where somebody is inside who may not be, and at once where nobody
//! is left to talk to.
//!
//! Where SECTIONS is `hold`, LOCK is a directory of locks that are all taken and kept; `in PATH` is said when one is had,
//! until nobody is left to talk to. KIND may be several with commas in between, and the directory of each is LOCK with the
//! kind in place of `*`.
//!
//! Whoever is alone inside makes the ephemeral node `inside` below the referee's, and sees no `reader-…` there; readers
//! make one each and see no `inside`; holders of permits make a `permit-…` for each, and see no more of them than the
//! referee's node says. Every tenth time they stay until all permits are taken, and as long again as it took them to come
//! in, so that whoever does not see that there is no room comes in beside them.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zoolock_tests::{Failure, Result};

/// How long it may take to start, on a busy machine.
const START: Duration = Duration::from_secs(90);

/// How long it may take to end when it has failed.
const END: Duration = Duration::from_secs(5);

/// A running peer; dropping it kills it.
pub(crate) struct Peer {
    name: String,
    child: Child,
    orders: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
    complaints: JoinHandle<String>,
}

/// What a peer says at its end.
pub(crate) struct Report {
    pub(crate) name: String,
    pub(crate) sections: usize,
    pub(crate) longest_ms: f64,
    pub(crate) median_ms: f64,
    pub(crate) contenders: Vec<Contender>,
}

/// What one contender did, each time: by the service's transactions, when it asked for the lock and when it was inside.
pub(crate) struct Contender {
    pub(crate) asked: Vec<i64>,
    pub(crate) entered: Vec<i64>,
}

impl Peer {
    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    /// What it said instead.
    pub(crate) async fn start(name: &str, command: Command) -> Result<Peer> {
        let mut peer = Peer::spawn(name, command)?;
        match timeout(START, peer.line()).await {
            Ok(Ok(line)) if line == "ready" => Ok(peer),
            Ok(Ok(line)) => Err(peer.failed(&line).await),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::new(format!("{} is not ready within {START:?}", peer.name))),
        }
    }

    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub(crate) fn spawn(name: &str, mut command: Command) -> Result<Peer> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child =
            command.spawn().map_err(|error| Failure::during(format_args!("executing {name}"), error))?;
        let orders = child.stdin.take().expect("it is piped");
        let said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut stderr = child.stderr.take().expect("it is piped");
        let complaints = tokio::spawn(async move {
            let mut complaints = Vec::new();
            let _ = stderr.read_to_end(&mut complaints).await;
            String::from_utf8_lossy(&complaints).into_owned()
        });
        Ok(Peer { name: name.to_owned(), child, orders, said, complaints })
    }

    /// Tells it something.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) async fn tell(&mut self, order: &str) -> Result<()> {
        let told = self.orders.write_all(format!("{order}\n").as_bytes()).await;
        match told {
            Ok(()) => Ok(()),
            Err(_) => {
                let said = self.line().await?;
                Err(self.failed(&said).await)
            }
        }
    }

    /// Waits until it has done what it had to.
    ///
    /// # Errors
    /// What it said instead, such as a violation.
    pub(crate) async fn report(mut self) -> Result<Report> {
        let line = self.line().await?;
        let Some(report) = Report::parse(&self.name, &line) else { return Err(self.failed(&line).await) };
        let status = self.child.wait().await.map_err(|error| Failure::during(&self.name, error))?;
        match status.success() {
            true => Ok(report),
            false => Err(self.failed(&line).await),
        }
    }

    /// What it says next.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) async fn line(&mut self) -> Result<String> {
        match self.said.next_line().await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(self.failed("").await),
            Err(error) => Err(Failure::during(format_args!("listening to {}", self.name), error)),
        }
    }

    async fn failed(&mut self, said: &str) -> Failure {
        // It ends by itself, but for one that says what it should not.
        if timeout(END, self.child.wait()).await.is_err() {
            let _ = self.child.start_kill();
        }
        let status = self.child.wait().await.map_or_else(|error| error.to_string(), |s| s.to_string());
        let complaints = (&mut self.complaints).await.unwrap_or_default();
        let said: String = said.chars().take(2000).collect();
        Failure::new(format!("{}: {said}\n({status}) {complaints}", self.name))
    }
}

impl Report {
    fn parse(name: &str, line: &str) -> Option<Report> {
        let report: Value = serde_json::from_str(line).ok()?;
        let numbers = |list: &Value| list.as_array()?.iter().map(Value::as_i64).collect::<Option<Vec<i64>>>();
        let contender = |one: &Value| {
            Some(Contender { asked: numbers(one.get("asked")?)?, entered: numbers(one.get("entered")?)? })
        };
        Some(Report {
            name: name.to_owned(),
            sections: report.get("sections")?.as_u64()?.try_into().ok()?,
            longest_ms: report.get("longest_ms")?.as_f64()?,
            median_ms: report.get("median_ms")?.as_f64()?,
            contenders: report.get("contenders")?.as_array()?.iter().map(contender).collect::<Option<_>>()?,
        })
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, sections, longest_ms, median_ms, contenders } = self;
        let count = contenders.len();
        write!(
            f,
            "{name}: {sections} sections of {count}, waits {median_ms:.1} ms, at most {longest_ms:.1} ms"
        )
    }
}
