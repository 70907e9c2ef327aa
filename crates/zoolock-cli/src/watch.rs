//! Watching over a command that runs under a lock: its signals, its terminal, its deadline.

use std::pin::pin;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_current_process_group};
use zoolock::{Connection, LossReason};

use crate::args::{OnLost, OnRevoke};
use crate::child::{Child, Ending, Event};
use crate::duration::humane;
use crate::hold::why;
use crate::holder::Holder;
use crate::plan::Run;
use crate::signals::{Signals, name as signal_name};
use crate::talk::Talk;
use crate::terminal::{self, Terminal};

/// Timers stand still while the machine sleeps; the deadline does not. So it is looked at this often.
const LOOK: Duration = Duration::from_secs(1);
/// A stop takes effect within this time.
const STOPPING: Duration = Duration::from_millis(50);

/// Two requests to end that come within this time are one.
const ONE_AND_THE_SAME: Duration = Duration::from_millis(300);

/// How it ended.
pub(crate) struct End {
    pub(crate) ending: Ending,
    /// The lock was lost before that, and with `--on-lost kill` that was the reason.
    pub(crate) lock_lost: bool,
}

/// How far the command is on its way out, after the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Asked to end.
    Asked(Instant),
    Killed,
}

pub(crate) struct Watch<'a> {
    name: &'a str,
    grace: Duration,
    on_lost: OnLost,
    on_revoke: OnRevoke,
    guard: &'a Holder,
    talk: &'a Talk,
    child: Child,
    terminal: Option<&'a Terminal>,
    phase: Phase,
    /// With `--on-lost warn`, whether it was said.
    warned: bool,
    stopped: bool,
    /// When INT or TERM was first sent to us.
    asked_to_end: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        plan: &'a Run,
        guard: &'a Holder,
        talk: &'a Talk,
        child: Child,
        terminal: Option<&'a Terminal>,
    ) -> Self {
        Self {
            name: &plan.wanted.name,
            grace: plan.grace,
            on_lost: plan.on_lost,
            on_revoke: plan.on_revoke,
            guard,
            talk,
            child,
            terminal,
            phase: Phase::Running,
            warned: false,
            stopped: false,
            asked_to_end: None,
        }
    }

    /// Stays with the command until it has ended and, if the lock was lost, its whole group with it.
    pub(crate) async fn until_the_end(mut self, signals: &mut Signals) -> End {
        let guard = self.guard;
        let mut lost = pin!(guard.lost());
        let mut lost_seen = false;
        let mut revoked = pin!(guard.revoked());
        let mut revoked_seen = false;
        let mut connection = guard.connection();
        let mut connection_over = false;
        let ending = loop {
            self.look_at_the_clock();
            let next_look = self.until_next_look();
            tokio::select! {
                biased;
                event = self.child.event() => match event {
                    Event::Ended(ending) => break ending,
                    Event::Stopped(signal) => self.child_stopped(signal, signals).await,
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
        };
        self.ended(ending)
    }

    fn ended(self, ending: Ending) -> End {
        let late = !self.guard.is_valid();
        let lock_lost = self.on_lost == OnLost::Kill && (self.phase != Phase::Running || late);
        if lock_lost {
            // What it left behind has no lock either.
            self.child.signal(Signal::KILL);
        } else if late && !self.warned {
            self.talk.error(format_args!("lost {} before the command ended", self.name));
        }
        if let Some(terminal) = self.terminal {
            terminal.take_back(self.child.group());
            if matches!(ending, Ending::Signal(_)) {
                terminal.restore_modes();
            }
        }
        self.child.reap();
        End { ending, lock_lost }
    }

    /// How long the command may go on. A lock that was taken away has no end that could be waited for: the command
    /// is asked at once, and then has its grace.
    fn remaining(&self) -> Duration {
        match self.guard.loss() {
            Some(LossReason::Broken | LossReason::Closed) => Duration::MAX,
            _ => self.guard.valid_until().remaining(),
        }
    }

    fn until_next_look(&self) -> Duration {
        let remaining = self.remaining();
        let next = match self.phase {
            Phase::Running => remaining.saturating_sub(self.grace),
            Phase::Asked(since) => remaining.min(self.grace.saturating_sub(since.elapsed())),
            Phase::Killed => LOOK,
        };
        if self.on_lost == OnLost::Warn { LOOK } else { next.min(LOOK) }
    }

    /// Asks the group to end when the grace period begins, and kills it when nothing is left of it.
    fn look_at_the_clock(&mut self) {
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

    fn lock_lost(&mut self, reason: LossReason) {
        let name = self.name;
        match (self.on_lost, self.phase) {
            (OnLost::Warn, _) => {
                self.warned = true;
                self.talk.error(format_args!("lost {name}: {}; the command goes on", why(reason)));
            }
            (OnLost::Kill, _) if self.remaining().is_zero() => self.kill(),
            (OnLost::Kill, Phase::Running) => self.ask(format_args!("lost {name}: {}", why(reason))),
            (OnLost::Kill, Phase::Asked(_) | Phase::Killed) => {}
        }
    }

    /// A request, not a loss: the lock is ours for as long as the command takes.
    fn revoked(&mut self) {
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
        // The deed before the word.
        self.child.signal(Signal::TERM);
        self.wake();
        self.talk.error(format_args!("{why}; TERM sent to the command, KILL in {}", humane(left)));
    }

    fn kill(&mut self) {
        self.phase = Phase::Killed;
        self.child.signal(Signal::KILL);
        self.talk.error(format_args!("{}: time is up; KILL sent to the command", self.name));
    }

    /// A process that is stopped cannot answer a signal.
    fn wake(&mut self) {
        if self.stopped {
            self.stopped = false;
            self.child.signal(Signal::CONT);
        }
    }

    fn connection_changed(&self, now: Connection) {
        if self.phase != Phase::Running || !self.guard.is_valid() {
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
            // lost() says more.
            _ => {}
        }
    }

    fn signalled(&mut self, signal: Signal) {
        if signal == Signal::INT || signal == Signal::TERM {
            // timeout(1) sends its signal to us and then to our group: that is one.
            match self.asked_to_end {
                Some(first) if first.elapsed() <= ONE_AND_THE_SAME => return,
                Some(_) => {
                    self.child.signal(Signal::KILL);
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

    /// The command was stopped: by ^Z, or because it wants the terminal, or by somebody.
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
        // The shell sees us stop, takes the terminal, and continues us in its own time. Nobody renews the lock
        // meanwhile, but nobody works under it either.
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
            // It must not run again, not even to clean up.
            self.kill();
            return;
        }
        if terminal.is_ours() && (had_terminal || wants_terminal) {
            let _ = terminal.give(self.child.group());
        }
        self.wake();
    }
}
