//! Starts the command through its reaper, and watches both until they have ended.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::mem::discriminant;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, kill_process_group, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitid,
};
use tokio::sync::mpsc;
use zoolock_client::{start_thread, stops_in_suspend};

use crate::base::clock::now;
use crate::base::executable;
use crate::base::exit::{Exit, Failure, cannot_start};
use crate::base::proc::{OWN_PROGRAM, ignored_at_start};
use crate::reaper::ending::Ending;
use crate::reaper::orders::{ReaperOrder, ReaperReport};
use crate::reaper::session::ReaperSession;
use crate::reaper::table::ProcessTable;
use crate::reaper::zombies::{self, SpawnedChild};

/// Environment variable with the ids of the acquisitions under which a process runs, separated by
/// spaces, and then `@` and the server of the innermost `run`.
pub(crate) const HELD_VARIABLE: &str = "ZOOLOCK_HELD";

/// Maximum time for the reaper to start the command.
const START_BOUND: Duration = Duration::from_secs(10);
/// Maximum time for the reaper to end after its dismissal.
const REAPER_END_BOUND: Duration = Duration::from_secs(1);
/// The pause between two checks of processes that are being killed.
const PAUSE: Duration = Duration::from_millis(10);
/// Time after KILL until a process that still exists counts as stuck. It probably waits for a disk that does not answer.
const STUCK: Duration = Duration::from_secs(2);

/// An event in the life of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandEvent {
    /// The reaper has sent this report.
    Reported(ReaperReport),
    /// The reaper has died. The kernel has killed the command, and this process kills the
    /// descendants of the command.
    ReaperDied,
}

/// A command to start, with the settings for its start.
pub(crate) struct CommandStart<'a> {
    pub(crate) command: &'a [OsString],
    /// Environment variables for the command. `None` removes a variable.
    pub(crate) variables: &'a [(String, Option<OsString>)],
    pub(crate) foreground: bool,
    pub(crate) grace: Duration,
    pub(crate) lease: Duration,
    /// The session that the reaper ends after zoolock's death.
    pub(crate) session: Option<ReaperSession>,
    /// A file that stays open until all processes of the command have ended.
    pub(crate) held: Option<BorrowedFd<'a>>,
}

/// A command that runs in a process group of its own, and its reaper.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    pid: Pid,
    socket: Arc<OwnedFd>,
    reaper: Option<OwnedFd>,
    /// Set once no descendant of the command is to be killed any more.
    dismissed: Arc<AtomicBool>,
    /// Set if the reaper has ended, and had no child then.
    is_last_dead: Arc<AtomicBool>,
    events: mpsc::Receiver<CommandEvent>,
    /// Orders for which the socket had no room, at most one of each kind.
    unsent: Vec<ReaperOrder>,
}

impl RunningCommand {
    /// Starts the command through its reaper.
    pub(crate) async fn start(start: CommandStart<'_>) -> Result<Self, Failure> {
        let unable = |error| cannot_start("the process that watches over the command", error);
        let program = start.command.first().cloned().unwrap_or_default();
        // Descendants that exist already do not belong to the command. A process that became zoolock by `exec` may have
        // had children.
        let earlier_descendants = if zombies::has_no_children() {
            HashSet::new()
        } else {
            ProcessTable::read().descendant_ids(getpid())
        };
        // Makes this process inherit the children of a killed reaper.
        let _ = set_child_subreaper(Some(getpid()));
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| unable(error.into()))?;
        let line = command_line_file(start.command).map_err(unable)?;
        // The thread starts before the reaper. So there is no reaper to end if the system refuses
        // the thread.
        let (to_thread, on_thread) = std::sync::mpsc::channel::<ReportListener>();
        start_thread("reaper", move || {
            if let Ok(listener) = on_thread.recv() {
                listener.listen();
            }
        })
        .map_err(|error| cannot_start("a thread that watches the command", error))?;
        let mut process = reaper_command(&start, theirs);
        let reaper = SpawnedChild::start(&mut process).map_err(unable)?;
        // Closes the reaper's end of the socket in this process. The `Command` has kept that end
        // open.
        drop(process);
        let pidfd = pidfd_open(Pid::from_child(&reaper.0), PidfdFlags::empty()).ok();
        let socket = Arc::new(socket);
        let dismissed = Arc::new(AtomicBool::new(false));
        let is_last_dead = Arc::new(AtomicBool::new(false));
        let (sender, mut events) = mpsc::channel(8);
        let listener = ReportListener {
            socket: Arc::clone(&socket),
            reaper,
            earlier_descendants,
            dismissed: Arc::clone(&dismissed),
            is_last_dead: Arc::clone(&is_last_dead),
            sender,
        };
        let _ = to_thread.send(listener);
        // After this order, the reaper may start the command. If this function fails, the caller
        // releases the lock. The reaper and the command must have ended before that.
        let stdin = io::stdin();
        let files: Vec<_> = [stdin.as_fd(), line.as_fd()].into_iter().chain(start.held).collect();
        let sent = ReaperSession::send(start.session.as_ref(), &socket)
            .and_then(|()| ReaperOrder::Start(start.lease).send_with(&socket, &files));
        if let Err(error) = sent {
            stop_unused_reaper(&dismissed, pidfd.as_ref(), &mut events).await;
            return Err(if is_closed(&error) { start_failure() } else { unable(error) });
        }
        let time_to_start = start.lease.saturating_sub(now()).min(START_BOUND);
        let pid = match tokio::time::timeout(time_to_start, events.recv()).await.ok().flatten() {
            Some(CommandEvent::Reported(ReaperReport::Started(pid))) => Pid::from_raw(pid),
            Some(CommandEvent::Reported(ReaperReport::Failed(error))) => {
                stop_unused_reaper(&dismissed, pidfd.as_ref(), &mut events).await;
                let error = io::Error::from_raw_os_error(error);
                return Err(match error.kind() {
                    io::ErrorKind::ArgumentListTooLong => executable::exec_failure(&program, error),
                    _ => unable(error),
                });
            }
            Some(CommandEvent::Reported(ReaperReport::LeaseEnded)) => {
                stop_unused_reaper(&dismissed, pidfd.as_ref(), &mut events).await;
                return Err(Failure::new(Exit::LOST, "the lock was lost before the command was started"));
            }
            _ => None,
        };
        let Some(pid) = pid else {
            // The reaper is dead or stopped, and may have started the command. Once the reaper is dead, the listener
            // kills the command and its descendants, and then drops its sender.
            kill_reaper_process(pidfd.as_ref());
            while let Some(event) = events.recv().await {
                if let CommandEvent::Reported(ReaperReport::Started(pid)) = event
                    && let Some(pid) = Pid::from_raw(pid)
                {
                    zombies::unreserve(pid);
                }
            }
            return Err(start_failure());
        };
        Ok(Self { pid, socket, reaper: pidfd, dismissed, is_last_dead, events, unsent: Vec::new() })
    }

    /// Returns the pid of the command, which is also its process group.
    pub(crate) fn group(&self) -> Pid {
        self.pid
    }

    /// Waits for the next event.
    pub(crate) async fn next_event(&mut self) -> CommandEvent {
        match self.events.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }

    /// Sends a signal to the whole group. The number of the group is not reused, because the first process of the group is
    /// not reaped before [`Child::dismiss`].
    pub(crate) fn signal(&self, signal: Signal) {
        // The group may be empty.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Sends an order to the reaper, or keeps it for [`RunningCommand::send_unsent_orders`]. Replaces an unsent order of the
    /// same kind.
    pub(crate) fn send_order(&mut self, order: ReaperOrder) {
        match self.unsent.iter_mut().find(|unsent| discriminant(*unsent) == discriminant(&order)) {
            Some(unsent) => *unsent = order,
            None => self.unsent.push(order),
        }
        self.send_unsent_orders();
    }

    /// Sends the orders for which the socket had no room. Returns whether all are sent. Continues a stopped reaper that has
    /// left the socket full, because later it would find only ended leases, and kill the command.
    pub(crate) fn send_unsent_orders(&mut self) -> bool {
        while let Some(order) = self.unsent.first() {
            match order.send(&self.socket) {
                Err(error) if !is_closed(&error) => {
                    if let Some(reaper) = &self.reaper {
                        let _ = pidfd_send_signal(reaper, Signal::CONT);
                    }
                    return false;
                }
                Ok(()) | Err(_) => drop(self.unsent.remove(0)),
            }
        }
        true
    }

    /// Kills a reaper that does not answer. The listener then does the reaper's work.
    pub(crate) fn kill_reaper(&self) {
        kill_reaper_process(self.reaper.as_ref());
    }

    /// Tells the reaper of a command that has ended that the lock is being released. From now on, the remaining descendants of
    /// the command are left alone.
    pub(crate) fn begin_release(&mut self) {
        self.dismissed.store(true, Ordering::SeqCst);
        self.send_order(ReaperOrder::Release);
    }

    /// Dismisses the reaper of a command that has ended. Returns whether the reaper says that no process of the command is
    /// left, also none that it could not kill.
    pub(crate) async fn dismiss(mut self) -> bool {
        self.dismissed.store(true, Ordering::SeqCst);
        self.send_order(ReaperOrder::Dismiss);
        if tokio::time::timeout(REAPER_END_BOUND, self.wait_for_reaper_end()).await.is_err() {
            self.kill_reaper();
            let _ = tokio::time::timeout(REAPER_END_BOUND, self.wait_for_reaper_end()).await;
        }
        // This comes last, because this process must inherit the command if the reaper was killed.
        let _ = set_child_subreaper(None);
        self.is_last_dead.load(Ordering::SeqCst)
    }

    async fn wait_for_reaper_end(&mut self) {
        while self.events.recv().await.is_some() {}
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        zombies::unreserve(self.pid);
    }
}

/// Returns whether the error shows that the reaper has closed its end of the socket, because it was
/// killed.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

fn start_failure() -> Failure {
    Failure::new(
        Exit::from_signal_number(Signal::KILL.as_raw()),
        "the process that watches over the command was ended, or did not start it in time",
    )
}

/// Kills a reaper that has not started the command, and waits until its listener has ended. Otherwise the listener could
/// kill the processes of the next command.
async fn stop_unused_reaper(
    dismissed: &AtomicBool,
    reaper: Option<&OwnedFd>,
    events: &mut mpsc::Receiver<CommandEvent>,
) {
    dismissed.store(true, Ordering::SeqCst);
    kill_reaper_process(reaper);
    while events.recv().await.is_some() {}
}

fn kill_reaper_process(reaper: Option<&OwnedFd>) {
    if let Some(reaper) = reaper {
        let _ = pidfd_send_signal(reaper, Signal::KILL);
    }
}

/// Returns the reaper's command line. It does not contain the command, so that `pkill -f` with the command's text does not
/// match the reaper.
fn reaper_command(start: &CommandStart<'_>, socket: OwnedFd) -> Command {
    let mut process = Command::new(OWN_PROGRAM);
    process.arg0("lock-reaper").args(["reap", "--grace"]).arg(format!("{}ms", start.grace.as_millis()));
    if start.foreground {
        process.arg("--foreground");
    }
    if ignored_at_start(Signal::PIPE) {
        process.arg("--ignore-pipe");
    }
    if stops_in_suspend() {
        process.arg("--stop-in-suspend");
    }
    for (name, value) in start.variables {
        match value {
            Some(value) => process.env(name, value),
            None => process.env_remove(name),
        };
    }
    // A process group of its own keeps ^C, and a STOP to zoolock's process group, from the reaper. The reaper stays in
    // zoolock's terminal session, because otherwise the command could not have the terminal.
    process.stdin(Stdio::from(socket)).process_group(0);
    process
}

/// Writes the command line into a file, because it may be longer than a packet.
fn command_line_file(command: &[OsString]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(c"command", MemfdFlags::CLOEXEC)?);
    let mut text = Vec::new();
    for argument in command {
        text.extend_from_slice(argument.as_bytes());
        text.push(0);
    }
    file.write_all(&text)?;
    Ok(file.into())
}

/// Returns the ending of the command `leader`, if it has ended. Does not reap the command, because
/// signals use its pid as long as the [`RunningCommand`] exists.
fn ending_of(leader: Pid, how: WaitIdOptions) -> Option<Ending> {
    let end = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | how;
    waitid(WaitId::Pid(leader), end).ok().flatten().as_ref().and_then(Ending::of)
}

/// The state of the thread that receives the reports of the reaper. If the reaper dies, this thread
/// does the reaper's work.
struct ReportListener {
    socket: Arc<OwnedFd>,
    reaper: SpawnedChild,
    earlier_descendants: HashSet<(i32, u64)>,
    dismissed: Arc<AtomicBool>,
    is_last_dead: Arc<AtomicBool>,
    sender: mpsc::Sender<CommandEvent>,
}

impl ReportListener {
    fn listen(mut self) {
        let (mut leader, mut ended) = (None, false);
        while let Some(report) = ReaperReport::receive(&self.socket) {
            match report {
                ReaperReport::Started(pid) => {
                    leader = Pid::from_raw(pid).inspect(|pid| zombies::reserve(*pid))
                }
                ReaperReport::Ended(_) => ended = true,
                _ => {}
            }
            // The send fails only after the reaper was dismissed. Then the report is not needed any
            // more.
            let _ = self.sender.blocking_send(CommandEvent::Reported(report));
        }
        let is_last_dead = self.reaper.0.wait().is_ok_and(|status| status.success());
        self.is_last_dead.store(is_last_dead, Ordering::SeqCst);
        if !self.dismissed.load(Ordering::SeqCst) {
            self.kill_after_reaper_death(leader, ended);
        }
    }

    /// Kills the command and its descendants after the reaper has died. They are descendants of
    /// this process now. `leader` is the command's own process, or `None` if the reaper died before
    /// it reported the pid.
    fn kill_after_reaper_death(&self, leader: Option<Pid>, mut ended: bool) {
        let kill_group = || leader.map(|leader| kill_process_group(leader, Signal::KILL));
        kill_group();
        let _ = self.sender.blocking_send(CommandEvent::ReaperDied);
        let mut begun = Instant::now();
        let mut empty_checks = 0;
        // Continues until no process is left, because zoolock keeps the lock until then. If the
        // lock is lost, zoolock does not wait, and sets `dismissed`.
        while empty_checks < 2 && !self.dismissed.load(Ordering::SeqCst) {
            kill_group();
            if !ended
                && let Some(leader) = leader
                && let Some(ending) = ending_of(leader, WaitIdOptions::NOHANG)
            {
                ended = true;
                begun = Instant::now();
                let _ = self.sender.blocking_send(CommandEvent::Reported(ReaperReport::Ended(ending)));
            }
            let table = ProcessTable::read();
            let group = leader.map(|leader| table.of_group(leader)).unwrap_or_default();
            let left = [group, table.living_descendants(getpid(), &self.earlier_descendants)].concat();
            if left.is_empty() {
                empty_checks += 1;
                continue;
            }
            empty_checks = 0;
            for process in &left {
                process.signal(Signal::KILL);
            }
            if begun.elapsed() > STUCK {
                // Reported repeatedly, because the supervisor checks at each report whether the lock is lost.
                begun = Instant::now();
                let count = i32::try_from(left.len()).unwrap_or(i32::MAX);
                let _ = self.sender.blocking_send(CommandEvent::Reported(ReaperReport::Stuck(count)));
            }
            std::thread::sleep(PAUSE);
        }
        if let Some(leader) = leader
            && !ended
        {
            // The command's own process has not ended. If it runs as another user, this process
            // cannot kill it and waits for its end. If `waitid` fails, the command is no child of
            // this process and was killed.
            let killed = Ending::Signal(Signal::KILL.as_raw());
            let ending = ending_of(leader, WaitIdOptions::empty()).unwrap_or(killed);
            let _ = self.sender.blocking_send(CommandEvent::Reported(ReaperReport::Ended(ending)));
        }
        let _ = self.sender.blocking_send(CommandEvent::Reported(ReaperReport::AllEnded));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reaper::orders::Scope;

    /// Returns the state of a process in `/proc`, such as `T` for a stopped process.
    fn state_of(pid: u32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    }

    #[test]
    fn stopped_reaper_with_full_socket_is_continued() {
        let mut stopped = Command::new("sleep").arg("1000").spawn().expect("sleep starts");
        let pid = Pid::from_child(&stopped);
        let (socket, unread) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("sockets");
        let (_sender, events) = mpsc::channel(1);
        let reaper = Some(pidfd_open(pid, PidfdFlags::empty()).expect("the process exists"));
        let dismissed = Arc::new(AtomicBool::new(false));
        let (socket, unsent) = (Arc::new(socket), Vec::new());
        let is_last_dead = Arc::new(AtomicBool::new(false));
        let mut command = RunningCommand { pid, socket, reaper, dismissed, is_last_dead, events, unsent };
        rustix::process::kill_process(pid, Signal::STOP).expect("the process exists");
        let reached = |wanted: char| {
            while state_of(stopped.id()) != Some(wanted) {
                std::thread::yield_now();
            }
        };
        reached('T');

        let lease = |seconds| ReaperOrder::Lease(Duration::from_secs(seconds));
        let mut sent = 0;
        while command.send_unsent_orders() {
            command.send_order(lease(0));
            sent += 1;
        }
        reached('S');
        let late = [lease(7), ReaperOrder::Terminate, ReaperOrder::Grace(Duration::ZERO)];
        let end = [ReaperOrder::Finish(Scope::Group), ReaperOrder::Release, ReaperOrder::Dismiss];
        let late = late.into_iter().chain(end);
        for order in late.clone() {
            command.send_order(order);
        }
        // A reaper that reads makes room, so the orders are sent.
        let receive = || ReaperOrder::receive(&unread).expect("readable").expect("an order").0;
        assert!((1..sent).all(|_| receive() == lease(0)));
        assert!(command.send_unsent_orders());
        for order in late {
            assert_eq!(receive(), order);
        }
        // A reaper that has ended gets no orders.
        drop(unread);
        command.send_order(ReaperOrder::Kill);
        assert!(command.send_unsent_orders());

        stopped.kill().expect("the process exists");
        stopped.wait().expect("the process has ended");
    }
}
