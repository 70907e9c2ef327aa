//! The reaper itself: a loop around three files, the socket, the children's signal and the timer.

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
    Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group, set_child_subreaper, waitid,
};

use super::duty::{Deed, Duty};
use super::orders::{Order, Report, Scope};
use super::table::{self, Process, Table};
use crate::args::ReapArgs;
use crate::child::{Ending, ourselves};
use crate::clock::{Timer, now};
use crate::exit::Exit;
use crate::inherited;
use crate::talk::Talk;
use crate::zombies::{self, take};

/// What `nice` would say.
const PRIORITY: i32 = -10;
/// Between two looks at those who are to be gone.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Who was killed and is there after this time waits for a disk that does not answer.
const STUCK: Duration = Duration::from_secs(2);

/// Is the reaper of one command, which comes over standard input, a socket to zoolock. To be called before any thread
/// is started or any file opened.
pub(crate) fn reap(args: &ReapArgs) -> Exit {
    let files = inherited::files();
    // `killall zoolock` is not meant for us.
    let _ = rustix::thread::set_name(c"lock-reaper");
    let Ok(mask) = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK) else { return Exit::UNAVAILABLE };
    match Reaper::start(args, files, &mask) {
        Ok(Some(mut reaper)) => reaper.until_the_end(),
        Ok(None) => Exit::LOST,
        Err(error) => {
            let _ = Report::Failed(error.raw_os_error().unwrap_or_default()).send(io::stdin());
            Exit::UNAVAILABLE
        }
    }
}

struct Reaper {
    duty: Duty,
    /// The command's process, which leads the group. It is never taken while zoolock may use its number.
    leader: Pid,
    ending: Option<Ending>,
    stopped: bool,
    /// Whose end is waited for.
    sweep: Option<Sweep>,
    /// zoolock is gone.
    alone: bool,
    /// What could not be said yet.
    unsaid: Vec<Report>,
    /// Open until the last process has ended.
    _held: Option<OwnedFd>,
    timer: Timer,
    children: SignalFd,
}

/// Waiting until nobody is left.
struct Sweep {
    scope: Scope,
    pause: Duration,
    /// The last look found nobody. One look is not enough: whoever starts a process and ends while we look may hide it.
    seen_nobody: bool,
    killed: Option<Duration>,
    stuck: bool,
}

impl Sweep {
    fn new(scope: Scope) -> Self {
        Self { scope, pause: SHORTEST_PAUSE, seen_nobody: false, killed: None, stuck: false }
    }
}

impl Reaper {
    /// Starts the command; `None` where there is no lock any more to start it under, or nobody to start it for.
    fn start(args: &ReapArgs, files: Vec<i32>, mask: &SigSet) -> io::Result<Option<Self>> {
        hear_of_children()?;
        let mut only_children = SigSet::empty();
        only_children.add(NixSignal::SIGCHLD);
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let children = SignalFd::with_flags(&only_children, flags)?;
        let timer = Timer::new()?;
        let Some((Order::Start(lease), received)) = Order::receive(io::stdin())? else { return Ok(None) };
        let mut received = received.into_iter();
        let (Some(input), Some(line)) = (received.next(), received.next()) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let held = received.next();
        if let Some(held) = &held {
            // The command and its descendants inherit it.
            fcntl_setfd(held, FdFlags::empty())?;
        }
        let mut duty = Duty::new(lease, args.grace());
        if duty.due(now()).is_some() {
            let _ = Report::Late.send(io::stdin());
            return Ok(None);
        }
        // Whoever leaves the group stays below us.
        let _ = set_child_subreaper(Some(getpid()));
        let command = command(line)?;
        let mut process = Command::new(ourselves());
        process.arg0("zoolock").args(["become", "--parent"]).arg(getpid().to_string());
        process.arg("--main").arg(Pid::as_raw(getppid()).to_string());
        if args.foreground {
            process.arg("--foreground");
        }
        process.arg("--").args(command).stdin(Stdio::from(input)).process_group(0);
        mask.thread_set_mask()?;
        let started = process.spawn();
        SigSet::all().thread_set_mask()?;
        let leader = Pid::from_child(&started?);
        drop(process);
        let _ = Report::Started(leader.as_raw_nonzero().get()).send(io::stdin());
        // On a machine that is too busy to run zoolock in time it is to run all the same, where it may.
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        // What is the command's is not for us to keep open. Standard error stays, for our last words.
        inherited::close(files);
        if let Ok(nothing) = File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(nothing);
        }
        let _ = std::env::set_current_dir("/");
        Ok(Some(Self {
            duty,
            leader,
            ending: None,
            stopped: false,
            sweep: None,
            alone: false,
            unsaid: Vec::new(),
            _held: held,
            timer,
            children,
        }))
    }

    fn until_the_end(&mut self) -> Exit {
        // The signal of a command that ended while it was started came to nobody.
        self.look_at_children();
        loop {
            // All that was said: if we were stopped, the last of many renewals counts, and not the clock before it.
            while !self.alone && zoolock_speaks() {
                if self.listen() {
                    // The command's process, and orphans: pid 1 may not take them.
                    zombies::take_all();
                    return Exit::OK;
                }
            }
            while let Some(deed) = self.duty.due(now()) {
                self.carry_out(deed);
            }
            if self.look() && self.alone {
                zombies::take_all();
                return Exit::LOST;
            }
            self.say_the_unsaid();
            self.wait();
            self.look_at_children();
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let pause = match &self.sweep {
            Some(sweep) => Some(sweep.pause),
            None if self.unsaid.is_empty() => None,
            None => Some(LONGEST_PAUSE),
        };
        self.timer.set(self.duty.next());
        let pause = pause.map(|pause| Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() });
        let stdin = io::stdin();
        let mut files = [
            PollFd::new(&self.timer, PollFlags::IN),
            PollFd::new(&self.children, PollFlags::IN),
            PollFd::new(&stdin, PollFlags::IN),
        ];
        // At its end it is readable for ever.
        let count = if self.alone { 2 } else { 3 };
        let _ = poll(&mut files[..count], pause.as_ref());
    }

    /// Takes an order; returns whether it is over.
    fn listen(&mut self) -> bool {
        match Order::receive(io::stdin()) {
            Ok(Some((Order::Lease(lease), _))) => self.duty.set_lease(lease),
            Ok(Some((Order::Grace(grace), _))) => self.duty.set_grace(grace),
            Ok(Some((Order::Ask, _))) => {
                if let Some(deed) = self.duty.ask(now()) {
                    self.carry_out(deed);
                }
            }
            Ok(Some((Order::Finish(scope), _))) => self.finish(scope),
            Ok(Some((Order::Kill | Order::Start(_), _))) => {
                let deed = self.duty.kill();
                self.carry_out(deed);
            }
            Ok(Some((Order::Goodbye, _))) => return true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) | Err(_) => {
                // The lock could be broken or revoked from now on, and nobody would notice: at once.
                self.alone = true;
                let deed = self.duty.kill();
                self.carry_out(deed);
                // The deed before the word.
                self.look();
                Talk::plain().error("zoolock has died; KILL sent to the command");
            }
        }
        false
    }

    fn carry_out(&mut self, deed: Deed) {
        match deed {
            Deed::Ask => {
                self.signal_group(Signal::TERM);
                if self.stopped {
                    // It cannot answer as long as it is.
                    self.stopped = false;
                    self.signal_group(Signal::CONT);
                }
                self.say(Report::Asked);
            }
            Deed::Kill(scope) => {
                self.signal_group(Signal::KILL);
                self.sweep = Some(Sweep { killed: Some(now()), ..Sweep::new(scope) });
                self.say(Report::Killed);
            }
        }
    }

    /// The command's process has ended by itself: what is left of it has its grace.
    fn finish(&mut self, scope: Scope) {
        self.duty.finish(scope);
        let left = self.left(scope);
        self.ask_those(&left);
        if self.duty.killing().is_none() {
            self.sweep = Some(Sweep { seen_nobody: left.is_empty(), ..Sweep::new(scope) });
        }
    }

    /// Asks them to end, unless that was done.
    fn ask_those(&mut self, left: &[Process]) {
        if !left.is_empty() && self.duty.ask(now()).is_some() {
            for process in left {
                process.signal(Signal::TERM);
                process.signal(Signal::CONT);
            }
            self.say(Report::Left(i32::try_from(left.len()).unwrap_or(i32::MAX)));
        }
    }

    /// Sends a signal to whoever is in the group; all at once, so that nobody escapes by forking.
    fn signal_group(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    fn left(&self, scope: Scope) -> Vec<Process> {
        // Most leave nobody behind, and then there is no need to look at everybody: who descends from us does so by way
        // of a child of ours.
        let alone = |children: Vec<i32>| children == [self.leader.as_raw_nonzero().get()];
        if self.ending.is_some() && table::children().is_some_and(alone) {
            return Vec::new();
        }
        let table = Table::read();
        for orphan in table.ended_children(getpid()).filter(|pid| *pid != self.leader) {
            take(orphan);
        }
        let mut left = table.of_group(self.leader);
        if scope == Scope::All {
            for process in table.below(getpid(), &Default::default()) {
                if !left.contains(&process) {
                    left.push(process);
                }
            }
        }
        left
    }

    /// Looks who is left, kills them where that is due, and says when nobody is: then it returns true.
    fn look(&mut self) -> bool {
        let Some(scope) = self.sweep.as_ref().map(|sweep| sweep.scope) else { return false };
        let left = self.left(scope);
        let over = left.is_empty() && self.ending.is_some();
        // The look before this one may have missed them.
        self.ask_those(&left);
        if self.duty.killing().is_some() {
            for process in &left {
                process.signal(Signal::KILL);
            }
        }
        let Some(sweep) = &mut self.sweep else { return false };
        sweep.pause = (sweep.pause * 2).min(LONGEST_PAUSE);
        if over && sweep.seen_nobody {
            self.sweep = None;
            self.say(Report::Gone);
            return true;
        }
        if over {
            sweep.pause = SHORTEST_PAUSE;
        }
        sweep.seen_nobody = over;
        if !over && !sweep.stuck && sweep.killed.is_some_and(|killed| now().saturating_sub(killed) > STUCK) {
            sweep.stuck = true;
            // The command's own process is not among those left if it became another user's.
            self.say(Report::Stuck(i32::try_from(left.len().max(1)).unwrap_or(i32::MAX)));
        }
        false
    }

    fn look_at_children(&mut self) {
        while let Ok(Some(_)) = self.children.read_signal() {}
        if self.ending.is_some() {
            // It would hide the others; they are taken with the next look at who is left.
            return;
        }
        let stop = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.leader), stop)
            && let Some(signal) = status.stopping_signal()
        {
            self.stopped = true;
            self.say(Report::Stopped(signal));
        }
        // Others that ended, orphans of the command's, are taken; it itself is only looked at.
        let any = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        while let Ok(status) = wait_for_any(Id::All, any)
            && let Some(pid) = status.pid().and_then(|pid| Pid::from_raw(pid.as_raw()))
            && pid != self.leader
        {
            take(pid);
        }
        let end = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if let Ok(Some(status)) = waitid(WaitId::Pid(self.leader), end)
            && let Some(ending) = Ending::of(&status)
        {
            self.ending = Some(ending);
            self.say(Report::Ended(ending));
        }
    }

    fn say(&mut self, report: Report) {
        self.unsaid.push(report);
        self.say_the_unsaid();
    }

    fn say_the_unsaid(&mut self) {
        while !self.alone
            && let Some(report) = self.unsaid.first()
        {
            match report.send(io::stdin()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It is over, which we hear next.
                Ok(()) | Err(_) => drop(self.unsaid.remove(0)),
            }
        }
    }
}

/// Whether zoolock has said something, if only that it is gone.
fn zoolock_speaks() -> bool {
    let stdin = io::stdin();
    let mut file = [PollFd::new(&stdin, PollFlags::IN)];
    poll(&mut file, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Sees to it that the system tells us of children that end. Whoever started us may have had it not to, and then it also
/// takes them by itself, before we know their code. What is installed here is called only while the command is started, when our signals are
/// not blocked; it then takes the signal of a child that ends so soon, and nothing comes of it.
fn hear_of_children() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let _inside = runtime.enter();
    let _heard = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child())?;
    Ok(())
}

/// Reads what was written by [`crate::child`]: each argument ends with a zero.
fn command(line: OwnedFd) -> io::Result<Vec<OsString>> {
    let mut file = File::from(line);
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    text.pop();
    Ok(text.split(|byte| *byte == 0).map(|argument| OsString::from_vec(argument.to_vec())).collect())
}
