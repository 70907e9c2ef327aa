//! Reading the queue: with the create, after a wait, and after a failure.

use super::permits::NoDecision;
use super::*;
use crate::layout::Layout;
use crate::queue::{QueueDecision, decide, is_waiting};

/// Minimum number of children for which a waiter pauses before it lists. The pauses differ, so that not all waiters
/// list at once.
const SPREAD_FROM: u32 = 64;
/// Maximum pause, in milliseconds.
const SPREAD_MAX: u32 = 500;

/// The watch that a listing sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watches {
    Nothing,
    Children,
}

impl Machine {
    /// Adds the reads that are sent together with the create.
    pub(super) fn add_first_reads(&mut self, step: &mut Step) {
        // The predecessor's name can be computed for a native mutex. All other contenders list.
        let lists = !self.config.prefix().is_computable();
        for (index, position) in self.positions.iter_mut().enumerate() {
            position.early_answers = None;
            if lists {
                self.trips.add(index, RequestKind::Children(None), Request::List, step);
            }
            self.trips.add(index, RequestKind::Directory, Request::ReadDirectory, step);
        }
    }
}

impl Position {
    /// Handles the reads that were sent with the create.
    pub(super) fn handle_first_reads(&mut self, answers: &Answers, here: &mut Here) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        let directory = match answers.directory {
            Some(Ok(directory)) => directory,
            Some(Err(failure)) => return self.read_queue_after(failure, here),
            None => return self.read_queue_later(here),
        };
        if let Some(reason) = here.config.refusal_by_record(&directory) {
            return Then::Fail(reason);
        }
        if let Some(Ok(children)) = &answers.children {
            // Our name in the listing is our znode only if the directory is older than our znode, because then all
            // reads saw the same incarnation of the directory, which gives each name once. The size of a semaphore must
            // also be of the same moment as the listing.
            let fits = here.config.kind.size().is_none()
                || here.config.rules.is_size_of_that_moment(children.pzxid, directory.pzxid);
            if directory.czxid < me.czxid && fits {
                return self.apply_listing(Some(directory), children, None, here);
            }
        } else if me.prefix.is_computable() {
            // We are alone if there is one child and our create was the last change of the children, because that child
            // is then our znode.
            if here.config.rules.is_alone(&directory, me) {
                return self.reach_head(Some(directory), &[], here);
            }
            if let (Some(before), Mode::Wait) = (me.sequence.before(), here.config.mode) {
                return self.wait_for_predecessor(before, directory, here);
            }
        }
        self.read_queue(here)
    }

    /// Reads the queue again: the directory and then our own znode, with two requests that are sent together. This
    /// order proves that our znode still existed when the marker was read. Lists the queue instead if no marker grants
    /// this kind of lock.
    pub(super) fn read_queue(&mut self, here: &mut Here) -> Then {
        if !here.config.kind.properties().is_granted_by_marker {
            return self.send_listing(Watches::Nothing, here);
        }
        let Some(me) = self.start_reading(here) else { return Then::Nothing };
        self.is_fresh = false;
        let own = here.config.rules.reads_own_node().then_some((RequestKind::Own(None), Request::Exists(me)));
        let requests = [(RequestKind::Directory, Request::ReadDirectory)].into_iter().chain(own);
        here.send(PositionPurpose::Look, requests)
    }

    fn start_reading(&mut self, here: &mut Here) -> Option<Node> {
        *here.waited = true;
        (self.state, self.is_far) = (PositionState::Reading, false);
        self.node
    }

    /// Reads the queue again after a pause.
    pub(super) fn read_queue_later(&mut self, here: &mut Here) -> Then {
        self.start_reading(here);
        here.time_passes = true;
        here.back_off(PositionPurpose::LookPause)
    }

    /// Reads the queue again after a failed request. Pauses first if the failure is no answer of the server.
    pub(super) fn read_queue_after(&mut self, failure: RequestFailure, here: &mut Here) -> Then {
        if failure.is_answer() { self.read_queue(here) } else { self.read_queue_later(here) }
    }

    pub(super) fn handle_queue_read(&mut self, answers: &Answers, here: &mut Here) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        let directory = match answers.directory {
            Some(Ok(directory)) => Some(directory),
            // Either the directory is missing, and then our znode is missing, too. Or the server refuses the read, and
            // then the listing is enough.
            Some(Err(failure)) if failure.is_answer() => None,
            _ => return self.read_queue_later(here),
        };
        if let Some(reason) = directory.and_then(|directory| here.config.refusal_by_record(&directory)) {
            return Then::Fail(reason);
        }
        match here.config.is_znode_ours(me, answers.own.as_ref()) {
            Some(true) => self.is_fresh = true,
            Some(false) => return self.stop_removed(here),
            None => return self.read_queue_later(here),
        }
        match directory {
            Some(directory) if self.is_released_to(me, &directory, here.config.rules) => {
                self.reach_head(Some(directory), &[], here)
            }
            Some(Directory { children, .. }) if children >= SPREAD_FROM && here.config.mode == Mode::Wait => {
                here.time_passes = true;
                let range = (children / 4).min(SPREAD_MAX);
                let moment = (me.sequence.0 as u32).wrapping_mul(0x9e37_79b9) % range;
                here.sleep(PositionPurpose::Spread, moment)
            }
            _ => self.send_listing(Watches::Nothing, here),
        }
    }

    /// Lists the children, then reads the record, then our own znode, with three requests that are sent together. The
    /// record is read after the listing, because it must cover every predecessor that the listing no longer shows. Our
    /// own znode is read last, because the read proves that it existed during the other two.
    pub(super) fn send_listing(&mut self, watches: Watches, here: &mut Here) -> Then {
        // Chooses the id before the state changes, because the watch that we wait for may still be set, and must have
        // another id.
        let watch = (watches == Watches::Children).then(|| self.new_watch(here));
        let Some(me) = self.start_reading(here) else { return Then::Nothing };
        let children = (RequestKind::Children(watch), watch.map_or(Request::List, Request::WatchChildren));
        let directory = (RequestKind::Directory, Request::ReadDirectory);
        let own = here.config.rules.reads_own_node().then_some((RequestKind::Own(None), Request::Exists(me)));
        let reads = match here.config.rules.lists_before_record() {
            true => [children, directory],
            false => [directory, children],
        };
        here.send(PositionPurpose::List, reads.into_iter().chain(own))
    }

    pub(super) fn handle_listing(&mut self, trip: &RoundTrip, here: &mut Here) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        let answers = &trip.answers;
        let is_set = matches!(answers.children, Some(Ok(_)));
        let watch = trip.watch().filter(|watch| is_set && !trip.has_fired(*watch));
        let directory = match (&answers.children, answers.directory) {
            (Some(Err(failure @ RequestFailure::Refused(_))), _) => {
                return Then::Fail(Reason::Refused(*failure));
            }
            (Some(Ok(_) | Err(RequestFailure::NoNode)), Some(Ok(directory))) => Some(directory),
            // Either the directory is missing, and then our znode is missing, too. Or the server refuses the read, and
            // then the listing is enough.
            (Some(Ok(_) | Err(RequestFailure::NoNode)), Some(Err(failure))) if failure.is_answer() => None,
            _ => {
                here.unwatch(watch);
                return self.read_queue_later(here);
            }
        };
        match here.config.is_znode_ours(me, answers.own.as_ref()) {
            Some(true) => self.is_fresh = true,
            is_ours => {
                here.unwatch(watch);
                return if is_ours.is_none() { self.read_queue_later(here) } else { self.stop_removed(here) };
            }
        }
        let nothing = Children { names: Vec::new(), pzxid: Zxid(0) };
        let children = answers.children.as_ref().and_then(|children| children.as_ref().ok());
        self.apply_listing(directory, children.unwrap_or(&nothing), watch, here)
    }

    /// Decides by the names of the children: grants, waits or fails. `watch`: a watch on the children, set by the same
    /// request that listed them.
    fn apply_listing(
        &mut self,
        directory: Option<Directory>,
        children: &Children,
        watch: Option<WatchId>,
        here: &mut Here,
    ) -> Then {
        let Some(me) = self.node else { return Then::Nothing };
        let config = here.config;
        if let (Some(reader), Some(directory)) = (config.kind.reader(), directory)
            && directory.czxid > reader.czxid
        {
            // Does not look for the reader, because the directory was created after it, and a znode with the reader's
            // name is another contender's.
            return self.withdraw(me, here);
        }
        let decide =
            |size| decide(&children.names, me.prefix, me.sequence, config.kind.claim(size), config.names);
        let record = directory.map_or(Record::Empty, |directory| directory.record);
        let decision = match Layout::detect(&children.names, record) {
            Some(layout) => Err(NoDecision::Refused(Reason::OtherLayout(layout))),
            None => self.permits.decide(directory, config.kind, decide),
        };
        // Our grant must be written into our znode if the children have changed since our create, because another
        // contender may have listed us as a waiter.
        self.permits.seen_waiting |= children.pzxid != me.czxid;
        if decision != Ok(QueueDecision::WatchChildren) || config.mode == Mode::Try {
            here.unwatch(watch);
        }
        match decision {
            Err(NoDecision::SizeMissing) => here.write_size(directory),
            Err(NoDecision::Refused(reason)) => Then::Fail(reason),
            Ok(QueueDecision::Held) => self.reach_head(directory, &children.names, here),
            Ok(QueueDecision::WaitFor(_) | QueueDecision::WatchChildren) if config.mode == Mode::Try => {
                Then::Fail(Reason::Busy)
            }
            Ok(QueueDecision::WaitFor(before)) => {
                self.is_far = config.kind.reader().is_none() && is_waiting(&children.names, &before);
                self.watch_contender(before, here)
            }
            Ok(QueueDecision::WatchChildren) => match watch {
                Some(watch) => self.start_waiting(None, watch, here),
                None => self.send_listing(Watches::Children, here),
            },
            Ok(QueueDecision::NotQueued) if config.kind.reader().is_some() => self.withdraw(me, here),
            Ok(QueueDecision::NotQueued) => self.stop_removed(here),
            Ok(QueueDecision::Outranked) => Then::Fail(Reason::Outranked),
            Ok(QueueDecision::OtherKind) => Then::Fail(Reason::OtherKind),
            Ok(QueueDecision::Clash(clash)) => Then::Fail(Reason::Clash(clash)),
        }
    }

    /// Stops after another client has deleted the reader's znode, or ours. Ours must be deleted, because it would still
    /// keep all others out after the deletion of the reader's.
    fn withdraw(&mut self, me: Node, here: &mut Here) -> Then {
        let undo = self.undo.take();
        self.stop_removed(here);
        Then::Withdraw(Leftover { node: me, undo, checks: true })
    }
}
