//! Looking and waiting.

use super::permits::Agreement;
use super::*;
use crate::layout::Layout;
use crate::names::{Name, Role};
use crate::queue::{Decision, decide};

/// From this many children on, those who have to list wait a moment first, each another one.
const SPREAD_FROM: u32 = 64;
/// The longest such moment, in milliseconds.
const SPREAD_MAX: u32 = 500;

impl Contender {
    /// What goes out together with the create: one flight, and we know.
    pub(super) fn first_look(&mut self, turn: &mut Turn) {
        // The name of the one before a mutex of ours can be computed; all others have to list.
        if !self.config.prefix().is_computable() {
            self.send(Purpose::FirstChildren, Request::List, turn);
        }
        self.send(Purpose::FirstDirectory, Request::ReadDirectory, turn);
    }

    pub(super) fn first_children(&mut self, outcome: Result<Reply, Failure>) {
        if let (Phase::FirstLook { children, .. }, Ok(Reply::Children { names, pzxid })) =
            (&mut self.phase, outcome)
        {
            *children = Some(Children { names, pzxid });
        }
    }

    pub(super) fn first_directory(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let (me, children) = match &mut self.phase {
            Phase::FirstLook { me, children } => (*me, children.take()),
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
        if let Some(reason) = self.is_of_other_kind(&directory) {
            return self.fail(reason, turn);
        }
        if let Some(children) = children {
            // The names are unique within one incarnation of the directory. If it was made before our node, then it
            // was this one all the time, and our name in the list was our node. Where the record says how many fit, our
            // node must still have been there when it did.
            let of_that_moment = children.pzxid == directory.pzxid || !self.on(Rule::SizeOfThatMoment);
            let fits = self.config.kind.size().is_none() || of_that_moment;
            return match directory.czxid < me.czxid && fits {
                true => self.judge(me, Some(directory), &children, None, turn),
                false => self.look(me, turn),
            };
        }
        if !me.prefix.is_computable() {
            return self.look(me, turn);
        }
        // Nothing but our own create has happened to the children, and there is one: nobody else is there.
        let untouched = directory.pzxid == me.czxid || !self.on(Rule::AloneByPzxid);
        if directory.children == 1 && untouched {
            return self.first(me, Some(directory), &[], turn);
        }
        match me.sequence.before() {
            Some(before) if self.config.mode == Mode::Wait => {
                self.line_up(me, before, directory, turn);
            }
            _ => self.look(me, turn),
        }
    }

    /// What the record alone says against us.
    fn is_of_other_kind(&self, directory: &Directory) -> Option<Reason> {
        let permits = self.config.kind.is_permits();
        match directory.record {
            Record::Semaphore(size) if size.is_of(directory.czxid) && !permits => Some(Reason::OtherKind),
            // Said by the record alone, so that it need not be listed.
            record => Layout::proven_by::<&str>(&[], record).map(Reason::OtherLayout),
        }
    }

    /// One flight: the directory, then our own node, so that the node is known to have been there when the marker was.
    pub(super) fn look(&mut self, me: Node, turn: &mut Turn) {
        if matches!(self.config.kind, Kind::Permits { .. } | Kind::Upgrade { .. }) {
            // Nobody's marker hands over to them.
            return self.list(me, false, turn);
        }
        self.phase = Phase::Looking { me, directory: None };
        self.send(Purpose::LookDirectory, Request::ReadDirectory, turn);
        if self.on(Rule::OwnNodeAfterDirectory) {
            self.send(Purpose::LookOwn, Request::Exists(me), turn);
        }
    }

    pub(super) fn looked_at_directory(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Looking { me, directory } = &mut self.phase else { return };
        let me = *me;
        match outcome {
            Ok(Reply::Directory(seen)) => {
                *directory = Some(seen);
                if let Some(reason) = self.is_of_other_kind(&seen) {
                    return self.fail(reason, turn);
                }
            }
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
        match self.still_mine(me, &outcome) {
            Some(true) => self.weigh(turn),
            Some(false) => self.vanished(turn),
            None => self.pause(After::Look(me), turn),
        }
    }

    /// Does the record prove that we are first?
    fn weigh(&mut self, turn: &mut Turn) {
        let Phase::Looking { me, directory } = self.phase else { return };
        match directory {
            Some(directory) if self.hands_to(&directory, me) => self.first(me, Some(directory), &[], turn),
            Some(Directory { children, .. }) if children >= SPREAD_FROM && self.config.mode == Mode::Wait => {
                self.phase = Phase::Spreading { me };
                let range = (children / 4).min(SPREAD_MAX);
                let moment = (me.sequence.0 as u32).wrapping_mul(0x9e37_79b9) % range;
                self.send(Purpose::Spread, Request::Sleep(moment), turn);
            }
            _ => self.list(me, false, turn),
        }
    }

    pub(super) fn spread(&mut self, turn: &mut Turn) {
        if let Phase::Spreading { me } = self.phase {
            self.list(me, false, turn);
        }
    }

    /// One flight: the children, then the record, then our own node. What the record says of those before us is so
    /// after they were seen to be gone; and our node was there when the others were.
    pub(super) fn list(&mut self, me: Node, watching: bool, turn: &mut Turn) {
        let watch = watching.then(|| self.new_watch());
        self.phase = Phase::Listing { me, children: None, directory: None, watch };
        if !self.on(Rule::CrashedAfterDeletion) {
            self.send(Purpose::ListDirectory, Request::ReadDirectory, turn);
        }
        match watch {
            Some(watch) => self.send(Purpose::ListWatched(watch), Request::WatchChildren(watch), turn),
            None => self.send(Purpose::ListChildren, Request::List, turn),
        }
        if self.on(Rule::CrashedAfterDeletion) {
            self.send(Purpose::ListDirectory, Request::ReadDirectory, turn);
        }
        if self.on(Rule::OwnNodeAfterDirectory) {
            self.send(Purpose::ListOwn, Request::Exists(me), turn);
        }
    }

    pub(super) fn listed(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Listing { me, children, watch, .. } = &mut self.phase else { return };
        let me = *me;
        match outcome {
            Ok(Reply::Children { names, pzxid }) => *children = Some(Children { names, pzxid }),
            // Our own node will be missing too.
            Err(Failure::NoNode) => {
                *watch = None;
                *children = Some(Children { names: Vec::new(), pzxid: Zxid(0) });
            }
            Err(failure @ Failure::Refused(_)) => {
                *watch = None;
                return self.fail(Reason::Refused(failure), turn);
            }
            _ => return self.look_again(me, turn),
        }
        if !self.on(Rule::OwnNodeAfterDirectory) && !self.on(Rule::CrashedAfterDeletion) {
            self.decide(turn);
        }
    }

    pub(super) fn listed_directory(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Listing { me, directory, .. } = &mut self.phase else { return };
        match outcome {
            Ok(Reply::Directory(seen)) => *directory = Some(seen),
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => {
                let me = *me;
                return self.look_again(me, turn);
            }
            // No directory: our own node will be missing too. Not readable: the listing has to do.
            Err(_) => {}
        }
        if !self.on(Rule::OwnNodeAfterDirectory) && self.on(Rule::CrashedAfterDeletion) {
            self.decide(turn);
        }
    }

    /// An answer of the flight was lost; what else it brings counts for nothing.
    fn look_again(&mut self, me: Node, turn: &mut Turn) {
        self.void_pending();
        if let Phase::Listing { children: Some(_), watch: Some(watch), .. } = self.phase {
            turn.actions.push(Action::Unwatch(watch));
        }
        self.pause(After::Look(me), turn);
    }

    pub(super) fn listed_own(&mut self, outcome: Result<Reply, Failure>, turn: &mut Turn) {
        let Phase::Listing { me, .. } = self.phase else { return };
        match self.still_mine(me, &outcome) {
            Some(true) => self.decide(turn),
            Some(false) => self.vanished(turn),
            None => self.look_again(me, turn),
        }
    }

    fn decide(&mut self, turn: &mut Turn) {
        let Phase::Listing { me, children, directory, watch } = &mut self.phase else { return };
        let Some(children) = children.take() else { return };
        let (me, directory, watch) = (*me, *directory, *watch);
        self.judge(me, directory, &children, watch, turn);
    }

    /// What the names say. `watch`: on the children, in force from the moment at which they were listed.
    fn judge(
        &mut self,
        me: Node,
        directory: Option<Directory>,
        children: &Children,
        watch: Option<WatchId>,
        turn: &mut Turn,
    ) {
        if let (Kind::Upgrade { from }, Some(directory)) = (self.config.kind, directory)
            && directory.czxid > from.czxid
        {
            // Made again since the reader came: what has its name is another's.
            return self.reader_vanished(me, turn);
        }
        let decide = |size| {
            let asker = self.config.kind.asker(size);
            match decide(&children.names, me.prefix, me.sequence, asker, self.config.names) {
                Decision::WaitFor(before) if self.permits.granted_before.as_ref() == Some(&before) => {
                    Decision::Next
                }
                // It was resized: the one before us may hold, and never have waited, and so never say that it holds.
                Decision::WaitFor(_)
                    if self.config.kind.is_permits() && directory.is_some_and(|d| d.version > 1) =>
                {
                    Decision::Next
                }
                decision => decision,
            }
        };
        let record = directory.map_or(Record::Empty, |directory| directory.record);
        let agreement = match Layout::proven_by(&children.names, record) {
            Some(layout) => Agreement::Refused(Reason::OtherLayout(layout)),
            None => self.agreement(directory),
        };
        let decision = match agreement {
            Agreement::Size(size) => Ok(decide(size)),
            // The directory must not become a semaphore under somebody who holds it as something else.
            Agreement::Missing(size) if decide(size) == Decision::OtherKind => Ok(Decision::OtherKind),
            Agreement::Missing(_) => Err(None),
            Agreement::Refused(reason) => Err(Some(reason)),
        };
        if let Ok(Decision::Held | Decision::Next | Decision::WaitFor(_)) = decision {
            self.permits.agreed = true;
        }
        if let Some(watch) = watch
            && (decision != Ok(Decision::Next) || self.config.mode == Mode::Try)
        {
            turn.actions.push(Action::Unwatch(watch));
            self.forget_list_watch();
        }
        // Whoever listed since our create may have seen us wait.
        self.permits.seen_waiting |= children.pzxid != me.czxid;
        match decision {
            Err(None) => self.agree(me, directory, turn),
            Err(Some(reason)) => self.fail(reason, turn),
            Ok(Decision::Held) => self.first(me, directory, &children.names, turn),
            Ok(Decision::WaitFor(_) | Decision::Next) if self.config.mode == Mode::Try => {
                self.fail(Reason::Busy, turn);
            }
            Ok(Decision::WaitFor(before)) => self.watch(me, before, turn),
            Ok(Decision::Next) => match watch {
                Some(watch) => self.phase = Phase::Waiting { me, before: None, watch },
                None => self.list(me, true, turn),
            },
            Ok(Decision::Gone) if matches!(self.config.kind, Kind::Upgrade { .. }) => {
                self.reader_vanished(me, turn);
            }
            Ok(Decision::Gone) => self.vanished(turn),
            Ok(Decision::Outranked) => self.fail(Reason::Outranked, turn),
            Ok(Decision::OtherKind) => self.fail(Reason::OtherKind, turn),
            Ok(Decision::Clash(clash)) => self.fail(Reason::Clash(clash), turn),
        }
    }

    fn forget_list_watch(&mut self) {
        if let Phase::Listing { watch, .. } = &mut self.phase {
            *watch = None;
        }
    }

    pub(super) fn watch(&mut self, me: Node, before: String, turn: &mut Turn) {
        self.behind =
            Name::parse(&before).filter(|name| name.role == Role::Exclusive).map(|name| name.sequence);
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
        let (me, before) = (*me, before.clone());
        match outcome {
            Ok(Reply::Node { says: Says { granted: true, .. }, .. }) if self.config.kind.is_permits() => {
                turn.actions.push(Action::Unwatch(watch));
                self.permits.granted_before = Some(before);
                self.list(me, false, turn);
            }
            Ok(reply) => {
                self.phase = Phase::Waiting { me, before: Some(before), watch };
                // Either a writer that has become a reader, or the directory was made again and ours is gone. If that
                // one waits for us elsewhere, as a multi-lock may, nobody would ever move.
                let younger = matches!(reply, Reply::Node { czxid, .. } if czxid > me.czxid);
                if !younger {
                    self.armed_before(reply, turn);
                } else {
                    self.disarm(turn);
                    if self.on(Rule::WaitForOlder) {
                        self.send(Purpose::WaitOwn, Request::Exists(me), turn);
                    }
                }
            }
            Err(Failure::NoNode) if self.on(Rule::LookWhenGone) => {
                self.before_is_gone(me, &before, false, turn)
            }
            Err(Failure::NoNode) => self.phase = Phase::Waiting { me, before: Some(before), watch },
            Err(failure @ Failure::Refused(_)) => self.fail(Reason::Refused(failure), turn),
            Err(_) => {
                self.disarm(turn);
                self.pause(After::Look(me), turn);
            }
        }
    }

    /// The watch was set before this look: if our node was there, the directory is ours, and all that is in it.
    pub(super) fn waited_on(&mut self, outcome: &Result<Reply, Failure>, turn: &mut Turn) {
        let Some(me) = self.node() else { return };
        let mine = self.still_mine(me, outcome);
        if let (Phase::Waiting { watch, .. }, None | Some(false)) = (&self.phase, mine) {
            turn.actions.push(Action::Unwatch(*watch));
        }
        match (&self.phase, mine) {
            // However far we have come meanwhile: what has its name now is not ours to delete.
            (_, Some(false)) => self.vanished(turn),
            (Phase::Waiting { .. }, None) => {
                self.disarm(turn);
                self.pause(After::Look(me), turn);
            }
            _ => {}
        }
    }

    pub(super) fn fired(&mut self, fired: WatchId, deleted: bool, turn: &mut Turn) {
        if self.fired_ahead(fired, deleted, turn) {
            return;
        }
        match &mut self.phase {
            Phase::Waiting { me, before, watch } if *watch == fired => {
                let me = *me;
                match before.take() {
                    None => self.list(me, true, turn),
                    Some(_) if deleted && !self.on(Rule::LookAfterWait) => self.first(me, None, &[], turn),
                    Some(before) if deleted => self.before_is_gone(me, &before, true, turn),
                    Some(before) => {
                        self.disarm(turn);
                        self.watch(me, before, turn);
                    }
                }
            }
            // It is used up before we could wait for it.
            Phase::Listing { watch, .. } if *watch == Some(fired) => *watch = None,
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

    fn before_is_gone(&mut self, me: Node, before: &str, since: bool, turn: &mut Turn) {
        if !self.granted_ahead(me, since, turn) && !self.came_near(me, before, turn) {
            self.look(me, turn);
        }
    }

    /// A watch that was set before a reconnect may have missed what it was for: look again.
    pub(super) fn reconnected(&mut self, turn: &mut Turn) {
        self.offline = false;
        self.interrupted(turn);
        match &self.phase {
            Phase::Waiting { .. } if !self.on(Rule::LookAfterReconnect) => {}
            Phase::Waiting { me, before, watch } => {
                let (me, before, old) = (*me, before.clone(), *watch);
                match before {
                    Some(before) => self.watch(me, before, turn),
                    None => self.list(me, true, turn),
                }
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

    /// Somebody deleted our place in the queue.
    pub(super) fn vanished(&mut self, turn: &mut Turn) {
        self.void_pending();
        self.phase = Phase::Leaving;
        self.fail(Reason::Broken, turn);
    }

    /// Somebody deleted the reader's node, or ours. Where the reader's is gone ours is left, and keeps everybody out.
    fn reader_vanished(&mut self, me: Node, turn: &mut Turn) {
        let undo = self.undo.take();
        self.vanished(turn);
        match undo {
            Some(undo) => self.depart_undone(me, undo, turn),
            None => self.depart_if_there(me, turn),
        }
    }

    /// What a look at our own node says; `None` if it says nothing.
    pub(super) fn still_mine(&self, me: Node, outcome: &Result<Reply, Failure>) -> Option<bool> {
        match outcome {
            Ok(Reply::Node { czxid, owner, .. }) => Some(self.is_mine(me, *czxid, *owner)),
            Err(Failure::NoNode) => Some(false),
            _ => None,
        }
    }
}
