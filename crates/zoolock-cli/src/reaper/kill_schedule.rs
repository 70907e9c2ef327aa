//! The times at which the reaper acts, computed from the lease, the grace period and the orders.

use std::time::Duration;

use super::orders::Scope;

/// An action of the reaper that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillAction {
    /// Send TERM.
    SendTerm,
    /// Send KILL to the processes in the scope until all have ended.
    SendKill(Scope),
}

/// The phase of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillPhase {
    Running,
    /// TERM was sent. KILL follows at this time, or earlier by order.
    Terminating(Duration),
    Killed(Scope),
}

/// The times at which the reaper sends TERM and KILL to one command.
#[derive(Debug)]
pub(crate) struct KillSchedule {
    grace: Duration,
    lease: Duration,
    phase: KillPhase,
    /// The processes that KILL is sent to at the end of the grace period. At the end of the lease,
    /// KILL is sent to all processes.
    scope: Scope,
}

impl KillSchedule {
    pub(crate) fn new(lease: Duration, grace: Duration) -> Self {
        Self { grace, lease, phase: KillPhase::Running, scope: Scope::All }
    }

    /// Sets the end of the lease. After TERM, only an earlier end has an effect.
    pub(crate) fn set_lease(&mut self, lease: Duration) {
        if self.phase == KillPhase::Running {
            self.lease = lease;
            return;
        }
        self.lease = lease.min(self.lease);
        if let KillPhase::Terminating(end) = self.phase {
            self.phase = KillPhase::Terminating(end.min(lease));
        }
    }

    /// Sets the grace period. Has no effect after the grace period has begun.
    pub(crate) fn set_grace(&mut self, grace: Duration) {
        if self.phase == KillPhase::Running {
            self.grace = grace;
        }
    }

    /// Begins the grace period. Returns `None` if the grace period or the kill has begun before.
    pub(crate) fn begin_grace(&mut self, now: Duration) -> Option<KillAction> {
        if self.phase != KillPhase::Running {
            return None;
        }
        self.phase = KillPhase::Terminating(self.lease.min(now + self.grace));
        Some(KillAction::SendTerm)
    }

    /// Records that the command's own process has ended. Later, KILL at the end of the grace period
    /// is sent to `scope` only.
    pub(crate) fn record_end(&mut self, scope: Scope) {
        self.scope = scope;
    }

    /// Begins to kill all processes.
    pub(crate) fn begin_kill(&mut self) -> KillAction {
        self.phase = KillPhase::Killed(Scope::All);
        KillAction::SendKill(Scope::All)
    }

    /// Returns the action that is due, and enters the phase of that action. Call it until it
    /// returns `None`.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<KillAction> {
        match self.phase {
            KillPhase::Killed(Scope::All) => None,
            _ if self.lease <= now => Some(self.begin_kill()),
            KillPhase::Killed(Scope::Group) => None,
            KillPhase::Terminating(end) if end <= now => {
                self.phase = KillPhase::Killed(self.scope);
                Some(KillAction::SendKill(self.scope))
            }
            KillPhase::Terminating(_) => None,
            KillPhase::Running => {
                let begin = self.lease.saturating_sub(self.grace);
                if begin <= now { self.begin_grace(now) } else { None }
            }
        }
    }

    /// Returns the time of the next action, or `None` if no action is planned.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        match self.phase {
            KillPhase::Running => Some(self.lease.saturating_sub(self.grace)),
            KillPhase::Terminating(end) => Some(end),
            KillPhase::Killed(Scope::Group) => Some(self.lease),
            KillPhase::Killed(Scope::All) => None,
        }
    }

    /// Returns the end of the lease.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the scope of the kill, if it has begun.
    pub(crate) fn killed_scope(&self) -> Option<Scope> {
        match self.phase {
            KillPhase::Killed(scope) => Some(scope),
            KillPhase::Running | KillPhase::Terminating(_) => None,
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
        let mut schedule = KillSchedule::new(at(20), GRACE);
        assert_eq!((schedule.take_due(at(14)), schedule.next_time()), (None, Some(at(15))));
        assert_eq!(schedule.take_due(at(15)), Some(KillAction::SendTerm));
        assert_eq!((schedule.take_due(at(19)), schedule.next_time()), (None, Some(at(20))));
        assert_eq!(schedule.take_due(at(20)), Some(KillAction::SendKill(Scope::All)));
        assert_eq!((schedule.take_due(at(21)), schedule.next_time()), (None, None));
    }

    #[test]
    fn renewal_counts_until_grace_begins() {
        let mut schedule = KillSchedule::new(at(20), GRACE);
        schedule.set_lease(at(30));
        assert_eq!(schedule.take_due(at(20)), None);
        assert_eq!(schedule.take_due(at(26)), Some(KillAction::SendTerm));
        schedule.set_lease(at(60));
        assert_eq!(schedule.take_due(at(30)), Some(KillAction::SendKill(Scope::All)));
    }

    #[test]
    fn shorter_grace_period_begins_later() {
        let mut schedule = KillSchedule::new(at(20), GRACE);
        schedule.set_grace(at(1));
        assert_eq!((schedule.take_due(at(18)), schedule.next_time()), (None, Some(at(19))));
        assert_eq!(schedule.take_due(at(19)), Some(KillAction::SendTerm));
        schedule.set_grace(GRACE);
        assert_eq!(schedule.take_due(at(20)), Some(KillAction::SendKill(Scope::All)));
    }

    #[test]
    fn shorter_lease_counts_at_once() {
        let mut schedule = KillSchedule::new(at(20), GRACE);
        schedule.set_lease(at(10));
        assert_eq!(schedule.next_time(), Some(at(5)));
        assert_eq!(schedule.take_due(at(5)), Some(KillAction::SendTerm));
        schedule.set_lease(at(7));
        assert_eq!((schedule.take_due(at(6)), schedule.next_time()), (None, Some(at(7))));
        assert_eq!(schedule.take_due(at(7)), Some(KillAction::SendKill(Scope::All)));
        // A shorter lease also counts while the group is being killed.
        let mut schedule = KillSchedule::new(at(100), GRACE);
        schedule.record_end(Scope::Group);
        schedule.begin_grace(at(10));
        assert_eq!(schedule.take_due(at(15)), Some(KillAction::SendKill(Scope::Group)));
        schedule.set_lease(at(20));
        assert_eq!(schedule.take_due(at(20)), Some(KillAction::SendKill(Scope::All)));
    }

    #[test]
    fn reaper_that_slept_past_the_deadline_kills_at_once() {
        let mut schedule = KillSchedule::new(at(20), GRACE);
        assert_eq!(schedule.take_due(at(99)), Some(KillAction::SendKill(Scope::All)));
    }

    #[test]
    fn ordered_grace_begins_once() {
        let mut schedule = KillSchedule::new(at(100), GRACE);
        assert_eq!(schedule.begin_grace(at(10)), Some(KillAction::SendTerm));
        assert_eq!(schedule.begin_grace(at(11)), None);
        assert_eq!(schedule.take_due(at(15)), Some(KillAction::SendKill(Scope::All)));
        let mut schedule = KillSchedule::new(at(12), GRACE);
        assert_eq!(schedule.begin_grace(at(10)), Some(KillAction::SendTerm));
        assert_eq!(schedule.take_due(at(12)), Some(KillAction::SendKill(Scope::All)));
    }

    #[test]
    fn only_group_is_killed_before_lease_ends() {
        let mut schedule = KillSchedule::new(at(100), GRACE);
        schedule.record_end(Scope::Group);
        assert_eq!(schedule.begin_grace(at(10)), Some(KillAction::SendTerm));
        assert_eq!(schedule.take_due(at(15)), Some(KillAction::SendKill(Scope::Group)));
        assert_eq!(schedule.take_due(at(99)), None);
        assert_eq!(schedule.take_due(at(100)), Some(KillAction::SendKill(Scope::All)));
    }
}
