//! Holding, detecting a loss, becoming a reader, releasing.

use super::*;

impl Contender {
    /// Watches our own znode, to detect a delete by another client. Not on the path to the grant.
    pub(super) fn watch_own(&mut self, context: &mut StepContext) {
        let watch = self.new_watch();
        let Phase::Held { me, watch: in_force, .. } = &mut self.phase else { return };
        *in_force = None;
        let name = me.name();
        self.send(Purpose::WatchOwn(watch), Request::Watch { name, watch }, context);
    }

    pub(super) fn watched_own(
        &mut self,
        watch: WatchId,
        outcome: Result<Reply, Failure>,
        context: &mut StepContext,
    ) {
        let Phase::Held { me, .. } = self.phase else { return };
        let watching = outcome.is_ok();
        match self.still_mine(me, &outcome) {
            Some(true) => {
                if let Phase::Held { watch: in_force, .. } = &mut self.phase {
                    *in_force = Some(watch);
                }
                if let Ok(Reply::Node { version, says, .. }) = outcome {
                    self.read_own(me, version, says, context);
                }
            }
            Some(false) => {
                if watching {
                    context.actions.push(Action::Unwatch(watch));
                }
                self.lose(Loss::Broken, Phase::Lost(Loss::Broken), context);
            }
            None => {
                let wait = self.backoff();
                self.send(Purpose::PauseOwn, Request::Sleep(wait), context);
            }
        }
    }

    pub(super) fn paused_own(&mut self, context: &mut StepContext) {
        self.watch_own(context);
    }

    pub(super) fn lease_lost(&mut self, context: &mut StepContext) {
        if let Phase::Held { me, .. } = self.phase {
            // The znode stays until the holder releases: it keeps others out, which helps a holder that stops
            // late.
            self.lose(Loss::Unreachable, Phase::Doubtful { me }, context);
        } else if let Phase::Downgrading { lost: lost @ None, .. } = &mut self.phase {
            *lost = Some(Loss::Unreachable);
            context.actions.push(Action::Lost(Loss::Unreachable));
        }
    }

    /// Handles the deletion of our own znode, reported by its watch. It was ours when the watch was set. So
    /// there is nothing to check or to delete: a delete now would hit the next owner of the name.
    pub(super) fn broken(&mut self, context: &mut StepContext) {
        if let Phase::Held { watch, .. } = &mut self.phase {
            *watch = None;
        }
        self.lose(Loss::Broken, Phase::Lost(Loss::Broken), context);
    }

    fn lose(&mut self, loss: Loss, phase: Phase, context: &mut StepContext) {
        if let Phase::Held { watch: Some(watch), .. } = self.phase {
            context.actions.push(Action::Unwatch(watch));
        }
        self.void_pending();
        self.phase = phase;
        context.actions.push(Action::Lost(loss));
    }

    pub(super) fn release(&mut self, left: Left, context: &mut StepContext) {
        // If the session ends during the release, the release ends. The acquisition has not failed.
        if matches!(self.phase, Phase::Held { .. } | Phase::Doubtful { .. } | Phase::Lost(_)) {
            self.wanted = false;
        }
        match &mut self.phase {
            Phase::Held { me, directory, .. } => {
                let (me, directory) = (*me, *directory);
                let marker = directory.and_then(|directory| self.parting_marker(me, &directory, left));
                // The watch on our own znode is left to fire: removing it would cost a request.
                self.void_own_watch();
                self.phase = Phase::Leaving;
                self.depart(me, marker, true, context);
            }
            Phase::Downgrading { left: later, .. } => *later = Some(left),
            Phase::Doubtful { me } => {
                let me = *me;
                context.actions.push(Action::Released(Departed::Lost(Loss::Unreachable)));
                self.phase = Phase::Leaving;
                self.depart_doubtful(me, context);
            }
            Phase::Lost(loss) => {
                context.actions.push(Action::Released(Departed::Lost(*loss)));
                self.phase = Phase::Leaving;
            }
            _ => {}
        }
    }

    /// Returns the marker that a releasing holder leaves, and the version that it replaces.
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
            // Its own reader still holds, so the marker must not hand over. After a panic the marker of the
            // beginning stays.
            Kind::Upgrade { .. } if tracked && left == Left::Released => Left::Downgraded,
            _ => return None,
        };
        let marker = Marker { directory: directory.czxid, left, sequence: me.sequence, tracked };
        directory.record.is_writable(directory.czxid).then_some((marker, Some(directory.version)))
    }

    // ---- a writer becomes a reader ----

    pub(super) fn downgrade(&mut self, context: &mut StepContext) {
        let Phase::Held { me, directory, watch } = self.phase else { return };
        if self.config.kind != Kind::Write || me.prefix.as_reader().is_none() {
            return context.actions.push(Action::Downgraded(me));
        }
        // It would fire for our own transaction.
        context.actions.extend(watch.map(Action::Unwatch));
        self.void_pending();
        self.phase = Phase::Downgrading { me, directory, reader: None, lost: None, left: None };
        // Without a connection a request arrives late: then the name may be another contender's.
        if self.offline { self.downgrade_again(context) } else { self.send_downgrade(context) }
    }

    fn send_downgrade(&mut self, context: &mut StepContext) {
        let Phase::Downgrading { me, directory, .. } = self.phase else { return };
        let marker = directory
            .filter(|directory| directory.record.marker_of(directory.czxid).is_some_and(|m| m.tracked))
            .and_then(|directory| self.parting_marker(me, &directory, Left::Downgraded));
        self.send(Purpose::Downgrade, Request::Downgrade { node: me, marker }, context);
        if self.on(Rule::DowngradeInPlace) {
            self.send(Purpose::DowngradeDirectory, Request::ReadDirectory, context);
        }
    }

    /// Repeats a downgrade after a lost reply. If the first one succeeded, the second one finds no writer's
    /// znode, but the reader's. It is also a barrier: the first one cannot arrive after it. As with every
    /// delete, the writer's name may be another contender's now.
    pub(super) fn downgrade_again(&mut self, context: &mut StepContext) {
        let Phase::Downgrading { me, .. } = self.phase else { return };
        self.send(Purpose::DowngradeSync, Request::Sync, context);
        self.send(Purpose::DowngradeCheck, Request::Exists(me), context);
    }

    pub(super) fn downgrade_synced(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        if outcome.is_err() {
            for (_, purpose) in &mut self.pending {
                if *purpose == Purpose::DowngradeCheck {
                    *purpose = Purpose::Void;
                }
            }
            self.pause_downgrade(context);
        }
    }

    pub(super) fn downgrade_checked(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Downgrading { me, .. } = self.phase else { return };
        match self.still_mine(me, &outcome) {
            // The znode is another contender's. So ours is deleted, and its directory with all other
            // children.
            Some(false) if outcome.is_ok() => self.znode_is_lost(context),
            Some(_) => self.send_downgrade(context),
            None => self.pause_downgrade(context),
        }
    }

    fn pause_downgrade(&mut self, context: &mut StepContext) {
        let wait = self.backoff();
        self.send(Purpose::PauseDowngrade, Request::Sleep(wait), context);
    }

    pub(super) fn downgraded(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Downgrading { me, directory, lost, left, .. } = self.phase else { return };
        match outcome {
            Ok(Reply::Joined(reader)) if self.on(Rule::DowngradeInPlace) => {
                self.phase = Phase::Downgrading { me, directory, reader: Some(reader), lost, left };
            }
            Ok(Reply::Joined(reader)) => self.hold_as(reader, context),
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => self.pause_downgrade(context),
            Err(Failure::NoNode) => self.znode_is_lost(context),
            // Another client has written the record: we may not write it any more. The refusal does not prove
            // that the znode of that name is still ours, so check first.
            Err(Failure::BadVersion) => {
                self.phase = Phase::Downgrading { me, directory: None, reader: None, lost, left };
                self.downgrade_again(context);
            }
            // The server refuses. The holder stays a writer, and a writer may also read.
            Err(_) => self.hold_as(me, context),
        }
    }

    /// Handles the directory, read after the transaction. If it is older than the writer's znode, it is the
    /// directory of that znode. In a newer directory, another writer had its name.
    pub(super) fn downgraded_in(&mut self, outcome: &Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Downgrading { me, reader, .. } = &mut self.phase else { return };
        let (me, Some(reader)) = (*me, reader.take()) else { return };
        match outcome {
            Ok(Reply::Directory(seen)) if seen.czxid < me.czxid => self.hold_as(reader, context),
            Ok(Reply::Directory(_)) | Err(Failure::NoNode) => {
                self.znode_is_lost(context);
                self.depart_if_there(reader, context);
            }
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => self.pause_downgrade(context),
            // Not readable: the name is enough.
            Err(_) => self.hold_as(reader, context),
        }
    }

    /// Reports a loss, because another client deleted our znode.
    fn znode_is_lost(&mut self, context: &mut StepContext) {
        let Phase::Downgrading { lost, left, .. } = self.phase else { return };
        let loss = lost.unwrap_or(Loss::Broken);
        if lost.is_none() {
            context.actions.push(Action::Lost(loss));
        }
        self.phase = Phase::Lost(loss);
        if let Some(left) = left {
            self.release(left, context);
        }
    }

    /// Continues to hold: as a reader, or as a writer if the server refused the downgrade.
    fn hold_as(&mut self, me: Node, context: &mut StepContext) {
        let Phase::Downgrading { directory, lost, left, .. } = self.phase else { return };
        match lost {
            Some(_) => self.phase = Phase::Doubtful { me },
            None => {
                self.phase = Phase::Held { me, directory, watch: None };
                context.actions.push(Action::Downgraded(me));
                self.watch_own(context);
            }
        }
        if let Some(left) = left {
            self.release(left, context);
        }
    }

    /// Ignores the answers that only a holder needs. A watch on our own znode that is still being set fires
    /// for our own delete. The answer to a pause stays pending until it arrives. Otherwise its id could be
    /// given to the delete.
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
