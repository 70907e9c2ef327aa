//! Waiting for the predecessor, and the events that end the wait.

use super::*;
use crate::names::{Name, Role};

impl Machine {
    /// Watches the contender `before`. This is the predecessor; with look-ahead it can be the
    /// second predecessor.
    pub(super) fn watch_contender(&mut self, lock_index: usize, before: String, step: &mut Step) {
        self.waited = true;
        let exclusive = Name::parse(&before).filter(|name| name.role == Role::Exclusive);
        let watch = self.new_watch(lock_index);
        let position = &mut self.positions[lock_index];
        position.exclusive_predecessor = exclusive.map(|name| name.sequence);
        position.state = PositionState::Watching { before: before.clone() };
        let request = Request::Watch { name: before, watch };
        self.send_one(lock_index, Purpose::Watch, RequestKind::Predecessor(watch), request, step);
    }

    /// Starts to wait for an event of `watch`, which is set.
    pub(super) fn start_waiting(&mut self, lock_index: usize, before: Option<String>, watch: WatchId) {
        self.mark_reads_stale();
        self.positions[lock_index].state = PositionState::Waiting { before, watch };
    }

    /// Handles the answers to the requests that watch the predecessor. `own`: the watch on our own
    /// znode, if one of these requests sets it.
    pub(super) fn handle_predecessor_watch_answer(
        &mut self,
        lock_index: usize,
        watch: WatchId,
        own: Option<WatchId>,
        answers: &Answers,
        step: &mut Step,
    ) {
        let position = &mut self.positions[lock_index];
        let (Some(me), PositionState::Watching { before }) =
            (position.node, std::mem::take(&mut position.state))
        else {
            return;
        };
        match answers.predecessor {
            Some(Ok(read)) if read.flags.granted && self.config.kind.is_permits() => {
                step.actions.push(Action::Unwatch(watch));
                self.positions[lock_index].permits.granted_before = Some(before);
                self.send_listing(lock_index, false, step);
            }
            Some(Ok(read)) => {
                self.start_waiting(lock_index, Some(before), watch);
                // Reads our own znode behind a younger predecessor. It is a writer that has become a
                // reader, or a contender in a directory that was created again. In the second case our
                // znode is deleted, and we must not wait, because that contender may wait for us in
                // another queue (multi-lock), and both would wait for ever.
                let is_younger = read.czxid > me.czxid;
                self.finish_arming(lock_index, own, answers, Some(read).filter(|_| !is_younger), step);
                if is_younger && self.config.rules.waits_for_older() {
                    self.send_one(
                        lock_index,
                        Purpose::CheckOwn,
                        RequestKind::Own(None),
                        Request::Exists(me),
                        step,
                    );
                }
            }
            Some(Err(RequestFailure::NoNode)) if self.config.rules.reads_when_missing() => {
                self.handle_missing_predecessor(lock_index, &before, own, answers, step);
            }
            Some(Err(RequestFailure::NoNode)) => self.start_waiting(lock_index, Some(before), watch),
            Some(Err(failure @ RequestFailure::Refused(_))) => {
                self.finish_arming(lock_index, own, answers, None, step);
                self.fail(Reason::Refused(failure), step);
            }
            Some(Err(_)) | None => {
                self.finish_arming(lock_index, own, answers, None, step);
                self.read_queue_later(lock_index, step);
            }
        }
    }

    /// Handles a read of our own znode that was sent after the watch on the predecessor was set. If
    /// our znode exists, the directory is still the same as at our create.
    pub(super) fn handle_own_check(&mut self, lock_index: usize, answers: Answers, step: &mut Step) {
        let Some(me) = self.positions[lock_index].node else { return };
        match self.is_znode_ours(me, answers.own.as_ref()) {
            Some(true) => {}
            // Fails in every state of the position without a delete, because a znode with our name now is
            // another contender's.
            Some(false) => self.fail_after_removal(lock_index, step),
            None => {
                if let PositionState::Waiting { watch, .. } = self.positions[lock_index].state {
                    step.actions.push(Action::Unwatch(watch));
                    self.forget_ahead(lock_index, step);
                    self.read_queue_later(lock_index, step);
                }
            }
        }
    }

    /// Handles the event of a watch. `deleted`: the znode was deleted; otherwise it changed.
    pub(super) fn handle_watch_event(&mut self, fired: WatchId, deleted: bool, step: &mut Step) {
        let lock_index = usize::from(fired.0 >> 8);
        if lock_index >= self.positions.len() || self.keep_early_event(fired, deleted) {
            return;
        }
        let position = &mut self.positions[lock_index];
        if position.ahead.own_watch() == Some(fired) {
            return self.handle_own_watch_event_ahead(lock_index, deleted, step);
        }
        match &mut position.state {
            PositionState::Waiting { before, watch } if *watch == fired => match before.take() {
                None => self.send_listing(lock_index, true, step),
                Some(_) if deleted && self.config.rules.end_of_wait_grants() => {
                    self.reach_head(lock_index, None, &[], step);
                }
                Some(before) if deleted => self.handle_predecessor_deletion(lock_index, &before, step),
                Some(before) => {
                    self.forget_ahead(lock_index, step);
                    self.watch_contender(lock_index, before, step);
                }
            },
            _ if position.own_watch == Some(fired) => {
                if deleted {
                    position.own_watch = None;
                    self.lose_position(lock_index, step);
                } else {
                    self.watch_own(lock_index, step);
                }
            }
            _ => {}
        }
    }

    /// Sets all watches again, because a watch that was set before the reconnect may have missed
    /// its event.
    pub(super) fn set_watches_again(&mut self, step: &mut Step) {
        self.offline = false;
        self.end_look_ahead(step);
        for lock_index in 0..self.positions.len() {
            match &self.positions[lock_index].state {
                PositionState::Waiting { .. } if self.config.rules.watch_survives_reconnect() => {}
                PositionState::Waiting { before, watch } => {
                    let (before, old) = (before.clone(), *watch);
                    match before {
                        Some(before) => self.watch_contender(lock_index, before, step),
                        None => self.send_listing(lock_index, true, step),
                    }
                    step.actions.push(Action::Unwatch(old));
                }
                // Ignores the pending answer, because it may be from before the reconnect.
                PositionState::Watching { before } => {
                    let before = before.clone();
                    self.void_position(lock_index, step);
                    self.watch_contender(lock_index, before, step);
                }
                _ => {
                    if let Some(old) = self.positions[lock_index].own_watch {
                        self.watch_own(lock_index, step);
                        step.actions.push(Action::Unwatch(old));
                    }
                }
            }
        }
    }

    /// Ends all look-ahead when the connection is interrupted, because watches fire in any order
    /// after a reconnect.
    pub(super) fn end_look_ahead(&mut self, step: &mut Step) {
        if self.config.rules.look_ahead_ends_with_connection() {
            for lock_index in 0..self.positions.len() {
                self.forget_ahead(lock_index, step);
            }
        }
    }
}
