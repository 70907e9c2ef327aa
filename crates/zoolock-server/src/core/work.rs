//! Long work in small portions, so that no request keeps the core from other connections for long.
//!
//! Work is counted in steps ([`Client`](crate::Client)). The end of a session with many ephemerals, the expiry of many
//! sessions or znodes, the events for many connections, and the watches of a connection that has ended are left for
//! [`Core::continue_work`]. Long requests of a connection are continued by [`Core::advance`] before the next request of
//! the same connection: the watches that a client sets again after a reconnect.
//!
//! Each portion leaves a consistent state. Portions of different kinds alternate, and other connections are served
//! between calls.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use bytes::BytesMut;
use zoolock_wire::{Code, EventKind, Reply, Writer, perms};

use super::connection::{EVERYTHING, NOTHING};
use super::jobs::{Job, Readiness, SessionEnd, SetWatch, WatchesToSet};
use super::output::encode_reply;
use super::{Core, Now};
use crate::acl::AclList;
use crate::client::path_steps;
use crate::ids::{ConnId, SessionId, Zxid};
use crate::prepare::decide_removal;
use crate::txn::Change;
use crate::watches::WatchKinds;

/// Approximate maximum number of steps for the znodes that a transaction deletes at the end of a session, and for the znodes
/// that a portion removes: 256 znodes with short paths.
const MAX_REMOVAL_STEPS: usize = 256 * 130;
/// Maximum number of watches that one portion forgets.
const FORGOTTEN: usize = 512;
/// Number of steps for one forgotten watch. Its place in the maps is rarely in the cache of the processor.
const FORGET_STEPS: usize = 80;
/// Amount of data and lists that one portion frees, in small znodes that take as long to free.
const FREED: usize = 512;
/// Number of steps for the memory of one small znode.
const FREE_STEPS: usize = 60;
/// Maximum number of steps for the events of one connection in one portion.
const DELIVERY_STEPS: usize = 2000;
/// Maximum number of steps for the events of a connection in one of its own turns.
const TURN_DELIVERY_STEPS: usize = 50_000;
/// Number of connections that one portion visits at most in search of one that misses events.
const VISITED: usize = 1024;
/// A connection takes no more undelivered events while this number of output bytes is queued for it.
const MAX_QUEUED_EVENTS: usize = 64 << 10;
/// Number of events that a connection takes at least after a search for its events.
const LEAST_DELIVERED: usize = 64;
/// Number of connections to which an undelivered event is delivered at once if they miss no earlier event.
const PROMPT: usize = 16;
/// Maximum number of steps for the events that are delivered at once.
const PROMPT_STEPS: usize = 20_000;
/// Number of steps for the end of a session without ephemerals.
const SESSION_END_STEPS: usize = 200;
/// Number of steps for the search of a connection that misses events, for each connection.
const VISIT_STEPS: usize = 20;
/// Number of steps for the drop of an event.
const DROP_STEPS: usize = 12;
/// Number of steps for one path of a `setWatches` request.
const SET_WATCH_STEPS: usize = 150;

/// Returns the approximate number of steps for the removal of a znode, with its events.
fn removal_steps(path: &str) -> usize {
    100 + 3 * path_steps(path)
}

impl Core {
    /// Returns whether [`Core::continue_work`] has something to do.
    pub fn has_work(&self) -> bool {
        self.expire_until.is_some()
            || self.remove_until.is_some()
            || !self.ends.is_empty() && !self.ends_failed
            || self.watches.has_ended()
            || self.state.tree.has_discarded()
            || !self.deliveries.is_empty() && !self.round.stalled
    }

    /// Finishes all work, if its portions are unlimited.
    pub(super) fn finish_work(&mut self, now: Now) {
        if self.config.slice_steps == usize::MAX {
            self.continue_work(now);
        }
    }

    /// Limits the steps that a long request of a connection takes in the next turns. The limit of the configuration remains.
    pub fn limit_turns(&mut self, max_steps: usize) {
        self.turn_steps = max_steps.min(self.config.slice_steps);
    }

    /// Returns whether this turn has taken so many steps that it should end soon.
    fn is_turn_over(&self) -> bool {
        self.steps >= self.config.slice_steps
    }

    /// Returns the number of steps since the last call of [`Core::take_steps`].
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Continues long work, for at most [`CoreConfig::slice_steps`](super::CoreConfig::slice_steps) steps.
    pub fn continue_work(&mut self, now: Now) {
        const KINDS: [fn(&mut Core, Now) -> bool; 6] = [
            Core::expire_one,
            Core::end_one_part,
            Core::remove_some,
            |core, _| core.forget_watches(FORGOTTEN),
            |core, _| core.deliver_to_one(),
            |core, _| core.free_discarded(),
        ];
        let start = self.steps;
        let mut idle = 0;
        while idle < KINDS.len() && self.steps - start < self.config.slice_steps {
            let work = KINDS[self.next_work];
            self.next_work = (self.next_work + 1) % KINDS.len();
            idle = if work(self, now) { 0 } else { idle + 1 };
        }
    }

    /// Returns the number of steps since the last call.
    pub fn take_steps(&mut self) -> usize {
        self.totals.longest_turn = self.totals.longest_turn.max(self.steps);
        std::mem::take(&mut self.steps)
    }

    /// Ends the next session whose timeout has passed.
    fn expire_one(&mut self, now: Now) -> bool {
        let Some(until) = self.expire_until else { return false };
        let Some(session) = self.expiry.pop_expired(until) else {
            self.expire_until = None;
            return false;
        };
        self.steps += SESSION_END_STEPS;
        if let Some(conn) = self.waiting_connection(session) {
            self.record_alive(conn, now);
            return true;
        }
        tracing::info!(znodes = self.state.tree.count_ephemerals(session), "session expired");
        self.totals.expired += 1;
        self.end_session(session, now);
        true
    }

    /// Deletes the ephemerals of a session that has ended: some at once, and the others later.
    ///
    /// # Errors
    /// If the transaction numbers are used up.
    pub(super) fn delete_ephemerals(
        &mut self,
        session: SessionId,
        request: Option<(ConnId, i32)>,
        now: Now,
    ) -> Result<(), Code> {
        let max_steps = MAX_REMOVAL_STEPS.min(self.config.slice_steps);
        let ephemerals = self.state.tree.some_ephemerals(session, max_steps, removal_steps);
        let is_last = ephemerals.len() == self.state.tree.count_ephemerals(session);
        self.steps += ephemerals.iter().map(|path| removal_steps(path)).sum::<usize>();
        let change = match is_last {
            true => Change::CloseSession { ephemerals },
            false => Change::ClosePart { ephemerals },
        };
        let result = self.commit_change(session, change, now);
        match result {
            Ok(_) if !is_last => {
                self.ends.push_back(SessionEnd { session, request });
                Ok(())
            }
            result => {
                let failed = result.as_ref().err().copied();
                if let Some((conn, xid)) = request {
                    // The client has asked to end its session. Events that take long to deliver are dropped.
                    self.catch_up(conn, DELIVERY_STEPS);
                    self.end_watches(conn);
                    self.reply(conn, xid, EVERYTHING, result);
                    self.close(conn);
                }
                failed.map_or(Ok(()), Err)
            }
        }
    }

    fn end_one_part(&mut self, now: Now) -> bool {
        if self.ends_failed {
            return false;
        }
        let Some(SessionEnd { session, request }) = self.ends.pop_front() else { return false };
        if self.delete_ephemerals(session, request, now).is_err() {
            // No transaction number is left. A later tick tries again.
            self.ends.push_front(SessionEnd { session, request: None });
            self.ends_failed = true;
        }
        true
    }

    /// Continues the ends of sessions that an earlier server has begun, or that have failed.
    pub(super) fn resume_ends(&mut self) {
        self.ends_failed = false;
        if self.ends.is_empty() {
            let ending = self.state.ending.iter().map(|&session| SessionEnd { session, request: None });
            self.ends.extend(ending);
        }
    }

    /// Removes some of the containers and znodes that are due.
    fn remove_some(&mut self, now: Now) -> bool {
        let Some(until) = self.remove_until else { return false };
        let max_steps = MAX_REMOVAL_STEPS.min(self.config.slice_steps);
        let paths = self.state.tree.expired_paths(until, max_steps, removal_steps);
        let is_last = paths.is_empty();
        let removed = paths.iter().filter(|path| {
            self.steps += removal_steps(path);
            let change = decide_removal(&self.state, path);
            change.is_some_and(|change| self.commit_change(SessionId::NONE, change, now).is_ok())
        });
        let removed = removed.count();
        if is_last || removed == 0 {
            self.remove_until = None;
        }
        removed > 0
    }

    /// Frees some of the data and lists of deleted znodes. Returns whether there was something to free.
    fn free_discarded(&mut self) -> bool {
        let freed = self.state.tree.free_discarded(FREED);
        self.steps += FREE_STEPS * freed;
        freed > 0
    }

    /// Forgets about `max` watches of connections that have ended. Returns whether there was one.
    pub(super) fn forget_watches(&mut self, max: usize) -> bool {
        let forgotten = self.watches.forget_ended(max);
        self.steps += FORGET_STEPS * forgotten;
        forgotten > 0
    }

    /// Delivers events at once to some connections that watch these paths. Other connections may take long, because they
    /// miss many events or do not read. After a transaction that took long, the connections are only woken.
    pub(super) fn deliver_promptly<'p>(&mut self, paths: impl Iterator<Item = &'p Arc<str>>) {
        let mut conns = BTreeSet::new();
        for path in paths {
            conns.extend(self.watches.watchers_of(path, PROMPT - conns.len()));
            if conns.len() == PROMPT {
                break;
            }
        }
        let start = self.steps;
        let max_steps = if self.is_turn_over() { 0 } else { PROMPT_STEPS };
        for conn in conns {
            let left = max_steps.saturating_sub(self.steps - start);
            if left > 0 {
                self.catch_up(conn, left.min(DELIVERY_STEPS));
            }
            self.wake(conn);
        }
    }

    /// Delivers events to the next connection that misses some.
    fn deliver_to_one(&mut self) -> bool {
        if self.deliveries.is_empty() || self.round.stalled {
            return false;
        }
        if let Some(dropped) = self.deliveries.drop_before(self.round.droppable) {
            self.steps += DROP_STEPS * dropped.len();
            for event in &dropped {
                self.state.tree.discard_list(&event.acl);
            }
            return true;
        }
        let after = self.round.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut others = self.conns.range((after, Bound::Unbounded)).map(|(&conn, _)| conn);
        let mut visited = 0;
        let mut last = None;
        let next = others.by_ref().take(VISITED).find(|&conn| {
            visited += 1;
            last = Some(conn);
            self.is_lagging(conn)
        });
        self.steps += VISIT_STEPS * visited;
        if let Some(conn) = next {
            self.round.last = last;
            let before = self.events_seen(conn);
            self.catch_up(conn, DELIVERY_STEPS);
            self.wake(conn);
            self.round.progress |= before != self.events_seen(conn);
        } else if visited == VISITED {
            self.round.last = last;
        } else {
            self.finish_round();
        }
        true
    }

    fn finish_round(&mut self) {
        let round = std::mem::take(&mut self.round);
        // A connection that began to watch during the round was perhaps not visited.
        self.steps += VISIT_STEPS * self.conns.len();
        let lowest = self.conns.keys().map(|&conn| self.events_seen(conn)).min();
        self.round.droppable = lowest.unwrap_or(u64::MAX).min(self.deliveries.end());
        let is_droppable = self.deliveries.end_of_first_part() <= self.round.droppable;
        self.round.stalled = !round.progress && !is_droppable;
        if is_droppable
            || self.config.max_undelivered == 0
            || self.deliveries.bytes() <= self.config.max_undelivered
        {
            return;
        }
        // The events of the first part are kept only for the connections that have not taken them.
        let oldest = self.deliveries.end_of_first_part();
        let slow: Vec<ConnId> = self
            .conns
            .keys()
            .copied()
            .filter(|&conn| self.watches.count(conn) > 0 && self.events_seen(conn) < oldest)
            .collect();
        for conn in slow {
            tracing::warn!(%conn, "client does not take its events; closing the connection");
            self.cut_off(conn);
        }
        self.round.stalled = false;
    }

    /// Returns the number of events that a connection has got or does not watch.
    fn events_seen(&self, conn: ConnId) -> u64 {
        let watches = self.watches.count(conn) > 0;
        self.conns
            .get(&conn)
            .filter(|state| watches && !state.closing)
            .map_or(u64::MAX, |state| state.events_seen)
    }

    /// Returns whether a connection misses events that it may watch.
    pub fn is_lagging(&self, conn: ConnId) -> bool {
        self.events_seen(conn) < self.deliveries.end()
    }

    /// Delivers events that a connection misses, for about `max_steps` steps. Returns whether it misses none now.
    pub(super) fn catch_up(&mut self, conn: ConnId, max_steps: usize) -> bool {
        let start = self.steps;
        loop {
            let end = self.deliveries.end();
            let Some(state) = self.conns.get_mut(&conn) else { return true };
            if state.closing || state.events_seen >= end || self.watches.count(conn) == 0 {
                state.events_seen = end;
                return true;
            }
            if state.output.len() >= MAX_QUEUED_EVENTS || self.steps - start >= max_steps {
                return false;
            }
            let (found, part_end, steps) = self.deliveries.find(&self.watches, conn, state.events_seen);
            self.steps += steps;
            let mut seen = part_end;
            // The search is worth it only if several events follow it.
            let least = found.len().min(LEAST_DELIVERED);
            for (at, (after, event)) in found.into_iter().enumerate() {
                self.steps += 10 + path_steps(&event.path) + event.frame.len() / 16;
                if self.watches.fire_for(conn, event.kind, &event.path) && self.may_read(conn, &event.acl) {
                    self.send_event_frame(conn, &event.frame);
                }
                let used = self.steps - start;
                let is_long = used >= max_steps && at >= least || used >= TURN_DELIVERY_STEPS;
                if self.output_len(conn) >= MAX_QUEUED_EVENTS || is_long {
                    seen = after;
                    break;
                }
            }
            if let Some(state) = self.conns.get_mut(&conn) {
                state.events_seen = seen;
            }
        }
    }

    /// Returns whether the client of a connection may read a znode with this access list.
    pub(super) fn may_read(&mut self, conn: ConnId, acl: &AclList) -> bool {
        let Some(client) = self.conns.get(&conn).map(|state| &state.client) else { return false };
        let before = client.steps();
        let allowed = client.check_permission(acl, perms::READ).is_ok();
        self.steps += client.steps() - before;
        allowed
    }

    /// Returns whether a connection has a long request that is not finished.
    pub fn has_long_request(&self, conn: ConnId) -> bool {
        let job = self.conns.get(&conn).and_then(|state| state.job.as_ref());
        matches!(job, Some(Job::SetWatches(_)))
    }

    /// Delivers the events that a connection misses, and continues its unfinished request for at most the steps that
    /// [`Core::limit_turns`] has set. Returns whether the next request can be handled.
    pub fn advance(&mut self, conn: ConnId) -> Readiness {
        let Some(state) = self.conns.get_mut(&conn) else { return Readiness::Ready };
        if state.closing {
            return Readiness::Ready;
        }
        if state.is_ending_session {
            return Readiness::Blocked;
        }
        let start = self.steps;
        if !self.catch_up(conn, TURN_DELIVERY_STEPS) {
            self.round.stalled = false;
            return if self.output_len(conn) >= MAX_QUEUED_EVENTS {
                Readiness::Blocked
            } else {
                Readiness::Busy
            };
        }
        let left = self.turn_steps.saturating_sub(self.steps - start);
        match self.take_job(conn) {
            None => Readiness::Ready,
            Some(Job::SetWatches(watches)) => self.continue_set_watches(conn, watches, left),
            Some(Job::Reply(reply)) => {
                self.send_waiting(conn, &reply);
                Readiness::Ready
            }
        }
    }

    /// Sends the reply that waits for the events of its write, if these can be delivered at once. Otherwise drops it: a
    /// client that has seen the number of its write would never learn of the events.
    pub(super) fn end_waiting_reply(&mut self, conn: ConnId) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if let Some(Job::Reply(reply)) = state.job.take_if(|job| matches!(job, Job::Reply(_)))
            && self.catch_up(conn, TURN_DELIVERY_STEPS)
        {
            self.send_waiting(conn, &reply);
        }
    }

    fn send_waiting(&mut self, conn: ConnId, reply: &[u8]) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.output.extend_from_slice(reply);
            self.record_sent(conn, EVERYTHING, reply.len());
        }
    }

    /// Replies to a write after the events of the write.
    pub(super) fn answer_write(&mut self, conn: ConnId, xid: i32, shown: Zxid, result: Result<Reply, Code>) {
        let is_late = self.is_lagging(conn) && (self.is_turn_over() || !self.catch_up(conn, DELIVERY_STEPS));
        if !is_late {
            return self.reply(conn, xid, shown, result);
        }
        let mut reply = BytesMut::new();
        let zxid = self.state.zxid.0;
        Writer::frame(&mut reply, |writer| encode_reply(xid, zxid, result, writer));
        if let Some(state) = self.conns.get_mut(&conn) {
            state.job = Some(Job::Reply(reply));
        }
    }

    /// Sets watches again after a reconnect, for at most `max_steps` steps.
    pub(super) fn continue_set_watches(
        &mut self,
        conn: ConnId,
        mut watches: WatchesToSet,
        max_steps: usize,
    ) -> Readiness {
        let start = self.steps;
        while let Some((kind, path)) = watches.next() {
            self.steps += SET_WATCH_STEPS + path_steps(&path);
            self.set_watch_again(conn, &path, kind, watches.since);
            if self.steps - start >= max_steps {
                self.keep_job(conn, Job::SetWatches(watches));
                return Readiness::Busy;
            }
        }
        self.reply(conn, watches.xid, NOTHING, Ok(Reply::Empty));
        Readiness::Ready
    }

    /// Sets a watch again. If a one-shot watch missed an event since `since`, the event is sent at once and the watch is
    /// not set.
    fn set_watch_again(&mut self, conn: ConnId, path: &str, kind: SetWatch, since: i64) {
        let node = self.state.tree.get(path);
        let (missed, kinds) = match kind {
            SetWatch::Data => (
                match node {
                    None => Some(EventKind::Deleted),
                    Some(node) => (node.mzxid().0 > since).then_some(EventKind::DataChanged),
                },
                WatchKinds::DATA,
            ),
            SetWatch::Exist => (node.map(|_| EventKind::Created), WatchKinds::DATA),
            SetWatch::Child => (
                match node {
                    None => Some(EventKind::Deleted),
                    Some(node) => (node.pzxid().0 > since).then_some(EventKind::ChildrenChanged),
                },
                WatchKinds::CHILD,
            ),
            SetWatch::Persistent => (None, WatchKinds::PERSISTENT),
            SetWatch::Recursive => (None, WatchKinds::RECURSIVE),
        };
        match missed {
            Some(kind) => self.send_event(conn, kind, path),
            None => self.add_watch(path, conn, kinds),
        }
    }
}
