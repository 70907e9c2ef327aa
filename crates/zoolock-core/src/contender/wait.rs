//! Looking, waiting, being granted.

use super::*;
use crate::names::native_name;
use crate::queue::{Decision, decide};

/// From this many children on, those who have to list wait a moment first, each another one.
const SPREAD_FROM: u32 = 64;
/// The longest such moment, in milliseconds.
const SPREAD_MAX: u32 = 500;

impl Contender {
    /// The reading that went out together with the create: one flight, and we know.
    pub(super) fn first_directory(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let me = match self.phase {
            Phase::FirstLook { me } => me,
            Phase::Retiring { .. } => return self.retire_first(outcome, turn),
            _ => return,
        };
        let directory = match outcome {
            Ok(Reply::Directory(directory)) => directory,
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => return self.pause(After::Look(me), turn),
            Err(_) => return self.look(me, turn),
        };
        if !self.on(Rule::MarkerByHolderOnly) {
            self.seen = Some(directory);
        }
        if directory.record == Record::OtherKind {
            return self.fail(Reason::OtherKind, turn);
        }
        // Nothing but our own create has happened to the children, and there is one: nobody else is there.
        let untouched = directory.pzxid == me.czxid || !self.on(Rule::AloneByPzxid);
        if directory.children == 1 && untouched {
            return self.grant(me, Some(directory), turn);
        }
        match me.sequence.before() {
            Some(before) if self.config.mode == Mode::Wait => self.watch(me, native_name(before), turn),
            _ => self.look(me, turn),
        }
    }

    /// One flight: the directory, then our own node, so that the node is known to have been there when the marker was.
    pub(super) fn look(&mut self, me: Node, turn: &mut Turn) {
        self.phase = Phase::Looking { me, directory: None };
        self.send(Purpose::LookDirectory, Request::ReadDirectory, turn);
        if self.on(Rule::OwnNodeAfterDirectory) {
            self.send(Purpose::LookOwn, Request::Exists(me.sequence), turn);
        }
    }

    pub(super) fn looked_at_directory(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Looking { me, directory } = &mut self.phase else { return };
        let me = *me;
        match outcome {
            Ok(Reply::Directory(seen)) if seen.record == Record::OtherKind => {
                return self.fail(Reason::OtherKind, turn);
            }
            Ok(Reply::Directory(seen)) => *directory = Some(seen),
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => {
                self.void_pending();
                return self.pause(After::Look(me), turn);
            }
            // No directory: our own node will be missing too. Not readable: the listing has to do.
            Err(_) => {}
        }
        if !self.on(Rule::OwnNodeAfterDirectory) {
            self.weigh(turn);
        }
    }

    pub(super) fn looked_at_own(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Looking { me, .. } = self.phase else { return };
        match self.still_mine(me, outcome) {
            Some(true) => self.weigh(turn),
            Some(false) => self.vanished(turn),
            None => self.pause(After::Look(me), turn),
        }
    }

    /// Does the record prove that we are first?
    fn weigh(&mut self, turn: &mut Turn) {
        let Phase::Looking { me, directory } = self.phase else { return };
        match directory {
            Some(directory) if self.hands_to(&directory, me) => self.grant(me, Some(directory), turn),
            Some(Directory { children, .. }) if children >= SPREAD_FROM && self.config.mode == Mode::Wait => {
                self.phase = Phase::Spreading { me, directory };
                let range = (children / 4).min(SPREAD_MAX);
                let moment = (me.sequence.0 as u32).wrapping_mul(0x9e37_79b9) % range;
                self.send(Purpose::Spread, Request::Sleep(moment), turn);
            }
            _ => self.list(me, directory, turn),
        }
    }

    /// Whether the marker in this directory was left by the holder right before `me`.
    fn hands_to(&self, directory: &Directory, me: Node) -> bool {
        match directory.record {
            Record::Marker(marker) => {
                let here = marker.directory == directory.czxid || !self.on(Rule::MarkerOfThisDirectory);
                here && me.sequence.before() == Some(marker.sequence)
            }
            _ => false,
        }
    }

    pub(super) fn spread(&mut self, turn: &mut Turn) {
        if let Phase::Spreading { me, directory } = self.phase {
            self.list(me, directory, turn);
        }
    }

    fn list(&mut self, me: Node, directory: Option<Directory>, turn: &mut Turn) {
        self.phase = Phase::Listing { me, directory, children: None };
        self.send(Purpose::ListChildren, Request::List, turn);
        if self.on(Rule::OwnNodeAfterDirectory) {
            self.send(Purpose::ListOwn, Request::Exists(me.sequence), turn);
        }
    }

    pub(super) fn listed(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Listing { me, children, .. } = &mut self.phase else { return };
        let me = *me;
        match outcome {
            Ok(Reply::Children(names)) => *children = Some(names),
            // Our own node will be missing too.
            Err(Failure::NoNode) => *children = Some(Vec::new()),
            Err(failure @ Failure::Refused(_)) => return self.fail(Reason::Refused(failure), turn),
            _ => {
                self.void_pending();
                return self.pause(After::Look(me), turn);
            }
        }
        if !self.on(Rule::OwnNodeAfterDirectory) {
            self.decide(turn);
        }
    }

    pub(super) fn listed_own(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Listing { me, .. } = self.phase else { return };
        match self.still_mine(me, outcome) {
            Some(true) => self.decide(turn),
            Some(false) => self.vanished(turn),
            None => self.pause(After::Look(me), turn),
        }
    }

    fn decide(&mut self, turn: &mut Turn) {
        let Phase::Listing { me, directory, children: Some(children) } = &self.phase else { return };
        let (me, directory) = (*me, *directory);
        match decide(children, me.sequence) {
            Decision::Held => self.grant(me, directory, turn),
            Decision::WaitFor(_) if self.config.mode == Mode::Try => self.fail(Reason::Busy, turn),
            Decision::WaitFor(before) => self.watch(me, before, turn),
            Decision::Gone => self.vanished(turn),
            Decision::OtherKind => self.fail(Reason::OtherKind, turn),
        }
    }

    fn watch(&mut self, me: Node, before: String, turn: &mut Turn) {
        let watch = self.new_watch();
        self.phase = Phase::Watching { me, before: before.clone() };
        self.send(Purpose::WatchBefore(watch), Request::Watch { name: before, watch }, turn);
    }

    pub(super) fn watched_before(
        &mut self,
        watch: WatchId,
        outcome: Result<Reply, Failure>,
        turn: &mut Turn,
    ) {
        let Phase::Watching { me, before } = &self.phase else { return };
        let me = *me;
        match outcome {
            Ok(_) => self.phase = Phase::Waiting { me, before: before.clone(), watch },
            Err(Failure::NoNode) => self.look(me, turn),
            Err(failure @ Failure::Refused(_)) => self.fail(Reason::Refused(failure), turn),
            Err(_) => self.pause(After::Look(me), turn),
        }
    }

    pub(super) fn fired(&mut self, fired: WatchId, deleted: bool, turn: &mut Turn) {
        match &self.phase {
            Phase::Waiting { me, before, watch } if *watch == fired => {
                let me = *me;
                if deleted { self.look(me, turn) } else { self.watch(me, before.clone(), turn) }
            }
            Phase::Held { watch: Some(watch), .. } if *watch == fired => {
                if deleted {
                    self.broken(turn)
                } else {
                    self.watch_own(turn)
                }
            }
            _ => {}
        }
    }

    /// A watch that was set before a reconnect may have missed what it was for: look again.
    pub(super) fn reconnected(&mut self, turn: &mut Turn) {
        self.offline = false;
        match &self.phase {
            Phase::Waiting { me, before, watch } => {
                let (me, before, old) = (*me, before.clone(), *watch);
                self.watch(me, before, turn);
                turn.actions.push(Action::Unwatch(old));
            }
            // Its answer may be from before.
            Phase::Watching { me, before } => {
                let (me, before) = (*me, before.clone());
                self.void_pending();
                self.watch(me, before, turn);
            }
            Phase::Held { watch: Some(old), .. } => {
                let old = *old;
                self.watch_own(turn);
                turn.actions.push(Action::Unwatch(old));
            }
            _ => {}
        }
    }

    pub(super) fn lease_renewed(&mut self, turn: &mut Turn) {
        if let Phase::AwaitingLease { me } = self.phase {
            self.look(me, turn);
        }
    }

    fn grant(&mut self, me: Node, directory: Option<Directory>, turn: &mut Turn) {
        if !turn.lease_valid {
            self.phase = Phase::AwaitingLease { me };
            return;
        }
        let previous = match directory {
            Some(directory) if self.left_cleanly(&directory, me) => Previous::Clean,
            _ => Previous::Unknown,
        };
        self.phase = Phase::Held { me, directory, watch: None };
        turn.actions.push(Action::Granted(Grant { node: me, previous }));
        self.watch_own(turn);
    }

    fn left_cleanly(&self, directory: &Directory, me: Node) -> bool {
        self.hands_to(directory, me)
            && matches!(directory.record, Record::Marker(Marker { left: Left::Released, .. }))
    }

    /// Somebody deleted our place in the queue.
    fn vanished(&mut self, turn: &mut Turn) {
        self.void_pending();
        self.phase = Phase::Leaving;
        self.fail(Reason::Broken, turn);
    }

    /// What a look at our own node says; `None` if it says nothing.
    pub(super) fn still_mine(&self, me: Node, outcome: Result<Reply, Failure>) -> Option<bool> {
        match outcome {
            Ok(Reply::Node { czxid, owner }) => Some(self.is_mine(me, czxid, owner)),
            Err(Failure::NoNode) => Some(false),
            _ => None,
        }
    }
}
