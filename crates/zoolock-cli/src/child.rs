//! The command's process and its process group.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, kill_process_group, waitid};
use tokio::sync::mpsc;

use crate::executable;
use crate::exit::{Exit, Failure};
use crate::signals;

/// What the command's environment says about the lock.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) name: String,
    /// Where nobody else holds at the same time.
    pub(crate) token: Option<String>,
    pub(crate) ticket: String,
    pub(crate) previous: &'static str,
    pub(crate) path: String,
}

/// Something happened to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// It is over.
    Ended(Ending),
    /// A signal stopped it.
    Stopped(i32),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By itself.
    Code(u8),
    /// By a signal.
    Signal(i32),
}

impl Ending {
    /// What we end with, in its place.
    pub(crate) fn exit(self) -> Exit {
        match self {
            Self::Code(code) => Exit::code(code),
            Self::Signal(signal) => Exit::raw_signal(signal),
        }
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match Signal::from_named_raw(*signal) {
                Some(signal) => write!(f, "signal {}", signals::name(signal)),
                None => write!(f, "signal {signal}"),
            },
        }
    }
}

/// A command that was started, in a process group of its own.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    events: mpsc::Receiver<Event>,
}

impl Child {
    /// Starts it. To be called on the main thread: the command is killed when the thread that started it ends.
    pub(crate) fn start(
        command: &[OsString],
        environment: &Environment,
        foreground: bool,
    ) -> Result<Self, Failure> {
        let ourselves = Path::new("/proc/self/exe");
        let ourselves = if ourselves.exists() {
            ourselves.to_owned()
        } else {
            std::env::current_exe()
                .map_err(|error| Failure::unavailable(format!("cannot find our own program: {error}")))?
        };
        let mut process = Command::new(ourselves);
        process.arg0("zoolock").args(["become", "--parent"]).arg(getpid().to_string());
        if foreground {
            process.arg("--foreground");
        }
        process.arg("--").args(command);
        process
            .env("ZOOLOCK_NAME", &environment.name)
            .env("ZOOLOCK_TICKET", &environment.ticket)
            .env("ZOOLOCK_PREVIOUS", environment.previous)
            .env("ZOOLOCK_PATH", &environment.path)
            .process_group(0);
        match &environment.token {
            Some(token) => process.env("ZOOLOCK_TOKEN", token),
            // One that we inherited would be another lock's.
            None => process.env_remove("ZOOLOCK_TOKEN"),
        };
        let program = command.first().cloned().unwrap_or_default();
        let started = process.spawn().map_err(|error| executable::failed(&program, &error))?;
        let pid = i32::try_from(started.id())
            .ok()
            .and_then(Pid::from_raw)
            .expect("a process id is a positive number");
        let (sender, events) = mpsc::channel(4);
        std::thread::Builder::new()
            .name("child".to_owned())
            .spawn(move || observe(pid, &sender))
            .map_err(|error| Failure::unavailable(format!("cannot watch the command: {error}")))?;
        Ok(Self { pid, events })
    }

    /// The command's process, and the group it leads.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// What happens to it next.
    pub(crate) async fn event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            // It was reaped by somebody else; nothing is known about its end.
            None => Event::Ended(Ending::Signal(Signal::KILL.as_raw())),
        }
    }

    /// Sends a signal to the whole group. To be called only before [`Child::reap`], while the number of the
    /// group cannot be another's.
    pub(crate) fn signal(&self, signal: Signal) {
        // There may be nobody left in it.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Lets go of the process, which has ended.
    pub(crate) fn reap(self) {
        let _ = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Waits on a thread of its own: the end is seen but not taken, so that the group can still be signalled.
fn observe(pid: Pid, events: &mpsc::Sender<Event>) {
    let either = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        let status = match waitid(WaitId::Pid(pid), either) {
            Ok(Some(status)) => status,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        if let Some(ending) = ending(&status) {
            let _ = events.blocking_send(Event::Ended(ending));
            return;
        }
        // Take the stop, or it would be seen for ever; it may have been continued or killed meanwhile.
        let taken = waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
        if let Ok(Some(status)) = taken
            && let Some(signal) = status.stopping_signal()
            && events.blocking_send(Event::Stopped(signal)).is_err()
        {
            return;
        }
    }
}

fn ending(status: &WaitIdStatus) -> Option<Ending> {
    if status.exited() {
        let code = status.exit_status().unwrap_or_default();
        return Some(Ending::Code((code & 0xff) as u8));
    }
    if status.killed() || status.dumped() {
        return Some(Ending::Signal(status.terminating_signal().unwrap_or_default()));
    }
    None
}
