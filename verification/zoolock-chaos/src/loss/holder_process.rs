//! The drill's view of a holder: its process, its own link, and the record of its reports.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use zoolock_tests::lock;
use zoolock_tests::proxy::LinkFault;

use super::holder_report::HolderReport;
use super::settings::{self, LossBug};
use crate::Outcome;
use crate::clock::now;
use crate::commands;
use crate::faults::BLOCKED;
use crate::link::Link;
use crate::orders::read_reports;

/// The command of `zoolock run`. The shell and its child ignore SIGTERM, and keep the pipe open as long as they live.
const COMMAND: &str = r#"trap '' TERM; exec 9> "$FIFO"; sleep 1000 & echo up >&9; wait"#;
/// Pause between two checks whether a process has opened the pipe.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time until a process ends after the order to end.
const END: Duration = Duration::from_secs(20);

/// The settings that all holders share.
pub(crate) struct HolderSettings {
    pub(crate) dir: PathBuf,
    pub(crate) zoolock: PathBuf,
    pub(crate) broken: Option<LossBug>,
}

/// A holder.
pub(crate) struct HolderProcess {
    /// Set if the lock was lost while the fault was prepared.
    pub(crate) has_lost_before: bool,
    lock: String,
    runs: bool,
    link: Link,
    child: Child,
    record: Arc<Mutex<HolderRecord>>,
    listening: JoinHandle<()>,
}

/// The record of a holder. Times are those of [`now`].
#[derive(Clone, Debug, Default)]
pub(crate) struct HolderRecord {
    /// The time at which the lock was granted.
    pub(crate) held: Option<i64>,
    /// The time of each check of the guard, and whether the guard was valid.
    pub(crate) looks: Vec<(i64, bool)>,
    /// The time at which the guard reported the loss, and the reason.
    pub(crate) lost: Option<(i64, String)>,
    /// The time at which the last process of the command had ended.
    pub(crate) dead: Option<i64>,
}

impl HolderProcess {
    /// Starts a holder that reaches one node only. With `runs`, the holder is `zoolock run` with a command.
    pub(crate) async fn start(
        settings: &HolderSettings,
        fault: settings::LossFault,
        node: SocketAddr,
        lock: &str,
        runs: bool,
    ) -> Outcome<Self> {
        let session = fault.requested().as_secs();
        let link = Link::open(node).await?;
        let address = link.addr();
        let record = Arc::new(Mutex::new(HolderRecord::default()));
        let errors = File::options().create(true).append(true).open(settings.dir.join("holders.log"))?;
        let (child, listening) = if runs {
            let fifo = settings.dir.join(lock);
            let _ = std::fs::remove_file(&fifo);
            mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
            let pipe = pipe::OpenOptions::new().open_receiver(&fifo)?;
            let child =
                zoolock_run_command(settings, &address, lock, session, &fifo).stderr(errors).spawn()?;
            (child, tokio::spawn(watch_command(pipe, record.clone())))
        } else {
            let mut child = holder_command(settings, &address, lock, session)?.stderr(errors).spawn()?;
            let said = child.stdout.take().ok_or("the output of the holder is not piped")?;
            (child, tokio::spawn(record_reports(said, record.clone())))
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

    pub(crate) fn is_zoolock_run(&self) -> bool {
        self.runs
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, HolderRecord> {
        lock(&self.record)
    }

    /// Returns the number of connections of the holder.
    pub(crate) fn connections(&self) -> usize {
        self.link.connections()
    }

    /// Waits until a request of the holder is forwarded to its node.
    pub(crate) async fn wait_until_forwarded(&self) {
        self.link.wait_until_forwarded().await;
    }

    /// Shuts the link of the holder. With `reset`, its connections are also closed. Otherwise they only become silent.
    pub(crate) async fn block_link(&self, reset: bool) {
        self.link.set_fault(BLOCKED);
        if reset {
            self.link.close_connections().await;
        }
    }

    pub(crate) fn reopen_link(&self) {
        self.link.set_fault(LinkFault::default());
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        commands::send_signal(&mut self.child, signal);
    }

    /// Returns whether the holder has reported the loss of its lock, or, for `zoolock run`, whether
    /// the holder has ended.
    pub(crate) fn knows_loss(&mut self) -> bool {
        match self.runs {
            true => !matches!(self.child.try_wait(), Ok(None)),
            false => self.record().lost.is_some(),
        }
    }

    /// Ends the holder. Returns its record, and its exit code.
    pub(crate) async fn end(mut self) -> (HolderRecord, Option<i32>) {
        if self.runs {
            // Usually `zoolock run` has ended by itself. The second signal makes it kill its command.
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
        // The pipe contains the last reports of the holder, and then ends.
        let _ = timeout(END, &mut self.listening).await;
        self.listening.abort();
        let record = std::mem::take(&mut *self.record());
        (record, code)
    }
}

fn holder_command(settings: &HolderSettings, address: &str, lock: &str, session: u64) -> Outcome<Command> {
    let mut command = commands::own_command("holder", settings.broken)?;
    command.args(["--connect", address, "--lock", lock, "--session", &session.to_string()]);
    Ok(command)
}

fn zoolock_run_command(
    settings: &HolderSettings,
    address: &str,
    lock: &str,
    session: u64,
    fifo: &Path,
) -> Command {
    let timeout = format!("{session}s");
    let mut command = commands::zoolock_command(&settings.zoolock, &settings.dir);
    command.args(["run", "--session-timeout", &timeout, "--connect", address, lock]);
    command.args(["--", "sh", "-c", COMMAND]).env("FIFO", fifo);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Records the reports of a holder.
async fn record_reports(output: ChildStdout, record: Arc<Mutex<HolderRecord>>) {
    let add = |report: HolderReport| match report {
        HolderReport::Granted { at } => lock(&record).held = Some(at),
        HolderReport::Checked { at, valid } => lock(&record).looks.push((at, valid)),
        HolderReport::Lost { at, why } => lock(&record).lost = Some((at, why)),
    };
    read_reports(output, "a holder", add).await;
}

/// Records the time at which a command has started, and the time at which all its processes have
/// ended. Each process keeps the pipe open, so the pipe ends with the last process.
async fn watch_command(mut pipe: pipe::Receiver, record: Arc<Mutex<HolderRecord>>) {
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
