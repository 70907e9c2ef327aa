//! Local hand-off: one znode for all tasks of a process. They queue in memory, and the lock passes among them without the
//! network.
//!
//! A tenure begins when the process is granted the lock, and ends when the process releases it. While no other contender is
//! queued, the lock may pass on without limit. As soon as another contender may be queued, the [`Limits`] apply. Each local
//! grant needs a valid lease, as any grant does. The machine takes inputs ([`Input`]) and returns outputs ([`Output`]). It
//! has no clock, no task and no connection. For its safety see `docs/design/kinds.md`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::lease::Instant;

/// The limits of a tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Maximum number of local passes while another contender waits.
    pub max_passes: u32,
    /// Time after which the lock is not passed on locally, while another contender waits.
    pub max_hold: Duration,
    /// Time for which the process keeps a lock that none of its tasks wants, while no other contender waits.
    pub linger: Duration,
}

/// Identifies a task of this process that waits for the lock, or holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalId(pub u64);

/// An input of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// A task requests the lock.
    Ask(LocalId),
    /// A task gives up its request, or its deadline has passed. If it holds already, it has not worked under the lock.
    GiveUp(LocalId),
    /// A holder has worked under the lock, and releases it.
    Done {
        /// The task.
        who: LocalId,
        /// Set if the task unwinds from a panic. Then the record must say so to the next holder.
        panicked: bool,
    },
    /// The process was granted the lock.
    Granted,
    /// The process will not get the lock, or not again. All waiting tasks have been told.
    Failed,
    /// The lease has ended, and the holder has been told. The znode stays until the holder releases, and may still keep
    /// others out.
    Lost,
    /// The lock is lost, and no znode of it is left on the server. The holder has been told.
    Gone,
    /// Another client asks the process to release the lock.
    Revoked,
    /// A listing shows no other contender. It has set a watch, which is in force since.
    Alone,
    /// The listing shows another contender or failed, or the watch has fired.
    NotAlone,
    /// The time of [`Output::WakeAt`] has come.
    Alarm,
}

/// An output of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Output {
    /// Queue for the lock.
    Acquire,
    /// Leave the queue.
    Cancel,
    /// Release the lock. The next output may be sent directly after the release.
    LetGo(How),
    /// List the queue for other contenders, and watch it.
    Look,
    /// Grant the lock to this task. Its token has this pass.
    Grant(LocalId, u32),
    /// Send [`Input::Alarm`] at this time, instead of at an earlier requested time.
    WakeAt(Instant),
}

/// The way in which the process releases the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// A task has worked under the lock.
    Released,
    /// A task unwinds from a panic.
    Panicked,
    /// No task has worked under the lock. The previous holder remains the last one.
    Untouched,
}

/// The tasks of one process that share one queue position for one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenure {
    limits: Limits,
    phase: Phase,
    waiting: VecDeque<LocalId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// Neither queued nor holding.
    Idle,
    /// Queued.
    Queued,
    Held(Holding),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Holding {
    /// The task that holds the lock; `None` if no task does.
    holder: Option<LocalId>,
    /// Number of grants to tasks of this process.
    grants: u32,
    /// Set if a task has worked under the lock.
    worked: bool,
    /// Set if the lock is lost. Then it is not passed on.
    lost: bool,
    others: Others,
    revoked: bool,
    /// The time since which no task wants the lock.
    idle_since: Option<Instant>,
}

/// Knowledge about other contenders in the queue. The fields are the time since which one may wait, and the number of grants
/// by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Others {
    /// No other contender is queued.
    None,
    /// A look is under way. Until its answer, another contender is assumed.
    Unknown(Instant, u32),
    /// Another contender is queued, or was.
    Seen(Instant, u32),
}

impl Tenure {
    /// Creates a tenure that has not begun.
    pub fn new(limits: Limits) -> Tenure {
        Tenure { limits, phase: Phase::Idle, waiting: VecDeque::new() }
    }

    /// Handles one input and returns the outputs, in order. `lease_valid`: whether the session's lease is valid *now*.
    pub fn step(&mut self, input: Input, now: Instant, lease_valid: bool) -> Vec<Output> {
        let mut outputs = Vec::new();
        match (input, &mut self.phase) {
            (Input::Ask(who), phase) => {
                self.waiting.push_back(who);
                match phase {
                    Phase::Idle => self.acquire(&mut outputs),
                    Phase::Queued => {}
                    Phase::Held(_) => self.pass_on(now, lease_valid, &mut outputs),
                }
            }
            (Input::GiveUp(who), _) => {
                self.waiting.retain(|waiting| *waiting != who);
                if self.phase == Phase::Queued && self.waiting.is_empty() {
                    self.phase = Phase::Idle;
                    outputs.push(Output::Cancel);
                }
                self.end_task_hold(who, None, now, lease_valid, &mut outputs);
            }
            (Input::Granted, Phase::Queued) => {
                let others = Others::Unknown(now, 0);
                self.phase = Phase::Held(Holding {
                    holder: None,
                    grants: 0,
                    worked: false,
                    lost: false,
                    others,
                    revoked: false,
                    idle_since: None,
                });
                self.pass_on(now, lease_valid, &mut outputs);
                if matches!(self.phase, Phase::Held(_)) {
                    outputs.push(Output::Look);
                }
            }
            (Input::Failed, Phase::Queued | Phase::Held(_)) => {
                self.phase = Phase::Idle;
                self.waiting.clear();
            }
            (Input::Lost, Phase::Held(holding)) => {
                holding.lost = true;
                self.pass_on(now, lease_valid, &mut outputs);
            }
            (Input::Gone, Phase::Held(_)) => self.end(&mut outputs),
            (Input::Revoked, Phase::Held(holding)) => {
                holding.revoked = true;
                self.pass_on(now, lease_valid, &mut outputs);
            }
            (Input::Alone, Phase::Held(holding)) => {
                if let Others::Unknown(..) = holding.others {
                    holding.others = Others::None;
                }
                self.pass_on(now, lease_valid, &mut outputs);
            }
            (Input::NotAlone, Phase::Held(holding)) => {
                // A contender that was seen once counts until the release. A new look would cost a listing for each new
                // contender.
                holding.others = match holding.others {
                    Others::None => Others::Seen(now, holding.grants),
                    Others::Unknown(since, grants) | Others::Seen(since, grants) => {
                        Others::Seen(since, grants)
                    }
                };
                self.pass_on(now, lease_valid, &mut outputs);
            }
            (Input::Alarm, Phase::Held(_)) => self.pass_on(now, lease_valid, &mut outputs),
            (Input::Done { who, panicked }, _) => {
                self.end_task_hold(who, Some(panicked), now, lease_valid, &mut outputs);
            }
            // An input of a tenure that has ended.
            _ => {}
        }
        outputs
    }

    /// Returns whether the process is neither queued nor holds, and no task waits.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && self.waiting.is_empty()
    }

    /// Returns whether a task has worked under the current hold.
    pub fn has_worked(&self) -> bool {
        matches!(self.phase, Phase::Held(Holding { worked: true, .. }))
    }

    /// Returns the task that holds the lock.
    pub fn holder(&self) -> Option<LocalId> {
        match self.phase {
            Phase::Held(holding) => holding.holder,
            Phase::Idle | Phase::Queued => None,
        }
    }

    /// Returns whether the process holds the lock, and none of its tasks does.
    pub fn is_kept(&self) -> bool {
        matches!(self.phase, Phase::Held(Holding { holder: None, .. }))
    }

    /// Grants a lock that no task holds to the next task, releases it, or keeps it for later.
    fn pass_on(&mut self, now: Instant, lease_valid: bool, outputs: &mut Vec<Output>) {
        let Phase::Held(holding) = &mut self.phase else { return };
        if holding.holder.is_some() {
            return;
        }
        if holding.lost || holding.revoked || holding.grants == u32::MAX {
            return self.release(outputs);
        }
        // The lease has ended, but `Input::Lost` has not arrived yet.
        if !lease_valid {
            return;
        }
        if let Others::Unknown(since, grants) | Others::Seen(since, grants) = holding.others {
            // The first grant of a tenure is not a pass.
            let passes = holding.grants.saturating_sub(grants.max(1));
            let is_limit_reached =
                passes >= self.limits.max_passes || since.until(now) >= self.limits.max_hold;
            if holding.grants > 0 && is_limit_reached {
                match holding.others {
                    // The pending look is answered before a release that is sent now. Waiting for the answer delays other
                    // contenders only by its way back, and queueing again would delay this process as much.
                    Others::Unknown(..) if !self.waiting.is_empty() || !self.limits.linger.is_zero() => {
                        return;
                    }
                    _ => return self.release(outputs),
                }
            }
        }
        if let Some(next) = self.waiting.pop_front() {
            outputs.push(Output::Grant(next, holding.grants));
            *holding =
                Holding { holder: Some(next), grants: holding.grants + 1, idle_since: None, ..*holding };
            return;
        }
        let since = *holding.idle_since.get_or_insert(now);
        let until = match holding.others {
            Others::Seen(..) => since,
            Others::Unknown(..) | Others::None => since.after(self.limits.linger),
        };
        if until <= now {
            return self.release(outputs);
        }
        outputs.push(Output::WakeAt(until));
    }

    /// Ends the hold of a task. Ignores a task that held before the lock was lost. `panicked`: `None` if the task has not
    /// worked under the lock.
    fn end_task_hold(
        &mut self,
        who: LocalId,
        panicked: Option<bool>,
        now: Instant,
        lease_valid: bool,
        outputs: &mut Vec<Output>,
    ) {
        let Phase::Held(holding) = &mut self.phase else { return };
        if holding.holder != Some(who) {
            return;
        }
        holding.holder = None;
        holding.worked |= panicked.is_some();
        match panicked {
            Some(true) => self.release_as(How::Panicked, outputs),
            // Without a valid lease no task can be granted the lock, so it is not kept.
            _ if !lease_valid => self.release(outputs),
            _ => self.pass_on(now, lease_valid, outputs),
        }
    }

    fn release(&mut self, outputs: &mut Vec<Output>) {
        let how = if self.has_worked() { How::Released } else { How::Untouched };
        self.release_as(how, outputs);
    }

    fn release_as(&mut self, how: How, outputs: &mut Vec<Output>) {
        outputs.push(Output::LetGo(how));
        self.end(outputs);
    }

    fn end(&mut self, outputs: &mut Vec<Output>) {
        self.phase = Phase::Idle;
        if !self.waiting.is_empty() {
            self.acquire(outputs);
        }
    }

    fn acquire(&mut self, outputs: &mut Vec<Output>) {
        self.phase = Phase::Queued;
        outputs.push(Output::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: LocalId = LocalId(1);
    const TWO: LocalId = LocalId(2);
    const LIMITS: Limits =
        Limits { max_passes: 5, max_hold: Duration::from_secs(1), linger: Duration::from_millis(100) };

    fn at(millis: u64) -> Instant {
        Instant(0).after(Duration::from_millis(millis))
    }

    /// Returns a tenure that these tasks have requested, and whose first task was granted the lock.
    fn begun(limits: Limits, tasks: &[LocalId]) -> Tenure {
        let mut tenure = Tenure::new(limits);
        for (nth, task) in tasks.iter().enumerate() {
            let acquires = if nth == 0 { vec![Output::Acquire] } else { vec![] };
            assert_eq!(tenure.step(Input::Ask(*task), at(0), true), acquires);
        }
        // The first task is granted the lock, for any limits.
        let granted = tenure.step(Input::Granted, at(0), true);
        assert_eq!(granted, [Output::Grant(tasks[0], 0), Output::Look]);
        tenure
    }

    fn done(who: LocalId) -> Input {
        Input::Done { who, panicked: false }
    }

    #[test]
    fn queries_follow_the_hold() {
        let mut tenure = Tenure::new(LIMITS);
        let seen =
            |tenure: &Tenure| (tenure.is_idle(), tenure.holder(), tenure.is_kept(), tenure.has_worked());
        assert_eq!(seen(&tenure), (true, None, false, false));
        tenure.step(Input::Ask(ONE), at(0), true);
        assert_eq!(seen(&tenure), (false, None, false, false));
        let mut tenure = begun(LIMITS, &[ONE]);
        assert_eq!(seen(&tenure), (false, Some(ONE), false, false));
        assert_eq!(tenure.step(done(ONE), at(10), true), [Output::WakeAt(at(110))]);
        assert_eq!(seen(&tenure), (false, None, true, true));
        assert_eq!(tenure.step(Input::Alarm, at(109), true), [Output::WakeAt(at(110))]);
        assert_eq!(tenure.step(Input::Alarm, at(110), true), [Output::LetGo(How::Released)]);
        assert_eq!(seen(&tenure), (true, None, false, false));
    }

    #[test]
    fn revoked_process_releases_instead_of_passing() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        assert_eq!(tenure.step(Input::Revoked, at(0), true), []);
        assert_eq!(tenure.step(done(ONE), at(0), true), [Output::LetGo(How::Released), Output::Acquire]);
        // A lock that no task holds is released at once.
        let mut tenure = begun(LIMITS, &[ONE]);
        tenure.step(done(ONE), at(0), true);
        assert_eq!(tenure.step(Input::Revoked, at(0), true), [Output::LetGo(How::Released)]);
    }

    #[test]
    fn passing_stops_at_the_limits() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(999), true), [Output::Grant(TWO, 1)]);
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        tenure.step(Input::NotAlone, at(0), true);
        let release = [Output::LetGo(How::Released), Output::Acquire];
        assert_eq!(tenure.step(done(ONE), at(1000), true), release);
    }

    #[test]
    fn pending_look_delays_release_if_task_waits() {
        let none = Limits { max_passes: 0, linger: Duration::ZERO, ..LIMITS };
        let mut tenure = begun(none, &[ONE]);
        assert_eq!(tenure.step(done(ONE), at(0), true), [Output::LetGo(How::Released)]);

        let mut tenure = begun(none, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        assert_eq!(tenure.step(Input::Alone, at(0), true), [Output::Grant(TWO, 1)]);

        let mut tenure = begun(none, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        let release = [Output::LetGo(How::Released), Output::Acquire];
        assert_eq!(tenure.step(Input::NotAlone, at(0), true), release);

        let mut tenure = begun(Limits { max_passes: 0, ..LIMITS }, &[ONE]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        assert_eq!(tenure.step(Input::Alone, at(0), true), [Output::WakeAt(at(100))]);
    }

    #[test]
    fn linger_restarts_after_each_hold() {
        let mut tenure = begun(LIMITS, &[ONE]);
        tenure.step(Input::Alone, at(0), true);
        assert_eq!(tenure.step(done(ONE), at(0), true), [Output::WakeAt(at(100))]);
        assert_eq!(tenure.step(Input::Ask(TWO), at(50), true), [Output::Grant(TWO, 1)]);
        assert_eq!(tenure.step(done(TWO), at(200), true), [Output::WakeAt(at(300))]);
    }

    #[test]
    fn panic_or_invalid_lease_releases() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        let panicked = Input::Done { who: ONE, panicked: true };
        let release = [Output::LetGo(How::Panicked), Output::Acquire];
        assert_eq!(tenure.step(panicked, at(0), true), release);

        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        let release = [Output::LetGo(How::Released), Output::Acquire];
        assert_eq!(tenure.step(done(ONE), at(0), false), release);
    }
}
