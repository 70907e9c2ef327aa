//! A server as a child process, with its output in a file.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process, prlimit, waitid};
use tokio::time::{Instant, sleep};

use crate::process::last_lines;
use crate::{Result, TestFailure, lock};

/// Pause between two checks of the process.
const PAUSE: Duration = Duration::from_millis(5);

/// A server process. Dropping it kills the process and waits for its end.
#[derive(Debug)]
pub struct ServerProcess {
    child: Mutex<Child>,
    pid: Pid,
    command: String,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts a server. Appends its output to the file `log`.
    ///
    /// # Errors
    /// Fails if the log cannot be written, or the command cannot be executed.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let line = format!("{command:?}");
        let failed = |error| TestFailure::during(&line, error);
        let file = OpenOptions::new().create(true).append(true).open(log).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
        let child = command.spawn().map_err(failed)?;
        let pid = Pid::from_child(&child);
        Ok(Self { child: Mutex::new(child), pid, command: line, log: log.to_owned() })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Returns the exit status, or `None` while the process runs.
    pub fn exit_status(&self) -> Option<ExitStatus> {
        lock(&self.child).try_wait().ok().flatten()
    }

    /// Returns an error if the process has ended. The error contains the command and the end of the log.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn check_running(&self) -> Result<()> {
        match self.exit_status() {
            None => Ok(()),
            Some(status) => {
                let Self { command, .. } = self;
                Err(TestFailure::new(format!("{command} ended with {status}\n{}", self.log_tail(40))))
            }
        }
    }

    /// Sends a signal to the process, if it runs.
    pub fn signal(&self, signal: Signal) {
        if self.exit_status().is_none() {
            // The process keeps its id until this value waits for it. So the signal reaches no other process.
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Sends a signal and waits until the process has ended. Kills the process after this time.
    ///
    /// Dropping the future leaves the process to this value.
    pub async fn end(&self, signal: Signal, patience: Duration) {
        let deadline = Instant::now() + patience;
        self.signal(signal);
        while self.exit_status().is_none() {
            if Instant::now() >= deadline {
                self.signal(Signal::KILL);
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends SIGSTOP, and waits until the process has stopped. Before that, the process can still handle requests.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub async fn stop(&self) -> Result<()> {
        let failed = |error| TestFailure::during("stopping a server", error);
        kill_process(self.pid, Signal::STOP).map_err(failed)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(self.pid), options).map_err(failed)?.is_none() {
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Sets or removes the limit on the size of the files that the process writes, in bytes. The kernel then refuses
    /// writes as on a full disk, but with another error number.
    pub fn limit_file_size(&self, bytes: Option<u64>) {
        if self.exit_status().is_none() {
            let _ = prlimit(Some(self.pid), Resource::Fsize, Rlimit { current: bytes, maximum: None });
        }
    }

    /// Returns the last lines of the log.
    pub fn log_tail(&self, lines: usize) -> String {
        last_lines(&self.log, lines)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let mut child = lock(&self.child);
        let _ = child.kill();
        let _ = child.wait();
    }
}
