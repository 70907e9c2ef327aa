//! Creating our znode, finding it again after a lost reply, and leaving a directory whose numbers run out.

use super::*;

/// The next step after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum After {
    Join,
    Search,
    Look(Node),
}

/// Number of polls of a retired directory before it is joined again.
pub(crate) const POLLS_BEFORE_JOINING_AGAIN: u8 = 20;
/// Pause between two polls of a retired directory, in milliseconds.
pub(crate) const RETIRE_POLL: u32 = 50;

impl Contender {
    pub(super) fn start(&mut self, context: &mut StepContext) {
        if self.phase == Phase::New {
            self.join(context);
        }
    }

    /// Sends create and read in one flight. A session's requests are answered in order, so the reads see the
    /// create.
    pub(super) fn join(&mut self, context: &mut StepContext) {
        self.phase = Phase::Joining;
        self.send(Purpose::Join, Request::Join, context);
        if !self.create_in_doubt {
            self.first_look(context);
        }
    }

    pub(super) fn joined(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        match outcome {
            Ok(Reply::Joined(node)) if self.create_in_doubt => {
                // The confirmed create is a barrier: no earlier create of ours can still arrive. Now the
                // search finds the znodes of all lost replies.
                self.found.push(node);
                self.search(context);
            }
            Ok(Reply::Joined(me)) => self.arrive(me, context),
            Ok(_) | Err(Failure::Unknown) => {
                self.void_pending();
                self.create_in_doubt = self.on(Rule::SearchAfterLostReply);
                let barrier = self.on(Rule::CreateBeforeSearch);
                self.pause(if barrier { After::Join } else { After::Search }, context);
            }
            Err(Failure::NoNode) => {
                // The leader's answer, after everything that we sent: there is no directory, so there is no
                // znode of ours.
                self.void_pending();
                self.create_in_doubt = false;
                self.make_directory_or_leave(context);
            }
            Err(Failure::Throttled) => {
                self.void_pending();
                self.pause(After::Join, context);
            }
            Err(failure) if self.create_in_doubt => {
                self.refusal = Some(failure);
                // The connected server alone may refuse a create (`enableEagerACLCheck`), so the refusal is no barrier.
                match failure {
                    Failure::Refused(_) if self.on(Rule::BarrierPassesLeader) => self.send_barrier(context),
                    _ => self.search(context),
                }
            }
            Err(Failure::NodeExists) if self.may_retire() => self.retire(context),
            Err(failure) => {
                self.phase = Phase::Leaving;
                self.void_pending();
                self.fail(Reason::Refused(failure), context);
            }
        }
    }

    fn arrive(&mut self, me: Node, context: &mut StepContext) {
        if !self.wanted {
            self.void_pending();
            self.phase = Phase::Leaving;
            self.depart(me, None, false, context);
        } else if self.near_the_end(me) {
            self.depart(me, None, false, context);
            self.retire(context);
        } else {
            self.phase = Phase::FirstLook { me, children: None };
        }
    }

    pub(super) fn near_the_end(&self, me: Node) -> bool {
        self.may_retire() && (me.sequence.0 < 0 || me.sequence >= self.config.retire_from)
    }

    fn may_retire(&self) -> bool {
        self.on(Rule::RetireNearTheEnd)
    }

    fn make_directory_or_leave(&mut self, context: &mut StepContext) {
        if matches!(self.config.kind, Kind::Upgrade { .. }) {
            // The reader's znode was deleted with it.
            self.phase = Phase::Leaving;
            self.fail(Reason::Broken, context);
        } else if self.wanted {
            self.phase = Phase::MakingDirectory;
            self.send(Purpose::MakeDirectory, Request::MakeDirectory, context);
        } else {
            self.phase = Phase::Leaving;
        }
    }

    pub(super) fn made_directory(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        match outcome {
            Ok(_) | Err(Failure::NodeExists) => self.join(context),
            Err(Failure::Unknown | Failure::Throttled | Failure::NoNode) => self.pause(After::Join, context),
            Err(failure) => self.fail(Reason::Refused(failure), context),
        }
    }

    pub(super) fn pause(&mut self, after: After, context: &mut StepContext) {
        let wait = self.backoff();
        self.phase = Phase::Pausing(after);
        self.send(Purpose::Pause, Request::Sleep(wait), context);
    }

    pub(super) fn paused(&mut self, context: &mut StepContext) {
        match self.phase {
            Phase::Pausing(After::Join) if self.wanted || self.create_in_doubt => self.join(context),
            Phase::Pausing(After::Join) => self.phase = Phase::Leaving,
            Phase::Pausing(After::Search) => self.search(context),
            Phase::Pausing(After::Look(me)) => self.look(me, context),
            _ => {}
        }
    }

    /// Sends a transaction without a change, which the leader answers after everything that we sent before.
    fn send_barrier(&mut self, context: &mut StepContext) {
        self.phase = Phase::Searching;
        self.send(Purpose::Barrier, Request::Barrier, context);
    }

    pub(super) fn passed_barrier(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        match outcome {
            Err(Failure::Unknown | Failure::Throttled) => {
                self.refusal = None;
                self.pause(After::Join, context);
            }
            _ => self.search(context),
        }
    }

    fn search(&mut self, context: &mut StepContext) {
        self.phase = Phase::Searching;
        self.send(Purpose::Search, Request::FindMine, context);
    }

    pub(super) fn searched(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let mut mine = match outcome {
            Ok(Reply::Mine(nodes)) => nodes,
            Err(Failure::NoNode) => Vec::new(),
            // The server does not let us search. We can act only on the znodes that we know; others are
            // deleted with the session (docs/design/limits.md).
            Err(Failure::Refused(_)) => self.found.clone(),
            _ => return self.pause(After::Search, context),
        };
        let refusal = self.refusal.take();
        self.create_in_doubt = false;
        self.found.clear();
        mine.sort_by_key(|node| node.czxid);
        mine.dedup();
        // A znode that is already being deleted, in a retired directory, is not kept.
        mine.retain(|node| !self.is_departing(*node));
        // A znode that was found is kept, even if the create that served as the barrier was refused.
        let keep = if self.wanted && !mine.is_empty() { Some(mine.remove(0)) } else { None };
        for node in mine {
            self.depart(node, None, false, context);
        }
        match (keep, refusal) {
            (Some(me), _) if self.near_the_end(me) => {
                self.depart(me, None, false, context);
                self.retire(context);
            }
            (Some(me), _) => self.look(me, context),
            (None, _) if !self.wanted => self.phase = Phase::Leaving,
            (None, Some(Failure::NodeExists)) if self.may_retire() => self.retire(context),
            (None, Some(failure)) => {
                self.phase = Phase::Leaving;
                self.fail(Reason::Refused(failure), context);
            }
            (None, None) => self.join(context),
        }
    }

    // ---- the end of the numbers ----

    /// Retires the directory. Past the end, its counter repeats and turns negative (tested on 3.8.0). So we
    /// wait until the directory is empty, delete it, and join the next one.
    fn retire(&mut self, context: &mut StepContext) {
        if !self.wanted {
            self.void_pending();
            self.phase = Phase::Leaving;
            return;
        }
        if matches!(self.config.kind, Kind::Upgrade { .. }) {
            // Our own reader keeps the directory from becoming empty.
            self.phase = Phase::Leaving;
            return self.fail(Reason::Exhausted, context);
        }
        self.phase = Phase::Retiring { directory: None, polls: 0 };
        // The read that was sent with the create tells which directory we leave.
        if self.pending.iter().all(|(_, purpose)| *purpose != Purpose::FirstDirectory) {
            self.retire_read(context);
        }
    }

    pub(super) fn retire_read(&mut self, context: &mut StepContext) {
        self.send(Purpose::RetireRead, Request::ReadDirectory, context);
    }

    /// Handles the read that was sent with a create whose number is near the end.
    pub(super) fn retire_first(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        if let (Phase::Retiring { directory, .. }, Ok(Reply::Directory(seen))) = (&mut self.phase, outcome) {
            *directory = Some(seen.czxid);
        }
        self.retire_read(context);
    }

    pub(super) fn retire_look(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Retiring { directory, polls } = self.phase else { return };
        match outcome {
            Ok(Reply::Directory(seen)) => {
                let retired = directory.unwrap_or(seen.czxid);
                if retired != seen.czxid {
                    return self.join(context);
                }
                if seen.children == 0 {
                    self.phase = Phase::Retiring { directory: Some(retired), polls };
                    return self.send(Purpose::RetireDelete, Request::DeleteDirectory, context);
                }
                if self.config.mode == Mode::Try {
                    return self.fail(Reason::Busy, context);
                }
                if polls >= POLLS_BEFORE_JOINING_AGAIN {
                    // If our first read was lost, this may not be the directory that we left.
                    return self.join(context);
                }
                self.phase = Phase::Retiring { directory: Some(retired), polls: polls + 1 };
                self.send(Purpose::RetirePause, Request::Sleep(RETIRE_POLL), context);
            }
            Err(Failure::NoNode) => self.join(context),
            Err(failure @ Failure::Refused(_)) => self.fail(Reason::Refused(failure), context),
            _ => self.retire_again(context),
        }
    }

    pub(super) fn retire_deleted(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        match outcome {
            Ok(_) | Err(Failure::NoNode) => self.join(context),
            Err(failure @ Failure::Refused(_)) => self.fail(Reason::Refused(failure), context),
            Err(_) => self.retire_again(context),
        }
    }

    fn retire_again(&mut self, context: &mut StepContext) {
        let wait = self.backoff();
        self.send(Purpose::RetirePause, Request::Sleep(wait), context);
    }
}
