//! The loop of the reaper. It polls the socket to zoolock, a file for SIGCHLD, and a timer.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, waitid as wait_for_any};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{
    DumpableBehavior, Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group,
    set_child_subreaper, set_dumpable_behavior, waitid,
};

use super::kill_schedule::{KillAction, KillSchedule};
use super::orders::{ReaperOrder, ReaperReport, Scope};
use super::session::{self, Parent, ReaperSession};
use super::table::{self, ProcessEntry, ProcessTable};
use crate::args::ReapArgs;
use crate::base::clock::{Timer, now};
use crate::base::exit::Exit;
use crate::base::inherited;
use crate::base::proc::OWN_PROGRAM;
use crate::base::reporter::Reporter;
use crate::reaper::ending::Ending;
use crate::reaper::zombies;

/// The nice value that the reaper requests.
const PRIORITY: i32 = -10;
/// The first pause between two checks of processes that have to end. Each later pause is twice as
/// long as the one before, up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(100);
/// Number of orders read in a row that shows that this process was stopped, so that zoolock's socket may have been full.
const BACKLOG: usize = 64;
/// Time after a backlog in which zoolock sends the orders for which its socket had no room.
const BACKLOG_BOUND: Duration = Duration::from_secs(1);
/// Time after zoolock's death in which a reaper of an inner zoolock ends its own session. Then it is killed, too.
const INNER_REAPER_BOUND: Duration = Duration::from_secs(2);
/// Time after KILL until a process that still exists counts as stuck. It probably waits for a disk that does not answer.
const STUCK: Duration = Duration::from_secs(2);

/// Runs the reaper of one command. Standard input is a socket, through which zoolock sends the
/// command line and its orders. Must be called before the first thread starts, and before any file
/// is opened.
pub(crate) fn run_reaper(args: &ReapArgs) -> Exit {
    let files = inherited::list_inherited();
    if args.stop_in_suspend {
        zoolock_client::stop_session_clock_in_suspend();
    }
    // `killall zoolock` must not find the reaper.
    let _ = rustix::thread::set_name(table::REAPER_NAME);
    // No other process can read this process's memory, which will contain secrets.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let Ok(mask) = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK) else { return Exit::UNAVAILABLE };
    match Reaper::start(args, files, &mask) {
        Ok(Some(mut reaper)) => reaper.run(),
        Ok(None) => Exit::LOST,
        Err(error) => {
            let _ = ReaperReport::Failed(error.raw_os_error().unwrap_or_default()).send(io::stdin());
            Exit::UNAVAILABLE
        }
    }
}

struct Reaper {
    schedule: KillSchedule,
    /// The command's own process, which leads the group. The reaper does not reap it while zoolock
    /// may use its pid.
    leader: Pid,
    ending: Option<Ending>,
    stopped: bool,
    /// The wait for the end of the processes that are left, if it has begun.
    leftover_wait: Option<LeftoverWait>,
    parent: Parent,
    /// The session to end after zoolock's death. `None` if zoolock has sent none, and after the attempt.
    session: Option<ReaperSession>,
    /// Set once zoolock releases the lock.
    releases: bool,
    /// The time at which zoolock ended.
    zoolock_ended: Option<Duration>,
    /// The reports that could not be sent yet.
    pending_reports: Vec<ReaperReport>,
    /// A file that stays open until the last process of the command has ended.
    _held: Option<OwnedFd>,
    timer: Timer,
    children: SignalFd,
}

/// A wait until no process of `scope` is left.
struct LeftoverWait {
    scope: Scope,
    pause: Duration,
    /// Set if the last check found no process. One check is not enough: it can miss a process
    /// whose parent ends during the check.
    found_none: bool,
    killed: Option<Duration>,
    stuck: bool,
}

impl LeftoverWait {
    fn new(scope: Scope) -> Self {
        Self { scope, pause: MIN_PAUSE, found_none: false, killed: None, stuck: false }
    }
}

impl Reaper {
    /// Starts the command. Returns `None` if the lease or zoolock has already ended.
    fn start(args: &ReapArgs, files: Vec<i32>, mask: &SigSet) -> io::Result<Option<Self>> {
        enable_sigchld()?;
        let mut only_children = SigSet::empty();
        only_children.add(NixSignal::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let children = SignalFd::with_flags(&only_children, flags)?;
        let timer = Timer::new()?;
        let parent = Parent::open();
        let session = ReaperSession::receive(io::stdin())?;
        let Some((ReaperOrder::Start(lease), received)) = ReaperOrder::receive(io::stdin())? else {
            // zoolock has died, and no command was started.
            if let Some(session) = session {
                session.end(now(), &parent, true);
            }
            return Ok(None);
        };
        let mut received = received.into_iter();
        let (Some(input), Some(line)) = (received.next(), received.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let held = received.next();
        if let Some(held) = &held {
            // Clears close-on-exec, so that the command and its descendants inherit the file.
            fcntl_setfd(held, FdFlags::empty())?;
        }
        let mut schedule = KillSchedule::new(lease, args.grace);
        if schedule.take_due(now()).is_some() {
            let _ = ReaperReport::LeaseEnded.send(io::stdin());
            return Ok(None);
        }
        // Makes this process inherit orphans of the command. So processes that leave the group stay
        // descendants of the reaper. Otherwise their end could not be proved.
        let is_subreaper = set_child_subreaper(Some(getpid())).is_ok();
        let session = session.filter(|_| is_subreaper);
        let command = read_command_line(line)?;
        let mut process = Command::new(OWN_PROGRAM);
        process.arg0("zoolock").args(["become", "--parent"]).arg(getpid().to_string());
        process.arg("--main").arg(Pid::as_raw(getppid()).to_string());
        if args.foreground {
            process.arg("--foreground");
        }
        if args.ignore_pipe {
            process.arg("--ignore-pipe");
        }
        process.arg("--").args(command).stdin(Stdio::from(input)).process_group(0);
        mask.thread_set_mask()?;
        let started = process.spawn();
        SigSet::all().thread_set_mask()?;
        let leader = Pid::from_child(&started?);
        drop(process);
        let _ = ReaperReport::Started(leader.as_raw_nonzero().get()).send(io::stdin());
        // The reaper must act in time even on a machine that is too busy to run zoolock. The system may refuse the priority.
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        // The reaper must not keep files of the command open. Standard error stays open, for the
        // reaper's last message.
        inherited::close(files);
        if let Ok(nothing) = File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(nothing);
        }
        let _ = std::env::set_current_dir("/");
        Ok(Some(Self {
            schedule,
            leader,
            ending: None,
            stopped: false,
            leftover_wait: None,
            parent,
            session,
            releases: false,
            zoolock_ended: None,
            pending_reports: Vec::new(),
            _held: held,
            timer,
            children,
        }))
    }

    fn run(&mut self) -> Exit {
        // The command may have ended during its start. SIGCHLD was not blocked then, so that signal
        // was not queued.
        self.check_children();
        loop {
            // Handles all orders before it checks the clock. After a stop of this process, an unread renewal must count.
            let (mut read, mut patience, mut wait_end) = (0, Duration::ZERO, None);
            while self.zoolock_ended.is_none() && has_message_or_eof(patience) {
                read += 1;
                if read >= BACKLOG {
                    patience = wait_end.get_or_insert_with(|| now() + BACKLOG_BOUND).saturating_sub(now());
                }
                if self.handle_order() {
                    // Reaps the command's process and orphans. Otherwise they could stay zombies,
                    // because pid 1 of a container may not reap its children.
                    return if session::reap_to_the_last() { Exit::OK } else { Exit::LOST };
                }
            }
            if self.releases {
                if self.zoolock_ended.is_some() {
                    return self.finish_after_death();
                }
            } else {
                while let Some(action) = self.schedule.take_due(now()) {
                    self.perform(action);
                }
                if self.check_leftovers() && self.zoolock_ended.is_some() {
                    return self.finish_after_death();
                }
            }
            self.send_pending_reports();
            self.wait();
            self.check_children();
        }
    }

    /// Waits for an order, the end or stop of a child, or the time of the next action or check.
    fn wait(&self) {
        let pause = match &self.leftover_wait {
            Some(wait) => Some(wait.pause),
            None if self.pending_reports.is_empty() => None,
            None => Some(MAX_PAUSE),
        };
        self.timer.set(self.schedule.next_time().filter(|_| !self.releases));
        let pause = pause.map(|pause| Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() });
        let stdin = io::stdin();
        let mut files = [
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&stdin, PollFlags::IN),
        ];
        // Does not poll a closed socket, which is always readable.
        let count = if self.zoolock_ended.is_some() { 2 } else { 3 };
        let _ = poll(&mut files[..count], pause.as_ref());
    }

    /// Receives and handles an order. Returns true if the reaper is dismissed.
    fn handle_order(&mut self) -> bool {
        match ReaperOrder::receive(io::stdin()) {
            Ok(Some((ReaperOrder::Lease(lease), _))) => self.schedule.set_lease(lease),
            Ok(Some((ReaperOrder::Grace(grace), _))) => self.schedule.set_grace(grace),
            Ok(Some((ReaperOrder::Terminate, _))) => {
                if let Some(action) = self.schedule.begin_grace(now()) {
                    self.perform(action);
                }
            }
            Ok(Some((ReaperOrder::Finish(scope), _))) => self.handle_finish_order(scope),
            Ok(Some((ReaperOrder::Kill | ReaperOrder::Start(_), _))) => {
                let action = self.schedule.begin_kill();
                self.perform(action);
            }
            Ok(Some((ReaperOrder::Release, _))) => (self.releases, self.leftover_wait) = (true, None),
            Ok(Some((ReaperOrder::Dismiss, _))) => return true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) | Err(_) => {
                // Kills at once: from now on, no process would notice that the lock is broken or revoked.
                self.zoolock_ended = Some(now());
                if !self.releases {
                    let action = self.schedule.begin_kill();
                    self.perform(action);
                    // The kill comes before the message, because printing can take time.
                    self.check_leftovers();
                    Reporter::plain().error("zoolock has died; KILL sent to the command");
                }
            }
        }
        false
    }

    /// Ends the session after zoolock's death and the end of all processes that zoolock can kill, and reaps the children.
    /// Returns the exit code of this process.
    fn finish_after_death(&mut self) -> Exit {
        let ended = self.session.take().zip(self.zoolock_ended);
        if let Some((session, died)) = ended {
            let outcome = session.end(died, &self.parent, !self.releases);
            Reporter::plain().error(outcome);
        }
        zombies::reap_all();
        Exit::LOST
    }

    fn perform(&mut self, action: KillAction) {
        match action {
            KillAction::SendTerm => {
                self.signal_group(Signal::TERM);
                if self.stopped {
                    // A stopped process does not handle TERM.
                    self.stopped = false;
                    self.signal_group(Signal::CONT);
                }
                self.report(ReaperReport::TermSent);
            }
            KillAction::SendKill(scope) => {
                self.signal_group(Signal::KILL);
                self.leftover_wait = Some(LeftoverWait { killed: Some(now()), ..LeftoverWait::new(scope) });
                self.report(ReaperReport::Killed);
            }
        }
    }

    /// Handles an order to end the processes that the command left behind. Gives them a grace
    /// period.
    fn handle_finish_order(&mut self, scope: Scope) {
        self.schedule.record_end(scope);
        let left = self.live_processes(scope);
        self.terminate(&left);
        if self.schedule.killed_scope().is_none() {
            self.leftover_wait =
                Some(LeftoverWait { found_none: left.is_empty(), ..LeftoverWait::new(scope) });
        }
    }

    /// Begins the grace period and sends TERM to these processes, unless the grace period has begun
    /// before.
    fn terminate(&mut self, left: &[ProcessEntry]) {
        if !left.is_empty() && self.schedule.begin_grace(now()).is_some() {
            for process in left {
                process.signal(Signal::TERM);
                process.signal(Signal::CONT);
            }
            self.report(ReaperReport::LeftoversTerminated(i32::try_from(left.len()).unwrap_or(i32::MAX)));
        }
    }

    /// Sends a signal to all processes of the group at once, so that none escapes by forking.
    fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    fn live_processes(&self, scope: Scope) -> Vec<ProcessEntry> {
        // Most commands leave no process behind. The list of children shows that without a read of all processes, because
        // every descendant descends from a child.
        let is_only_leader = |children: Vec<i32>| children == [self.leader.as_raw_nonzero().get()];
        if self.ending.is_some() && table::list_children().is_some_and(is_only_leader) {
            return Vec::new();
        }
        let table = ProcessTable::read();
        for orphan in table.ended_children(getpid()).filter(|pid| *pid != self.leader) {
            zombies::reap(orphan);
        }
        let mut left = table.of_group(self.leader);
        if scope == Scope::All {
            for process in table.living_descendants(getpid(), &Default::default()) {
                if !left.contains(&process) {
                    left.push(process);
                }
            }
        }
        left
    }

    /// Looks for processes that are left, and kills them if a kill has begun. If two checks in a
    /// row find none, reports that and returns true.
    fn check_leftovers(&mut self) -> bool {
        let Some(scope) = self.leftover_wait.as_ref().map(|wait| wait.scope) else { return false };
        let left = self.live_processes(scope);
        let all_ended = left.is_empty() && self.ending.is_some();
        // Sends TERM to processes that the previous check missed.
        self.terminate(&left);
        // The reaper of an inner zoolock ends its session, if the lease of this one allows.
        let spares_reapers = self
            .zoolock_ended
            .is_some_and(|died| now() < self.schedule.lease().min(died + INNER_REAPER_BOUND));
        if self.schedule.killed_scope().is_some() {
            for process in left.iter().filter(|process| !(spares_reapers && process.is_reaper())) {
                process.signal(Signal::KILL);
            }
        }
        let Some(wait) = &mut self.leftover_wait else { return false };
        wait.pause = (wait.pause * 2).min(MAX_PAUSE);
        if all_ended && wait.found_none {
            self.leftover_wait = None;
            self.report(ReaperReport::AllEnded);
            return true;
        }
        if all_ended {
            wait.pause = MIN_PAUSE;
        }
        wait.found_none = all_ended;
        if !all_ended && !wait.stuck && wait.killed.is_some_and(|killed| now().saturating_sub(killed) > STUCK)
        {
            wait.stuck = true;
            // The count is at least one: the command's own process is not in the list if it runs as another user.
            self.report(ReaperReport::Stuck(i32::try_from(left.len().max(1)).unwrap_or(i32::MAX)));
        }
        false
    }

    fn check_children(&mut self) {
        while let Ok(Some(_)) = self.children.read_signal() {}
        if self.ending.is_some() {
            // The command's own process has ended and is not reaped. It would hide other ended
            // children from `waitid`. `live_processes` reaps those children.
            return;
        }
        let stop = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.leader), stop)
            && let Some(signal) = status.stopping_signal()
        {
            self.stopped = true;
            self.report(ReaperReport::Stopped(signal));
        }
        // Reaps other children that have ended: orphans of the command. Does not reap the command
        // itself.
        let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Ok(status) = wait_for_any(Id::All, any)
            && let Some(pid) = status.pid().and_then(|pid| Pid::from_raw(pid.as_raw()))
            && pid != self.leader
        {
            zombies::reap(pid);
        }
        let end = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.leader), end)
            && let Some(ending) = Ending::of(&status)
        {
            self.ending = Some(ending);
            self.report(ReaperReport::Ended(ending));
        }
    }

    fn report(&mut self, report: ReaperReport) {
        self.pending_reports.push(report);
        self.send_pending_reports();
    }

    fn send_pending_reports(&mut self) {
        while self.zoolock_ended.is_none()
            && let Some(report) = self.pending_reports.first()
        {
            match report.send(io::stdin()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Any other error means that the socket is closed, which the next read shows.
                Ok(()) | Err(_) => drop(self.pending_reports.remove(0)),
            }
        }
    }
}

/// Returns whether a message from zoolock comes within this time, or zoolock has closed its end of the socket.
fn has_message_or_eof(patience: Duration) -> bool {
    let patience = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
    let stdin = io::stdin();
    let mut file = [PollFd::new(&stdin, PollFlags::IN)];
    poll(&mut file, Some(&patience)).is_ok_and(|count| count > 0)
}

/// Installs a handler for SIGCHLD, so that the system reports children that end. This process may
/// have been started with SIGCHLD ignored. Then the system would reap children by itself, and their
/// exit codes would be lost. The handler does nothing. It runs only while the command is started,
/// when signals are not blocked.
fn enable_sigchld() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    let _heard = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())?;
    Ok(())
}

/// Reads the command line that [`crate::reaper::child`] wrote. Each argument ends with a zero byte.
fn read_command_line(line: OwnedFd) -> io::Result<Vec<OsString>> {
    let mut file = File::from(line);
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    text.pop();
    Ok(text.split(|byte| *byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect())
}
