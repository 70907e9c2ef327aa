//! Creating our znodes, and finding them again after a lost reply.

use super::*;

impl Machine {
    pub(super) fn start(&mut self, step: &mut Step) {
        if self.phase == Phase::New {
            self.join(step);
        }
    }

    /// Sends the create and the first reads together. The server answers a session's requests in
    /// order, so the reads see the create. Sends no reads if an earlier create may have succeeded,
    /// because a search follows.
    pub(super) fn join(&mut self, step: &mut Step) {
        self.phase = Phase::Joining;
        self.seats.iter_mut().for_each(|seat| seat.node = None);
        let create = if self.seats.len() == 1 { Request::Join } else { Request::JoinAll };
        self.open_to_all(Purpose::Create);
        self.add(0, Part::Main, create, step);
        if !self.create_in_doubt {
            self.add_first_reads(step);
        }
    }

    pub(super) fn created(&mut self, mut answers: Answers, step: &mut Step) {
        match answers.main.take().unwrap_or(Err(RequestFailure::Unknown)) {
            Ok(Reply::Joined(node)) => self.have_created(&[node], answers, step),
            Ok(Reply::AllJoined(nodes)) => self.have_created(&nodes, answers, step),
            Ok(_) | Err(RequestFailure::Unknown) => {
                self.create_in_doubt = self.config.rules.may_exist_after_lost_reply();
                let after =
                    if self.config.rules.creates_before_search() { After::Join } else { After::Search };
                self.pause(after, step);
            }
            // One directory is missing. Earlier creates may have left znodes in the others.
            Err(RequestFailure::NoNode) if self.create_in_doubt && self.seats.len() > 1 => self.search(step),
            Err(RequestFailure::NoNode) => {
                // The leader answered this create after all earlier ones, and the directory does
                // not exist. So no earlier create has left a znode.
                self.create_in_doubt = false;
                self.make_directories_or_leave(step);
            }
            Err(RequestFailure::Throttled) => self.pause(After::Join, step),
            Err(failure) if self.create_in_doubt => {
                self.refusal = Some(failure);
                // The connected server may refuse a create without the leader
                // (`enableEagerACLCheck`), so an earlier create may arrive after this refusal.
                // After the answer to a `multi`, no earlier create can arrive, because the
                // connected server passes every `multi` to the leader.
                let is_no_barrier = matches!(failure, RequestFailure::Refused(_)) && self.seats.len() == 1;
                if is_no_barrier && self.config.rules.barrier_passes_leader() {
                    self.pass_barrier(step);
                } else {
                    self.search(step);
                }
            }
            Err(failure) => self.refused_create(failure, step),
        }
    }

    /// Retires the directory if its sequence numbers have run out. Fails after any other refusal.
    fn refused_create(&mut self, failure: RequestFailure, step: &mut Step) {
        let place = match failure {
            RequestFailure::NodeExists if self.seats.len() == 1 => Some(0),
            RequestFailure::NodeExistsAt(place) if place < self.seats.len() => Some(place),
            _ => None,
        };
        match place {
            Some(place) if self.config.rules.retires() => self.retire(place, None, step),
            _ => {
                self.phase = Phase::Leaving;
                self.fail(Reason::Refused(failure), step);
            }
        }
    }

    /// Continues with the znodes that were created. `first`: the answers to the reads of the first
    /// directory, which were sent together with the create.
    fn have_created(&mut self, nodes: &[Node], first: Answers, step: &mut Step) {
        if nodes.len() != self.seats.len() {
            self.phase = Phase::Leaving;
            return self.fail(Reason::Refused(RequestFailure::Unknown), step);
        }
        if self.create_in_doubt {
            // The confirmed create is a barrier: no earlier create of ours can still arrive. So a
            // search now finds the znodes of all creates whose replies were lost.
            for (seat, node) in self.seats.iter_mut().zip(nodes) {
                seat.found = vec![*node];
            }
            return self.search(step);
        }
        let ending = nodes.iter().position(|node| self.is_near_the_end(*node));
        if !self.wanted || ending.is_some() {
            for (place, node) in nodes.iter().enumerate() {
                self.clean_up(place, *node, None, false, step);
            }
            return match ending.filter(|_| self.wanted) {
                Some(place) => {
                    let later = self.seats[place].early_answers.as_deref();
                    let read =
                        if place == 0 { first.directory } else { later.and_then(|read| read.directory) };
                    let directory = read.and_then(Result::ok).map(|directory| directory.czxid);
                    self.retire(place, directory, step);
                }
                None => self.leave(step),
            };
        }
        self.phase = Phase::Queued;
        self.waited = false;
        for (seat, node) in self.seats.iter_mut().zip(nodes) {
            seat.sit(*node, true);
        }
        self.looked_first(0, first, step);
        for place in 1..self.seats.len() {
            let read = self.seats[place].early_answers.take();
            if self.phase == Phase::Queued {
                self.looked_first(place, read.map_or_else(Answers::default, |read| *read), step);
            }
        }
    }

    // ---- directories ----

    pub(super) fn make_directories_or_leave(&mut self, step: &mut Step) {
        if !self.wanted {
            return self.leave(step);
        }
        if self.config.kind.reader().is_some() {
            // This is an upgrade, and the reader's znode was deleted with the directory.
            self.phase = Phase::Leaving;
            return self.fail(Reason::Broken, step);
        }
        self.phase = Phase::MakingDirectories;
        (self.unsure, self.refusal) = (false, None);
        self.send_to_all(Purpose::MakeDirectories, Part::Main, |_| Some(Request::MakeDirectory), step);
    }

    /// Handles the answer to the create of one directory.
    pub(super) fn made_directory(&mut self, outcome: Result<Reply, RequestFailure>) {
        match outcome {
            Ok(_) | Err(RequestFailure::NodeExists) => {}
            Err(RequestFailure::Unknown | RequestFailure::Throttled | RequestFailure::NoNode) => {
                self.unsure = true
            }
            Err(failure) => self.refusal = Some(failure),
        }
    }

    pub(super) fn made_directories(&mut self, step: &mut Step) {
        match self.refusal.take() {
            Some(failure) => self.fail(Reason::Refused(failure), step),
            None if self.unsure => self.pause(After::Join, step),
            None => self.join(step),
        }
    }

    // ---- pauses ----

    pub(super) fn pause(&mut self, after: After, step: &mut Step) {
        self.phase = Phase::Pausing(after);
        self.grow_stale();
        self.back_off(0, Purpose::Pause, step);
    }

    pub(super) fn paused(&mut self, step: &mut Step) {
        match self.phase {
            Phase::Pausing(After::Join) if self.wanted || self.create_in_doubt => self.join(step),
            Phase::Pausing(After::Join) => self.leave(step),
            Phase::Pausing(After::Search) => self.search(step),
            Phase::Pausing(After::Verify) => self.verify(step),
            _ => {}
        }
    }

    // ---- after a lost reply ----

    /// Sends a transaction that changes nothing. The leader answers it after all our earlier
    /// requests.
    fn pass_barrier(&mut self, step: &mut Step) {
        self.phase = Phase::Searching;
        self.send_one(0, Purpose::Barrier, Part::Main, Request::Barrier, step);
    }

    pub(super) fn passed_barrier(&mut self, outcome: &Result<Reply, RequestFailure>, step: &mut Step) {
        match outcome {
            Err(RequestFailure::Unknown | RequestFailure::Throttled) => {
                self.refusal = None;
                self.pause(After::Join, step);
            }
            _ => self.search(step),
        }
    }

    fn search(&mut self, step: &mut Step) {
        self.phase = Phase::Searching;
        self.unsure = false;
        self.send_to_all(Purpose::Search, Part::Main, |_| Some(Request::FindMine), step);
    }

    /// Handles the answer to the search in one directory.
    pub(super) fn found(&mut self, place: usize, outcome: Result<Reply, RequestFailure>) {
        let known = std::mem::take(&mut self.seats[place].found);
        let mut found = match outcome {
            Ok(Reply::Mine(nodes)) => nodes,
            Err(RequestFailure::NoNode) => Vec::new(),
            // The server refuses the search, so we know only the znodes of the create that was
            // confirmed. Our other znodes are deleted when the session ends
            // (docs/design/limits.md).
            Err(RequestFailure::Refused(_)) => known,
            _ => {
                self.unsure = true;
                known
            }
        };
        // A clean-up in a retired directory may already be deleting a znode that was found. Such a
        // znode is not kept.
        found.retain(|node| !self.is_cleaning_up(place, *node));
        found.sort_by_key(|node| node.czxid);
        found.dedup();
        self.seats[place].found = found;
    }

    /// Keeps the oldest complete set of znodes, and deletes the others. The znodes of one create
    /// are a set, which is complete if it has a znode in every directory. The set is kept even if
    /// the create that served as the barrier was refused.
    pub(super) fn searched(&mut self, step: &mut Step) {
        if self.unsure {
            return self.pause(After::Search, step);
        }
        let refusal = self.refusal.take();
        self.create_in_doubt = false;
        let is_complete = |czxid: &Zxid| {
            let has = |seat: &Seat| seat.found.iter().any(|node| node.czxid == *czxid);
            self.seats.iter().all(has)
        };
        let candidates = self.seats[0].found.iter().map(|node| node.czxid);
        let keep = candidates.filter(|_| self.wanted).find(is_complete);
        let mut ending = None;
        for place in 0..self.seats.len() {
            for node in std::mem::take(&mut self.seats[place].found) {
                if Some(node.czxid) == keep {
                    self.seats[place].sit(node, true);
                    ending = ending.or_else(|| self.is_near_the_end(node).then_some(place));
                } else {
                    self.clean_up(place, node, None, false, step);
                }
            }
        }
        match (keep, ending, refusal) {
            (Some(_), Some(ending), _) => {
                for place in 0..self.seats.len() {
                    if let Some(node) = self.seats[place].node.take() {
                        self.clean_up(place, node, None, false, step);
                    }
                }
                self.retire(ending, None, step);
            }
            (Some(_), None, _) => {
                self.phase = Phase::Queued;
                (0..self.seats.len()).for_each(|place| self.look(place, step));
            }
            (None, ..) if !self.wanted => self.leave(step),
            (None, _, Some(failure)) => self.refused_create(failure, step),
            (None, _, None) if self.seats.len() == 1 => self.join(step),
            // The create that served as the barrier may have failed because a directory is missing.
            (None, _, None) => self.make_directories_or_leave(step),
        }
    }
}
