//! Deletes our own znodes until none is left, and never another contender's.

use super::*;

/// A znode of ours that must be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Cleanup {
    index: usize,
    node: Node,
    /// The marker to leave, and the version of the record that it replaces; `None` for any version.
    marker: Option<(Marker, Option<i32>)>,
    /// Set if the holder waits for the outcome.
    reports: bool,
    /// Set to write to the znode before the delete, because a successor that looks ahead would take the deletion alone
    /// for a grant. After the write it reads the record.
    writes_first: bool,
    /// Set if an earlier delete may have succeeded.
    is_repeated: bool,
    /// The record before our `held` marker, if that marker must be undone.
    undo: Option<Undo>,
    /// Number of failures of this clean-up.
    tries: u8,
}

/// The reason for a round trip of a clean-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CleanupPurpose {
    Delete,
    /// Read the znode, because another contender may have a znode of that name now.
    Check,
    /// Wait before the next check.
    Pause,
}

/// The next step of a clean-up.
enum Next {
    Delete,
    Check,
    Pause,
    /// The server refuses the delete. The clean-up repeats it until the session ends.
    PauseAfterRefusal(RequestFailure),
    End(ReleaseOutcome),
}

impl Cleanup {
    fn new(index: usize, node: Node, marker: Option<(Marker, Option<i32>)>) -> Cleanup {
        Cleanup {
            index,
            node,
            marker,
            reports: false,
            writes_first: false,
            is_repeated: false,
            undo: None,
            tries: 0,
        }
    }

    /// Returns the request that deletes the znode.
    fn delete(&self) -> Request {
        let node = self.node;
        match self.marker {
            Some((marker, version)) => Request::Release { node, marker, version },
            None if self.writes_first => Request::Withdraw(node),
            None => Request::Delete(node),
        }
    }

    fn handle_delete_answer(&mut self, answers: &Answers, rules: Rules) -> Next {
        match answers.main() {
            Ok(_) => Next::End(ReleaseOutcome::Clean),
            Err(RequestFailure::NoNode) => self.end_without_znode(),
            Err(RequestFailure::Unknown) if !rules.checks_before_repeat() => {
                self.is_repeated = true;
                Next::Delete
            }
            Err(RequestFailure::Unknown) if !self.is_repeated => {
                self.is_repeated = true;
                Next::Check
            }
            Err(RequestFailure::Unknown | RequestFailure::Throttled) => Next::Pause,
            Err(failure) if self.marker.is_some() && !rules.releases_without_record() => {
                Next::End(ReleaseOutcome::Refused(failure))
            }
            Err(_) if self.marker.is_some() => {
                // Deletes without a marker, because we have no permission to write the record, or another client has
                // written it since our last read. Our successors then list the queue. Checks first, because the refusal
                // does not prove that the znode of that name is still ours.
                (self.marker, self.undo) = (None, None);
                Next::Check
            }
            // We have no permission to write to the znode, but may have permission to delete it.
            Err(_) if std::mem::take(&mut self.writes_first) => Next::Check,
            Err(failure) => Next::PauseAfterRefusal(failure),
        }
    }

    /// Returns the requests that check before a delete that the znode of that name is still ours.
    fn check(&self) -> impl Iterator<Item = (RequestKind, Request)> + use<> {
        let barrier = self.undo.map(|undo| (RequestKind::Main, undo.barrier(self.node)));
        let record = self.undo.map(|_| (RequestKind::Directory, Request::ReadDirectory));
        let own = (RequestKind::Own(None), Request::Exists(self.node));
        barrier.into_iter().chain([(RequestKind::Sync, Request::Sync)]).chain(record).chain([own])
    }

    fn handle_check(&mut self, answers: &Answers, config: &Config) -> Next {
        // Any answer of the leader to the barrier is enough. A read without a successful sync may be old, so it does
        // not allow a delete.
        let has_passed = self.undo.is_none() || answers.main().err().is_none_or(RequestFailure::is_answer);
        let is_synced = matches!(answers.sync, Some(Ok(())));
        let own = config.is_znode_ours(self.node, answers.own.as_ref());
        let marker = match self.undo {
            Some(undo) => undo.restored(self.node, answers.directory),
            None => Ok(self.marker),
        };
        let (true, true, Some(is_ours), Ok(marker)) = (has_passed, is_synced, own, marker) else {
            return Next::Pause;
        };
        self.marker = marker;
        if is_ours { Next::Delete } else { self.end_without_znode() }
    }

    /// Ends the clean-up of a missing znode. If none of our deletes can have deleted it, another client has deleted it.
    fn end_without_znode(&self) -> Next {
        let broken = ReleaseOutcome::Lost(Loss::Broken);
        Next::End(if self.is_repeated { ReleaseOutcome::Clean } else { broken })
    }
}

impl Machine {
    /// Deletes a znode, and leaves a marker if there is one. `checks`: set to read the znode first, because our last
    /// read is old, and another contender may have a znode of that name now.
    pub(super) fn clean_up(
        &mut self,
        index: usize,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        checks: bool,
        step: &mut Step,
    ) {
        self.start_cleanup(Cleanup::new(index, node, marker), checks, step);
    }

    /// Deletes a holder's znode, and reports the outcome.
    pub(super) fn clean_up_hold(
        &mut self,
        index: usize,
        node: Node,
        marker: Option<(Marker, Option<i32>)>,
        mode: ReleaseMode,
        step: &mut Step,
    ) {
        let cleanup = Cleanup {
            reports: true,
            writes_first: self.config.rules.writes_before_delete(node),
            is_repeated: mode == ReleaseMode::Repeated,
            ..Cleanup::new(index, node, marker)
        };
        self.start_cleanup(cleanup, mode != ReleaseMode::Usual, step);
    }

    /// Deletes the znode of a holder whose loss has been reported, if it is still ours.
    pub(super) fn clean_up_lost(&mut self, index: usize, node: Node, step: &mut Step) {
        let writes_first = self.config.rules.writes_before_delete(node);
        let cleanup = Cleanup { writes_first, ..Cleanup::new(index, node, None) };
        self.start_cleanup(cleanup, true, step);
    }

    /// Deletes our znode after an acquisition that was not granted. If it may have written its `held` marker, also
    /// restores the record, unless another contender has written to it since. That can happen to an upgrade: once the
    /// reader's znode is deleted, a contender between the reader's znode and the writer's may be granted the lock.
    pub(super) fn clean_up_leftover(&mut self, index: usize, leftover: Leftover, step: &mut Step) {
        let Leftover { node, undo, checks } = leftover;
        let mut cleanup = Cleanup::new(index, node, None);
        match undo {
            Some(undo) if !self.config.rules.undoes_what_is_there() => {
                cleanup.marker = Some((undo.marker, None));
            }
            undo => cleanup.undo = undo,
        }
        self.start_cleanup(cleanup, checks || undo.is_some(), step);
    }

    fn start_cleanup(&mut self, cleanup: Cleanup, checks: bool, step: &mut Step) {
        // Checks first without a connection, because the request then arrives late, and another contender may have a
        // znode of that name by then.
        let checks = checks || (self.offline && self.config.rules.checks_before_repeat());
        self.cleanups.push(cleanup);
        self.continue_cleanup(self.cleanups.len() - 1, if checks { Next::Check } else { Next::Delete }, step);
    }

    pub(super) fn is_cleaning_up(&self, index: usize, node: Node) -> bool {
        self.cleanups.iter().any(|cleanup| cleanup.index == index && cleanup.node == node)
    }

    /// Handles the answers of a clean-up. All znodes of a multi-lock have the same czxid, so `index` is needed, too.
    pub(super) fn handle_cleanup_answers(
        &mut self,
        index: usize,
        czxid: Zxid,
        purpose: CleanupPurpose,
        answers: &Answers,
        step: &mut Step,
    ) {
        let is_it = |cleanup: &Cleanup| (cleanup.index, cleanup.node.czxid) == (index, czxid);
        let Some(at) = self.cleanups.iter().position(is_it) else { return };
        let next = match purpose {
            CleanupPurpose::Delete => self.cleanups[at].handle_delete_answer(answers, self.config.rules),
            CleanupPurpose::Check => self.cleanups[at].handle_check(answers, &self.config),
            CleanupPurpose::Pause => Next::Check,
        };
        self.continue_cleanup(at, next, step);
    }

    fn continue_cleanup(&mut self, at: usize, next: Next, step: &mut Step) {
        let Cleanup { index, node, .. } = self.cleanups[at];
        let purpose = |purpose| Purpose::Cleanup(node.czxid, purpose);
        match next {
            Next::Delete => {
                let delete = (RequestKind::Main, self.cleanups[at].delete());
                self.trips.send(index, purpose(CleanupPurpose::Delete), [delete], step);
            }
            Next::Check => {
                self.trips.send(index, purpose(CleanupPurpose::Check), self.cleanups[at].check(), step);
            }
            Next::Pause => {
                // Waits longer after each failure of this clean-up. A successful check does not shorten the wait,
                // because a clean-up whose deletes fail repeats both.
                let wait = backoff(&mut self.cleanups[at].tries);
                self.trips.sleep(index, purpose(CleanupPurpose::Pause), wait, step);
            }
            Next::PauseAfterRefusal(failure) => {
                if std::mem::take(&mut self.cleanups[at].reports) {
                    self.report_release(ReleaseOutcome::Refused(failure), step);
                }
                self.continue_cleanup(at, Next::Pause, step);
            }
            Next::End(outcome) => {
                if self.cleanups.remove(at).reports {
                    self.report_release(outcome, step);
                }
            }
        }
    }
}
