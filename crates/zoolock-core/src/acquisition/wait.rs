//! Waiting for the predecessor, and the events that end the wait.

use super::*;
use crate::names::{Name, Role};

impl Machine {
    /// Watches the contender `before`. This is the predecessor; with look-ahead it can be the
    /// second predecessor.
    pub(super) fn watch(&mut self, place: usize, before: String, step: &mut Step) {
        self.waited = true;
        let exclusive = Name::parse(&before).filter(|name| name.role == Role::Exclusive);
        let watch = self.new_watch(place);
        let seat = &mut self.seats[place];
        seat.exclusive_predecessor = exclusive.map(|name| name.sequence);
        seat.state = SeatState::Watching { before: before.clone() };
        let request = Request::Watch { name: before, watch };
        self.send_one(place, Purpose::Watch, Part::Predecessor(watch), request, step);
    }

    /// Starts to wait for an event of `watch`, which is set.
    pub(super) fn wait(&mut self, place: usize, before: Option<String>, watch: WatchId) {
        self.grow_stale();
        self.seats[place].state = SeatState::Waiting { before, watch };
    }

    /// Handles the answers to the requests that watch the predecessor. `own`: the watch on our own
    /// znode, if one of these requests sets it.
    pub(super) fn watched(
        &mut self,
        place: usize,
        watch: WatchId,
        own: Option<WatchId>,
        answers: &Answers,
        step: &mut Step,
    ) {
        let seat = &mut self.seats[place];
        let (Some(me), SeatState::Watching { before }) = (seat.node, std::mem::take(&mut seat.state)) else {
            return;
        };
        match answers.predecessor {
            Some(Ok(read)) if read.flags.granted && self.config.kind.is_permits() => {
                step.actions.push(Action::Unwatch(watch));
                self.seats[place].permits.granted_before = Some(before);
                self.list(place, false, step);
            }
            Some(Ok(read)) => {
                self.wait(place, Some(before), watch);
                // A younger predecessor is a writer that has become a reader, or a contender in a
                // directory that was created again. In a recreated directory our znode is deleted.
                // If that contender also waits for us in another queue (multi-lock), both would
                // wait for ever. So read our own znode.
                let is_younger = read.czxid > me.czxid;
                self.finish_arming(place, own, answers, Some(read).filter(|_| !is_younger), step);
                if is_younger && self.config.rules.waits_for_older() {
                    self.send_one(place, Purpose::CheckOwn, Part::Own(None), Request::Exists(me), step);
                }
            }
            Some(Err(RequestFailure::NoNode)) if self.config.rules.reads_when_missing() => {
                self.find_predecessor_missing(place, &before, own, answers, step);
            }
            Some(Err(RequestFailure::NoNode)) => self.wait(place, Some(before), watch),
            Some(Err(failure @ RequestFailure::Refused(_))) => {
                self.finish_arming(place, own, answers, None, step);
                self.fail(Reason::Refused(failure), step);
            }
            Some(Err(_)) | None => {
                self.finish_arming(place, own, answers, None, step);
                self.look_later(place, step);
            }
        }
    }

    /// Handles a read of our own znode that was sent after the watch on the predecessor was set. If
    /// our znode exists, the directory is still the same as at our create.
    pub(super) fn checked_own(&mut self, place: usize, answers: Answers, step: &mut Step) {
        let Some(me) = self.seats[place].node else { return };
        match self.still_mine(me, answers.own.as_ref()) {
            Some(true) => {}
            // Fail in every state of the seat: a znode with our name now is another contender's,
            // and must not be deleted.
            Some(false) => self.fail_broken(place, step),
            None => {
                if let SeatState::Waiting { watch, .. } = self.seats[place].state {
                    step.actions.push(Action::Unwatch(watch));
                    self.forget_ahead(place, step);
                    self.look_later(place, step);
                }
            }
        }
    }

    /// Handles the event of a watch. `deleted`: the znode was deleted; otherwise it changed.
    pub(super) fn fired(&mut self, fired: WatchId, deleted: bool, step: &mut Step) {
        let place = usize::from(fired.0 >> 8);
        if place >= self.seats.len() || self.keep_early(fired, deleted) {
            return;
        }
        let seat = &mut self.seats[place];
        if seat.ahead.own() == Some(fired) {
            return self.fired_ahead(place, deleted, step);
        }
        match &mut seat.state {
            SeatState::Waiting { before, watch } if *watch == fired => match before.take() {
                None => self.list(place, true, step),
                Some(_) if deleted && self.config.rules.end_of_wait_grants() => {
                    self.reach_head(place, None, &[], step);
                }
                Some(before) if deleted => self.predecessor_deleted(place, &before, step),
                Some(before) => {
                    self.forget_ahead(place, step);
                    self.watch(place, before, step);
                }
            },
            _ if seat.own_watch == Some(fired) => {
                if deleted {
                    seat.own_watch = None;
                    self.lose_seat(place, step);
                } else {
                    self.watch_own(place, step);
                }
            }
            _ => {}
        }
    }

    /// Sets all watches again, because a watch that was set before the reconnect may have missed
    /// its event.
    pub(super) fn reconnected(&mut self, step: &mut Step) {
        self.offline = false;
        self.interrupted(step);
        for place in 0..self.seats.len() {
            match &self.seats[place].state {
                SeatState::Waiting { .. } if self.config.rules.watch_survives_reconnect() => {}
                SeatState::Waiting { before, watch } => {
                    let (before, old) = (before.clone(), *watch);
                    match before {
                        Some(before) => self.watch(place, before, step),
                        None => self.list(place, true, step),
                    }
                    step.actions.push(Action::Unwatch(old));
                }
                // The pending answer may be from before the reconnect, so ignore it.
                SeatState::Watching { before } => {
                    let before = before.clone();
                    self.void_seat(place, step);
                    self.watch(place, before, step);
                }
                _ => {
                    if let Some(old) = self.seats[place].own_watch {
                        self.watch_own(place, step);
                        step.actions.push(Action::Unwatch(old));
                    }
                }
            }
        }
    }

    /// Ends all look-ahead when the connection is interrupted, because watches fire in any order
    /// after a reconnect.
    pub(super) fn interrupted(&mut self, step: &mut Step) {
        if self.config.rules.look_ahead_ends_with_connection() {
            for place in 0..self.seats.len() {
                self.forget_ahead(place, step);
            }
        }
    }
}
