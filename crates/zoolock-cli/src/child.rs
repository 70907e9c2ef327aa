//! The command: its reaper, its process group, and what becomes of them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitid,
};
use tokio::sync::mpsc;
use zoolock_client::start_thread;

use crate::clock::now;
use crate::executable;
use crate::exit::{Exit, Failure, refused};
use crate::outer;
use crate::reaper::orders::{Lease, Order, Report};
use crate::reaper::table::{Table, children};
use crate::signals;
use crate::zombies::{self, Spawned};

/// How long the reaper may take to start the command.
const STARTING: Duration = Duration::from_secs(10);
/// How long the reaper may take to leave, once it may.
const FAREWELL: Duration = Duration::from_secs(1);
/// Between two looks at those who are to be gone.
const PAUSE: Duration = Duration::from_millis(10);
/// Who was killed and is there after this time waits for a disk that does not answer.
const STUCK: Duration = Duration::from_secs(2);

/// What the command's environment says about the lock.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) name: String,
    /// Where nobody else holds at the same time.
    pub(crate) token: Option<String>,
    pub(crate) ticket: String,
    pub(crate) previous: &'static str,
    pub(crate) path: String,
    /// This acquisition and those of the outer commands, for commands that the command runs.
    pub(crate) held: String,
    /// For what the command locks itself.
    pub(crate) owner: Option<String>,
}

/// Something happened to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The reaper says it.
    Reported(Report),
    /// The reaper is gone: the kernel has killed the command, and we kill the rest.
    ReaperDied,
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
    /// What the system says about a process that is over.
    pub(crate) fn of(status: &WaitIdStatus) -> Option<Self> {
        if status.exited() {
            let code = status.exit_status().unwrap_or_default();
            return Some(Self::Code((code & 0xff) as u8));
        }
        if status.killed() || status.dumped() {
            return Some(Self::Signal(status.terminating_signal().unwrap_or_default()));
        }
        None
    }

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

/// How a command is to be started.
#[derive(Debug)]
pub(crate) struct Start<'a> {
    pub(crate) command: &'a [OsString],
    pub(crate) environment: &'a Environment,
    pub(crate) foreground: bool,
    pub(crate) grace: Duration,
    pub(crate) lease: Lease,
    /// A file that stays open until all processes of the command have ended.
    pub(crate) held: Option<BorrowedFd<'a>>,
}

/// A command that was started, in a process group of its own.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    socket: Arc<OwnedFd>,
    reaper: Option<OwnedFd>,
    dismissed: Arc<AtomicBool>,
    events: mpsc::Receiver<Event>,
}

impl Child {
    /// Starts it, by way of its reaper.
    pub(crate) async fn start(start: Start<'_>) -> Result<Self, Failure> {
        let unable = |error| refused("the process that watches over the command", error);
        let program = start.command.first().cloned().unwrap_or_default();
        // Those below us that were there before are not the command's: whoever became us may have had children.
        let others = match children() {
            Some(children) if children.is_empty() => HashSet::new(),
            _ => Table::read().all_below(getpid()),
        };
        // If the reaper is killed, what it has inherited is ours.
        let _ = set_child_subreaper(Some(getpid()));
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| unable(error.into()))?;
        let line = line(start.command).map_err(unable)?;
        // The thread comes first: if the system refuses it, there is no reaper to be taken.
        let (ears, ear) = std::sync::mpsc::channel::<Ear>();
        start_thread("reaper", move || {
            if let Ok(ear) = ear.recv() {
                ear.listen();
            }
        })
        .map_err(|error| refused("a thread that watches the command", error))?;
        let mut process = reaper(&start, theirs);
        let reaper = Spawned::start(&mut process).map_err(unable)?;
        // It holds the other end of the socket.
        drop(process);
        let pidfd = pidfd_open(Pid::from_child(&reaper), PidfdFlags::empty()).ok();
        let socket = Arc::new(socket);
        let dismissed = Arc::new(AtomicBool::new(false));
        let (sender, mut events) = mpsc::channel(8);
        let ear =
            Ear { socket: Arc::clone(&socket), reaper, others, dismissed: Arc::clone(&dismissed), sender };
        let _ = ears.send(ear);
        // The last that may fail: whoever returns from here without a command lets others have the lock.
        let stdin = io::stdin();
        let files: Vec<_> = [stdin.as_fd(), line.as_fd()].into_iter().chain(start.held).collect();
        if let Err(error) = Order::Start(start.lease).send_with(&socket, &files) {
            nothing_started(&dismissed, pidfd.as_ref(), &mut events).await;
            return Err(if gone(&error) { never_started() } else { unable(error) });
        }
        let patience = start.lease.map_or(STARTING, |lease| lease.saturating_sub(now()).min(STARTING));
        let pid = match tokio::time::timeout(patience, events.recv()).await.ok().flatten() {
            Some(Event::Reported(Report::Started(pid))) => Pid::from_raw(pid),
            Some(Event::Reported(Report::Failed(error))) => {
                nothing_started(&dismissed, pidfd.as_ref(), &mut events).await;
                let error = io::Error::from_raw_os_error(error);
                return Err(match error.kind() {
                    io::ErrorKind::ArgumentListTooLong => executable::failed(&program, error),
                    _ => unable(error),
                });
            }
            Some(Event::Reported(Report::Late)) => {
                nothing_started(&dismissed, pidfd.as_ref(), &mut events).await;
                return Err(Failure::new(Exit::LOST, "the lock was lost before the command was started"));
            }
            _ => None,
        };
        let Some(pid) = pid else {
            // It is dead, or stopped. It may have got as far as to start the command: nothing of that may be left when we
            // go on.
            end(pidfd.as_ref());
            while let Some(event) = events.recv().await {
                if let Event::Reported(Report::Started(pid)) = event
                    && let Some(pid) = Pid::from_raw(pid)
                {
                    zombies::release(pid);
                }
            }
            return Err(never_started());
        };
        Ok(Self { pid, socket, reaper: pidfd, dismissed, events })
    }

    /// The command's process, and the group it leads.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// What happens to it next.
    pub(crate) async fn event(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Sends a signal to the whole group. The number of the group cannot be another's: its first process is taken by
    /// nobody before [`Child::dismiss`].
    pub(crate) fn signal(&self, signal: Signal) {
        // There may be nobody left in it.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Tells the reaper what to do.
    pub(crate) fn order(&self, order: Order) {
        // If it is gone, we hear of that.
        let _ = order.send(&self.socket);
    }

    /// Ends a reaper that does not answer; we do its work then.
    pub(crate) fn end_reaper(&self) {
        end(self.reaper.as_ref());
    }

    /// Lets go of the command, which has ended, and of whatever it left behind that may live on.
    pub(crate) async fn dismiss(mut self) {
        self.dismissed.store(true, Ordering::SeqCst);
        self.order(Order::Goodbye);
        if tokio::time::timeout(FAREWELL, self.reaper_ended()).await.is_err() {
            self.end_reaper();
            let _ = tokio::time::timeout(FAREWELL, self.reaper_ended()).await;
        }
        // Only now: a reaper that was killed leaves the command's process to us. What is left is not ours.
        let _ = set_child_subreaper(None);
    }

    async fn reaper_ended(&mut self) {
        while self.events.recv().await.is_some() {}
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        zombies::release(self.pid);
    }
}

/// Whether nobody holds the other end any more: the reaper was killed before it could be told anything.
fn gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn never_started() -> Failure {
    Failure::new(
        Exit::signal(Signal::KILL),
        "the process that watches over the command was ended, or did not start it in time",
    )
}

/// Lets go of a reaper that has not started the command, and waits until nobody listens to it: who takes over from it
/// would kill the next one.
async fn nothing_started(
    dismissed: &AtomicBool,
    reaper: Option<&OwnedFd>,
    events: &mut mpsc::Receiver<Event>,
) {
    dismissed.store(true, Ordering::SeqCst);
    end(reaper);
    while events.recv().await.is_some() {}
}

fn end(reaper: Option<&OwnedFd>) {
    if let Some(reaper) = reaper {
        let _ = pidfd_send_signal(reaper, Signal::KILL);
    }
}

/// Checks that `/proc` shows this process. Without it, the processes of a command cannot be found.
pub(crate) fn check_proc() -> Result<(), Failure> {
    let shown = std::fs::read_link("/proc/self").ok();
    if shown.is_some_and(|shown| shown.as_os_str() == getpid().to_string().as_str()) {
        return Ok(());
    }
    Err(Failure::unavailable(
        "/proc is not mounted, or is of another process namespace, and zoolock finds processes there; run: mount -t proc \
         proc /proc",
    ))
}

/// Our own program, not its path, which an upgrade may have given to another.
pub(crate) fn ourselves() -> PathBuf {
    let ourselves = PathBuf::from("/proc/self/exe");
    if ourselves.exists() { ourselves } else { std::env::current_exe().unwrap_or(ourselves) }
}

/// The command line does not show the command: who looks for it by that, to end it, must not find us twice.
fn reaper(start: &Start<'_>, socket: OwnedFd) -> Command {
    let mut process = Command::new(ourselves());
    process.arg0("lock-reaper").args(["reap", "--grace"]).arg(start.grace.as_millis().to_string());
    if start.foreground {
        process.arg("--foreground");
    }
    let environment = start.environment;
    process
        .env("ZOOLOCK_NAME", &environment.name)
        .env("ZOOLOCK_TICKET", &environment.ticket)
        .env("ZOOLOCK_PREVIOUS", environment.previous)
        .env("ZOOLOCK_PATH", &environment.path)
        .env(outer::VARIABLE, &environment.held);
    if let Some(owner) = &environment.owner {
        process.env("ZOOLOCK_OWNER", owner);
    }
    match &environment.token {
        Some(token) => process.env("ZOOLOCK_TOKEN", token),
        // One that we inherited would be another lock's.
        None => process.env_remove("ZOOLOCK_TOKEN"),
    };
    // ^C, and a STOP to our group, are not for it. It is in our session, or else the command could not have the terminal.
    process.stdin(Stdio::from(socket)).process_group(0);
    process
}

/// The command line as a file: it may be longer than any packet.
fn line(command: &[OsString]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(c"command", MemfdFlags::CLOEXEC)?);
    let mut text = Vec::new();
    for argument in command {
        text.extend_from_slice(argument.as_bytes());
        text.push(0);
    }
    file.write_all(&text)?;
    Ok(file.into())
}

/// How the command ended: seen, and not taken, for its number is used for signals as long as there is a [`Child`].
fn ending(leader: Pid, how: WaitIdOptions) -> Option<Ending> {
    let end = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | how;
    waitid(WaitId::Pid(leader), end).ok().flatten().as_ref().and_then(Ending::of)
}

/// Hears what the reaper says, on a thread of its own; and takes over from it.
struct Ear {
    socket: Arc<OwnedFd>,
    reaper: Spawned,
    others: HashSet<(i32, u64)>,
    dismissed: Arc<AtomicBool>,
    sender: mpsc::Sender<Event>,
}

impl Ear {
    fn listen(mut self) {
        let (mut leader, mut ended) = (None, false);
        while let Some(report) = Report::receive(&self.socket) {
            match report {
                Report::Started(pid) => leader = Pid::from_raw(pid).inspect(|pid| zombies::reserve(*pid)),
                Report::Ended(_) => ended = true,
                _ => {}
            }
            // Whoever does not want to hear has dismissed it: the end is near.
            let _ = self.sender.blocking_send(Event::Reported(report));
        }
        let _ = self.reaper.wait();
        if !self.dismissed.load(Ordering::SeqCst) {
            self.take_over(leader, ended);
        }
    }

    /// The reaper is dead. Its children are ours now, the command among them; none may stay. Who the command is we do not
    /// know if the reaper died before it could say.
    fn take_over(&self, leader: Option<Pid>, mut ended: bool) {
        let kill_group = || leader.map(|leader| kill_process_group(leader, Signal::KILL));
        kill_group();
        let _ = self.sender.blocking_send(Event::ReaperDied);
        let mut begun = Instant::now();
        let mut looks_in_vain = 0;
        // The lock is given back when nobody is left, or when zoolock says so: without it there is nothing to wait for.
        while looks_in_vain < 2 && !self.dismissed.load(Ordering::SeqCst) {
            kill_group();
            if !ended
                && let Some(leader) = leader
                && let Some(ending) = ending(leader, WaitIdOptions::NOHANG)
            {
                ended = true;
                begun = Instant::now();
                let _ = self.sender.blocking_send(Event::Reported(Report::Ended(ending)));
            }
            let table = Table::read();
            let group = leader.map(|leader| table.of_group(leader)).unwrap_or_default();
            let left = [group, table.below(getpid(), &self.others)].concat();
            if left.is_empty() {
                looks_in_vain += 1;
                continue;
            }
            looks_in_vain = 0;
            for process in &left {
                process.signal(Signal::KILL);
            }
            if begun.elapsed() > STUCK {
                // Again and again: the lock may be lost by the next time.
                begun = Instant::now();
                let count = i32::try_from(left.len()).unwrap_or(i32::MAX);
                let _ = self.sender.blocking_send(Event::Reported(Report::Stuck(count)));
            }
            std::thread::sleep(PAUSE);
        }
        if let Some(leader) = leader
            && !ended
        {
            // One that became another user's ends in its own time. One that is not ours was killed all the same.
            let killed = Ending::Signal(Signal::KILL.as_raw());
            let ending = ending(leader, WaitIdOptions::empty()).unwrap_or(killed);
            let _ = self.sender.blocking_send(Event::Reported(Report::Ended(ending)));
        }
        let _ = self.sender.blocking_send(Event::Reported(Report::Gone));
    }
}
