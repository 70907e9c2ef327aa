//! Local hand-off: one znode for all tasks of a process. The tasks queue in memory, and the lock passes among them without
//! the network.
//!
//! A tenure begins when the process is granted the lock, and ends when the process releases it.
//! While no other contender is queued, the lock may pass from task to task without limit. As soon
//! as another contender may be queued, the [`TenureLimits`] apply. Each local grant needs a valid
//! lease, as any grant does. A [`Tenure`] is a state machine: it takes inputs ([`TenureInput`]) and
//! returns outputs ([`TenureOutput`]). It has no clock, no task and no connection. For its safety
//! see `docs/design/kinds.md`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::lease::Instant;

/// The limits of a tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TenureLimits {
    /// Maximum number of times that the lock passes from task to task while another contender
    /// waits.
    pub max_passes: u32,
    /// Time after which the lock is not passed on locally, while another contender waits.
    pub max_hold: Duration,
    /// Time for which the process keeps a lock that none of its tasks wants, while no other contender waits.
    pub linger: Duration,
}

/// Identifies a task of this process that waits for the lock, or holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalId(pub u64);

/// An input of a [`Tenure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TenureInput {
    /// A task requests the lock.
    Ask(LocalId),
    /// A task gives up its request, or its deadline has passed. If the task already holds the lock, it has not worked
    /// under it.
    GiveUp(LocalId),
    /// The task that holds the lock has worked under it, and releases it.
    Done {
        /// The task.
        who: LocalId,
        /// Set if the task unwinds from a panic. Then the release marker must say so.
        panicked: bool,
    },
    /// The process was granted the lock.
    Granted,
    /// The acquisition has failed, or the session has ended for good. All waiting tasks have been told.
    Failed,
    /// The lease has ended, and the holder has been told. The znode stays until the holder releases, and may still keep
    /// others out.
    Lost,
    /// The lock is lost, and no znode of it is left on the server. The holder has been told.
    Gone,
    /// Another client asks the process to release the lock.
    Revoked,
    /// A listing shows no other contender. The same request has set a watch on the directory.
    Alone,
    /// The listing shows another contender or failed, or the watch has fired.
    NotAlone,
    /// The time of [`TenureOutput::WakeAt`] has come.
    Alarm,
}

/// An output of a [`Tenure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TenureOutput {
    /// Queue for the lock.
    Acquire,
    /// Leave the queue.
    Cancel,
    /// Release the lock. If [`TenureOutput::Acquire`] follows, the requests of the new acquisition
    /// may be sent directly after the release.
    Release(ReleaseKind),
    /// List the directory to find other contenders, and watch its children.
    Look,
    /// Grant the lock to this task. The number is the pass in the fencing token.
    Grant(LocalId, u32),
    /// Send [`TenureInput::Alarm`] at this time. This replaces the time of an earlier output.
    WakeAt(Instant),
}

/// The way in which the process releases the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseKind {
    /// A task has worked under the lock.
    Released,
    /// A task unwinds from a panic.
    Panicked,
    /// No task has worked under the lock. The record must still name the previous holder as the
    /// last one.
    Untouched,
}

/// The state machine of a tenure: the tasks of one process share one queue position for one lock.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenure {
    limits: TenureLimits,
    phase: TenurePhase,
    waiting: VecDeque<LocalId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum TenurePhase {
    /// Neither queued nor holding.
    Idle,
    /// Queued.
    Queued,
    Held(HeldTenure),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct HeldTenure {
    /// The task that holds the lock; `None` if no task does.
    holder: Option<LocalId>,
    /// Number of grants to tasks of this process.
    grants: u32,
    /// Set if a task has worked under the lock.
    worked: bool,
    /// Set if the lock is lost. Then no other task is granted it.
    lost: bool,
    others: OtherContenders,
    revoked: bool,
    /// The time since which no task wants the lock.
    idle_since: Option<Instant>,
}

/// The knowledge about other contenders in the queue. The values are the time since which another contender may be waiting,
/// and the number of grants before that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum OtherContenders {
    /// No other contender is queued.
    None,
    /// A listing ([`TenureOutput::Look`]) is in progress. Until its answer, another contender is
    /// assumed.
    Unknown(Instant, u32),
    /// Another contender was seen in the queue during this tenure.
    Seen(Instant, u32),
}

impl Tenure {
    /// Creates a tenure that has not begun.
    pub fn new(limits: TenureLimits) -> Tenure {
        Tenure { limits, phase: TenurePhase::Idle, waiting: VecDeque::new() }
    }

    /// Handles one input and returns the outputs, in order. `lease_valid`: whether the session's lease is valid *now*.
    pub fn step(&mut self, input: TenureInput, now: Instant, lease_valid: bool) -> Vec<TenureOutput> {
        let mut outputs = Vec::new();
        match (input, &mut self.phase) {
            (TenureInput::Ask(who), phase) => {
                self.waiting.push_back(who);
                match phase {
                    TenurePhase::Idle => self.enter_queue(&mut outputs),
                    TenurePhase::Queued => {}
                    TenurePhase::Held(_) => self.grant_next_or_release(now, lease_valid, &mut outputs),
                }
            }
            (TenureInput::GiveUp(who), _) => {
                self.waiting.retain(|waiting| *waiting != who);
                if self.phase == TenurePhase::Queued && self.waiting.is_empty() {
                    self.phase = TenurePhase::Idle;
                    outputs.push(TenureOutput::Cancel);
                }
                self.end_task_hold(who, None, now, lease_valid, &mut outputs);
            }
            (TenureInput::Granted, TenurePhase::Queued) => {
                let others = OtherContenders::Unknown(now, 0);
                self.phase = TenurePhase::Held(HeldTenure {
                    holder: None,
                    grants: 0,
                    worked: false,
                    lost: false,
                    others,
                    revoked: false,
                    idle_since: None,
                });
                self.grant_next_or_release(now, lease_valid, &mut outputs);
                if matches!(self.phase, TenurePhase::Held(_)) {
                    outputs.push(TenureOutput::Look);
                }
            }
            (TenureInput::Failed, TenurePhase::Queued | TenurePhase::Held(_)) => {
                self.phase = TenurePhase::Idle;
                self.waiting.clear();
            }
            (TenureInput::Lost, TenurePhase::Held(holding)) => {
                holding.lost = true;
                self.grant_next_or_release(now, lease_valid, &mut outputs);
            }
            (TenureInput::Gone, TenurePhase::Held(_)) => self.end(&mut outputs),
            (TenureInput::Revoked, TenurePhase::Held(holding)) => {
                holding.revoked = true;
                self.grant_next_or_release(now, lease_valid, &mut outputs);
            }
            (TenureInput::Alone, TenurePhase::Held(holding)) => {
                if let OtherContenders::Unknown(..) = holding.others {
                    holding.others = OtherContenders::None;
                }
                self.grant_next_or_release(now, lease_valid, &mut outputs);
            }
            (TenureInput::NotAlone, TenurePhase::Held(holding)) => {
                // A contender that was seen once counts as present until the release. A new look
                // would cost a listing for each new contender.
                holding.others = match holding.others {
                    OtherContenders::None => OtherContenders::Seen(now, holding.grants),
                    OtherContenders::Unknown(since, grants) | OtherContenders::Seen(since, grants) => {
                        OtherContenders::Seen(since, grants)
                    }
                };
                self.grant_next_or_release(now, lease_valid, &mut outputs);
            }
            (TenureInput::Alarm, TenurePhase::Held(_)) => {
                self.grant_next_or_release(now, lease_valid, &mut outputs)
            }
            (TenureInput::Done { who, panicked }, _) => {
                self.end_task_hold(who, Some(panicked), now, lease_valid, &mut outputs);
            }
            // The input belongs to a tenure that has ended.
            _ => {}
        }
        outputs
    }

    /// Returns whether the process is neither queued nor holds, and no task waits.
    pub fn is_idle(&self) -> bool {
        self.phase == TenurePhase::Idle && self.waiting.is_empty()
    }

    /// Returns whether a task has worked under the current hold.
    pub fn has_worked(&self) -> bool {
        matches!(self.phase, TenurePhase::Held(HeldTenure { worked: true, .. }))
    }

    /// Returns the task that holds the lock.
    pub fn holder(&self) -> Option<LocalId> {
        match self.phase {
            TenurePhase::Held(holding) => holding.holder,
            TenurePhase::Idle | TenurePhase::Queued => None,
        }
    }

    /// Returns whether the process holds the lock, and none of its tasks does.
    pub fn is_held_by_no_task(&self) -> bool {
        matches!(self.phase, TenurePhase::Held(HeldTenure { holder: None, .. }))
    }

    /// If no task holds the lock, grants it to the next task, releases it, or keeps it for later.
    fn grant_next_or_release(&mut self, now: Instant, lease_valid: bool, outputs: &mut Vec<TenureOutput>) {
        let TenurePhase::Held(holding) = &mut self.phase else { return };
        if holding.holder.is_some() {
            return;
        }
        if holding.lost || holding.revoked || holding.grants == u32::MAX {
            return self.release(outputs);
        }
        // The lease has ended, but `TenureInput::Lost` has not arrived yet.
        if !lease_valid {
            return;
        }
        if let OtherContenders::Unknown(since, grants) | OtherContenders::Seen(since, grants) = holding.others
        {
            // The first grant of a tenure is not a pass.
            let passes = holding.grants.saturating_sub(grants.max(1));
            let is_limit_reached =
                passes >= self.limits.max_passes || since.until(now) >= self.limits.max_hold;
            if holding.grants > 0 && is_limit_reached {
                match holding.others {
                    // The server answers the pending look before it handles a release that is sent now. So waiting for the
                    // answer delays other contenders only by the time that the answer travels. To release and queue again
                    // would delay this process by as much.
                    OtherContenders::Unknown(..)
                        if !self.waiting.is_empty() || !self.limits.linger.is_zero() =>
                    {
                        return;
                    }
                    _ => return self.release(outputs),
                }
            }
        }
        if let Some(next) = self.waiting.pop_front() {
            outputs.push(TenureOutput::Grant(next, holding.grants));
            *holding =
                HeldTenure { holder: Some(next), grants: holding.grants + 1, idle_since: None, ..*holding };
            return;
        }
        let since = *holding.idle_since.get_or_insert(now);
        let until = match holding.others {
            OtherContenders::Seen(..) => since,
            OtherContenders::Unknown(..) | OtherContenders::None => since.after(self.limits.linger),
        };
        if until <= now {
            return self.release(outputs);
        }
        outputs.push(TenureOutput::WakeAt(until));
    }

    /// Ends the hold of a task. Ignores a task that is not the current holder, for example because
    /// its tenure has ended. `panicked`: `None` if the task has not worked under the lock.
    fn end_task_hold(
        &mut self,
        who: LocalId,
        panicked: Option<bool>,
        now: Instant,
        lease_valid: bool,
        outputs: &mut Vec<TenureOutput>,
    ) {
        let TenurePhase::Held(holding) = &mut self.phase else { return };
        if holding.holder != Some(who) {
            return;
        }
        holding.holder = None;
        holding.worked |= panicked.is_some();
        match panicked {
            Some(true) => self.release_as(ReleaseKind::Panicked, outputs),
            // Without a valid lease no task can be granted the lock, so the process does not keep
            // the lock.
            _ if !lease_valid => self.release(outputs),
            _ => self.grant_next_or_release(now, lease_valid, outputs),
        }
    }

    fn release(&mut self, outputs: &mut Vec<TenureOutput>) {
        let how = if self.has_worked() { ReleaseKind::Released } else { ReleaseKind::Untouched };
        self.release_as(how, outputs);
    }

    fn release_as(&mut self, how: ReleaseKind, outputs: &mut Vec<TenureOutput>) {
        outputs.push(TenureOutput::Release(how));
        self.end(outputs);
    }

    fn end(&mut self, outputs: &mut Vec<TenureOutput>) {
        self.phase = TenurePhase::Idle;
        if !self.waiting.is_empty() {
            self.enter_queue(outputs);
        }
    }

    fn enter_queue(&mut self, outputs: &mut Vec<TenureOutput>) {
        self.phase = TenurePhase::Queued;
        outputs.push(TenureOutput::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: LocalId = LocalId(1);
    const TWO: LocalId = LocalId(2);
    const LIMITS: TenureLimits =
        TenureLimits { max_passes: 5, max_hold: Duration::from_secs(1), linger: Duration::from_millis(100) };

    fn at(millis: u64) -> Instant {
        Instant(0).after(Duration::from_millis(millis))
    }

    /// Returns a tenure of these tasks, in which the first task holds the lock and the others wait.
    fn begun(limits: TenureLimits, tasks: &[LocalId]) -> Tenure {
        let mut tenure = Tenure::new(limits);
        for (nth, task) in tasks.iter().enumerate() {
            let acquires = if nth == 0 { vec![TenureOutput::Acquire] } else { vec![] };
            assert_eq!(tenure.step(TenureInput::Ask(*task), at(0), true), acquires);
        }
        // The first task is granted the lock, for any limits.
        let granted = tenure.step(TenureInput::Granted, at(0), true);
        assert_eq!(granted, [TenureOutput::Grant(tasks[0], 0), TenureOutput::Look]);
        tenure
    }

    fn done(who: LocalId) -> TenureInput {
        TenureInput::Done { who, panicked: false }
    }

    #[test]
    fn queries_follow_the_hold() {
        let mut tenure = Tenure::new(LIMITS);
        let seen = |tenure: &Tenure| {
            (tenure.is_idle(), tenure.holder(), tenure.is_held_by_no_task(), tenure.has_worked())
        };
        assert_eq!(seen(&tenure), (true, None, false, false));
        tenure.step(TenureInput::Ask(ONE), at(0), true);
        assert_eq!(seen(&tenure), (false, None, false, false));
        let mut tenure = begun(LIMITS, &[ONE]);
        assert_eq!(seen(&tenure), (false, Some(ONE), false, false));
        assert_eq!(tenure.step(done(ONE), at(10), true), [TenureOutput::WakeAt(at(110))]);
        assert_eq!(seen(&tenure), (false, None, true, true));
        assert_eq!(tenure.step(TenureInput::Alarm, at(109), true), [TenureOutput::WakeAt(at(110))]);
        assert_eq!(
            tenure.step(TenureInput::Alarm, at(110), true),
            [TenureOutput::Release(ReleaseKind::Released)]
        );
        assert_eq!(seen(&tenure), (true, None, false, false));
    }

    #[test]
    fn revoked_process_releases_instead_of_passing() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        assert_eq!(tenure.step(TenureInput::Revoked, at(0), true), []);
        assert_eq!(
            tenure.step(done(ONE), at(0), true),
            [TenureOutput::Release(ReleaseKind::Released), TenureOutput::Acquire]
        );
        // A lock that no task holds is released at once.
        let mut tenure = begun(LIMITS, &[ONE]);
        tenure.step(done(ONE), at(0), true);
        assert_eq!(
            tenure.step(TenureInput::Revoked, at(0), true),
            [TenureOutput::Release(ReleaseKind::Released)]
        );
    }

    #[test]
    fn passing_stops_at_the_limits() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(999), true), [TenureOutput::Grant(TWO, 1)]);
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        tenure.step(TenureInput::NotAlone, at(0), true);
        let release = [TenureOutput::Release(ReleaseKind::Released), TenureOutput::Acquire];
        assert_eq!(tenure.step(done(ONE), at(1000), true), release);
    }

    #[test]
    fn pending_look_delays_release_if_task_waits() {
        let none = TenureLimits { max_passes: 0, linger: Duration::ZERO, ..LIMITS };
        let mut tenure = begun(none, &[ONE]);
        assert_eq!(tenure.step(done(ONE), at(0), true), [TenureOutput::Release(ReleaseKind::Released)]);

        let mut tenure = begun(none, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        assert_eq!(tenure.step(TenureInput::Alone, at(0), true), [TenureOutput::Grant(TWO, 1)]);

        let mut tenure = begun(none, &[ONE, TWO]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        let release = [TenureOutput::Release(ReleaseKind::Released), TenureOutput::Acquire];
        assert_eq!(tenure.step(TenureInput::NotAlone, at(0), true), release);

        let mut tenure = begun(TenureLimits { max_passes: 0, ..LIMITS }, &[ONE]);
        assert_eq!(tenure.step(done(ONE), at(0), true), []);
        assert_eq!(tenure.step(TenureInput::Alone, at(0), true), [TenureOutput::WakeAt(at(100))]);
    }

    #[test]
    fn linger_restarts_after_each_hold() {
        let mut tenure = begun(LIMITS, &[ONE]);
        tenure.step(TenureInput::Alone, at(0), true);
        assert_eq!(tenure.step(done(ONE), at(0), true), [TenureOutput::WakeAt(at(100))]);
        assert_eq!(tenure.step(TenureInput::Ask(TWO), at(50), true), [TenureOutput::Grant(TWO, 1)]);
        assert_eq!(tenure.step(done(TWO), at(200), true), [TenureOutput::WakeAt(at(300))]);
    }

    #[test]
    fn panic_or_invalid_lease_releases() {
        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        let panicked = TenureInput::Done { who: ONE, panicked: true };
        let release = [TenureOutput::Release(ReleaseKind::Panicked), TenureOutput::Acquire];
        assert_eq!(tenure.step(panicked, at(0), true), release);

        let mut tenure = begun(LIMITS, &[ONE, TWO]);
        let release = [TenureOutput::Release(ReleaseKind::Released), TenureOutput::Acquire];
        assert_eq!(tenure.step(done(ONE), at(0), false), release);
    }
}
