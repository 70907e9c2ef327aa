//! One contender of a multi-lock, which creates and releases all its znodes in one transaction each.

use super::*;

impl Contender {
    /// Returns a contender for one of several locks.
    pub(crate) fn new_part(config: Config) -> Contender {
        Contender { begins_with_others: true, ..Contender::new(config) }
    }

    /// Returns whether this znode must be deleted at once, since the numbers of its directory run out.
    pub(crate) fn must_leave(&self, node: Node) -> bool {
        self.near_the_end(node)
    }

    /// Returns whether it holds, and its own create was the last change of the children when it was granted.
    /// Then it was the head at once.
    pub(crate) fn is_untouched(&self) -> bool {
        matches!(self.phase, Phase::Held { me, directory: Some(seen), .. } if seen.pzxid == me.czxid)
    }

    /// Sends the reads that go out with the create.
    pub(crate) fn send_first_look(&mut self) -> Vec<Action> {
        self.with_context(|part, context| {
            part.phase = Phase::Joining;
            part.first_look(context);
        })
    }

    /// Handles a failed create.
    pub(crate) fn create_failed(&mut self) {
        self.void_pending();
        self.phase = Phase::New;
    }

    /// Handles a successful create.
    pub(crate) fn create_succeeded(&mut self, me: Node) -> Vec<Action> {
        self.with_context(|part, _| part.phase = Phase::FirstLook { me, children: None })
    }

    /// Continues with the znode of an earlier create.
    pub(crate) fn resume_with(&mut self, me: Node) -> Vec<Action> {
        self.with_context(|part, context| part.look(me, context))
    }

    /// Deletes a znode that it does not use.
    pub(crate) fn discard(&mut self, node: Node) -> Vec<Action> {
        self.with_context(|part, context| part.depart(node, None, false, context))
    }

    /// Ends the contender. Deletes in progress continue.
    pub(crate) fn finish(&mut self) -> Vec<Action> {
        self.with_context(|part, _| {
            part.void_pending();
            part.wanted = false;
            part.phase = Phase::Leaving;
        })
    }

    /// Gives up before all locks were granted. It may be the head already, but the caller has not worked
    /// under the lock. So the record must not say that the last holder released it. `waited`: set if it has
    /// waited for another lock since it read its znode.
    pub(crate) fn withdraw(&mut self, waited: bool) -> Vec<Action> {
        self.with_context(|part, context| {
            part.unread |= waited;
            part.abandon(None, context);
        })
    }

    /// Handles a failed record of its beginning. Returns whether it waits for the grant again.
    pub(crate) fn begin_again(&mut self, failure: Failure) -> (bool, Vec<Action>) {
        let mut again = false;
        let actions = self.with_context(|part, context| again = part.beginning_failed(failure, context));
        (again, actions)
    }

    /// Returns the release of its znode.
    pub(crate) fn parting(&self, left: Left) -> Option<Parting> {
        let Phase::Held { me, directory, .. } = self.phase else { return None };
        let marker = directory.and_then(|directory| self.parting_marker(me, &directory, left));
        Some(Parting { node: me, marker })
    }

    /// Releases by itself after a failed transaction: one znode was missing, or a record had changed. The
    /// missing znode may be its own, and the name another contender's now, so it checks first.
    pub(crate) fn release_alone(&mut self, left: Left) -> Vec<Action> {
        self.with_context(|part, context| {
            let Some(Parting { node, marker }) = part.parting(left) else {
                return part.release(left, context);
            };
            part.void_pending();
            part.phase = Phase::Leaving;
            part.depart_after_look(node, marker, context);
        })
    }

    /// Releases after a transaction that may have succeeded.
    pub(crate) fn release_again(&mut self, left: Left) -> Vec<Action> {
        self.with_context(|part, context| {
            if part.phase == Phase::Lost(Loss::Broken) {
                // The deletion was reported after the release was sent, which may have caused it.
                context.actions.push(Action::Released(Departed::Clean));
                part.phase = Phase::Leaving;
                return;
            }
            let Some(Parting { node, marker }) = part.parting(left) else {
                return part.release(left, context);
            };
            part.void_pending();
            part.phase = Phase::Leaving;
            part.depart_again(node, marker, context);
        })
    }

    fn with_context(&mut self, step: impl FnOnce(&mut Contender, &mut StepContext)) -> Vec<Action> {
        let mut context = StepContext { actions: Vec::new(), lease_valid: true };
        step(self, &mut context);
        self.conclude(&mut context);
        context.actions
    }
}
