//! Deletes our own znodes until none is left, and never another contender's.

use super::*;

/// A znode of ours that must be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Cleanup {
    lock_index: usize,
    node: Node,
    /// The marker to leave, and the version of the record that it replaces; `None` for any version.
    marker: Option<(Marker, Option<i32>)>,
    /// Set if the holder waits for the outcome.
    reports: bool,
    /// Set to write to the znode before the delete, because a successor that looks ahead would take
    /// the deletion alone for a grant. After the write it reads the record.
    writes_first: bool,
    /// Set if an earlier delete may have succeeded.
    is_repeated: bool,
    /// The record before our `held` marker, if that marker must be undone.
    undo: Option<Undo>,
    /// Number of failures of this clean-up.
    tries: u8,
}

impl Machine {
    fn new_cleanup(&self, lock_index: usize, node: Node, marker: Option<(Marker, Option<i32>)>) -> Cleanup {
        Cleanup {
            lock_index,
            node,
            marker,
            reports: false,
            writes_first: false,
            is_repeated: false,
            undo: None,
            tries: 0,
        }
    }

    /// Deletes a znode, and leaves a marker if there is one. `checks`: set to read the znode first,
    /// because our last read is old, and another contender may have a znode of that name now.
    pub(super) fn clean_up(
        &mut self,
        lock_index: usize,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        checks: bool,
        step: &mut Step,
    ) {
        let cleanup = self.new_cleanup(lock_index, node, marker);
        self.start_cleanup(cleanup, checks, step);
    }

    /// Deletes a znode if it is still ours.
    pub(super) fn clean_up_if_ours(&mut self, lock_index: usize, node: Node, step: &mut Step) {
        self.clean_up(lock_index, node, None, true, step);
    }

    /// Deletes a holder's znode, and reports the outcome.
    pub(super) fn clean_up_hold(
        &mut self,
        lock_index: usize,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        mode: ReleaseMode,
        step: &mut Step,
    ) {
        let cleanup = Cleanup {
            reports: true,
            writes_first: self.config.rules.writes_before_delete(node),
            is_repeated: mode == ReleaseMode::Repeated,
            ..self.new_cleanup(lock_index, node, marker)
        };
        self.start_cleanup(cleanup, mode != ReleaseMode::Usual, step);
    }

    /// Deletes the znode of a holder whose loss has been reported, if it is still ours.
    pub(super) fn clean_up_lost(&mut self, lock_index: usize, node: Node, step: &mut Step) {
        let writes_first = self.config.rules.writes_before_delete(node);
        let cleanup = Cleanup { writes_first, ..self.new_cleanup(lock_index, node, None) };
        self.start_cleanup(cleanup, true, step);
    }

    /// Deletes our znode after an acquisition that was not granted, but may have written its `held`
    /// marker. Also restores the record, unless another contender has written to it since. That can
    /// happen to an upgrade: once the reader's znode is deleted, a contender between the reader's
    /// znode and the writer's may be granted the lock.
    pub(super) fn clean_up_and_restore_record(
        &mut self,
        lock_index: usize,
        node: Node,
        undo: Undo,
        step: &mut Step,
    ) {
        let mut cleanup = self.new_cleanup(lock_index, node, None);
        match self.config.rules.undoes_what_is_there() {
            true => cleanup.undo = Some(undo),
            false => cleanup.marker = Some((undo.marker, None)),
        }
        self.start_cleanup(cleanup, true, step);
    }

    fn start_cleanup(&mut self, cleanup: Cleanup, checks: bool, step: &mut Step) {
        let (lock_index, czxid) = (cleanup.lock_index, cleanup.node.czxid);
        self.cleanups.push(cleanup);
        // Checks first without a connection, because the request then arrives late, and another
        // contender may have a znode of that name by then.
        if checks || (self.offline && self.config.rules.checks_before_repeat()) {
            self.check_cleanup(lock_index, czxid, step);
        } else {
            self.send_delete(lock_index, czxid, step);
        }
    }

    pub(super) fn is_cleaning_up(&self, lock_index: usize, node: Node) -> bool {
        self.cleanups.iter().any(|cleanup| cleanup.lock_index == lock_index && cleanup.node == node)
    }

    /// Returns the index of the clean-up of a znode. All znodes of a multi-lock have the same
    /// czxid, so `lock_index` is needed, too.
    fn cleanup_at(&self, lock_index: usize, czxid: Zxid) -> Option<usize> {
        self.cleanups
            .iter()
            .position(|cleanup| (cleanup.lock_index, cleanup.node.czxid) == (lock_index, czxid))
    }

    fn send_delete(&mut self, lock_index: usize, czxid: Zxid, step: &mut Step) {
        let Some(at) = self.cleanup_at(lock_index, czxid) else { return };
        let Cleanup { node, marker, writes_first, .. } = self.cleanups[at];
        let request = match marker {
            Some((marker, version)) => Request::Release { node, marker, version },
            None if writes_first => Request::Withdraw(node),
            None => Request::Delete(node),
        };
        self.send_one(lock_index, Purpose::Delete(czxid), RequestKind::Main, request, step);
    }

    pub(super) fn handle_delete_answer(
        &mut self,
        lock_index: usize,
        czxid: Zxid,
        outcome: Result<Reply, RequestFailure>,
        step: &mut Step,
    ) {
        let rules = self.config.rules;
        let Some(at) = self.cleanup_at(lock_index, czxid) else { return };
        let cleanup = &mut self.cleanups[at];
        match outcome {
            Ok(_) => self.end_cleanup(at, ReleaseOutcome::Clean, step),
            Err(RequestFailure::NoNode) => self.handle_missing_znode(at, step),
            Err(RequestFailure::Unknown) if !rules.checks_before_repeat() => {
                cleanup.is_repeated = true;
                self.send_delete(lock_index, czxid, step)
            }
            Err(RequestFailure::Unknown) if !cleanup.is_repeated => {
                cleanup.is_repeated = true;
                self.check_cleanup(lock_index, czxid, step);
            }
            Err(RequestFailure::Unknown | RequestFailure::Throttled) => self.pause_cleanup(at, step),
            Err(failure) if cleanup.marker.is_some() => {
                if !rules.releases_without_record() {
                    return self.end_cleanup(at, ReleaseOutcome::Refused(failure), step);
                }
                // Deletes without a marker, because we have no permission to write the record, or
                // another client has written it since our last read. Our successors then list the
                // queue. Checks first, because the refusal does not prove that the znode of that name
                // is still ours.
                (cleanup.marker, cleanup.undo) = (None, None);
                self.check_cleanup(lock_index, czxid, step);
            }
            // We have no permission to write to the znode, but may have permission to delete it.
            Err(_) if std::mem::take(&mut cleanup.writes_first) => {
                self.check_cleanup(lock_index, czxid, step)
            }
            Err(failure) => {
                if std::mem::take(&mut cleanup.reports) {
                    self.report_release(ReleaseOutcome::Refused(failure), step);
                }
                self.pause_cleanup(at, step);
            }
        }
    }

    /// Waits before the next check of a clean-up, longer after each failure of this clean-up. A successful check does not
    /// shorten the wait, because a clean-up whose deletes fail repeats both.
    fn pause_cleanup(&mut self, at: usize, step: &mut Step) {
        let Cleanup { lock_index, node, tries, .. } = &mut self.cleanups[at];
        let (lock_index, czxid, wait) = (*lock_index, node.czxid, backoff(tries));
        self.sleep(lock_index, Purpose::CleanupPause(czxid), wait, step);
    }

    /// Checks that the znode of that name is still ours, before a delete.
    pub(super) fn check_cleanup(&mut self, lock_index: usize, czxid: Zxid, step: &mut Step) {
        let Some(at) = self.cleanup_at(lock_index, czxid) else { return };
        let Cleanup { node, undo, .. } = self.cleanups[at];
        // Writes our `held` marker a second time as a barrier, because the first write cannot arrive
        // after the second.
        let barrier = undo.map(|Undo { marker, version }| {
            let (node, marker) = (Some(node), node.held_record_in(marker.directory));
            (RequestKind::Main, Request::Hold { node, marker, version })
        });
        let record = undo.map(|_| (RequestKind::Directory, Request::ReadDirectory));
        let requests = barrier.into_iter().chain([(RequestKind::Sync, Request::Sync)]);
        let requests = requests.chain(record).chain([(RequestKind::Own(None), Request::Exists(node))]);
        self.send_round_trip(lock_index, Purpose::Check(czxid), requests, step);
    }

    pub(super) fn handle_cleanup_check(
        &mut self,
        lock_index: usize,
        czxid: Zxid,
        answers: Answers,
        step: &mut Step,
    ) {
        let Some(at) = self.cleanup_at(lock_index, czxid) else { return };
        let Cleanup { node, undo, .. } = self.cleanups[at];
        // Any answer of the leader to the barrier is enough. A read without a successful sync may
        // be old, so it does not allow a delete.
        let has_passed =
            !matches!(answers.main, Some(Err(RequestFailure::Unknown | RequestFailure::Throttled)));
        let is_synced = matches!(answers.sync, Some(Ok(())));
        let own = self.is_znode_ours(node, answers.own.as_ref());
        let restored = match (undo, answers.directory) {
            (Some(undo), Some(Ok(Directory { record, version, .. }))) => {
                let is_ours = record == Record::Marker(node.held_record_in(undo.marker.directory));
                Some(is_ours.then_some((undo.marker, Some(version))))
            }
            // A contender without permission to read the record must still delete its znode.
            (Some(_), Some(Err(RequestFailure::NoNode | RequestFailure::Refused(_)))) => Some(None),
            (Some(_), _) => None,
            (None, _) => Some(self.cleanups[at].marker),
        };
        let (true, true, Some(own), Some(marker)) = (has_passed, is_synced, own, restored) else {
            return self.pause_cleanup(at, step);
        };
        self.cleanups[at].marker = marker;
        if own { self.send_delete(lock_index, czxid, step) } else { self.handle_missing_znode(at, step) }
    }

    /// Handles a missing znode. If none of our deletes can have deleted it, another client has
    /// deleted it.
    fn handle_missing_znode(&mut self, at: usize, step: &mut Step) {
        let outcome = match self.cleanups[at].is_repeated {
            true => ReleaseOutcome::Clean,
            false => ReleaseOutcome::Lost(Loss::Broken),
        };
        self.end_cleanup(at, outcome, step);
    }

    fn end_cleanup(&mut self, at: usize, outcome: ReleaseOutcome, step: &mut Step) {
        if self.cleanups.remove(at).reports {
            self.report_release(outcome, step);
        }
    }
}
