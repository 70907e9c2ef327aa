//! Supervises a command that runs under a lock: its signals, its terminal, its deadline.

use std::pin::pin;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_current_process_group};
use zoolock::{Connection, LossReason, Zoolock};

use crate::args::{OnLost, OnRevoke};
use crate::base::clock;
use crate::base::duration::humane;
use crate::base::signals::{Signals, name as signal_name};
use crate::base::talk::Talk;
use crate::base::terminal::{self, Terminal};
use crate::plan::Run;
use crate::reaper::child::{Child, Event};
use crate::reaper::ending::Ending;
use crate::reaper::orders::{Lease, Order, Report, Scope};
use crate::run::acquire::Acquired;
use crate::run::holder::Holder;
use crate::run::release::why;

/// The longest pause between two checks of the clock. Timers stop while the machine sleeps, and the deadline does not.
const LOOK: Duration = Duration::from_secs(1);
/// The pause between two checks near the end of the lease. The reaper must learn of a renewal before it acts.
const SHORTEST_LOOK: Duration = Duration::from_millis(50);
/// The smallest change of the lease that is sent to the reaper.
const LEASE_CHANGE: Duration = Duration::from_millis(1);
/// Maximum time for the reaper to kill. After it, zoolock takes the reaper for stopped, and kills instead.
const REAPER_PATIENCE: Duration = Duration::from_secs(1);
/// Maximum time until a stop takes effect.
const STOPPING: Duration = Duration::from_millis(50);

/// Time within which two signals to end count as one.
const ONE_AND_THE_SAME: Duration = Duration::from_millis(300);

/// The end of the command.
pub(crate) struct End {
    pub(crate) ending: Ending,
    /// Set if the lock was lost before, and the command was ended for that (`--on-lost kill`).
    pub(crate) lock_lost: bool,
    /// Set if a user ended it, by INT or TERM to zoolock, or by ^C on the terminal.
    pub(crate) wanted: bool,
    /// Set if the lock was revoked, with `--on-revoke term`.
    pub(crate) revoked: bool,
}

fn processes(count: i32) -> String {
    if count == 1 { "a process".to_owned() } else { format!("{count} processes") }
}

/// The phase of the command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Asked to end.
    Asked(Instant),
    Killed,
}

pub(crate) struct Supervisor<'a> {
    name: &'a str,
    zoolock: &'a Zoolock,
    /// The session timeout to which the grace period was fitted.
    timeout: Duration,
    grace: Duration,
    on_lost: OnLost,
    on_revoke: OnRevoke,
    guard: &'a Holder,
    talk: &'a Talk,
    child: Child,
    terminal: Option<&'a Terminal>,
    phase: Phase,
    /// The end of the lease that was last sent to the reaper.
    lease: Lease,
    /// The processes that end with the command.
    scope: Scope,
    ending: Option<Ending>,
    /// Set once the loss was reported, with `--on-lost warn`.
    warned: bool,
    stopped: bool,
    /// The last state of the connection.
    connection: Connection,
    /// The time at which INT or TERM was first sent to zoolock.
    asked_to_end: Option<Instant>,
    /// The time at which KILL was first sent.
    killed: Option<Instant>,
    /// The time at which the reaper was ordered to end the processes that are left. After the grace period it kills them.
    finishing: Option<Instant>,
    /// The time of the last check of the clock.
    looked: Instant,
    /// Set once the reaper has killed: then it is not stopped.
    reaper_killed: bool,
    /// Set once it was reported that a process cannot be killed.
    stuck: bool,
    revoked: bool,
    interrupted: bool,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        plan: &'a Run,
        acquired: &'a Acquired,
        grace: Duration,
        talk: &'a Talk,
        child: Child,
        lease: Lease,
        terminal: Option<&'a Terminal>,
    ) -> Self {
        let Acquired { zoolock, holder } = acquired;
        Self {
            name: &plan.wanted.name,
            zoolock,
            timeout: zoolock.session_timeout().unwrap_or(plan.service.session_timeout),
            grace,
            on_lost: plan.on_lost,
            on_revoke: plan.on_revoke,
            guard: holder,
            talk,
            child,
            terminal,
            phase: Phase::Running,
            lease,
            // With --keep, no descendant of the command may work beside the next holder.
            scope: if plan.keep { Scope::All } else { Scope::Group },
            ending: None,
            warned: false,
            stopped: false,
            connection: Connection::Connected,
            asked_to_end: None,
            killed: None,
            finishing: None,
            looked: Instant::now(),
            reaper_killed: false,
            stuck: false,
            revoked: false,
            interrupted: false,
        }
    }

    /// Supervises the command until it has ended, and after a loss until its whole group has ended.
    pub(crate) async fn until_the_end(mut self, signals: &mut Signals) -> End {
        let guard = self.guard;
        let mut lost = pin!(guard.lost());
        let mut lost_seen = false;
        let mut revoked = pin!(guard.revoked());
        let mut revoked_seen = false;
        let mut connection = guard.connection();
        let mut connection_over = false;
        loop {
            self.shorten_grace();
            self.look_at_the_clock();
            self.tell_of_lease();
            let next_look = self.until_next_look();
            tokio::select! {
                biased;
                event = self.child.event() => match event {
                    Event::Reported(Report::Stopped(signal)) => self.child_stopped(signal, signals).await,
                    Event::Reported(report) => if let Some(ending) = self.reported(report) {
                        break self.over(ending).await;
                    },
                    Event::ReaperDied => self.talk.error(
                        "the process that supervises the command was ended; KILL sent to the command",
                    ),
                },
                reason = &mut lost, if !lost_seen => {
                    lost_seen = true;
                    self.lock_lost(reason);
                }
                () = &mut revoked, if !revoked_seen => {
                    revoked_seen = true;
                    self.revoked();
                }
                signal = signals.next() => self.signalled(signal),
                changed = connection.changed(), if !connection_over => {
                    connection_over = changed.is_err();
                    let now = *connection.borrow_and_update();
                    self.connection_changed(now);
                }
                () = tokio::time::sleep(next_look) => {}
            }
        }
    }

    /// Handles a report of the reaper. Returns the ending once all processes have ended.
    fn reported(&mut self, report: Report) -> Option<Ending> {
        match report {
            Report::Asked if self.phase == Phase::Running && self.ending.is_none() => {
                self.phase = Phase::Asked(Instant::now());
                let name = self.name;
                self.talk
                    .error(format_args!("{name} could not be renewed in time; TERM sent to the command"));
            }
            Report::Killed => self.reaper_killed = true,
            Report::Ended(ending) => self.ended(ending),
            Report::Left(count) => self.talk.note(format_args!(
                "{} of the command left behind; TERM sent, KILL in {}",
                processes(count),
                humane(self.grace.min(self.remaining()))
            )),
            Report::Stuck(count) => {
                if !std::mem::replace(&mut self.stuck, true) {
                    self.talk.error(format_args!("{} of the command cannot be killed", processes(count)));
                }
                // After the loss, waiting protects nothing.
                return if self.is_lost() { self.ending } else { None };
            }
            Report::Gone => return self.ending,
            _ => {}
        }
        None
    }

    fn ended(&mut self, ending: Ending) {
        self.ending = Some(ending);
        if let Some(terminal) = self.terminal {
            let had_terminal = terminal.belongs_to(self.child.group());
            self.interrupted = had_terminal && ending == Ending::Signal(Signal::INT.as_raw());
            terminal.take_back(self.child.group());
            if matches!(ending, Ending::Signal(_)) {
                terminal.restore_modes();
            }
        }
        self.finishing = Some(Instant::now());
        self.child.order(if !self.is_lost() {
            Order::Finish(self.scope)
        } else if self.guard.is_valid() && matches!(self.phase, Phase::Asked(_)) {
            // Processes that it left behind have the rest of its grace period.
            Order::Finish(Scope::All)
        } else {
            // Processes that it left behind have no lock either.
            Order::Kill
        });
    }

    fn is_lost(&self) -> bool {
        self.on_lost == OnLost::Kill && (self.phase != Phase::Running || !self.guard.is_valid())
    }

    async fn over(self, ending: Ending) -> End {
        let lock_lost = self.is_lost();
        if !lock_lost && !self.warned && !self.guard.is_valid() {
            self.talk.error(format_args!("lost {} before the command ended", self.name));
        }
        self.child.dismiss().await;
        let wanted = self.asked_to_end.is_some() || self.interrupted;
        End { ending, lock_lost, wanted, revoked: self.revoked }
    }

    /// Tells the reaper the end of the lease, if it has changed. The end is earlier if a server has
    /// granted a shorter session timeout.
    fn tell_of_lease(&mut self) {
        let Some(known) = self.lease else { return };
        let lease = clock::at(self.guard.valid_until());
        // A broken lock has no lease any more, but the command has its grace period. Asked after the lease was read.
        if matches!(self.guard.loss(), Some(LossReason::Broken | LossReason::Closed)) {
            return;
        }
        // The clock is read twice for it, so a difference of nanoseconds is no change.
        let is_later = lease > known + LEASE_CHANGE && self.phase == Phase::Running;
        if is_later || lease + LEASE_CHANGE < known {
            self.lease = Some(lease);
            self.child.order(Order::Lease(self.lease));
        }
    }

    /// Shortens the grace period with the session timeout. Otherwise a shorter lease would be within the grace period from the
    /// beginning, and the command would be ended although the lease is renewed.
    fn shorten_grace(&mut self) {
        let Some(timeout) = self.zoolock.session_timeout() else { return };
        if timeout / 6 < self.grace && timeout < self.timeout && self.phase == Phase::Running {
            self.timeout = timeout;
            self.grace = timeout / 6;
            self.child.order(Order::Grace(self.grace));
        }
    }

    /// Returns the rest of the lease. A broken lock has no deadline: the command is asked to end at once, and then has its
    /// grace period.
    fn remaining(&self) -> Duration {
        match self.guard.loss() {
            Some(LossReason::Broken | LossReason::Closed) => Duration::MAX,
            _ => self.guard.valid_until().remaining(),
        }
    }

    fn until_next_look(&self) -> Duration {
        let remaining = self.remaining();
        let next = match self.phase {
            Phase::Running => (remaining.saturating_sub(self.grace) / 8).max(SHORTEST_LOOK),
            Phase::Asked(since) => remaining.min(self.grace.saturating_sub(since.elapsed())),
            Phase::Killed => LOOK,
        };
        if self.on_lost == OnLost::Warn { LOOK } else { next.min(LOOK) }
    }

    /// Asks the group to end when the grace period begins, and kills it at its end.
    fn look_at_the_clock(&mut self) {
        self.look_at_the_reaper();
        if self.on_lost == OnLost::Warn {
            return;
        }
        let (name, remaining) = (self.name, self.remaining());
        match self.phase {
            Phase::Killed => {}
            _ if remaining.is_zero() => self.kill(),
            Phase::Asked(since) if since.elapsed() >= self.grace => self.kill(),
            Phase::Running if remaining <= self.grace => {
                self.ask(format_args!("{name} could not be renewed in time"));
            }
            Phase::Running | Phase::Asked(_) => {}
        }
    }

    /// Ends a reaper that is stopped. Then zoolock kills by itself.
    fn look_at_the_reaper(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) > LOOK * 2 {
            // This process was stopped, and the reaper may have reported something meanwhile.
            self.killed = self.killed.map(|_| now);
            self.finishing = self.finishing.map(|_| now);
        }
        self.looked = now;
        let waited = |since: Option<Instant>, patience| {
            since.is_some_and(|since: Instant| now.duration_since(since) > patience)
        };
        let silent = waited(self.killed, REAPER_PATIENCE)
            || waited(self.finishing, self.grace.saturating_add(REAPER_PATIENCE));
        if silent && !self.reaper_killed {
            self.child.end_reaper();
        }
    }

    fn lock_lost(&mut self, reason: LossReason) {
        let name = self.name;
        match (self.on_lost, self.phase) {
            (OnLost::Warn, _) => {
                self.warned = true;
                self.talk.error(format_args!("lost {name}: {}; the command goes on", why(reason)));
            }
            (OnLost::Kill, Phase::Killed) => {}
            (OnLost::Kill, _) if self.remaining().is_zero() => self.kill(),
            (OnLost::Kill, Phase::Running) => self.ask(format_args!("lost {name}: {}", why(reason))),
            (OnLost::Kill, Phase::Asked(_)) => {}
        }
    }

    /// Handles a request for the release. The lock stays valid until the command has ended.
    fn revoked(&mut self) {
        self.revoked = self.on_revoke == OnRevoke::Term;
        match self.on_revoke {
            OnRevoke::Term => {
                self.child.signal(Signal::TERM);
                self.wake();
                self.talk.note(format_args!("somebody asks for {}; TERM sent to the command", self.name));
            }
            OnRevoke::Warn => {
                self.talk.note(format_args!("somebody asks for {}; the command goes on", self.name));
            }
        }
    }

    fn ask(&mut self, why: impl std::fmt::Display) {
        self.phase = Phase::Asked(Instant::now());
        let left = self.grace.min(self.remaining());
        // Sends the order before it prints the message. The reaper sends TERM, and may have done so already.
        self.child.order(Order::Ask);
        self.stopped = false;
        self.talk.error(format_args!("{why}; TERM sent to the command, KILL in {}", humane(left)));
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed;
        self.kill_all();
        self.talk.error(format_args!("{}: time is up; KILL sent to the command", self.name));
    }

    /// Kills the group at once, and by way of the reaper all processes that have left the group.
    fn kill_all(&mut self) {
        self.child.signal(Signal::KILL);
        self.child.order(Order::Kill);
        self.killed.get_or_insert_with(Instant::now);
    }

    /// Continues the command if it is stopped, because a stopped process does not handle signals.
    fn wake(&mut self) {
        if self.stopped {
            self.stopped = false;
            self.child.signal(Signal::CONT);
        }
    }

    fn connection_changed(&mut self, now: Connection) {
        let before = std::mem::replace(&mut self.connection, now);
        // A shorter lease wakes the receiver, too.
        if before == now || self.phase != Phase::Running || !self.guard.is_valid() {
            return;
        }
        match now {
            Connection::Suspect => self.talk.note(format_args!(
                "connection to the server is gone; {} is ours for another {}",
                self.name,
                humane(self.remaining())
            )),
            Connection::Connected => {
                self.talk.note(format_args!("connected again; {} is still ours", self.name))
            }
            // `lock_lost` reports the loss.
            _ => {}
        }
    }

    fn signalled(&mut self, signal: Signal) {
        if signal == Signal::INT || signal == Signal::TERM {
            // timeout(1) sends its signal to zoolock and then to the process group of zoolock. The two count as one.
            match self.asked_to_end {
                Some(first) if first.elapsed() <= ONE_AND_THE_SAME => return,
                Some(_) => {
                    self.kill_all();
                    self.talk.note("KILL sent to the command");
                    return;
                }
                None => self.asked_to_end = Some(Instant::now()),
            }
        }
        self.talk.detail(format_args!("{} passed on to the command", signal_name(signal)));
        self.child.signal(signal);
        if signal != Signal::TSTP {
            self.wake();
        }
    }

    /// Handles a stop of the command: by ^Z, because it uses the terminal, or by a signal of another process.
    async fn child_stopped(&mut self, signal: i32, signals: &mut Signals) {
        self.stopped = true;
        let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        let Some(terminal) = self.terminal else { return };
        if wants_terminal && terminal.is_ours() {
            let _ = terminal.give(self.child.group());
            self.wake();
            return;
        }
        let had_terminal = terminal.belongs_to(self.child.group());
        if !(had_terminal || wants_terminal || signal == Signal::TSTP.as_raw()) {
            return;
        }
        // The shell sees the stop of zoolock, takes the terminal, and continues zoolock later. Meanwhile no process renews
        // the lock, and the command is stopped, too.
        terminal.take_back(self.child.group());
        if terminal::is_controlled_by_a_shell() {
            let left = humane(self.remaining());
            self.talk.note(match self.on_lost {
                OnLost::Kill => {
                    format!("stopped; {} is kept for {left}, and lost with the command after that", self.name)
                }
                OnLost::Warn => format!("stopped; {} is kept for {left}", self.name),
            });
            if had_terminal {
                // The other processes of a pipeline did not get the ^Z that the command got.
                let _ = kill_current_process_group(Signal::TSTP);
            }
            terminal::stop_ourselves();
            tokio::time::sleep(STOPPING).await;
            signals.forget(Signal::TSTP);
        }
        if self.on_lost == OnLost::Kill && !self.guard.is_valid() {
            // The command must not run again, not even to clean up.
            self.kill();
            return;
        }
        if terminal.is_ours() && (had_terminal || wants_terminal) {
            let _ = terminal.give(self.child.group());
        }
        self.wake();
    }
}
