//! Holding, noticing loss, letting go.

use super::*;
use crate::names::native_name;

impl Contender {
    /// Watches our own node, so that somebody else's delete is noticed. Off the path to the grant.
    pub(super) fn watch_own(&mut self, turn: &mut Turn) {
        let watch = self.new_watch();
        let Phase::Held { me, watch: in_force, .. } = &mut self.phase else { return };
        *in_force = None;
        let name = native_name(me.sequence);
        self.send(Purpose::WatchOwn(watch), Request::Watch { name, watch }, turn);
    }

    pub(super) fn watched_own(&mut self, watch: WatchId, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Held { me, .. } = self.phase else { return };
        let watching = outcome.is_ok();
        match self.still_mine(me, outcome) {
            Some(true) => {
                if let Phase::Held { watch: in_force, .. } = &mut self.phase {
                    *in_force = Some(watch);
                }
            }
            Some(false) => {
                if watching {
                    turn.actions.push(Action::Unwatch(watch));
                }
                self.lose(Loss::Broken, Phase::Lost(Loss::Broken), turn);
            }
            None => {
                let wait = self.backoff();
                self.send(Purpose::PauseOwn, Request::Sleep(wait), turn);
            }
        }
    }

    pub(super) fn paused_own(&mut self, turn: &mut Turn) {
        self.watch_own(turn);
    }

    pub(super) fn lease_lost(&mut self, turn: &mut Turn) {
        if let Phase::Held { me, .. } = self.phase {
            // The node stays until the holder lets go: as long as it is there it keeps others out, which can only
            // help a holder that was slow to stop.
            self.lose(Loss::Unreachable, Phase::Doubtful { me }, turn);
        }
    }

    /// The watch on our own node says that it is gone. It was seen to be ours when the watch was set, so there is
    /// nothing to look up, and nothing to delete: a release that came now would hit the next owner of the name.
    pub(super) fn broken(&mut self, turn: &mut Turn) {
        if let Phase::Held { watch, .. } = &mut self.phase {
            *watch = None;
        }
        self.lose(Loss::Broken, Phase::Lost(Loss::Broken), turn);
    }

    fn lose(&mut self, loss: Loss, phase: Phase, turn: &mut Turn) {
        if let Phase::Held { watch: Some(watch), .. } = self.phase {
            turn.actions.push(Action::Unwatch(watch));
        }
        self.void_pending();
        self.phase = phase;
        turn.actions.push(Action::Lost(loss));
    }

    pub(super) fn release(&mut self, left: Left, turn: &mut Turn) {
        match self.phase {
            Phase::Held { me, directory, .. } => {
                let marker = directory
                    .filter(|d| d.record.is_writable())
                    .map(|d| (Marker { directory: d.czxid, left, sequence: me.sequence }, Some(d.version)));
                // The watch on our own node is left to fire: taking it back would cost a request.
                self.void_own_watch();
                self.phase = Phase::Leaving;
                self.depart(me, marker, true, turn);
            }
            Phase::Doubtful { me } => {
                turn.actions.push(Action::Released(Departed::Lost(Loss::Unreachable)));
                self.phase = Phase::Leaving;
                self.depart_if_there(me, turn);
            }
            Phase::Lost(loss) => {
                turn.actions.push(Action::Released(Departed::Lost(loss)));
                self.phase = Phase::Leaving;
            }
            _ => {}
        }
    }

    /// A watch on our own node that is still being set will fire with our own delete. A pause before the next try
    /// stays known until it is over, or its number would be given to the delete.
    fn void_own_watch(&mut self) {
        for (_, purpose) in &mut self.pending {
            if matches!(purpose, Purpose::WatchOwn(_) | Purpose::PauseOwn) {
                *purpose = Purpose::Void;
            }
        }
    }
}
