//! Waiting for the predecessor, and the events that end the wait.

use super::*;
use crate::names::{Name, Role};

impl Machine {
    /// Handles the event of a watch. `deleted`: the znode was deleted; otherwise it changed.
    pub(super) fn handle_watch_event(&mut self, fired: WatchId, deleted: bool, step: &mut Step) {
        let index = usize::from(fired.0 >> 8);
        if index < self.positions.len() && !self.trips.keep_early_event(fired, deleted) {
            self.at(index, step, |position, here| position.handle_watch_event(fired, deleted, here));
        }
    }

    /// Sets all watches again, because a watch that was set before the reconnect may have missed its event.
    pub(super) fn set_watches_again(&mut self, step: &mut Step) {
        self.offline = false;
        self.end_look_ahead(step);
        self.at_each(step, Position::set_watches_again);
    }
}

impl Position {
    /// Watches the contender `before`. This is the predecessor; with look-ahead it can be the second predecessor.
    pub(super) fn watch_contender(&mut self, before: String, here: &mut Here) -> Then {
        *here.waited = true;
        let exclusive = Name::parse(&before).filter(|name| name.role == Role::Exclusive);
        let watch = self.new_watch(here);
        self.exclusive_predecessor = exclusive.map(|name| name.sequence);
        self.state = PositionState::Watching { before: before.clone() };
        let request = Request::Watch { name: before, watch };
        here.send(PositionPurpose::Watch, [(RequestKind::Predecessor(watch), request)])
    }

    /// Starts to wait for an event of `watch`, which is set.
    pub(super) fn start_waiting(&mut self, before: Option<String>, watch: WatchId, here: &mut Here) -> Then {
        here.time_passes = true;
        self.state = PositionState::Waiting { before, watch };
        Then::Nothing
    }

    /// Handles the answers to the requests that watch the predecessor.
    pub(super) fn handle_predecessor_watch_answer(&mut self, trip: &RoundTrip, here: &mut Here) -> Then {
        let Some(watch) = trip.watch() else { return Then::Nothing };
        let (Some(me), PositionState::Watching { before }) = (self.node, std::mem::take(&mut self.state))
        else {
            return Then::Nothing;
        };
        let rules = here.config.rules;
        match trip.answers.predecessor {
            Some(Ok(read)) if read.flags.granted && here.config.kind.is_permits() => {
                here.unwatch(Some(watch));
                self.permits.granted_before = Some(before);
                self.send_listing(Watches::Nothing, here)
            }
            Some(Ok(read)) => {
                self.start_waiting(Some(before), watch, here);
                // Reads our own znode behind a younger predecessor. It is a writer that has become a reader, or a
                // contender in a directory that was created again. In the second case our znode is deleted, and we must
                // not wait, because that contender may wait for us in another queue (multi-lock), and both would wait
                // for ever.
                let is_younger = read.czxid > me.czxid;
                self.finish_arming(trip, Some(read).filter(|_| !is_younger), here);
                if !is_younger || !rules.waits_for_older() {
                    return Then::Nothing;
                }
                here.send(PositionPurpose::CheckOwn, [(RequestKind::Own(None), Request::Exists(me))])
            }
            Some(Err(RequestFailure::NoNode)) if rules.reads_when_missing() => {
                self.handle_missing_predecessor(&before, trip, here)
            }
            Some(Err(RequestFailure::NoNode)) => self.start_waiting(Some(before), watch, here),
            Some(Err(failure @ RequestFailure::Refused(_))) => {
                self.finish_arming(trip, None, here);
                Then::Fail(Reason::Refused(failure))
            }
            Some(Err(_)) | None => {
                self.finish_arming(trip, None, here);
                self.read_queue_later(here)
            }
        }
    }

    /// Handles the event of a watch in this queue.
    fn handle_watch_event(&mut self, fired: WatchId, deleted: bool, here: &mut Here) -> Then {
        if self.ahead.own_watch() == Some(fired) {
            return if deleted { self.stop_removed(here) } else { self.forget_ahead(here) };
        }
        match &mut self.state {
            PositionState::Waiting { before, watch } if *watch == fired => match before.take() {
                None => self.send_listing(Watches::Children, here),
                Some(_) if deleted && here.config.rules.end_of_wait_grants() => {
                    self.reach_head(None, &[], here)
                }
                Some(before) if deleted => self.handle_predecessor_deletion(&before, here),
                Some(before) => {
                    self.forget_ahead(here);
                    self.watch_contender(before, here)
                }
            },
            _ if self.own_watch == Some(fired) && deleted => {
                self.own_watch = None;
                self.stop_removed(here)
            }
            _ if self.own_watch == Some(fired) => self.watch_own(here),
            _ => Then::Nothing,
        }
    }

    /// Sets the watches of this queue again after a reconnect.
    fn set_watches_again(&mut self, here: &mut Here) -> Then {
        match &self.state {
            PositionState::Waiting { .. } if here.config.rules.watch_survives_reconnect() => Then::Nothing,
            PositionState::Waiting { before, watch } => {
                let (before, old) = (before.clone(), Some(*watch));
                match before {
                    Some(before) => self.watch_contender(before, here),
                    None => self.send_listing(Watches::Children, here),
                };
                here.unwatch(old)
            }
            PositionState::Watching { before } => {
                let before = before.clone();
                // Ignores the pending answer, because it may be from before the reconnect.
                here.trips.void(here.index, here.step);
                self.watch_contender(before, here)
            }
            _ if self.own_watch.is_none() => Then::Nothing,
            _ => {
                let old = self.own_watch;
                self.watch_own(here);
                here.unwatch(old)
            }
        }
    }
}
