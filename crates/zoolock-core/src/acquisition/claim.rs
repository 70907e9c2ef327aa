//! A grant that the caller does not take.
//!
//! The caller takes a grant when it polls its future ([`Event::Claimed`]). A future that nobody polls would keep all
//! other contenders out for as long as the session lives. Therefore a grant that is not taken within
//! [`Config::claim_timeout`], or whose lock is lost first, is given back ([`Action::Unclaimed`]). The znode is deleted,
//! and the record is restored, unless the znode is gone already, because the caller has not worked under the lock.

use super::*;

impl Machine {
    /// Handles that the caller takes the grant. Gives it back if the lease has ended, because the caller must not begin
    /// to work without a lease.
    pub(super) fn claim(&mut self, step: &mut Step) {
        if self.phase != Phase::Held || self.claimed {
            return;
        }
        if step.lease_valid { self.claimed = true } else { self.give_back_lost(Loss::Unreachable, step) }
    }

    /// Starts the time within which the caller must take the grant. Waits for the end of the pause after the grant,
    /// because most callers take the grant during that pause, and then no second timer is needed.
    pub(super) fn limit_claim(&mut self, step: &mut Step) {
        let is_open = |purpose| self.trips.is_open(0, purpose);
        let pauses = [PositionPurpose::OwnPause, PositionPurpose::RecordPause].map(Purpose::Position);
        if self.is_unclaimed()
            && self.config.rules.limits_claim(self.config.claim_timeout)
            && !is_open(Purpose::Claim)
            && !pauses.into_iter().any(is_open)
        {
            self.trips.sleep(0, Purpose::Claim, self.config.claim_timeout, step);
        }
    }

    /// Gives the grant back, because the caller has not taken it in time.
    pub(super) fn end_claim(&mut self, step: &mut Step) {
        if self.is_unclaimed() {
            self.give_back(None, step);
        }
    }

    /// Gives back a grant whose lock is lost, or may be lost.
    pub(super) fn give_back_lost(&mut self, loss: Loss, step: &mut Step) {
        // Reads our znodes before their delete, because they may be deleted already.
        self.mark_reads_stale();
        self.give_back(Some(loss), step);
    }

    fn give_back(&mut self, loss: Option<Loss>, step: &mut Step) {
        step.actions.push(Action::Unclaimed(loss));
        self.undo_unseen_grant(step);
    }

    /// Returns whether the lock is granted, and the caller has not taken the grant yet.
    pub fn is_unclaimed(&self) -> bool {
        self.phase == Phase::Held && !self.claimed
    }
}

impl Rules {
    /// Returns whether the time is limited within which the caller must take the grant ([`Rule::ClaimInTime`]). Zero
    /// is no limit.
    fn limits_claim(self, claim_timeout: u32) -> bool {
        claim_timeout > 0 && !self.off(Rule::ClaimInTime)
    }
}
