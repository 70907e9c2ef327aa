//! The times at which the reaper acts: the deadline, the grace period, the orders.

use std::time::Duration;

use super::orders::{Lease, Scope};

/// An action that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Send TERM.
    Ask,
    /// Send KILL until all processes have ended.
    Kill(Scope),
}

/// The phase of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Asked to end. It is killed at this time at the latest.
    Asked(Duration),
    Killed(Scope),
}

/// The reaper's duty towards one command.
#[derive(Debug)]
pub(crate) struct Duty {
    grace: Duration,
    lease: Lease,
    phase: Phase,
    /// The processes that are killed, unless the lease ends.
    scope: Scope,
}

impl Duty {
    pub(crate) fn new(lease: Lease, grace: Duration) -> Self {
        Self { grace, lease, phase: Phase::Running, scope: Scope::All }
    }

    /// Sets the end of the lease. A command that was asked to end gets no more time, but it may get less.
    pub(crate) fn set_lease(&mut self, lease: Lease) {
        if self.phase == Phase::Running {
            self.lease = lease;
            return;
        }
        let Some((known, lease)) = self.lease.zip(lease) else { return };
        self.lease = Some(lease.min(known));
        if let Phase::Asked(end) = self.phase {
            self.phase = Phase::Asked(end.min(lease));
        }
    }

    /// Sets the grace period, unless it has begun.
    pub(crate) fn set_grace(&mut self, grace: Duration) {
        if self.phase == Phase::Running {
            self.grace = grace;
        }
    }

    /// Begins the grace period, once.
    pub(crate) fn ask(&mut self, now: Duration) -> Option<Deed> {
        if self.phase != Phase::Running {
            return None;
        }
        let end = now + self.grace;
        self.phase = Phase::Asked(self.lease.map_or(end, |lease| lease.min(end)));
        Some(Deed::Ask)
    }

    /// Notes that the command's process has ended. The processes of `scope` are ended, too.
    pub(crate) fn finish(&mut self, scope: Scope) {
        self.scope = scope;
    }

    /// Begins to kill all processes.
    pub(crate) fn kill(&mut self) -> Deed {
        self.phase = Phase::Killed(Scope::All);
        Deed::Kill(Scope::All)
    }

    /// Returns the action that is due. Call it until it returns `None`.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Deed> {
        let lease_ends = self.lease.is_some_and(|lease| lease <= now);
        match self.phase {
            Phase::Killed(Scope::All) => None,
            _ if lease_ends => Some(self.kill()),
            Phase::Killed(Scope::Group) => None,
            Phase::Asked(end) if end <= now => {
                self.phase = Phase::Killed(self.scope);
                Some(Deed::Kill(self.scope))
            }
            Phase::Asked(_) => None,
            Phase::Running => {
                let begin = self.lease?.saturating_sub(self.grace);
                if begin <= now { self.ask(now) } else { None }
            }
        }
    }

    /// Returns the time of the next action.
    pub(crate) fn next(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => self.lease.map(|lease| lease.saturating_sub(self.grace)),
            Phase::Asked(end) => Some(end),
            Phase::Killed(Scope::Group) => self.lease,
            Phase::Killed(Scope::All) => None,
        }
    }

    /// Returns the processes that are being killed.
    pub(crate) fn killing(&self) -> Option<Scope> {
        match self.phase {
            Phase::Killed(scope) => Some(scope),
            Phase::Running | Phase::Asked(_) => None,
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
    fn a_lease_that_is_not_renewed_ends_in_two_steps() {
        let mut duty = Duty::new(Some(at(20)), GRACE);
        assert_eq!((duty.due(at(14)), duty.next()), (None, Some(at(15))));
        assert_eq!(duty.due(at(15)), Some(Deed::Ask));
        assert_eq!((duty.due(at(19)), duty.next()), (None, Some(at(20))));
        assert_eq!(duty.due(at(20)), Some(Deed::Kill(Scope::All)));
        assert_eq!((duty.due(at(21)), duty.next()), (None, None));
    }

    #[test]
    fn a_renewal_moves_the_end_unless_it_has_begun() {
        let mut duty = Duty::new(Some(at(20)), GRACE);
        duty.set_lease(Some(at(30)));
        assert_eq!(duty.due(at(20)), None);
        assert_eq!(duty.due(at(26)), Some(Deed::Ask));
        duty.set_lease(Some(at(60)));
        assert_eq!(duty.due(at(30)), Some(Deed::Kill(Scope::All)));
    }

    #[test]
    fn a_shorter_grace_period_begins_later() {
        let mut duty = Duty::new(Some(at(20)), GRACE);
        duty.set_grace(at(1));
        assert_eq!((duty.due(at(18)), duty.next()), (None, Some(at(19))));
        assert_eq!(duty.due(at(19)), Some(Deed::Ask));
        duty.set_grace(GRACE);
        assert_eq!(duty.due(at(20)), Some(Deed::Kill(Scope::All)));
    }

    #[test]
    fn a_shorter_lease_counts_at_once() {
        let mut duty = Duty::new(Some(at(20)), GRACE);
        duty.set_lease(Some(at(10)));
        assert_eq!(duty.next(), Some(at(5)));
        assert_eq!(duty.due(at(5)), Some(Deed::Ask));
        duty.set_lease(Some(at(7)));
        assert_eq!((duty.due(at(6)), duty.next()), (None, Some(at(7))));
        assert_eq!(duty.due(at(7)), Some(Deed::Kill(Scope::All)));
        // Also while the group is killed.
        let mut duty = Duty::new(Some(at(100)), GRACE);
        duty.finish(Scope::Group);
        duty.ask(at(10));
        assert_eq!(duty.due(at(15)), Some(Deed::Kill(Scope::Group)));
        duty.set_lease(Some(at(20)));
        assert_eq!(duty.due(at(20)), Some(Deed::Kill(Scope::All)));
    }

    #[test]
    fn a_reaper_that_slept_past_the_deadline_kills_without_asking() {
        let mut duty = Duty::new(Some(at(20)), GRACE);
        assert_eq!(duty.due(at(99)), Some(Deed::Kill(Scope::All)));
    }

    #[test]
    fn an_order_to_ask_is_carried_out_once_and_shortens_the_lease() {
        let mut duty = Duty::new(Some(at(100)), GRACE);
        assert_eq!(duty.ask(at(10)), Some(Deed::Ask));
        assert_eq!(duty.ask(at(11)), None);
        assert_eq!(duty.due(at(15)), Some(Deed::Kill(Scope::All)));
        let mut duty = Duty::new(Some(at(12)), GRACE);
        assert_eq!(duty.ask(at(10)), Some(Deed::Ask));
        assert_eq!(duty.due(at(12)), Some(Deed::Kill(Scope::All)));
    }

    #[test]
    fn without_a_lease_only_orders_count() {
        let mut duty = Duty::new(None, GRACE);
        assert_eq!((duty.due(at(1_000_000)), duty.next()), (None, None));
        assert_eq!(duty.ask(at(10)), Some(Deed::Ask));
        assert_eq!(duty.due(at(15)), Some(Deed::Kill(Scope::All)));
    }

    #[test]
    fn what_is_left_of_the_group_is_killed_alone_until_the_lease_ends() {
        let mut duty = Duty::new(Some(at(100)), GRACE);
        duty.finish(Scope::Group);
        assert_eq!(duty.ask(at(10)), Some(Deed::Ask));
        assert_eq!(duty.due(at(15)), Some(Deed::Kill(Scope::Group)));
        assert_eq!(duty.due(at(99)), None);
        assert_eq!(duty.due(at(100)), Some(Deed::Kill(Scope::All)));
    }
}
