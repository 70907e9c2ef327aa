//! From the head of the queue to the grant: how the previous holder left, the delay after a crash, and the lease.

use super::*;

impl Position {
    /// Continues when our znode has become the head of the queue. `directory` was read after that. `others`: the names
    /// of the children at that time, if they were listed.
    pub(super) fn reach_head(
        &mut self,
        directory: Option<Directory>,
        others: &[String],
        here: &mut Here,
    ) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        let rules = here.config.rules;
        let read = |directory| self.read_previous(me, &directory, others, rules);
        let previous = directory.map_or(Previous::Unknown, read);
        // The first contender of a directory has no previous holder.
        let is_clean = previous == Previous::Clean || me.sequence == Sequence(0);
        if here.config.delay > 0 && !self.delayed && !is_clean {
            return self.start_delay(here);
        }
        (self.state, self.directory, self.previous) = (PositionState::First, directory, Some(previous));
        match self.prepare_held_record(others, here.config) {
            Ok(()) => Then::First,
            Err(reason) => Then::Fail(reason),
        }
    }

    /// Returns whether the record has the release marker of the holder directly before `me`.
    pub(super) fn is_released_to(&self, me: Node, directory: &Directory, rules: Rules) -> bool {
        let marker = rules.marker_in(directory);
        marker.is_some_and(|marker| marker.state.is_release() && self.is_right_before(me, marker.sequence))
    }

    /// Returns true if it is certain that we need not wait for any contender between sequence number `theirs` and ours.
    fn is_right_before(&self, me: Node, theirs: Sequence) -> bool {
        let is_read = me.prefix.reads() && self.exclusive_predecessor == Some(theirs);
        is_read || me.sequence.before() == Some(theirs)
    }

    /// Returns how the previous holder left, as far as the record says.
    pub(super) fn read_previous(
        &self,
        me: Node,
        directory: &Directory,
        others: &[String],
        rules: Rules,
    ) -> Previous {
        let Some(marker) = rules.marker_in(directory) else { return Previous::Unknown };
        if marker.state == HolderState::Held && marker.sequence == me.sequence {
            // Keeps what was read before, because this is our own marker: we wrote it, and then were interrupted.
            return self.previous.unwrap_or(Previous::Unknown);
        }
        if crash::is_of_present_contender(&marker, others) {
            return Previous::Unknown;
        }
        // If crashes are tracked, every holder writes its marker, so this is the marker of the last holder.
        let is_last = marker.tracked || self.is_right_before(me, marker.sequence);
        match marker.state {
            HolderState::Released | HolderState::Downgraded if is_last => Previous::Clean,
            HolderState::Panicked | HolderState::Held if is_last => Previous::Crashed,
            _ => Previous::Unknown,
        }
    }
}

impl Machine {
    pub(super) fn handle_lease_renewal(&mut self, step: &mut Step) {
        if self.phase != Phase::AwaitingLease {
            return;
        }
        if self.is_of_several() {
            return self.verify(step);
        }
        self.phase = Phase::Queued;
        self.at(0, step, Position::read_queue);
    }

    /// Grants the lock. Waits first for a valid lease, and writes the `held` markers that are due.
    pub(super) fn grant(&mut self, step: &mut Step) {
        if !self.config.rules.may_grant(step.lease_valid) {
            self.phase = Phase::AwaitingLease;
            return self.mark_reads_stale();
        }
        if self.positions.iter().any(|position| position.unrecorded.is_some()) {
            return self.begin(step);
        }
        let Some(node) = self.positions[0].node else { return };
        let has = |what| self.positions.iter().any(|position| position.previous == Some(what));
        let previous = match () {
            () if has(Previous::Crashed) => Previous::Crashed,
            () if has(Previous::Unknown) => Previous::Unknown,
            () => Previous::Clean,
        };
        self.phase = Phase::Held;
        self.at_each(step, Position::report_crash);
        step.actions.push(Action::Granted(Grant { node, previous }));
        if self.is_of_several() {
            // Reports a request to release that was read before the grant, because the watches on our znodes may have
            // been set before it.
            step.actions.extend(self.revoked.then_some(Action::Revoked));
        } else {
            self.at(0, step, |position, here| {
                position.mark_granted(here);
                position.watch_own_soon(here)
            });
        }
    }
}
