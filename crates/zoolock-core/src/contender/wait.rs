//! Reading the queue, and waiting.

use super::permits::SizeCheck;
use super::*;
use crate::layout::Layout;
use crate::names::{Name, Role};
use crate::queue::{Decision, decide};

/// Number of children from which a waiter pauses before it lists. The pauses differ between waiters.
const SPREAD_FROM: u32 = 64;
/// Maximum pause, in milliseconds.
const SPREAD_MAX: u32 = 500;

impl Contender {
    /// Sends the reads that go out with the create, in one flight.
    pub(super) fn first_look(&mut self, context: &mut StepContext) {
        // The predecessor's name can be computed for a native mutex. All other contenders list.
        if !self.config.prefix().is_computable() {
            self.send(Purpose::FirstChildren, Request::List, context);
        }
        self.send(Purpose::FirstDirectory, Request::ReadDirectory, context);
    }

    pub(super) fn first_children(&mut self, outcome: Result<Reply, Failure>) {
        if let (Phase::FirstLook { children, .. }, Ok(Reply::Children { names, pzxid })) =
            (&mut self.phase, outcome)
        {
            *children = Some(Children { names, pzxid });
        }
    }

    pub(super) fn first_directory(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let (me, children) = match &mut self.phase {
            Phase::FirstLook { me, children } => (*me, children.take()),
            Phase::Retiring { .. } => return self.retire_first(outcome, context),
            _ => return,
        };
        let directory = match outcome {
            Ok(Reply::Directory(directory)) => directory,
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => {
                return self.pause(After::Look(me), context);
            }
            Err(_) => return self.look(me, context),
        };
        if !self.on(Rule::MarkerByHolderOnly) {
            self.last_directory = Some(directory);
        }
        if let Some(reason) = self.refusal_by_record(&directory) {
            return self.fail(reason, context);
        }
        if let Some(children) = children {
            // The names are unique within one incarnation of the directory. A directory that is older than
            // our znode was the same in all reads, and our name in the list was our znode. For a semaphore,
            // our znode must also have existed when the record had that size.
            let of_that_moment = children.pzxid == directory.pzxid || !self.on(Rule::SizeOfThatMoment);
            let fits = self.config.kind.size().is_none() || of_that_moment;
            return match directory.czxid < me.czxid && fits {
                true => self.apply_listing(me, Some(directory), &children, None, context),
                false => self.look(me, context),
            };
        }
        if !me.prefix.is_computable() {
            return self.look(me, context);
        }
        // The last change of the children is our own create, and there is one child: there are no others.
        let untouched = directory.pzxid == me.czxid || !self.on(Rule::AloneByPzxid);
        if directory.children == 1 && untouched {
            return self.reached_head(me, Some(directory), &[], context);
        }
        match me.sequence.before() {
            Some(before) if self.config.mode == Mode::Wait => {
                self.wait_for_predecessor(me, before, directory, context);
            }
            _ => self.look(me, context),
        }
    }

    /// Returns the reason to fail that the record alone gives.
    fn refusal_by_record(&self, directory: &Directory) -> Option<Reason> {
        let permits = self.config.kind.is_permits();
        match directory.record {
            Record::Semaphore(size) if size.is_of(directory.czxid) && !permits => Some(Reason::OtherKind),
            // The record alone tells this, without a listing.
            record => Layout::proven_by::<&str>(&[], record).map(Reason::OtherLayout),
        }
    }

    /// Reads the directory, then our own znode, in one flight, which proves that the znode existed when the
    /// marker did.
    pub(super) fn look(&mut self, me: Node, context: &mut StepContext) {
        if matches!(self.config.kind, Kind::Permits { .. } | Kind::Upgrade { .. }) {
            // No marker grants the lock to these kinds.
            return self.list(me, false, context);
        }
        self.phase = Phase::Looking { me, directory: None };
        self.send(Purpose::LookDirectory, Request::ReadDirectory, context);
        if self.on(Rule::OwnNodeAfterDirectory) {
            self.send(Purpose::LookOwn, Request::Exists(me), context);
        }
    }

    pub(super) fn looked_at_directory(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Looking { me, directory } = &mut self.phase else { return };
        let me = *me;
        match outcome {
            Ok(Reply::Directory(seen)) => {
                *directory = Some(seen);
                if let Some(reason) = self.refusal_by_record(&seen) {
                    return self.fail(reason, context);
                }
            }
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => {
                self.void_pending();
                return self.pause(After::Look(me), context);
            }
            // Without a directory our own znode is missing, too. If it may not be read, the listing is
            // enough.
            Err(_) => {}
        }
        if !self.on(Rule::OwnNodeAfterDirectory) {
            self.check_marker(context);
        }
    }

    pub(super) fn looked_at_own(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Looking { me, .. } = self.phase else { return };
        match self.still_mine(me, &outcome) {
            Some(true) => {
                self.unread = false;
                self.check_marker(context);
            }
            Some(false) => self.fail_broken(context),
            None => self.pause(After::Look(me), context),
        }
    }

    /// Grants the lock if the record proves that we are the head of the queue. Otherwise lists the queue.
    fn check_marker(&mut self, context: &mut StepContext) {
        let Phase::Looking { me, directory } = self.phase else { return };
        match directory {
            Some(directory) if self.is_released_to(&directory, me) => {
                self.reached_head(me, Some(directory), &[], context)
            }
            Some(Directory { children, .. }) if children >= SPREAD_FROM && self.config.mode == Mode::Wait => {
                self.phase = Phase::Spreading { me };
                let range = (children / 4).min(SPREAD_MAX);
                let moment = (me.sequence.0 as u32).wrapping_mul(0x9e37_79b9) % range;
                self.send(Purpose::Spread, Request::Sleep(moment), context);
            }
            _ => self.list(me, false, context),
        }
    }

    pub(super) fn spread(&mut self, context: &mut StepContext) {
        if let Phase::Spreading { me } = self.phase {
            self.list(me, false, context);
        }
    }

    /// Lists the children, then reads the record, then our own znode, in one flight. The record is newer than
    /// the listing, so it describes all predecessors that are missing in it. Our own znode existed when the
    /// others did.
    pub(super) fn list(&mut self, me: Node, watching: bool, context: &mut StepContext) {
        let watch = watching.then(|| self.new_watch());
        self.phase = Phase::Listing { me, children: None, directory: None, watch };
        if !self.on(Rule::CrashedAfterDeletion) {
            self.send(Purpose::ListDirectory, Request::ReadDirectory, context);
        }
        match watch {
            Some(watch) => self.send(Purpose::ListWatched(watch), Request::WatchChildren(watch), context),
            None => self.send(Purpose::ListChildren, Request::List, context),
        }
        if self.on(Rule::CrashedAfterDeletion) {
            self.send(Purpose::ListDirectory, Request::ReadDirectory, context);
        }
        if self.on(Rule::OwnNodeAfterDirectory) {
            self.send(Purpose::ListOwn, Request::Exists(me), context);
        }
    }

    pub(super) fn listed(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Listing { me, children, watch, .. } = &mut self.phase else { return };
        let me = *me;
        match outcome {
            Ok(Reply::Children { names, pzxid }) => *children = Some(Children { names, pzxid }),
            // Our own znode is missing, too.
            Err(Failure::NoNode) => {
                *watch = None;
                *children = Some(Children { names: Vec::new(), pzxid: Zxid(0) });
            }
            Err(failure @ Failure::Refused(_)) => {
                *watch = None;
                return self.fail(Reason::Refused(failure), context);
            }
            _ => return self.look_again(me, context),
        }
        if !self.on(Rule::OwnNodeAfterDirectory) && !self.on(Rule::CrashedAfterDeletion) {
            self.decide(context);
        }
    }

    pub(super) fn listed_directory(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Listing { me, directory, .. } = &mut self.phase else { return };
        match outcome {
            Ok(Reply::Directory(seen)) => *directory = Some(seen),
            Ok(_) | Err(Failure::Unknown | Failure::Throttled) => {
                let me = *me;
                return self.look_again(me, context);
            }
            // Without a directory our own znode is missing, too. If it may not be read, the listing is
            // enough.
            Err(_) => {}
        }
        if !self.on(Rule::OwnNodeAfterDirectory) && self.on(Rule::CrashedAfterDeletion) {
            self.decide(context);
        }
    }

    /// Handles a lost answer of the flight. The other answers of it are ignored.
    fn look_again(&mut self, me: Node, context: &mut StepContext) {
        self.void_pending();
        if let Phase::Listing { children: Some(_), watch: Some(watch), .. } = self.phase {
            context.actions.push(Action::Unwatch(watch));
        }
        self.pause(After::Look(me), context);
    }

    pub(super) fn listed_own(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::Listing { me, .. } = self.phase else { return };
        match self.still_mine(me, &outcome) {
            Some(true) => {
                self.unread = false;
                self.decide(context);
            }
            Some(false) => self.fail_broken(context),
            None => self.look_again(me, context),
        }
    }

    fn decide(&mut self, context: &mut StepContext) {
        let Phase::Listing { me, children, directory, watch } = &mut self.phase else { return };
        let Some(children) = children.take() else { return };
        let (me, directory, watch) = (*me, *directory, *watch);
        self.apply_listing(me, directory, &children, watch, context);
    }

    /// Decides by the names of the children. `watch`: a watch on the children, set by the same request that
    /// listed them.
    fn apply_listing(
        &mut self,
        me: Node,
        directory: Option<Directory>,
        children: &Children,
        watch: Option<WatchId>,
        context: &mut StepContext,
    ) {
        if let (Kind::Upgrade { from }, Some(directory)) = (self.config.kind, directory)
            && directory.czxid > from.czxid
        {
            // The directory was created after the reader: a znode with the reader's name is another
            // contender's.
            return self.reader_vanished(me, context);
        }
        let decide = |size| {
            let claim = self.config.kind.claim(size);
            match decide(&children.names, me.prefix, me.sequence, claim, self.config.names) {
                Decision::WaitFor(before) if self.permits.granted_before.as_ref() == Some(&before) => {
                    Decision::WatchChildren
                }
                // After a resize the predecessor may hold without having waited, and then it never writes its
                // grant.
                Decision::WaitFor(_)
                    if self.config.kind.is_permits() && directory.is_some_and(|d| d.version > 1) =>
                {
                    Decision::WatchChildren
                }
                decision => decision,
            }
        };
        let record = directory.map_or(Record::Empty, |directory| directory.record);
        let size_check = match Layout::proven_by(&children.names, record) {
            Some(layout) => SizeCheck::Refused(Reason::OtherLayout(layout)),
            None => self.check_size(directory),
        };
        let decision = match size_check {
            SizeCheck::Size(size) => Ok(decide(size)),
            // The directory must not become a semaphore while a contender holds it as another kind of lock.
            SizeCheck::Missing(size) if decide(size) == Decision::OtherKind => Ok(Decision::OtherKind),
            SizeCheck::Missing(_) => Err(None),
            SizeCheck::Refused(reason) => Err(Some(reason)),
        };
        if let Ok(Decision::Held | Decision::WatchChildren | Decision::WaitFor(_)) = decision {
            self.permits.size_checked = true;
        }
        if let Some(watch) = watch
            && (decision != Ok(Decision::WatchChildren) || self.config.mode == Mode::Try)
        {
            context.actions.push(Action::Unwatch(watch));
            self.forget_list_watch();
        }
        // A contender that listed after our create may have seen us wait.
        self.permits.seen_waiting |= children.pzxid != me.czxid;
        match decision {
            Err(None) => self.write_size(me, directory, context),
            Err(Some(reason)) => self.fail(reason, context),
            Ok(Decision::Held) => self.reached_head(me, directory, &children.names, context),
            Ok(Decision::WaitFor(_) | Decision::WatchChildren) if self.config.mode == Mode::Try => {
                self.fail(Reason::Busy, context);
            }
            Ok(Decision::WaitFor(before)) => self.watch(me, before, context),
            Ok(Decision::WatchChildren) => match watch {
                Some(watch) => self.phase = Phase::Waiting { me, before: None, watch },
                None => self.list(me, true, context),
            },
            Ok(Decision::NotQueued) if matches!(self.config.kind, Kind::Upgrade { .. }) => {
                self.reader_vanished(me, context);
            }
            Ok(Decision::NotQueued) => self.fail_broken(context),
            Ok(Decision::Outranked) => self.fail(Reason::Outranked, context),
            Ok(Decision::OtherKind) => self.fail(Reason::OtherKind, context),
            Ok(Decision::Clash(clash)) => self.fail(Reason::Clash(clash), context),
        }
    }

    fn forget_list_watch(&mut self) {
        if let Phase::Listing { watch, .. } = &mut self.phase {
            *watch = None;
        }
    }

    pub(super) fn watch(&mut self, me: Node, before: String, context: &mut StepContext) {
        self.exclusive_predecessor =
            Name::parse(&before).filter(|name| name.role == Role::Exclusive).map(|name| name.sequence);
        let watch = self.new_watch();
        self.phase = Phase::Watching { me, before: before.clone() };
        self.send(Purpose::WatchBefore(watch), Request::Watch { name: before, watch }, context);
    }

    pub(super) fn watched_before(
        &mut self,
        watch: WatchId,
        outcome: Result<Reply, Failure>,
        context: &mut StepContext,
    ) {
        let Phase::Watching { me, before } = &self.phase else { return };
        let (me, before) = (*me, before.clone());
        match outcome {
            Ok(Reply::Node { says: Says { granted: true, .. }, .. }) if self.config.kind.is_permits() => {
                context.actions.push(Action::Unwatch(watch));
                self.permits.granted_before = Some(before);
                self.list(me, false, context);
            }
            Ok(reply) => {
                self.phase = Phase::Waiting { me, before: Some(before), watch };
                // The predecessor is a writer that has become a reader, or the directory was created again
                // and our znode is deleted. If the predecessor waits for us elsewhere, as a multi-lock may,
                // this would be a deadlock.
                let younger = matches!(reply, Reply::Node { czxid, .. } if czxid > me.czxid);
                if !younger {
                    self.predecessor_watched(reply, context);
                } else {
                    self.disarm(context);
                    if self.on(Rule::WaitForOlder) {
                        self.send(Purpose::CheckOwn, Request::Exists(me), context);
                    }
                }
            }
            Err(Failure::NoNode) if self.on(Rule::LookWhenGone) => {
                self.predecessor_deleted(me, &before, false, context)
            }
            Err(Failure::NoNode) => self.phase = Phase::Waiting { me, before: Some(before), watch },
            Err(failure @ Failure::Refused(_)) => self.fail(Reason::Refused(failure), context),
            Err(_) => {
                self.disarm(context);
                self.pause(After::Look(me), context);
            }
        }
    }

    /// Handles a read of our own znode after the watch was set. If the znode exists, the directory is still
    /// that of our create.
    pub(super) fn checked_own(&mut self, outcome: &Result<Reply, Failure>, context: &mut StepContext) {
        let Some(me) = self.node() else { return };
        let mine = self.still_mine(me, outcome);
        if let (Phase::Waiting { watch, .. }, None | Some(false)) = (&self.phase, mine) {
            context.actions.push(Action::Unwatch(*watch));
        }
        match (&self.phase, mine) {
            // In every phase: the znode with our name is not ours to delete.
            (_, Some(false)) => self.fail_broken(context),
            (Phase::Waiting { .. }, None) => {
                self.disarm(context);
                self.pause(After::Look(me), context);
            }
            _ => {}
        }
    }

    pub(super) fn fired(&mut self, fired: WatchId, deleted: bool, context: &mut StepContext) {
        if self.fired_ahead(fired, deleted, context) {
            return;
        }
        match &mut self.phase {
            Phase::Waiting { me, before, watch } if *watch == fired => {
                let me = *me;
                self.unread = true;
                match before.take() {
                    None => self.list(me, true, context),
                    Some(_) if deleted && !self.on(Rule::LookAfterWait) => {
                        self.reached_head(me, None, &[], context)
                    }
                    Some(before) if deleted => self.predecessor_deleted(me, &before, true, context),
                    Some(before) => {
                        self.disarm(context);
                        self.watch(me, before, context);
                    }
                }
            }
            // The watch fired before we waited for it.
            Phase::Listing { watch, .. } if *watch == Some(fired) => *watch = None,
            Phase::Held { watch: Some(watch), .. } if *watch == fired => {
                if deleted {
                    self.broken(context)
                } else {
                    self.watch_own(context)
                }
            }
            _ => {}
        }
    }

    fn predecessor_deleted(&mut self, me: Node, before: &str, since: bool, context: &mut StepContext) {
        if !self.grant_by_deletion(me, since, context) && !self.arm_behind_predecessor(me, before, context) {
            self.look(me, context);
        }
    }

    /// Sets watches again: a watch from before a reconnect may have missed its event.
    pub(super) fn reconnected(&mut self, context: &mut StepContext) {
        self.offline = false;
        self.interrupted(context);
        match &self.phase {
            Phase::Waiting { .. } if !self.on(Rule::LookAfterReconnect) => {}
            Phase::Waiting { me, before, watch } => {
                let (me, before, old) = (*me, before.clone(), *watch);
                self.unread = true;
                match before {
                    Some(before) => self.watch(me, before, context),
                    None => self.list(me, true, context),
                }
                context.actions.push(Action::Unwatch(old));
            }
            // The answer may be from before the reconnect.
            Phase::Watching { me, before } => {
                let (me, before) = (*me, before.clone());
                self.void_pending();
                self.watch(me, before, context);
            }
            Phase::Held { watch: Some(old), .. } => {
                let old = *old;
                self.watch_own(context);
                context.actions.push(Action::Unwatch(old));
            }
            _ => {}
        }
    }

    /// Fails because another client deleted our znode in the queue.
    pub(super) fn fail_broken(&mut self, context: &mut StepContext) {
        self.void_pending();
        self.phase = Phase::Leaving;
        self.fail(Reason::Broken, context);
    }

    /// Handles the deletion of the reader's znode, or of ours, by another client. If the reader's was
    /// deleted, ours still exists and keeps all others out.
    fn reader_vanished(&mut self, me: Node, context: &mut StepContext) {
        let undo = self.undo.take();
        self.fail_broken(context);
        match undo {
            Some(undo) => self.depart_undone(me, undo, context),
            None => self.depart_if_there(me, context),
        }
    }

    /// Returns whether the znode that was read is still ours; `None` if the answer does not tell.
    pub(super) fn still_mine(&self, me: Node, outcome: &Result<Reply, Failure>) -> Option<bool> {
        match outcome {
            Ok(Reply::Node { czxid, owner, .. }) => Some(self.is_mine(me, *czxid, *owner)),
            Err(Failure::NoNode) => Some(false),
            _ => None,
        }
    }
}
