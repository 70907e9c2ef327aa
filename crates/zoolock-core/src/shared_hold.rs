//! Shared holds: the tasks of one client wait in memory, first in, first out, and pass one hold of the lock on to each
//! other without the network.
//!
//! A hold begins when the client is granted the lock, and ends when the client releases it. While no other contender is
//! queued, the hold passes from task to task without limit. Once another contender was seen, the [`HoldLimits`] apply.
//! Each grant to a task needs a valid lease, as any grant does.
//!
//! [`TaskQueue`] is a state machine without a clock, a task or a connection. Each method handles one event and returns
//! the [`HoldAction`] that the caller must carry out. For its safety see `docs/design/kinds.md`.

use std::collections::VecDeque;
use std::time::Duration;

use crate::lease::Instant;

/// The limits of a shared hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HoldLimits {
    /// Time for which tasks pass the hold on while another contender waits.
    pub max_hold: Duration,
    /// Time for which the client keeps a hold that none of its tasks wants, while no other contender waits.
    pub max_idle: Duration,
    /// Time within which a task must take its grant ([`TaskQueue::claim`]). After it, the next task gets the lock.
    pub claim_timeout: Duration,
}

/// Identifies a task of this client that waits for the lock, or holds it. A task has a new id for each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u64);

/// An action that the caller of a [`TaskQueue`] must carry out. `W` is the data that the caller stores with a waiting task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldAction<W> {
    /// Do nothing.
    None,
    /// Queue for the lock.
    Acquire,
    /// Leave the queue of the lock.
    Cancel,
    /// Release the lock.
    Release {
        /// The record of the release.
        how: ReleaseKind,
        /// Set if the caller must queue for the lock again. The requests may be sent directly after the release.
        acquires_again: bool,
    },
    /// Grant the lock to this task. `pass` is the last part of its fencing token.
    Grant {
        /// The task.
        task: TaskId,
        /// The data that the caller stored with the task.
        waiter: W,
        /// Number of earlier grants within this hold.
        pass: u32,
    },
}

/// The record that the release of a hold leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseKind {
    /// A task has worked under the lock.
    Released,
    /// A task unwinds from a panic.
    Panicked,
    /// No task has worked under the lock. The record must still name the previous holder as the last one.
    Untouched,
}

/// The tasks of one client in front of one hold. `W` is the data that the caller stores with a waiting task.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TaskQueue<W> {
    limits: HoldLimits,
    phase: Phase,
    waiting: VecDeque<(TaskId, W)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// The client neither queues for the lock nor holds it.
    Idle,
    Queued,
    Held(HoldState),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct HoldState {
    /// The task that holds the lock; `None` if no task does.
    holder: Option<TaskId>,
    /// The time of the grant to this task, until it has taken the grant.
    unclaimed_since: Option<Instant>,
    /// Number of grants to tasks.
    grants: u32,
    /// Set if a task has worked under the lock.
    worked: bool,
    /// Set if the lock must be released as soon as no task holds it.
    is_ending: bool,
    others: OtherContenders,
    /// The time since which no task wants the lock.
    idle_since: Option<Instant>,
}

/// The knowledge of the client about other contenders in the queue of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum OtherContenders {
    /// The first listing is in progress. Another contender may have waited since this time, the time of the grant.
    Unknown(Instant),
    /// No other contender is queued.
    None,
    /// Another contender was seen during this hold. It has waited since this time.
    Seen(Instant),
}

impl<W> TaskQueue<W> {
    /// Creates a queue without tasks.
    pub fn new(limits: HoldLimits) -> TaskQueue<W> {
        TaskQueue { limits, phase: Phase::Idle, waiting: VecDeque::new() }
    }

    /// Adds a task to the queue. `lease_valid`: whether the session's lease is valid *now*, here and below.
    pub fn ask(&mut self, task: TaskId, waiter: W, now: Instant, lease_valid: bool) -> HoldAction<W> {
        self.waiting.push_back((task, waiter));
        match self.phase {
            Phase::Idle => {
                self.phase = Phase::Queued;
                HoldAction::Acquire
            }
            Phase::Queued => HoldAction::None,
            Phase::Held(_) => self.check(now, lease_valid),
        }
    }

    /// Removes a task that waits no longer. Returns `None` if the task does not wait.
    pub fn give_up(&mut self, task: TaskId) -> Option<HoldAction<W>> {
        let at = self.waiting.iter().position(|(waiting, _)| *waiting == task)?;
        self.waiting.remove(at);
        if self.phase == Phase::Queued && self.waiting.is_empty() {
            self.phase = Phase::Idle;
            return Some(HoldAction::Cancel);
        }
        Some(HoldAction::None)
    }

    /// Begins a hold: the client was granted the lock. The caller then lists the lock directory, to find other
    /// contenders, and watches its children ([`TaskQueue::find_alone`], [`TaskQueue::find_contended`]).
    pub fn begin_hold(&mut self, now: Instant, lease_valid: bool) -> HoldAction<W> {
        if self.phase != Phase::Queued {
            return HoldAction::None;
        }
        let others = OtherContenders::Unknown(now);
        let hold = HoldState {
            holder: None,
            unclaimed_since: None,
            grants: 0,
            worked: false,
            is_ending: false,
            others,
            idle_since: None,
        };
        self.phase = Phase::Held(hold);
        self.check(now, lease_valid)
    }

    /// Handles that a task takes its grant. Returns whether the task holds the lock. If it does not, its grant was given
    /// to the next task, or the lease has ended, and the task must ask again.
    pub fn claim(&mut self, task: TaskId, lease_valid: bool) -> bool {
        match &mut self.phase {
            Phase::Held(hold) if hold.holder == Some(task) && lease_valid => {
                hold.unclaimed_since = None;
                true
            }
            _ => false,
        }
    }

    /// Handles a listing that shows no other contender. The same request has set a watch.
    pub fn find_alone(&mut self, now: Instant, lease_valid: bool) -> HoldAction<W> {
        if let Phase::Held(hold) = &mut self.phase
            && let OtherContenders::Unknown(_) = hold.others
        {
            hold.others = OtherContenders::None;
        }
        self.check(now, lease_valid)
    }

    /// Handles a listing that shows another contender or fails, or a watch that fires.
    pub fn find_contended(&mut self, now: Instant, lease_valid: bool) -> HoldAction<W> {
        if let Phase::Held(hold) = &mut self.phase {
            // A contender that was seen once counts as present until the release. A new look would cost a listing for each
            // new contender.
            hold.others = match hold.others {
                OtherContenders::None => OtherContenders::Seen(now),
                OtherContenders::Unknown(since) | OtherContenders::Seen(since) => {
                    OtherContenders::Seen(since)
                }
            };
        }
        self.check(now, lease_valid)
    }

    /// Ends the hold as soon as no task holds the lock: another client asks for it, or the lease has ended. After the end
    /// of the lease the znode may still keep others out, so the lock is released all the same.
    pub fn end_soon(&mut self, now: Instant, lease_valid: bool) -> HoldAction<W> {
        if let Phase::Held(hold) = &mut self.phase {
            hold.is_ending = true;
        }
        self.check(now, lease_valid)
    }

    /// Ends the hold of a task. Ignores a task that does not hold the lock, for example because the hold that it had is
    /// over.
    pub fn release(
        &mut self,
        task: TaskId,
        how: ReleaseKind,
        now: Instant,
        lease_valid: bool,
    ) -> HoldAction<W> {
        let Phase::Held(hold) = &mut self.phase else { return HoldAction::None };
        if hold.holder != Some(task) {
            return HoldAction::None;
        }
        (hold.holder, hold.unclaimed_since) = (None, None);
        hold.worked |= how != ReleaseKind::Untouched;
        match how {
            ReleaseKind::Panicked => self.end_as(ReleaseKind::Panicked),
            // Without a valid lease no task can be granted the lock, so the client does not keep it.
            _ if !lease_valid => self.end(),
            _ => self.check(now, lease_valid),
        }
    }

    /// Ends the hold without a release: the lock is lost, and the server has no znode of it.
    pub fn lose(&mut self) -> HoldAction<W> {
        if !matches!(self.phase, Phase::Held(_)) {
            return HoldAction::None;
        }
        if self.leave_hold() { HoldAction::Acquire } else { HoldAction::None }
    }

    /// Ends everything, and returns the waiting tasks. The acquisition has failed, or the session has ended for good.
    pub fn fail(&mut self) -> VecDeque<(TaskId, W)> {
        self.phase = Phase::Idle;
        std::mem::take(&mut self.waiting)
    }

    /// If no task holds the lock, or the task has not taken its grant in time, grants the lock to the next task, releases
    /// it, or keeps it for later. The caller also calls this after the time [`TaskQueue::time_to_check`].
    pub fn check(&mut self, now: Instant, lease_valid: bool) -> HoldAction<W> {
        let Phase::Held(hold) = &mut self.phase else { return HoldAction::None };
        // Without a lease no task can take the grant, and nothing but this would end the hold.
        let is_overdue = |since: Instant| since.until(now) >= self.limits.claim_timeout || !lease_valid;
        if hold.unclaimed_since.is_some_and(is_overdue) {
            (hold.holder, hold.unclaimed_since) = (None, None);
        }
        if hold.holder.is_some() {
            return HoldAction::None;
        }
        if hold.is_ending || hold.grants == u32::MAX {
            return self.end();
        }
        // The lease has ended, but `end_soon` was not called yet.
        if !lease_valid {
            return HoldAction::None;
        }
        let others_wait_for = match hold.others {
            OtherContenders::Seen(since) => Some(since.until(now)),
            OtherContenders::Unknown(_) | OtherContenders::None => None,
        };
        if hold.grants > 0 && others_wait_for.is_some_and(|time| time >= self.limits.max_hold) {
            return self.end();
        }
        if let Some((task, waiter)) = self.waiting.pop_front() {
            let pass = hold.grants;
            *hold = HoldState {
                holder: Some(task),
                unclaimed_since: Some(now),
                grants: pass + 1,
                idle_since: None,
                ..*hold
            };
            return HoldAction::Grant { task, waiter, pass };
        }
        let since = *hold.idle_since.get_or_insert(now);
        if others_wait_for.is_some() || since.until(now) >= self.limits.max_idle {
            return self.end();
        }
        HoldAction::None
    }

    /// Returns the time after which the caller must call [`TaskQueue::check`]: then a hold that no task wants may have to
    /// be released, or a task may not have taken its grant.
    pub fn time_to_check(&self, now: Instant) -> Duration {
        let HoldLimits { max_idle, claim_timeout, .. } = self.limits;
        let left = |limit: Duration, since: Option<Instant>| {
            limit.saturating_sub(since.map_or(Duration::ZERO, |since| since.until(now)))
        };
        match self.phase {
            Phase::Held(HoldState { unclaimed_since, idle_since, .. }) if !max_idle.is_zero() => {
                left(claim_timeout, unclaimed_since).min(left(max_idle, idle_since))
            }
            Phase::Held(HoldState { unclaimed_since, .. }) => left(claim_timeout, unclaimed_since),
            Phase::Idle | Phase::Queued => claim_timeout,
        }
    }

    /// Returns whether the client neither queues for the lock nor holds it.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Returns whether a task has worked under the current hold.
    pub fn has_worked(&self) -> bool {
        matches!(self.phase, Phase::Held(HoldState { worked: true, .. }))
    }

    /// Returns the task that holds the lock.
    pub fn holder(&self) -> Option<TaskId> {
        match self.phase {
            Phase::Held(hold) => hold.holder,
            Phase::Idle | Phase::Queued => None,
        }
    }

    /// Returns the number of tasks that hold the lock or wait for it.
    pub fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.holder().is_some())
    }

    /// Returns whether no task holds the lock or waits for it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn end(&mut self) -> HoldAction<W> {
        let how = if self.has_worked() { ReleaseKind::Released } else { ReleaseKind::Untouched };
        self.end_as(how)
    }

    fn end_as(&mut self, how: ReleaseKind) -> HoldAction<W> {
        HoldAction::Release { how, acquires_again: self.leave_hold() }
    }

    /// Leaves the hold. Returns whether the client queues again, because tasks wait.
    fn leave_hold(&mut self) -> bool {
        let waits = !self.waiting.is_empty();
        self.phase = if waits { Phase::Queued } else { Phase::Idle };
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TaskId = TaskId(1);
    const TWO: TaskId = TaskId(2);
    const LIMITS: HoldLimits = HoldLimits {
        max_hold: Duration::from_secs(1),
        max_idle: Duration::from_millis(100),
        claim_timeout: Duration::from_secs(5),
    };
    /// A release after work, while no task waits.
    const RELEASED: HoldAction<()> =
        HoldAction::Release { how: ReleaseKind::Released, acquires_again: false };
    /// A release after work, while a task waits.
    const RELEASED_AND_QUEUED: HoldAction<()> =
        HoldAction::Release { how: ReleaseKind::Released, acquires_again: true };

    fn at(millis: u64) -> Instant {
        Instant(0).after(Duration::from_millis(millis))
    }

    fn grant(task: TaskId, pass: u32) -> HoldAction<()> {
        HoldAction::Grant { task, waiter: (), pass }
    }

    /// Returns the queue of these tasks, in which the first task holds the lock and the others wait.
    fn begun(limits: HoldLimits, tasks: &[TaskId]) -> TaskQueue<()> {
        let mut queue = TaskQueue::new(limits);
        for (nth, task) in tasks.iter().enumerate() {
            let expected = if nth == 0 { HoldAction::Acquire } else { HoldAction::None };
            assert_eq!(queue.ask(*task, (), at(0), true), expected);
        }
        assert_eq!(queue.begin_hold(at(0), true), grant(tasks[0], 0));
        assert!(queue.claim(tasks[0], true));
        queue
    }

    fn work(queue: &mut TaskQueue<()>, task: TaskId, now: u64) -> HoldAction<()> {
        queue.release(task, ReleaseKind::Released, at(now), true)
    }

    #[test]
    fn queries_follow_the_hold() {
        let seen = |queue: &TaskQueue<()>| (queue.is_idle(), queue.holder(), queue.has_worked(), queue.len());
        let mut queue = TaskQueue::new(LIMITS);
        assert_eq!(seen(&queue), (true, None, false, 0));
        queue.ask(ONE, (), at(0), true);
        assert_eq!(seen(&queue), (false, None, false, 1));
        let mut queue = begun(LIMITS, &[ONE]);
        assert_eq!(seen(&queue), (false, Some(ONE), false, 1));
        assert_eq!(work(&mut queue, ONE, 10), HoldAction::None);
        assert_eq!((seen(&queue), queue.is_empty()), ((false, None, true, 0), true));
    }

    #[test]
    fn idle_hold_ends_after_its_time() {
        let mut queue = begun(LIMITS, &[ONE]);
        assert_eq!(queue.time_to_check(at(5)), Duration::from_millis(100));
        assert_eq!(work(&mut queue, ONE, 10), HoldAction::None);
        assert_eq!(queue.time_to_check(at(30)), Duration::from_millis(80));
        assert_eq!(queue.check(at(109), true), HoldAction::None);
        // A task that holds in between starts the time anew.
        assert_eq!(queue.ask(TWO, (), at(109), true), grant(TWO, 1));
        assert_eq!(work(&mut queue, TWO, 200), HoldAction::None);
        assert_eq!(queue.check(at(299), true), HoldAction::None);
        assert_eq!(queue.check(at(300), true), RELEASED);
        assert!(queue.is_idle());
    }

    #[test]
    fn unclaimed_grant_passes_to_the_next_task() {
        let limits = HoldLimits { max_idle: Duration::ZERO, ..LIMITS };
        let mut queue = begun(limits, &[ONE, TWO]);
        assert_eq!(work(&mut queue, ONE, 1000), grant(TWO, 1));
        assert_eq!(queue.time_to_check(at(1010)), Duration::from_millis(4990));
        assert_eq!(queue.ask(ONE, (), at(1020), true), HoldAction::None);
        assert_eq!(queue.check(at(5999), true), HoldAction::None);
        assert_eq!(queue.check(at(6000), true), grant(ONE, 2));
        assert!(!queue.claim(TWO, true), "the grant is the next task's now");
        assert!(!queue.claim(ONE, false), "the lease has ended");
        assert!(queue.claim(ONE, true));
        // A late release of the task that has lost its grant changes nothing.
        assert_eq!(queue.release(TWO, ReleaseKind::Untouched, at(6001), true), HoldAction::None);
        assert_eq!(queue.check(at(60_000), true), HoldAction::None);
        assert_eq!(work(&mut queue, ONE, 60_000), RELEASED);
    }

    #[test]
    fn unclaimed_grant_ends_with_the_lease() {
        let mut queue = TaskQueue::new(LIMITS);
        queue.ask(ONE, (), at(0), true);
        assert_eq!(queue.begin_hold(at(0), true), grant(ONE, 0));
        queue.ask(TWO, (), at(0), true);
        let release = HoldAction::Release { how: ReleaseKind::Untouched, acquires_again: true };
        assert_eq!(queue.end_soon(at(1), false), release);
        // A request to release does not take a grant away.
        let mut queue = TaskQueue::new(LIMITS);
        queue.ask(ONE, (), at(0), true);
        queue.begin_hold(at(0), true);
        assert_eq!(queue.end_soon(at(1), true), HoldAction::None);
        assert!(queue.claim(ONE, true));
    }

    #[test]
    fn revoked_client_releases_instead_of_passing() {
        let mut queue = begun(LIMITS, &[ONE, TWO]);
        assert_eq!(queue.end_soon(at(0), true), HoldAction::None);
        assert_eq!(work(&mut queue, ONE, 0), RELEASED_AND_QUEUED);
        // A lock that no task holds is released at once.
        let mut queue = begun(LIMITS, &[ONE]);
        work(&mut queue, ONE, 0);
        assert_eq!(queue.end_soon(at(0), true), RELEASED);
    }

    #[test]
    fn passing_stops_at_the_limit() {
        let mut queue = begun(LIMITS, &[ONE, TWO]);
        // A listing that is late shows who waited since the grant.
        assert_eq!(queue.find_contended(at(900), true), HoldAction::None);
        assert_eq!(work(&mut queue, ONE, 999), grant(TWO, 1));
        let mut queue = begun(LIMITS, &[ONE, TWO]);
        queue.find_contended(at(900), true);
        assert_eq!(work(&mut queue, ONE, 1000), RELEASED_AND_QUEUED);

        let mut queue = begun(LIMITS, &[ONE, TWO]);
        queue.find_alone(at(0), true);
        queue.find_contended(at(900), true);
        assert_eq!(work(&mut queue, ONE, 1899), grant(TWO, 1));
        // No task of this client wants the lock, but another contender does.
        assert_eq!(work(&mut queue, TWO, 1899), RELEASED);
    }

    #[test]
    fn panic_or_invalid_lease_releases() {
        let mut queue = begun(LIMITS, &[ONE, TWO]);
        let release = HoldAction::Release { how: ReleaseKind::Panicked, acquires_again: true };
        assert_eq!(queue.release(ONE, ReleaseKind::Panicked, at(0), true), release);

        let mut queue = begun(LIMITS, &[ONE, TWO]);
        assert_eq!(queue.release(ONE, ReleaseKind::Released, at(0), false), RELEASED_AND_QUEUED);
    }

    #[test]
    fn only_the_last_waiter_cancels() {
        let mut queue = TaskQueue::new(LIMITS);
        queue.ask(ONE, (), at(0), true);
        queue.ask(TWO, (), at(0), true);
        assert_eq!(queue.give_up(ONE), Some(HoldAction::None));
        assert_eq!(queue.give_up(ONE), None);
        assert_eq!(queue.give_up(TWO), Some(HoldAction::Cancel));
        assert!(queue.is_idle());
    }
}
