//! Holding, noticing loss, becoming a reader, letting go.

use super::*;

impl Contender {
    /// Watches our own node, so that somebody else's delete is noticed. Off the path to the grant.
    pub(super) fn watch_own(&mut self, turn: &mut Turn) {
        let watch = self.new_watch();
        let Phase::Held { me, watch: in_force, .. } = &mut self.phase else { return };
        *in_force = None;
        let name = me.name();
        self.send(Purpose::WatchOwn(watch), Request::Watch { name, watch }, turn);
    }

    pub(super) fn watched_own(&mut self, watch: WatchId, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Held { me, .. } = self.phase else { return };
        let watching = outcome.is_ok();
        match self.still_mine(me, &outcome) {
            Some(true) => {
                if let Phase::Held { watch: in_force, .. } = &mut self.phase {
                    *in_force = Some(watch);
                }
                if let Ok(Reply::Node { version, says, .. }) = outcome {
                    self.read_own(me, version, says, turn);
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
        } else if let Phase::Downgrading { lost: lost @ None, .. } = &mut self.phase {
            *lost = Some(Loss::Unreachable);
            turn.actions.push(Action::Lost(Loss::Unreachable));
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
        // If the session ends on the way out, that is the end of the release; the acquisition has not failed.
        if matches!(self.phase, Phase::Held { .. } | Phase::Doubtful { .. } | Phase::Lost(_)) {
            self.wanted = false;
        }
        match &mut self.phase {
            Phase::Held { me, directory, .. } => {
                let (me, directory) = (*me, *directory);
                let marker = directory.and_then(|directory| self.parting_marker(me, &directory, left));
                // The watch on our own node is left to fire: taking it back would cost a request.
                self.void_own_watch();
                self.phase = Phase::Leaving;
                self.depart(me, marker, true, turn);
            }
            Phase::Downgrading { left: later, .. } => *later = Some(left),
            Phase::Doubtful { me } => {
                let me = *me;
                turn.actions.push(Action::Released(Departed::Lost(Loss::Unreachable)));
                self.phase = Phase::Leaving;
                self.depart_doubtful(me, turn);
            }
            Phase::Lost(loss) => {
                turn.actions.push(Action::Released(Departed::Lost(*loss)));
                self.phase = Phase::Leaving;
            }
            _ => {}
        }
    }

    /// What a holder leaves in the record, and which version it replaces.
    pub(super) fn parting_marker(
        &self,
        me: Node,
        directory: &Directory,
        left: Left,
    ) -> Option<(Marker, Option<i32>)> {
        let tracked = directory.record.marker_of(directory.czxid).is_some_and(|marker| marker.tracked);
        let left = match self.config.kind {
            _ if me.prefix.reads() && !self.on(Rule::ReadersLeaveNoMarker) => left,
            kind if kind.leaves_marker() && me.prefix.is_exclusive() => left,
            // Its own reader still stands there, so its marker must not hand over. One that unwinds leaves the mark
            // of its beginning.
            Kind::Upgrade { .. } if tracked && left == Left::Released => Left::Downgraded,
            _ => return None,
        };
        let marker = Marker { directory: directory.czxid, left, sequence: me.sequence, tracked };
        directory.record.is_writable(directory.czxid).then_some((marker, Some(directory.version)))
    }

    // ---- a writer becomes a reader ----

    pub(super) fn downgrade(&mut self, turn: &mut Turn) {
        let Phase::Held { me, directory, watch } = self.phase else { return };
        if self.config.kind != Kind::Write || me.prefix.as_reader().is_none() {
            return turn.actions.push(Action::Downgraded(me));
        }
        // It would fire with our own transaction.
        turn.actions.extend(watch.map(Action::Unwatch));
        self.void_pending();
        self.phase = Phase::Downgrading { me, directory, reader: None, lost: None, left: None };
        // What is sent without a connection arrives who knows when: then the name may be somebody else's.
        if self.offline { self.downgrade_again(turn) } else { self.send_downgrade(turn) }
    }

    fn send_downgrade(&mut self, turn: &mut Turn) {
        let Phase::Downgrading { me, directory, .. } = self.phase else { return };
        let marker = directory
            .filter(|directory| directory.record.marker_of(directory.czxid).is_some_and(|m| m.tracked))
            .and_then(|directory| self.parting_marker(me, &directory, Left::Downgraded));
        self.send(Purpose::Downgrade, Request::Downgrade { node: me, marker }, turn);
        if self.on(Rule::DowngradeInPlace) {
            self.send(Purpose::DowngradeDirectory, Request::ReadDirectory, turn);
        }
    }

    /// After a lost reply it is sent again: if the first was carried out, the second finds no writer's node, and the
    /// reader's is there. It is the barrier, too, behind which the first can no longer arrive. But as with any delete,
    /// the writer's name may be somebody else's by now.
    pub(super) fn downgrade_again(&mut self, turn: &mut Turn) {
        let Phase::Downgrading { me, .. } = self.phase else { return };
        self.send(Purpose::DowngradeSync, Request::Sync, turn);
        self.send(Purpose::DowngradeCheck, Request::Exists(me), turn);
    }

    pub(super) fn downgrade_synced(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        if outcome.is_err() {
            for (_, purpose) in &mut self.pending {
                if *purpose == Purpose::DowngradeCheck {
                    *purpose = Purpose::Void;
                }
            }
            self.pause_downgrade(turn);
        }
    }

    pub(super) fn downgrade_checked(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Downgrading { me, .. } = self.phase else { return };
        match self.still_mine(me, &outcome) {
            // Another's stands there, so ours is gone, and the directory with whatever else was in it.
            Some(false) if outcome.is_ok() => self.place_is_gone(turn),
            Some(_) => self.send_downgrade(turn),
            None => self.pause_downgrade(turn),
        }
    }

    fn pause_downgrade(&mut self, turn: &mut Turn) {
        let wait = self.backoff();
        self.send(Purpose::PauseDowngrade, Request::Sleep(wait), turn);
    }

    pub(super) fn downgraded(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Downgrading { me, directory, lost, left, .. } = self.phase else { return };
        match outcome {
            Ok(Reply::Joined(reader)) if self.on(Rule::DowngradeInPlace) => {
                self.phase = Phase::Downgrading { me, directory, reader: Some(reader), lost, left };
            }
            Ok(Reply::Joined(reader)) => self.hold_as(reader, turn),
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => self.pause_downgrade(turn),
            Err(Failure::NoNode) => self.place_is_gone(turn),
            // Somebody wrote into the record meanwhile: it is not ours to write any more. That it was refused does not say
            // that the node of that name is still ours, so look first.
            Err(Failure::BadVersion) => {
                self.phase = Phase::Downgrading { me, directory: None, reader: None, lost, left };
                self.downgrade_again(turn);
            }
            // It will not be done. A writer may read, too.
            Err(_) => self.hold_as(me, turn),
        }
    }

    /// Read behind the transaction. A directory that is older than the writer's node is the one in which that stood, and
    /// was all the time; in a younger one another writer had its name.
    pub(super) fn downgraded_in(&mut self, outcome: &Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Downgrading { me, reader, .. } = &mut self.phase else { return };
        let (me, Some(reader)) = (*me, reader.take()) else { return };
        match outcome {
            Ok(Reply::Directory(seen)) if seen.czxid < me.czxid => self.hold_as(reader, turn),
            Ok(Reply::Directory(_)) | Err(Failure::NoNode) => {
                self.place_is_gone(turn);
                self.depart_if_there(reader, turn);
            }
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => self.pause_downgrade(turn),
            // Not readable: the name has to do.
            Err(_) => self.hold_as(reader, turn),
        }
    }

    /// Nothing of ours stands there any more, so somebody deleted it.
    fn place_is_gone(&mut self, turn: &mut Turn) {
        let Phase::Downgrading { lost, left, .. } = self.phase else { return };
        let loss = lost.unwrap_or(Loss::Broken);
        if lost.is_none() {
            turn.actions.push(Action::Lost(loss));
        }
        self.phase = Phase::Lost(loss);
        if let Some(left) = left {
            self.release(left, turn);
        }
    }

    /// As the reader that it has become, or as the writer that it had to stay.
    fn hold_as(&mut self, me: Node, turn: &mut Turn) {
        let Phase::Downgrading { directory, lost, left, .. } = self.phase else { return };
        match lost {
            Some(_) => self.phase = Phase::Doubtful { me },
            None => {
                self.phase = Phase::Held { me, directory, watch: None };
                turn.actions.push(Action::Downgraded(me));
                self.watch_own(turn);
            }
        }
        if let Some(left) = left {
            self.release(left, turn);
        }
    }

    /// A watch on our own node that is still being set will fire with our own delete, and what the record says is of no
    /// interest any more. A pause before the next try stays known until it is over, or its number would be given to the
    /// delete.
    fn void_own_watch(&mut self) {
        for (_, purpose) in &mut self.pending {
            let of_holder = matches!(
                purpose,
                Purpose::WatchOwn(_) | Purpose::PauseOwn | Purpose::PauseRecord | Purpose::ReadRecord
            );
            if of_holder {
                *purpose = Purpose::Void;
            }
        }
    }
}
