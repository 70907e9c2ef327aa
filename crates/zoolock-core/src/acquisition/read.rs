//! Reading the queue: with the create, after a wait, and after a failure.

use super::permits::SizeCheck;
use super::*;
use crate::layout::Layout;
use crate::queue::{QueueDecision, decide};

/// Minimum number of children for which a waiter pauses before it lists. The pauses differ, so that
/// not all waiters list at once.
const SPREAD_FROM: u32 = 64;
/// Maximum pause, in milliseconds.
const SPREAD_MAX: u32 = 500;

impl Machine {
    /// Adds the reads that are sent together with the create.
    pub(super) fn add_first_reads(&mut self, step: &mut Step) {
        // The predecessor's name can be computed for a native mutex. All other contenders list.
        let lists = !self.config.prefix().is_computable();
        for lock_index in 0..self.positions.len() {
            self.positions[lock_index].early_answers = None;
            if lists {
                self.add_request(lock_index, RequestKind::Children(None), Request::List, step);
            }
            self.add_request(lock_index, RequestKind::Directory, Request::ReadDirectory, step);
        }
    }

    /// Handles the reads that were sent with the create.
    pub(super) fn handle_first_reads(&mut self, lock_index: usize, answers: Answers, step: &mut Step) {
        let Answers { children, directory, .. } = answers;
        let Some(me) = self.positions[lock_index].node else { return };
        let directory = match directory {
            Some(Ok(directory)) => directory,
            None | Some(Err(RequestFailure::Unknown | RequestFailure::Throttled)) => {
                return self.read_queue_later(lock_index, step);
            }
            Some(Err(_)) => return self.read_queue(lock_index, step),
        };
        if let Some(reason) = self.refusal_by_record(&directory) {
            return self.fail(reason, step);
        }
        if let Some(Ok(children)) = children {
            // Our name in the listing is our znode only if the directory is older than our znode,
            // because then all reads saw the same incarnation of the directory, which gives each name
            // once. The size of a semaphore must also be of the same moment as the listing.
            let fits = self.config.kind.size().is_none()
                || self.config.rules.is_size_of_that_moment(children.pzxid, directory.pzxid);
            return match directory.czxid < me.czxid && fits {
                true => self.apply_listing(lock_index, Some(directory), &children, None, step),
                false => self.read_queue(lock_index, step),
            };
        }
        if !me.prefix.is_computable() {
            return self.read_queue(lock_index, step);
        }
        // We are alone if there is one child and our create was the last change of the children,
        // because that child is then our znode.
        if self.config.rules.is_alone(&directory, me) {
            return self.reach_head(lock_index, Some(directory), &[], step);
        }
        match me.sequence.before() {
            Some(before) if self.config.mode == Mode::Wait => {
                self.wait_for_predecessor(lock_index, before, directory, step);
            }
            _ => self.read_queue(lock_index, step),
        }
    }

    /// Returns the reason to fail if the record shows a semaphore that excludes this kind of lock.
    fn refusal_by_record(&self, directory: &Directory) -> Option<Reason> {
        let permits = self.config.kind.is_permits();
        match directory.record {
            Record::Semaphore(size) if size.is_of(directory.czxid) && !permits => Some(Reason::OtherKind),
            // The record alone shows a kazoo semaphore, without a listing.
            record => Layout::detect::<&str>(&[], record).map(Reason::OtherLayout),
        }
    }

    /// Reads the queue again: the directory and then our own znode, with two requests that are sent
    /// together. This order proves that our znode still existed when the marker was read. Lists the
    /// queue instead if no marker grants this kind of lock.
    pub(super) fn read_queue(&mut self, lock_index: usize, step: &mut Step) {
        if !self.config.kind.properties().is_granted_by_marker {
            return self.send_listing(lock_index, false, step);
        }
        let Some(me) = self.start_reading(lock_index) else { return };
        self.positions[lock_index].is_fresh = false;
        let own = self.config.rules.reads_own_node().then_some((RequestKind::Own(None), Request::Exists(me)));
        let requests = [(RequestKind::Directory, Request::ReadDirectory)].into_iter().chain(own);
        self.send_round_trip(lock_index, Purpose::Look, requests, step);
    }

    fn start_reading(&mut self, lock_index: usize) -> Option<Node> {
        self.waited = true;
        self.positions[lock_index].state = PositionState::Reading;
        self.positions[lock_index].node
    }

    /// Reads the queue again after a pause.
    pub(super) fn read_queue_later(&mut self, lock_index: usize, step: &mut Step) {
        self.start_reading(lock_index);
        self.mark_reads_stale();
        self.back_off(lock_index, Purpose::LookPause, step);
    }

    pub(super) fn handle_queue_read(&mut self, lock_index: usize, answers: Answers, step: &mut Step) {
        let Some(me) = self.positions[lock_index].node else { return };
        let directory = match answers.directory {
            Some(Ok(directory)) => Some(directory),
            None | Some(Err(RequestFailure::Unknown | RequestFailure::Throttled)) => {
                return self.read_queue_later(lock_index, step);
            }
            // Either the directory is missing, and then our znode is missing, too. Or the server
            // refuses the read, and then the listing is enough.
            Some(Err(_)) => None,
        };
        if let Some(reason) = directory.and_then(|directory| self.refusal_by_record(&directory)) {
            return self.fail(reason, step);
        }
        match self.is_znode_ours(me, answers.own.as_ref()) {
            Some(true) => self.positions[lock_index].is_fresh = true,
            Some(false) => return self.fail_after_removal(lock_index, step),
            None => return self.read_queue_later(lock_index, step),
        }
        match directory {
            Some(directory) if self.is_released_to(lock_index, &directory, me) => {
                self.reach_head(lock_index, Some(directory), &[], step);
            }
            Some(Directory { children, .. }) if children >= SPREAD_FROM && self.config.mode == Mode::Wait => {
                self.mark_reads_stale();
                let range = (children / 4).min(SPREAD_MAX);
                let moment = (me.sequence.0 as u32).wrapping_mul(0x9e37_79b9) % range;
                self.sleep(lock_index, Purpose::Spread, moment, step);
            }
            _ => self.send_listing(lock_index, false, step),
        }
    }

    /// Lists the children, then reads the record, then our own znode, with three requests that are
    /// sent together. The record is read after the listing, because it must cover every predecessor
    /// that the listing no longer shows. Our own znode is read last, because the read proves that it
    /// existed during the other two.
    pub(super) fn send_listing(&mut self, lock_index: usize, is_watching: bool, step: &mut Step) {
        // Chooses the id before the state changes, because the watch that the position waits for may
        // still be set, and must have another id.
        let watch = is_watching.then(|| self.new_watch(lock_index));
        let Some(me) = self.start_reading(lock_index) else { return };
        let children = (RequestKind::Children(watch), watch.map_or(Request::List, Request::WatchChildren));
        let directory = (RequestKind::Directory, Request::ReadDirectory);
        let own = self.config.rules.reads_own_node().then_some((RequestKind::Own(None), Request::Exists(me)));
        let reads = match self.config.rules.lists_before_record() {
            true => [children, directory],
            false => [directory, children],
        };
        self.send_round_trip(lock_index, Purpose::List, reads.into_iter().chain(own), step);
    }

    pub(super) fn handle_listing(
        &mut self,
        lock_index: usize,
        watch: Option<WatchId>,
        answers: Answers,
        early: &[(WatchId, bool)],
        step: &mut Step,
    ) {
        let Some(me) = self.positions[lock_index].node else { return };
        let is_set = matches!(answers.children, Some(Ok(_)));
        let has_fired = |watch: &WatchId| early.iter().any(|(fired, _)| fired == watch);
        let watch = watch.filter(|watch| is_set && !has_fired(watch));
        let unwatch = |step: &mut Step| step.actions.extend(watch.map(Action::Unwatch));
        let directory = match (&answers.children, answers.directory) {
            (Some(Err(RequestFailure::Refused(refusal))), _) => {
                return self.fail(Reason::Refused(RequestFailure::Refused(*refusal)), step);
            }
            (Some(Ok(_) | Err(RequestFailure::NoNode)), Some(Ok(directory))) => Some(directory),
            // Either the directory is missing, and then our znode is missing, too. Or the server
            // refuses the read, and then the listing is enough.
            (Some(Ok(_) | Err(RequestFailure::NoNode)), Some(Err(failure))) if failure.is_answer() => None,
            _ => {
                unwatch(step);
                return self.read_queue_later(lock_index, step);
            }
        };
        match self.is_znode_ours(me, answers.own.as_ref()) {
            Some(true) => self.positions[lock_index].is_fresh = true,
            Some(false) => {
                unwatch(step);
                return self.fail_after_removal(lock_index, step);
            }
            None => {
                unwatch(step);
                return self.read_queue_later(lock_index, step);
            }
        }
        let nothing = || Children { names: Vec::new(), pzxid: Zxid(0) };
        let children = answers.children.and_then(Result::ok).unwrap_or_else(nothing);
        self.apply_listing(lock_index, directory, &children, watch, step);
    }

    /// Decides by the names of the children: grants, waits or fails. `watch`: a watch on the
    /// children, set by the same request that listed them.
    fn apply_listing(
        &mut self,
        lock_index: usize,
        directory: Option<Directory>,
        children: &Children,
        watch: Option<WatchId>,
        step: &mut Step,
    ) {
        let Some(me) = self.positions[lock_index].node else { return };
        if let (Some(reader), Some(directory)) = (self.config.kind.reader(), directory)
            && directory.czxid > reader.czxid
        {
            // Does not look for the reader, because the directory was created after it, and a znode with
            // the reader's name is another contender's.
            return self.fail_without_reader(lock_index, step);
        }
        let permits = &self.positions[lock_index].permits;
        let decide = |size| {
            let claim = self.config.kind.claim(size);
            match decide(&children.names, me.prefix, me.sequence, claim, self.config.names) {
                QueueDecision::WaitFor(before) if permits.granted_before.as_ref() == Some(&before) => {
                    QueueDecision::WatchChildren
                }
                // Watches the children of a resized semaphore (a version above 1), because the
                // predecessor may hold without having waited. It then never writes `granted` into its
                // znode, so a watch on that znode is not enough.
                QueueDecision::WaitFor(_)
                    if self.config.kind.is_permits() && directory.is_some_and(|d| d.version > 1) =>
                {
                    QueueDecision::WatchChildren
                }
                decision => decision,
            }
        };
        let record = directory.map_or(Record::Empty, |directory| directory.record);
        let size_check = match Layout::detect(&children.names, record) {
            Some(layout) => SizeCheck::Refused(Reason::OtherLayout(layout)),
            None => self.check_size(lock_index, directory),
        };
        let decision = match size_check {
            SizeCheck::Size(size) => Ok(decide(size)),
            // The directory must not become a semaphore while a contender holds it as another kind
            // of lock.
            SizeCheck::Missing(size) if decide(size) == QueueDecision::OtherKind => {
                Ok(QueueDecision::OtherKind)
            }
            SizeCheck::Missing(_) => Err(None),
            SizeCheck::Refused(reason) => Err(Some(reason)),
        };
        let permits = &mut self.positions[lock_index].permits;
        if let Ok(QueueDecision::Held | QueueDecision::WatchChildren | QueueDecision::WaitFor(_)) = decision {
            permits.size_checked = true;
        }
        // Our grant must be written into our znode if the children have changed since our create,
        // because another contender may have listed us as a waiter.
        permits.seen_waiting |= children.pzxid != me.czxid;
        if decision != Ok(QueueDecision::WatchChildren) || self.config.mode == Mode::Try {
            step.actions.extend(watch.map(Action::Unwatch));
        }
        match decision {
            Err(None) => self.write_size(lock_index, directory, step),
            Err(Some(reason)) => self.fail(reason, step),
            Ok(QueueDecision::Held) => self.reach_head(lock_index, directory, &children.names, step),
            Ok(QueueDecision::WaitFor(_) | QueueDecision::WatchChildren) if self.config.mode == Mode::Try => {
                self.fail(Reason::Busy, step);
            }
            Ok(QueueDecision::WaitFor(before)) => self.watch_contender(lock_index, before, step),
            Ok(QueueDecision::WatchChildren) => match watch {
                Some(watch) => self.start_waiting(lock_index, None, watch),
                None => self.send_listing(lock_index, true, step),
            },
            Ok(QueueDecision::NotQueued) if self.config.kind.reader().is_some() => {
                self.fail_without_reader(lock_index, step);
            }
            Ok(QueueDecision::NotQueued) => self.fail_after_removal(lock_index, step),
            Ok(QueueDecision::Outranked) => self.fail(Reason::Outranked, step),
            Ok(QueueDecision::OtherKind) => self.fail(Reason::OtherKind, step),
            Ok(QueueDecision::Clash(clash)) => self.fail(Reason::Clash(clash), step),
        }
    }

    /// Fails because another client deleted the reader's znode, or ours. Deletes ours, because it
    /// would still keep all others out after the deletion of the reader's.
    fn fail_without_reader(&mut self, lock_index: usize, step: &mut Step) {
        let position = &mut self.positions[lock_index];
        let (me, undo) = (position.node, position.undo.take());
        self.fail_after_removal(lock_index, step);
        match (me, undo) {
            (Some(me), Some(undo)) => self.clean_up_and_restore_record(lock_index, me, undo, step),
            (Some(me), None) => self.clean_up_if_ours(lock_index, me, step),
            (None, _) => {}
        }
    }
}
