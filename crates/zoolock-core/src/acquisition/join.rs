//! Creating our znodes, and finding them again after a lost reply.

use super::*;

impl Machine {
    /// Sends the create and the first reads together. The server answers a session's requests in order, so the reads
    /// see the create. Sends no reads if an earlier create may have succeeded, because a search follows.
    pub(super) fn join(&mut self, step: &mut Step) {
        self.phase = Phase::Joining;
        self.positions.iter_mut().for_each(|position| position.node = None);
        let create = if self.is_of_several() { Request::JoinAll } else { Request::Join };
        self.trips.begin(Purpose::Create);
        self.trips.add(0, RequestKind::Main, create, step);
        if !self.create_in_doubt {
            self.add_first_reads(step);
        }
    }

    pub(super) fn handle_create_answer(&mut self, answers: &Answers, step: &mut Step) {
        match answers.main() {
            Ok(Reply::Joined(node)) => self.handle_created(&[*node], answers, step),
            Ok(Reply::AllJoined(nodes)) => self.handle_created(nodes, answers, step),
            Ok(_) | Err(RequestFailure::Unknown) => {
                self.create_in_doubt = self.config.rules.may_exist_after_lost_reply();
                match self.config.rules.creates_before_search() {
                    true => self.pause(AfterPause::Join, step),
                    false => self.pause(AfterPause::Search, step),
                }
            }
            // One directory is missing. Earlier creates may have left znodes in the others.
            Err(RequestFailure::NoNode) if self.create_in_doubt && self.is_of_several() => self.search(step),
            Err(RequestFailure::NoNode) => {
                // No earlier create has left a znode, because the leader answered this create after all earlier ones,
                // and the directory does not exist.
                self.create_in_doubt = false;
                self.make_directories_or_leave(step);
            }
            Err(RequestFailure::Throttled) => self.pause(AfterPause::Join, step),
            Err(failure) if self.create_in_doubt => {
                self.refusal = Some(failure);
                // The refusal of a single create is no barrier, because the connected server may refuse it without the
                // leader (`enableEagerACLCheck`), and an earlier create may arrive later. The answer to a `multi` is a
                // barrier, because the connected server passes every `multi` to the leader.
                let is_no_barrier = matches!(failure, RequestFailure::Refused(_)) && !self.is_of_several();
                if is_no_barrier && self.config.rules.barrier_passes_leader() {
                    self.pass_barrier(step);
                } else {
                    self.search(step);
                }
            }
            Err(failure) => self.retire_or_fail(failure, step),
        }
    }

    /// Continues with the znodes that were created. `first`: the answers to the reads of the first directory, which
    /// were sent together with the create.
    fn handle_created(&mut self, nodes: &[Node], first: &Answers, step: &mut Step) {
        if nodes.len() != self.positions.len() {
            self.phase = Phase::Leaving;
            return self.fail(Reason::Refused(RequestFailure::Unknown), step);
        }
        if self.create_in_doubt {
            // Searches only now, because the confirmed create is a barrier: no earlier create of ours can still arrive,
            // and the search finds the znodes of all creates whose replies were lost.
            for (position, node) in self.positions.iter_mut().zip(nodes) {
                position.found = vec![*node];
            }
            return self.search(step);
        }
        let ending = nodes.iter().position(|node| self.config.is_near_the_end(*node));
        if !self.wanted || ending.is_some() {
            for (index, node) in nodes.iter().enumerate() {
                self.clean_up(index, *node, None, false, step);
            }
            return match ending {
                Some(index) => self.retire_joined(index, first, step),
                None => self.end_all_but_cleanups(step),
            };
        }
        self.phase = Phase::Queued;
        self.waited = false;
        for (position, node) in self.positions.iter_mut().zip(nodes) {
            position.record_node(*node);
        }
        self.at(0, step, |position, here| position.handle_first_reads(first, here));
        for index in 1..self.positions.len() {
            let read = self.positions[index].early_answers.take().unwrap_or_default();
            if self.phase == Phase::Queued {
                self.at(index, step, |position, here| position.handle_first_reads(&read, here));
            }
        }
    }

    // ---- directories ----

    pub(super) fn make_directories_or_leave(&mut self, step: &mut Step) {
        if !self.wanted {
            return self.end_all_but_cleanups(step);
        }
        if self.config.kind.reader().is_some() {
            // This is an upgrade, and the reader's znode was deleted with the directory.
            self.phase = Phase::Leaving;
            return self.fail(Reason::Broken, step);
        }
        self.phase = Phase::MakingDirectories;
        (self.unsure, self.refusal) = (false, None);
        self.send_to_all(Purpose::MakeDirectories, RequestKind::Main, |_| Some(Request::MakeDirectory), step);
    }

    /// Handles the answer to the create of one directory.
    pub(super) fn record_directory_answer(&mut self, outcome: Answer) {
        match outcome {
            Ok(_) | Err(RequestFailure::NodeExists) => {}
            Err(RequestFailure::Unknown | RequestFailure::Throttled | RequestFailure::NoNode) => {
                self.unsure = true
            }
            Err(failure) => self.refusal = Some(failure),
        }
    }

    pub(super) fn handle_directory_answers(&mut self, step: &mut Step) {
        match self.refusal.take() {
            Some(failure) => self.fail(Reason::Refused(failure), step),
            None if self.unsure => self.pause(AfterPause::Join, step),
            None => self.join(step),
        }
    }

    // ---- pauses ----

    pub(super) fn pause(&mut self, after: AfterPause, step: &mut Step) {
        self.phase = Phase::Pausing(after);
        self.mark_reads_stale();
        self.back_off(0, Purpose::Pause, step);
    }

    pub(super) fn end_pause(&mut self, step: &mut Step) {
        match self.phase {
            Phase::Pausing(AfterPause::Join) if self.wanted || self.create_in_doubt => self.join(step),
            Phase::Pausing(AfterPause::Join) => self.end_all_but_cleanups(step),
            Phase::Pausing(AfterPause::Search) => self.search(step),
            Phase::Pausing(AfterPause::Verify) => self.verify(step),
            _ => {}
        }
    }

    // ---- after a lost reply ----

    /// Sends a transaction that changes nothing. The leader answers it after all our earlier requests.
    fn pass_barrier(&mut self, step: &mut Step) {
        self.phase = Phase::Searching;
        self.trips.send(0, Purpose::Barrier, [(RequestKind::Main, Request::Barrier)], step);
    }

    pub(super) fn handle_barrier_answer(&mut self, answers: &Answers, step: &mut Step) {
        match answers.main() {
            Err(RequestFailure::Unknown | RequestFailure::Throttled) => {
                self.refusal = None;
                self.pause(AfterPause::Join, step);
            }
            _ => self.search(step),
        }
    }

    fn search(&mut self, step: &mut Step) {
        self.phase = Phase::Searching;
        self.unsure = false;
        self.send_to_all(Purpose::Search, RequestKind::Main, |_| Some(Request::FindMine), step);
    }

    /// Handles the answer to the search in one directory.
    pub(super) fn record_search_answer(&mut self, index: usize, outcome: Answer) {
        let known = std::mem::take(&mut self.positions[index].found);
        let mut found = match outcome {
            Ok(Reply::Mine(nodes)) => nodes,
            Err(RequestFailure::NoNode) => Vec::new(),
            // Continues with the znodes of the confirmed create alone, because the server refuses the search. Our other
            // znodes are deleted when the session ends (docs/design/limits.md).
            Err(RequestFailure::Refused(_)) => known,
            _ => {
                self.unsure = true;
                known
            }
        };
        // Does not keep a znode that a clean-up in a retired directory may already be deleting.
        found.retain(|node| !self.is_cleaning_up(index, *node));
        found.sort_by_key(|node| node.czxid);
        found.dedup();
        self.positions[index].found = found;
    }

    /// Keeps the oldest complete set of znodes, even if the create that served as the barrier was refused. Deletes the
    /// others.
    pub(super) fn handle_search_results(&mut self, step: &mut Step) {
        if self.unsure {
            return self.pause(AfterPause::Search, step);
        }
        let refusal = self.refusal.take();
        self.create_in_doubt = false;
        let keep = self.oldest_complete_set().filter(|_| self.wanted);
        let mut ending = None;
        for index in 0..self.positions.len() {
            for node in std::mem::take(&mut self.positions[index].found) {
                if Some(node.czxid) == keep {
                    self.positions[index].record_node(node);
                    ending = ending.or_else(|| self.config.is_near_the_end(node).then_some(index));
                } else {
                    self.clean_up(index, node, None, false, step);
                }
            }
        }
        match (keep, ending, refusal) {
            (Some(_), Some(ending), _) => self.retire_found(ending, step),
            (Some(_), None, _) => {
                self.phase = Phase::Queued;
                self.at_each(step, Position::read_queue);
            }
            (None, ..) if !self.wanted => self.end_all_but_cleanups(step),
            (None, _, Some(failure)) => self.retire_or_fail(failure, step),
            (None, _, None) if !self.is_of_several() => self.join(step),
            // Creates the directories, because the create that served as the barrier may have failed for lack of one.
            (None, _, None) => self.make_directories_or_leave(step),
        }
    }
}
