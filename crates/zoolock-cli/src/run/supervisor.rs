//! Supervises a command that runs under a lock: its signals, its terminal, its deadline.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use rustix::process::{Signal, kill_current_process_group};
use zoolock::{Connection, Held, LossReason, Zoolock};
use zoolock_core::lease::DRIFT_MARGIN;

use crate::base::clock;
use crate::base::duration::format_duration;
use crate::base::exit::Exit;
use crate::base::reporter::Reporter;
use crate::base::signals::{Signals, is_end_signal, signal_name};
use crate::base::terminal::{self, Terminal};
use crate::metrics::LeaderPage;
use crate::reaper::child::{CommandEvent, RunningCommand};
use crate::reaper::ending::Ending;
use crate::reaper::orders::{ReaperOrder, ReaperReport, Scope};
use crate::run::acquire::Acquired;
use crate::run::job::Job;
use crate::run::release::describe_loss;

/// Maximum time between two checks of the clock. A longer timer could miss the end of the lease,
/// because timers stop while the machine sleeps, but the lease continues.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks near the end of the lease, or while the reaper reads no orders. It is short, because a renewal
/// must reach the reaper before the reaper kills the command.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The smallest change of the lease that is sent to the reaper.
const LEASE_CHANGE: Duration = Duration::from_millis(1);
/// Maximum time for the reaper to carry out an order. After this time, zoolock assumes that the
/// reaper is stopped, and does the reaper's work. [`Supervisor::kill_bound`] can be shorter.
const REAPER_BOUND: Duration = Duration::from_secs(1);
/// Maximum time between a STOP signal to this process and its stop.
const STOP_BOUND: Duration = Duration::from_millis(50);

/// Time within which two INT or TERM signals count as one.
const SAME_SIGNAL_WINDOW: Duration = Duration::from_millis(300);

/// The outcome of one run of the command.
pub(crate) struct RunOutcome {
    pub(crate) ending: Ending,
    /// The end of zoolock, unless the lock was lost.
    pub(crate) exit: Exit,
    /// Says that the lock was lost before the command ended, or that a renewal was so late that the command got TERM.
    pub(crate) loss: Option<String>,
    /// Set if a user ended the command, by a signal to zoolock, or by ^C or ^\ on the terminal.
    pub(crate) by_user: bool,
    /// Set if the lock was revoked.
    pub(crate) revoked: bool,
    /// The command that has ended, with its reaper. Call `begin_release` before the release, and `dismiss` after it.
    pub(crate) reaper: RunningCommand,
}

fn format_process_count(count: i32) -> String {
    if count == 1 { "a process".to_owned() } else { format!("{count} processes") }
}

/// The phase of the command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CommandPhase {
    Running,
    /// TERM was sent at this time.
    Terminating(Instant),
    Killed,
}

pub(crate) struct Supervisor<'a> {
    name: &'a str,
    leader: &'a LeaderPage,
    zoolock: &'a Zoolock,
    /// The session timeout for which `grace` was computed.
    timeout: Duration,
    grace: Duration,
    guard: &'a Held,
    reporter: &'a Reporter,
    child: RunningCommand,
    terminal: Option<&'a Terminal>,
    phase: CommandPhase,
    /// The end of the lease that was last sent to the reaper.
    lease: Duration,
    /// The processes that are ended after the command's own process has ended.
    scope: Scope,
    ending: Option<Ending>,
    stopped: bool,
    /// The last state of the connection.
    connection: Connection,
    /// The time at which INT or TERM was first sent to zoolock.
    first_end_signal: Option<Instant>,
    /// The time at which KILL was first sent.
    killed: Option<Instant>,
    /// The time at which the reaper was ordered to end the processes that the command left behind.
    /// The reaper kills them after the grace period.
    finishing: Option<Instant>,
    /// The time of the last check of the clock.
    last_check: Instant,
    /// Set once the reaper has reported a kill, which proves that it is not stopped.
    killed_by_reaper: bool,
    /// Set once it was reported that a process cannot be killed.
    stuck: bool,
    revoked: bool,
    /// The signals that were passed on to the command.
    passed: Vec<Signal>,
    /// Set if the command was in the foreground of the terminal when it ended.
    had_terminal: bool,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        job: &'a Job,
        acquired: &'a Acquired,
        grace: Duration,
        reporter: &'a Reporter,
        child: RunningCommand,
        lease: Duration,
        terminal: Option<&'a Terminal>,
    ) -> Self {
        let Acquired { zoolock, holder, .. } = acquired;
        Self {
            name: &job.wanted.name,
            leader: &job.wanted.leader,
            zoolock,
            timeout: zoolock.session_timeout().unwrap_or(job.service.session_timeout),
            grace,
            guard: holder,
            reporter,
            child,
            terminal,
            phase: CommandPhase::Running,
            lease,
            // With --keep, all descendants of the command must have ended when the next holder
            // starts its command.
            scope: if job.child.keep { Scope::All } else { Scope::Group },
            ending: None,
            stopped: false,
            connection: Connection::Connected,
            first_end_signal: None,
            killed: None,
            finishing: None,
            last_check: Instant::now(),
            killed_by_reaper: false,
            stuck: false,
            revoked: false,
            passed: Vec::new(),
            had_terminal: false,
        }
    }

    /// Supervises the command until the reaper reports that the command and the processes it left behind have ended.
    pub(crate) async fn supervise(mut self, signals: &mut Signals) -> RunOutcome {
        let guard = self.guard;
        let mut lost = pin!(guard.lost().fuse());
        let mut revoked = pin!(guard.revoked().fuse());
        let mut connection = guard.connection_changes();
        self.leader.lead(guard.lease(), self.grace);
        loop {
            self.shorten_grace();
            self.check_deadline();
            self.send_lease();
            let all_sent = self.child.send_unsent_orders();
            let longest = if all_sent { MAX_CHECK_INTERVAL } else { MIN_CHECK_INTERVAL };
            let next_check = self.time_to_next_check().min(longest);
            tokio::select! {
                biased;
                event = self.child.next_event() => match event {
                    CommandEvent::Reported(ReaperReport::Stopped(signal)) => self.handle_stop(signal, signals).await,
                    CommandEvent::Reported(report) => if let Some(ending) = self.handle_report(report) {
                        break self.finish(ending);
                    },
                    CommandEvent::ReaperDied => {
                        self.leader.end();
                        self.reporter.error(
                            "the process that supervises the command was ended; KILL sent to the command",
                        );
                    }
                },
                reason = &mut lost => self.handle_loss(reason),
                () = &mut revoked => self.handle_revocation(),
                signal = signals.next() => self.handle_signal(signal),
                now = connection.next() => self.handle_connection(now),
                () = tokio::time::sleep(next_check) => {}
            }
        }
    }

    /// Handles a report of the reaper. Returns the ending of the command once all processes have ended.
    fn handle_report(&mut self, report: ReaperReport) -> Option<Ending> {
        match report {
            ReaperReport::TermSent if self.phase == CommandPhase::Running && self.ending.is_none() => {
                self.leader.end();
                self.phase = CommandPhase::Terminating(Instant::now());
                let name = self.name;
                self.reporter
                    .error(format_args!("{name} could not be renewed in time; TERM sent to the command"));
            }
            ReaperReport::Killed => self.killed_by_reaper = true,
            ReaperReport::Ended(ending) => self.handle_end(ending),
            ReaperReport::LeftoversTerminated(count) => self.reporter.note(format_args!(
                "{} of the command left behind; TERM sent, KILL in {}",
                format_process_count(count),
                format_duration(self.grace.min(self.remaining_lease()))
            )),
            ReaperReport::Stuck(count) => {
                if !std::mem::replace(&mut self.stuck, true) {
                    self.reporter.error(format_args!(
                        "{} of the command cannot be killed",
                        format_process_count(count)
                    ));
                }
                // After a loss, zoolock keeps no lock for the processes that are left, so it does
                // not wait for them.
                return if self.is_lost() { self.ending } else { None };
            }
            ReaperReport::AllEnded => return self.ending,
            _ => {}
        }
        None
    }

    fn handle_end(&mut self, ending: Ending) {
        self.leader.end();
        self.ending = Some(ending);
        if let Some(terminal) = self.terminal {
            self.had_terminal = terminal.is_foreground_group(self.child.group());
            terminal.restore_foreground(self.child.group());
            if matches!(ending, Ending::Signal(_)) {
                terminal.restore_modes();
            }
        }
        self.finishing = Some(Instant::now());
        self.child.send_order(if !self.is_lost() {
            ReaperOrder::Finish(self.scope)
        } else if self.guard.is_valid() && matches!(self.phase, CommandPhase::Terminating(_)) {
            // Processes that the command left behind have the rest of the grace period.
            ReaperOrder::Finish(Scope::All)
        } else {
            // The lock is lost or the grace period has ended, so processes that the command left behind are killed at
            // once.
            ReaperOrder::Kill
        });
    }

    fn is_lost(&self) -> bool {
        self.phase != CommandPhase::Running || !self.guard.is_valid()
    }

    fn finish(self, ending: Ending) -> RunOutcome {
        let loss = self.is_lost().then(|| match self.guard.is_valid() {
            true => format!("{} could not be renewed in time", self.name),
            false => format!("lost {}", self.name),
        });
        let exit = self.exit(ending);
        let by_user = matches!(exit, Exit::TerminalSignal(_)) || self.end_request().is_some();
        RunOutcome { ending, exit, loss, by_user, revoked: self.revoked, reaper: self.child }
    }

    /// Returns the signal that asked zoolock to end. Without a terminal, HUP is the usual request to read the configuration
    /// again.
    fn end_request(&self) -> Option<Signal> {
        let asks_to_end = |signal: &Signal| match *signal {
            Signal::INT | Signal::TERM | Signal::QUIT => true,
            signal => signal == Signal::HUP && self.terminal.is_some(),
        };
        self.passed.iter().copied().find(asks_to_end)
    }

    /// Returns the end of zoolock: by a signal that the terminal or zoolock has sent to the command, if that signal has ended
    /// the command, and otherwise with the exit code of the command.
    fn exit(&self, ending: Ending) -> Exit {
        // A command that handles the signal may exit with 128+N.
        let ended_command = |signal: &Signal| ending.exit().number() == Exit::Signal(*signal).number();
        let by_terminal = [Signal::INT, Signal::QUIT].into_iter().find(ended_command);
        if self.had_terminal
            && let Some(signal) = by_terminal
        {
            return Exit::TerminalSignal(signal);
        }
        // A command that has handled a HUP as a request to read its configuration may exit with 129 much later.
        let is_killed = matches!(ending, Ending::Signal(_));
        let may_end = |signal: &Signal| {
            is_end_signal(*signal) && (*signal != Signal::HUP || is_killed || self.terminal.is_some())
        };
        let by_passed = self.passed.iter().copied().find(|signal| may_end(signal) && ended_command(signal));
        // A second ^C kills the command.
        let by_second = (self.killed.is_some() && self.passed.contains(&Signal::INT)).then_some(Signal::INT);
        by_passed.or(by_second).map_or(ending.exit(), Exit::Signal)
    }

    /// Sends the end of the lease to the reaper, if it has changed. The end becomes earlier if a
    /// server grants a shorter session timeout.
    fn send_lease(&mut self) {
        let lease = clock::lease_time_of(self.guard.valid_until());
        // A broken lock has no lease any more, but the command still has its grace period. The loss
        // is checked after the lease was read, so that a loss during the read is noticed.
        if matches!(self.guard.loss(), Some(LossReason::Broken | LossReason::Closed)) {
            return;
        }
        // The conversion reads two clocks, so a difference below `LEASE_CHANGE` is no change.
        let is_later = lease > self.lease + LEASE_CHANGE && self.phase == CommandPhase::Running;
        if is_later || lease + LEASE_CHANGE < self.lease {
            self.child.send_order(ReaperOrder::Lease(lease));
            self.lease = lease;
        }
    }

    /// Shortens the grace period if a server grants a shorter session timeout. Otherwise the rest
    /// of the shorter lease could always be below the grace period. The command would then be ended
    /// although the lease is renewed.
    fn shorten_grace(&mut self) {
        let Some(timeout) = self.zoolock.session_timeout() else { return };
        if timeout / 6 <= self.grace && timeout < self.timeout && self.phase == CommandPhase::Running {
            (self.grace, self.timeout) = (timeout / 6, timeout);
            self.leader.set_grace(self.grace);
            self.child.send_order(ReaperOrder::Grace(self.grace));
        }
    }

    /// Returns the rest of the lease. Returns [`Duration::MAX`] for a broken lock: TERM is sent to the command at once,
    /// and only the grace period counts.
    fn remaining_lease(&self) -> Duration {
        match self.guard.loss() {
            Some(LossReason::Broken | LossReason::Closed) => Duration::MAX,
            _ => self.guard.valid_until().remaining(),
        }
    }

    fn time_to_next_check(&self) -> Duration {
        let remaining = self.remaining_lease();
        match self.phase {
            CommandPhase::Running => (remaining.saturating_sub(self.grace) / 8).max(MIN_CHECK_INTERVAL),
            CommandPhase::Terminating(since) => remaining.min(self.grace.saturating_sub(since.elapsed())),
            CommandPhase::Killed => self.kill_bound(),
        }
    }

    /// Sends TERM to the group when the grace period begins, and KILL when the grace period or the
    /// lease ends.
    fn check_deadline(&mut self) {
        self.kill_stalled_reaper();
        let (name, remaining) = (self.name, self.remaining_lease());
        match self.phase {
            CommandPhase::Killed => {}
            _ if remaining.is_zero() => self.end_grace_period(),
            CommandPhase::Terminating(since) if since.elapsed() >= self.grace => self.end_grace_period(),
            CommandPhase::Running if remaining <= self.grace => {
                self.terminate(format_args!("{name} could not be renewed in time"));
            }
            CommandPhase::Running | CommandPhase::Terminating(_) => {}
        }
    }

    /// Kills the reaper if it did not act in time, because it is probably stopped. This process
    /// then does the reaper's work.
    fn kill_stalled_reaper(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.last_check) > MAX_CHECK_INTERVAL * 2 {
            // This process was stopped, and may not have read all reports of the reaper yet. So the
            // waits for the reaper begin again.
            self.killed = self.killed.map(|_| now);
            self.finishing = self.finishing.map(|_| now);
        }
        self.last_check = now;
        let waited = |since: Option<Instant>, patience| {
            since.is_some_and(|since: Instant| now.duration_since(since) > patience)
        };
        let silent = waited(self.killed, self.kill_bound())
            || waited(self.finishing, self.grace.saturating_add(REAPER_BOUND));
        if silent && !self.killed_by_reaper {
            self.child.kill_reaper();
        }
    }

    /// Returns the maximum time for the reaper to carry out an order to kill: half of the time for
    /// which the server keeps the session after the lease. The other half is for this process.
    fn kill_bound(&self) -> Duration {
        let timeout = self.zoolock.session_timeout().unwrap_or(self.timeout);
        REAPER_BOUND.min(timeout / (2 * DRIFT_MARGIN))
    }

    fn handle_loss(&mut self, reason: LossReason) {
        let name = self.name;
        match self.phase {
            CommandPhase::Killed => {}
            _ if self.remaining_lease().is_zero() => self.end_grace_period(),
            CommandPhase::Running => self.terminate(format_args!("lost {name}: {}", describe_loss(reason))),
            CommandPhase::Terminating(_) => {}
        }
    }

    /// Handles a request to release the lock. The lock stays held until the command has ended.
    fn handle_revocation(&mut self) {
        self.leader.end();
        self.revoked = true;
        self.child.signal(Signal::TERM);
        self.continue_if_stopped();
        self.reporter.note(format_args!("{} was revoked; TERM sent to the command", self.name));
    }

    fn terminate(&mut self, reason: impl std::fmt::Display) {
        self.leader.end();
        self.phase = CommandPhase::Terminating(Instant::now());
        let left = self.grace.min(self.remaining_lease());
        // The order is sent before the message is printed, because printing can take time. The
        // reaper sends TERM, unless it has sent TERM already.
        self.child.send_order(ReaperOrder::Terminate);
        self.stopped = false;
        self.reporter
            .error(format_args!("{reason}; TERM sent to the command, KILL in {}", format_duration(left)));
    }

    fn end_grace_period(&mut self) {
        self.leader.end();
        self.phase = CommandPhase::Killed;
        self.kill_all();
        let reason = match self.guard.loss() {
            Some(reason @ LossReason::SessionExpired) => describe_loss(reason),
            _ => "the grace period has ended",
        };
        self.reporter.error(format_args!("{}: {reason}; KILL sent to the command", self.name));
    }

    /// Kills the group, and orders the reaper to kill the processes that have left the group.
    fn kill_all(&mut self) {
        self.child.signal(Signal::KILL);
        self.child.send_order(ReaperOrder::Kill);
        self.killed.get_or_insert_with(Instant::now);
    }

    /// Continues the command if it is stopped, because a stopped process does not handle signals.
    fn continue_if_stopped(&mut self) {
        if self.stopped {
            self.stopped = false;
            self.child.signal(Signal::CONT);
        }
    }

    fn handle_connection(&mut self, now: Connection) {
        let before = std::mem::replace(&mut self.connection, now);
        // A shorter lease also wakes this receiver, although the connection has not changed.
        if before == now || self.phase != CommandPhase::Running || !self.guard.is_valid() {
            return;
        }
        match now {
            Connection::Suspect => self.reporter.note(format_args!(
                "no confirmation from the server; the lease on {} ends in {}",
                self.name,
                format_duration(self.remaining_lease())
            )),
            Connection::Connected => {
                self.reporter.note(format_args!("the lease on {} is renewed", self.name))
            }
            // `handle_loss` reports the loss.
            _ => {}
        }
    }

    fn handle_signal(&mut self, signal: Signal) {
        if signal == Signal::XFSZ {
            // Comes from a message of zoolock to a full file, so it does not concern the command.
            return;
        }
        if signal == Signal::INT || signal == Signal::TERM {
            // timeout(1) sends its signal to zoolock and then to the process group of zoolock. The
            // two signals count as one.
            match self.first_end_signal {
                Some(first) if first.elapsed() <= SAME_SIGNAL_WINDOW => return,
                Some(_) => {
                    self.kill_all();
                    self.reporter.note("KILL sent to the command");
                    return;
                }
                None => {
                    self.leader.end();
                    self.first_end_signal = Some(Instant::now());
                }
            }
        }
        self.reporter.detail(format_args!("{} passed on to the command", signal_name(signal)));
        self.child.signal(signal);
        self.passed.retain(|passed| *passed != signal);
        self.passed.push(signal);
        if signal != Signal::TSTP {
            self.continue_if_stopped();
        }
    }

    /// Handles a stop of the command. The cause is ^Z, a use of the terminal from the background,
    /// or a signal of another process.
    async fn handle_stop(&mut self, signal: i32, signals: &mut Signals) {
        self.stopped = true;
        let wants_terminal = signal == Signal::TTIN.as_raw() || signal == Signal::TTOU.as_raw();
        let Some(terminal) = self.terminal else { return };
        if wants_terminal && terminal.is_foreground() {
            let _ = terminal.set_foreground(self.child.group());
            self.continue_if_stopped();
            return;
        }
        let had_terminal = terminal.is_foreground_group(self.child.group());
        if !(had_terminal || wants_terminal || signal == Signal::TSTP.as_raw()) {
            return;
        }
        // The shell sees that zoolock stops, takes the terminal, and continues zoolock later.
        // Meanwhile no process renews the lock, and the command is stopped, too.
        terminal.restore_foreground(self.child.group());
        if terminal::has_job_control_shell() {
            let left = format_duration(self.remaining_lease());
            self.reporter.note(format_args!(
                "stopped; if it does not continue within {left}, {} is lost and the command is killed",
                self.name
            ));
            if had_terminal {
                // The other processes of a pipeline did not get the ^Z that the command got.
                let _ = kill_current_process_group(Signal::TSTP);
            }
            terminal::stop_this_process();
            tokio::time::sleep(STOP_BOUND).await;
            signals.discard(Signal::TSTP);
        }
        if !self.guard.is_valid() {
            // The command must not run again, not even to clean up.
            self.end_grace_period();
            return;
        }
        if terminal.is_foreground() && (had_terminal || wants_terminal) {
            let _ = terminal.set_foreground(self.child.group());
        }
        self.continue_if_stopped();
    }
}
