//! As one of the contenders of a multi-lock, which creates and releases the znodes of all in one transaction each.

use super::*;

impl Contender {
    /// Whether this node is to be left at once, since the numbers of its directory run out.
    pub(crate) fn must_leave(&self, node: Node) -> bool {
        self.near_the_end(node)
    }

    pub(crate) fn knows(&self, me: Node, czxid: Zxid, owner: SessionId) -> bool {
        self.is_mine(me, czxid, owner)
    }

    /// Whether nothing had happened to the children since our create when we found that we hold: so we were first at
    /// once.
    pub(crate) fn is_untouched(&self) -> bool {
        matches!(self.phase, Phase::Held { me, directory: Some(seen), .. } if seen.pzxid == me.czxid)
    }

    /// Sends what goes out together with the create.
    pub(crate) fn stand_by(&mut self) -> Vec<Action> {
        self.on_its_own(|part, turn| {
            part.phase = Phase::Joining;
            part.first_look(turn);
        })
    }

    /// The create failed.
    pub(crate) fn stand_down(&mut self) {
        self.void_pending();
        self.phase = Phase::New;
    }

    /// The create went through.
    pub(crate) fn placed(&mut self, me: Node) -> Vec<Action> {
        self.on_its_own(|part, _| part.phase = Phase::FirstLook { me, children: None })
    }

    /// The node of an earlier create was found.
    pub(crate) fn found(&mut self, me: Node) -> Vec<Action> {
        self.on_its_own(|part, turn| part.look(me, turn))
    }

    /// Deletes a node that it does not stand on.
    pub(crate) fn discard(&mut self, node: Node) -> Vec<Action> {
        self.on_its_own(|part, turn| part.depart(node, None, false, turn))
    }

    /// Ends it, but for what is being deleted.
    pub(crate) fn finish(&mut self) -> Vec<Action> {
        self.on_its_own(|part, _| {
            part.void_pending();
            part.wanted = false;
            part.phase = Phase::Leaving;
        })
    }

    /// Gives up before all were granted. It may be first already, but nobody has worked under its lock: its record
    /// must not say that the last one released it.
    pub(crate) fn withdraw(&mut self) -> Vec<Action> {
        self.on_its_own(|part, turn| {
            part.abandon(None, turn);
        })
    }

    /// How it would leave.
    pub(crate) fn parting(&self, left: Left) -> Option<Parting> {
        let Phase::Held { me, directory, .. } = self.phase else { return None };
        let marker = directory.and_then(|directory| self.parting_marker(me, &directory, left));
        Some(Parting { node: me, marker })
    }

    /// It did not leave with the others, since one was missing, or a record was not as expected. It may be the one, and
    /// its name another's by now: so it looks first.
    pub(crate) fn leaves_alone(&mut self, left: Left) -> Vec<Action> {
        self.on_its_own(|part, turn| {
            let Some(Parting { node, marker }) = part.parting(left) else { return part.release(left, turn) };
            part.void_pending();
            part.phase = Phase::Leaving;
            part.depart_after_look(node, marker, turn);
        })
    }

    /// It may have left with the others.
    pub(crate) fn departed_perhaps(&mut self, left: Left) -> Vec<Action> {
        self.on_its_own(|part, turn| {
            if part.phase == Phase::Lost(Loss::Broken) {
                // That it is gone was heard after the release was sent, which may well have done it.
                turn.actions.push(Action::Released(Departed::Clean));
                part.phase = Phase::Leaving;
                return;
            }
            let Some(Parting { node, marker }) = part.parting(left) else { return part.release(left, turn) };
            part.void_pending();
            part.phase = Phase::Leaving;
            part.depart_again(node, marker, turn);
        })
    }

    fn on_its_own(&mut self, what: impl FnOnce(&mut Contender, &mut Turn)) -> Vec<Action> {
        let mut turn = Turn { actions: Vec::new(), lease_valid: true };
        what(self, &mut turn);
        self.conclude(&mut turn);
        turn.actions
    }
}
