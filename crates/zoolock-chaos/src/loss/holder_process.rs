//! A holder as the drill sees it: a process with a link of its own, and the record of what it reported.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum as _;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zoolock_tests::ports::Port;

use super::Break;
use super::holder_report::HolderReport;
use crate::Outcome;
use crate::binary;
use crate::clock::now;
use crate::faults::BLOCKED;
use crate::link::{Fault, Link};

/// The command of `zoolock run`. It and its child ignore SIGTERM, and keep the pipe open as long as they live.
const COMMAND: &str = r#"trap '' TERM; exec 9> "$FIFO"; sleep 1000 & echo up >&9; wait"#;
/// Pause between two looks for the writer of a pipe.
const LOOK: Duration = Duration::from_millis(5);
/// The time in which a process must end after it was told to.
const END: Duration = Duration::from_secs(20);

/// The settings that all holders share.
pub(crate) struct HolderSettings {
    pub(crate) dir: PathBuf,
    pub(crate) zoolock: PathBuf,
    pub(crate) broken: Option<Break>,
}

/// A holder.
pub(crate) struct HolderProcess {
    /// Set if the lock was lost in the preparation of the fault.
    pub(crate) has_lost_before: bool,
    lock: String,
    runs: bool,
    link: Link,
    child: Child,
    record: Arc<Mutex<Record>>,
    listening: JoinHandle<()>,
}

/// The record of a holder. Times are those of [`now`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The time of its grant.
    pub(crate) held: Option<i64>,
    /// The time of each look, and whether its guard was valid.
    pub(crate) looks: Vec<(i64, bool)>,
    /// The time at which its guard reported the loss, and the reason.
    pub(crate) lost: Option<(i64, String)>,
    /// The time at which the last process of its command had ended.
    pub(crate) dead: Option<i64>,
}

impl HolderProcess {
    /// Starts a holder that reaches one node only. With `runs` it is `zoolock run` with a command.
    pub(crate) async fn start(
        settings: &HolderSettings,
        fault: super::Fault,
        node: SocketAddr,
        lock: &str,
        runs: bool,
    ) -> Outcome<Self> {
        let session = fault.requested().as_secs();
        let link = Link::open(Port::reserve()?, node, None, Duration::ZERO).await?;
        let address = link.addr().to_string();
        let record = Arc::new(Mutex::new(Record::default()));
        let errors = File::options().create(true).append(true).open(settings.dir.join("holders.log"))?;
        let (child, listening) = if runs {
            let fifo = settings.dir.join(lock);
            let _ = std::fs::remove_file(&fifo);
            mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            let pipe = pipe::OpenOptions::new().open_receiver(&fifo)?;
            let child = run(settings, &address, lock, session, &fifo).stderr(errors).spawn()?;
            (child, tokio::spawn(watch_command(pipe, record.clone())))
        } else {
            let mut child = hold(settings, &address, lock, session)?.stderr(errors).spawn()?;
            let said = child.stdout.take().ok_or("it is piped")?;
            (child, tokio::spawn(listen(said, record.clone())))
        };
        Ok(HolderProcess {
            has_lost_before: false,
            lock: lock.to_owned(),
            runs,
            link,
            child,
            record,
            listening,
        })
    }

    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    pub(crate) fn runs(&self) -> bool {
        self.runs
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.record)
    }

    /// Returns the number of connections to its node.
    pub(crate) fn connections(&self) -> usize {
        self.link.connections()
    }

    /// Waits until a request is forwarded to its node.
    pub(crate) async fn next_forwarded(&self) {
        self.link.next_forwarded().await;
    }

    /// Shuts its link. With `reset` its connections are closed. Otherwise they are silent.
    pub(crate) fn shut(&self, reset: bool) {
        self.link.set(BLOCKED);
        if reset {
            self.link.cut();
        }
    }

    pub(crate) fn open(&self) {
        self.link.set(Fault::default());
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        if let Ok(None) = self.child.try_wait()
            && let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid as i32))
        {
            // Until the child is waited for, the pid is its own.
            let _ = kill_process(pid, signal);
        }
    }

    /// Returns whether it knows that the lock is lost.
    pub(crate) fn knows_loss(&mut self) -> bool {
        match self.runs {
            true => !matches!(self.child.try_wait(), Ok(None)),
            false => self.record().lost.is_some(),
        }
    }

    /// Ends it. Returns its record, and its exit code.
    pub(crate) async fn end(mut self) -> (Record, Option<i32>) {
        if self.runs {
            // Usually it has ended by itself. The second signal kills the command.
            for _ in 0..2 {
                self.signal(Signal::TERM);
                let _ = timeout(Duration::from_millis(500), self.child.wait()).await;
            }
        } else if let Some(mut input) = self.child.stdin.take() {
            let _ = input.write_all(b"end\n").await;
        }
        let code = match timeout(END, self.child.wait()).await {
            Ok(ended) => ended.ok().and_then(|status| status.code()),
            Err(_) => {
                let _ = self.child.kill().await;
                None
            }
        };
        // All its reports are in the pipe, and so is their end.
        let _ = timeout(END, &mut self.listening).await;
        self.listening.abort();
        let record = std::mem::take(&mut *self.record());
        (record, code)
    }
}

fn hold(settings: &HolderSettings, address: &str, lock: &str, session: u64) -> Outcome<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["holder", "--connect", address, "--lock", lock, "--session", &session.to_string()]);
    if let Some(broken) = settings.broken.and_then(|broken| broken.to_possible_value()) {
        command.args(["--break", broken.get_name()]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).kill_on_drop(true);
    Ok(command)
}

fn run(settings: &HolderSettings, address: &str, lock: &str, session: u64, fifo: &Path) -> Command {
    let timeout = format!("{session}s");
    let mut command = binary::command(&settings.zoolock, &settings.dir);
    command.args(["run", "--session-timeout", &timeout, "--connect", address, lock]);
    if settings.broken == Some(Break::NeverLost) {
        command.args(["--on-lost", "warn"]);
    }
    command.args(["--", "sh", "-c", COMMAND]).env("FIFO", fifo);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Records the reports of a holder.
async fn listen(said: ChildStdout, record: Arc<Mutex<Record>>) {
    let mut lines = BufReader::new(said).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let record = &mut *lock(&record);
        match serde_json::from_str(&line) {
            Ok(HolderReport::Granted { at }) => record.held = Some(at),
            Ok(HolderReport::Checked { at, valid }) => record.looks.push((at, valid)),
            Ok(HolderReport::Lost { at, why }) => record.lost = Some((at, why)),
            Err(error) => eprintln!("a holder reported `{line}`: {error}"),
        }
    }
}

/// Waits until a command runs, and until all its processes have ended: the kernel closes the end of the pipe that each of
/// them has.
async fn watch_command(mut pipe: pipe::Receiver, record: Arc<Mutex<Record>>) {
    let mut bytes = [0; 64];
    loop {
        let read = pipe.read(&mut bytes).await;
        let at = now();
        let is_up = lock(&record).held.is_some();
        match read {
            Ok(0) | Err(_) if is_up => {
                lock(&record).dead = Some(at);
                return;
            }
            Ok(0) | Err(_) => sleep(LOOK).await,
            Ok(_) => lock(&record).held = Some(at),
        }
    }
}

fn lock(record: &Mutex<Record>) -> MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}
