//! The times at which the reaper acts: the deadline, the grace period, the orders.

use std::time::Duration;

use super::orders::{Lease, Scope};

/// An action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send TERM.
    SendTerm,
    /// Send KILL until all processes have ended.
    SendKill(Scope),
}

/// The phase of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// TERM was sent. KILL is sent at this time at the latest.
    Terminating(Duration),
    Killed(Scope),
}

/// The times at which the reaper sends TERM and KILL to one command.
#[derive(Debug)]
pub(crate) struct KillSchedule {
    grace: Duration,
    lease: Lease,
    phase: Phase,
    /// The processes that are killed, unless the lease ends.
    scope: Scope,
}

impl KillSchedule {
    pub(crate) fn new(lease: Lease, grace: Duration) -> Self {
        Self { grace, lease, phase: Phase::Running, scope: Scope::All }
    }

    /// Sets the end of the lease. After TERM, the command gets no more time, but it may get less.
    pub(crate) fn set_lease(&mut self, lease: Lease) {
        if self.phase == Phase::Running {
            self.lease = lease;
            return;
        }
        let Some((known, lease)) = self.lease.zip(lease) else { return };
        self.lease = Some(lease.min(known));
        if let Phase::Terminating(end) = self.phase {
            self.phase = Phase::Terminating(end.min(lease));
        }
    }

    /// Sets the grace period, unless it has begun.
    pub(crate) fn set_grace(&mut self, grace: Duration) {
        if self.phase == Phase::Running {
            self.grace = grace;
        }
    }

    /// Begins the grace period, once.
    pub(crate) fn begin_grace(&mut self, now: Duration) -> Option<Action> {
        if self.phase != Phase::Running {
            return None;
        }
        let end = now + self.grace;
        self.phase = Phase::Terminating(self.lease.map_or(end, |lease| lease.min(end)));
        Some(Action::SendTerm)
    }

    /// Notes that the command's process has ended. The processes of `scope` are ended, too.
    pub(crate) fn finish(&mut self, scope: Scope) {
        self.scope = scope;
    }

    /// Begins to kill all processes.
    pub(crate) fn begin_kill(&mut self) -> Action {
        self.phase = Phase::Killed(Scope::All);
        Action::SendKill(Scope::All)
    }

    /// Returns the action that is due, and enters its phase. Call it until it returns `None`.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<Action> {
        let lease_ends = self.lease.is_some_and(|lease| lease <= now);
        match self.phase {
            Phase::Killed(Scope::All) => None,
            _ if lease_ends => Some(self.begin_kill()),
            Phase::Killed(Scope::Group) => None,
            Phase::Terminating(end) if end <= now => {
                self.phase = Phase::Killed(self.scope);
                Some(Action::SendKill(self.scope))
            }
            Phase::Terminating(_) => None,
            Phase::Running => {
                let begin = self.lease?.saturating_sub(self.grace);
                if begin <= now { self.begin_grace(now) } else { None }
            }
        }
    }

    /// Returns the time of the next action.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => self.lease.map(|lease| lease.saturating_sub(self.grace)),
            Phase::Terminating(end) => Some(end),
            Phase::Killed(Scope::Group) => self.lease,
            Phase::Killed(Scope::All) => None,
        }
    }

    /// Returns the processes that are being killed.
    pub(crate) fn killed_scope(&self) -> Option<Scope> {
        match self.phase {
            Phase::Killed(scope) => Some(scope),
            Phase::Running | Phase::Terminating(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn unrenewed_lease_ends_in_two_steps() {
        let mut schedule = KillSchedule::new(Some(at(20)), GRACE);
        assert_eq!((schedule.take_due(at(14)), schedule.next_time()), (None, Some(at(15))));
        assert_eq!(schedule.take_due(at(15)), Some(Action::SendTerm));
        assert_eq!((schedule.take_due(at(19)), schedule.next_time()), (None, Some(at(20))));
        assert_eq!(schedule.take_due(at(20)), Some(Action::SendKill(Scope::All)));
        assert_eq!((schedule.take_due(at(21)), schedule.next_time()), (None, None));
    }

    #[test]
    fn renewal_counts_until_grace_begins() {
        let mut schedule = KillSchedule::new(Some(at(20)), GRACE);
        schedule.set_lease(Some(at(30)));
        assert_eq!(schedule.take_due(at(20)), None);
        assert_eq!(schedule.take_due(at(26)), Some(Action::SendTerm));
        schedule.set_lease(Some(at(60)));
        assert_eq!(schedule.take_due(at(30)), Some(Action::SendKill(Scope::All)));
    }

    #[test]
    fn shorter_grace_period_begins_later() {
        let mut schedule = KillSchedule::new(Some(at(20)), GRACE);
        schedule.set_grace(at(1));
        assert_eq!((schedule.take_due(at(18)), schedule.next_time()), (None, Some(at(19))));
        assert_eq!(schedule.take_due(at(19)), Some(Action::SendTerm));
        schedule.set_grace(GRACE);
        assert_eq!(schedule.take_due(at(20)), Some(Action::SendKill(Scope::All)));
    }

    #[test]
    fn shorter_lease_counts_at_once() {
        let mut schedule = KillSchedule::new(Some(at(20)), GRACE);
        schedule.set_lease(Some(at(10)));
        assert_eq!(schedule.next_time(), Some(at(5)));
        assert_eq!(schedule.take_due(at(5)), Some(Action::SendTerm));
        schedule.set_lease(Some(at(7)));
        assert_eq!((schedule.take_due(at(6)), schedule.next_time()), (None, Some(at(7))));
        assert_eq!(schedule.take_due(at(7)), Some(Action::SendKill(Scope::All)));
        // Also while the group is killed.
        let mut schedule = KillSchedule::new(Some(at(100)), GRACE);
        schedule.finish(Scope::Group);
        schedule.begin_grace(at(10));
        assert_eq!(schedule.take_due(at(15)), Some(Action::SendKill(Scope::Group)));
        schedule.set_lease(Some(at(20)));
        assert_eq!(schedule.take_due(at(20)), Some(Action::SendKill(Scope::All)));
    }

    #[test]
    fn reaper_that_slept_past_the_deadline_kills_at_once() {
        let mut schedule = KillSchedule::new(Some(at(20)), GRACE);
        assert_eq!(schedule.take_due(at(99)), Some(Action::SendKill(Scope::All)));
    }

    #[test]
    fn ordered_grace_begins_once() {
        let mut schedule = KillSchedule::new(Some(at(100)), GRACE);
        assert_eq!(schedule.begin_grace(at(10)), Some(Action::SendTerm));
        assert_eq!(schedule.begin_grace(at(11)), None);
        assert_eq!(schedule.take_due(at(15)), Some(Action::SendKill(Scope::All)));
        let mut schedule = KillSchedule::new(Some(at(12)), GRACE);
        assert_eq!(schedule.begin_grace(at(10)), Some(Action::SendTerm));
        assert_eq!(schedule.take_due(at(12)), Some(Action::SendKill(Scope::All)));
    }

    #[test]
    fn without_a_lease_only_orders_count() {
        let mut schedule = KillSchedule::new(None, GRACE);
        assert_eq!((schedule.take_due(at(1_000_000)), schedule.next_time()), (None, None));
        assert_eq!(schedule.begin_grace(at(10)), Some(Action::SendTerm));
        assert_eq!(schedule.take_due(at(15)), Some(Action::SendKill(Scope::All)));
    }

    #[test]
    fn only_group_is_killed_before_lease_ends() {
        let mut schedule = KillSchedule::new(Some(at(100)), GRACE);
        schedule.finish(Scope::Group);
        assert_eq!(schedule.begin_grace(at(10)), Some(Action::SendTerm));
        assert_eq!(schedule.take_due(at(15)), Some(Action::SendKill(Scope::Group)));
        assert_eq!(schedule.take_due(at(99)), None);
        assert_eq!(schedule.take_due(at(100)), Some(Action::SendKill(Scope::All)));
    }
}
