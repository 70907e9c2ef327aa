//! Clients of this library and of others, each in a process that executes commands.
//!
//! [`Client::start`] starts a process, and [`Client::lock`] returns a lock with its own session in
//! that process. The process reads commands from its standard input and prints answers, one per
//! line. Each command and each answer starts with the id of the lock:
//!
//! | command | answer | action |
//! |---|---|---|
//! | `ID acquire KIND PATH` | `ID acquired` | Waits for the lock. KIND and PATH are the same each time. |
//! | `ID release` | `ID released` | Releases the lock. |
//! | `ID revoke ZNODE` | `ID revoked` | Asks the contender with this znode to release (Curator only). |
//! | `ID close` | `ID closed` | Closes the session. |
//!
//! A holder with KIND `curator-revocable-mutex` also prints `ID asked` when a client asks it to release. The process ends
//! at the end of its input. If a command fails, the process prints the error to its standard error and exits with code 1.

mod library;

use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use zoolock_tests::{Place, Result, TestFailure};

pub(crate) use library::{Library, java};

/// Time limit for an answer. It is generous, because a Java virtual machine starts slowly on a busy machine.
const ANSWER_BOUND: Duration = Duration::from_secs(90);

/// A process with locks of one library. It ends when the client and all its locks are dropped.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) library: Library,
    commands: Arc<tokio::sync::Mutex<ChildStdin>>,
    answers: Arc<Answers>,
}

/// The answers of a process.
#[derive(Default)]
struct Answers {
    /// Senders of answers to the locks, by the id of the lock.
    locks: Mutex<Vec<UnboundedSender<String>>>,
    /// The exit status and the standard error of the process, after its end.
    end: OnceLock<String>,
}

/// A lock with its own session in a [`Client`].
pub(crate) struct ClientLock {
    client: Client,
    id: usize,
    kind: String,
    path: String,
    answers: UnboundedReceiver<String>,
}

impl Client {
    /// Starts a process for the server of this test. The process ends with the test at the latest.
    pub(crate) async fn start(library: Library, place: &Place) -> Client {
        let mut command = library.command().await;
        command.arg(place.connect_string()).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        let commands = Arc::new(tokio::sync::Mutex::new(child.stdin.take().expect("stdin is piped")));
        let answers = Arc::new(Answers::default());
        tokio::spawn(answers.clone().read(child));
        Client { library, commands, answers }
    }

    /// Returns a lock that is not acquired. Its first command opens its session.
    pub(crate) fn lock(&self, kind: &str, path: &str) -> ClientLock {
        let (sender, answers) = unbounded_channel();
        let mut locks = self.answers.locks();
        locks.push(sender);
        ClientLock {
            client: self.clone(),
            id: locks.len() - 1,
            kind: kind.to_owned(),
            path: path.to_owned(),
            answers,
        }
    }

    /// Acquires a lock and returns it.
    ///
    /// # Panics
    /// Panics if the client does not acquire it.
    pub(crate) async fn hold(&self, kind: &str, path: &str) -> ClientLock {
        let mut lock = self.lock(kind, path);
        lock.acquire().await.expect("the client acquires the lock");
        lock
    }

    /// Sends the command that acquires a lock, and does not wait for the answer.
    ///
    /// # Panics
    /// Panics if the process has ended.
    pub(crate) async fn queue(&self, kind: &str, path: &str) -> ClientLock {
        let mut lock = self.lock(kind, path);
        lock.send(&format!("acquire {kind} {path}")).await.expect("the process runs");
        lock
    }
}

impl ClientLock {
    /// Acquires the lock.
    ///
    /// # Errors
    /// Fails if the process ends, or does not acquire the lock in time.
    pub(crate) async fn acquire(&mut self) -> Result<()> {
        self.send(&format!("acquire {} {}", self.kind, self.path)).await?;
        self.receive("acquired").await
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// Fails if the process ends, or does not release the lock in time.
    pub(crate) async fn release(&mut self) -> Result<()> {
        self.send("release").await?;
        self.receive("released").await
    }

    /// Asks the contender with this znode to release its lock.
    ///
    /// # Panics
    /// Panics if the client cannot ask the contender.
    pub(crate) async fn revoke(&mut self, znode: &str) {
        self.send(&format!("revoke {znode}")).await.expect("the process runs");
        self.receive("revoked").await.expect("the contender is asked");
    }

    /// Closes the session.
    ///
    /// # Errors
    /// Fails if the process ends, or does not close the session in time.
    pub(crate) async fn close(mut self) -> Result<()> {
        self.send("close").await?;
        self.receive("closed").await
    }

    /// Waits for the next answer, which must be `expected`.
    ///
    /// # Errors
    /// Fails if the next answer is not `expected`, and if the process ends or does not answer in
    /// time.
    pub(crate) async fn receive(&mut self, expected: &str) -> Result<()> {
        match timeout(ANSWER_BOUND, self.answers.recv()).await {
            Ok(Some(answer)) if answer == expected => Ok(()),
            Ok(Some(answer)) => Err(self.failure(&format!("{answer} instead of {expected}"))),
            Ok(None) => Err(self.failure("the process has ended")),
            Err(_) => Err(self.failure(&format!("not {expected} within {ANSWER_BOUND:?}"))),
        }
    }

    async fn send(&mut self, command: &str) -> Result<()> {
        let line = format!("{} {command}\n", self.id);
        let sent = self.client.commands.lock().await.write_all(line.as_bytes()).await;
        sent.map_err(|error| self.failure(&format!("{command}: {error}")))
    }

    fn failure(&self, problem: &str) -> TestFailure {
        let Client { library, answers, .. } = &self.client;
        let end = answers.end.get().map_or("", String::as_str);
        TestFailure::new(format!("{library:?} {} at {}: {problem}\n{end}", self.kind, self.path))
    }
}

impl Answers {
    /// Passes answers to their locks until the process ends.
    async fn read(self: Arc<Self>, mut child: Child) {
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let mut stderr = child.stderr.take().expect("stderr is piped");
        let pass = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if self.pass(&line).is_none() {
                    println!("unexpected output: {line}");
                }
            }
        };
        let mut errors = String::new();
        let _ = tokio::join!(pass, stderr.read_to_string(&mut errors));
        let status = child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string());
        let _ = self.end.set(format!("{status}: {errors}"));
        // Dropping the senders ends the wait of each lock for an answer.
        self.locks().clear();
    }

    fn pass(&self, line: &str) -> Option<()> {
        let (id, answer) = line.split_once(' ')?;
        let locks = self.locks();
        // The send fails only if the lock was dropped, and then no answer is needed.
        let _ = locks.get(id.parse::<usize>().ok()?)?.send(answer.to_owned());
        Some(())
    }

    fn locks(&self) -> MutexGuard<'_, Vec<UnboundedSender<String>>> {
        self.locks.lock().expect("no thread panics while it holds this lock")
    }
}
