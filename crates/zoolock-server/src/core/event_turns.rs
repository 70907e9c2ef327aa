//! Events in turns, so that a change of many znodes with many watchers keeps the core for a short time only.
//!
//! One transaction can cause millions of events: a session with 8,000 ephemerals ends, and 1,000 connections watch all of
//! them. A few events are sent at once, during the transaction. The others are kept in `deliveries.rs`.
//! [`Core::continue_work`] hands them out, to one connection after the other. A connection that begins to miss events takes
//! a few in its own turn ([`Core::advance`]). If these are all, its next request waits for no other connection.
//!
//! A connection gets all events of a transaction before a reply that shows the transaction. So the reply to a write waits
//! until its own connection has the events of the write.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use bytes::BytesMut;
use zoolock_wire::{Code, Reply, Writer, perms};

use super::Core;
use super::connection::EVERYTHING;
use super::jobs::{Job, Readiness};
use super::output::encode_reply;
use super::work::PER_CONNECTION;
use crate::acl::AclList;
use crate::caps::weight;
use crate::ids::{ConnId, Zxid};

/// Maximum number of events that a connection gets, or takes in its own turn, while others wait for theirs.
const SHARE: usize = 128;
/// Number of connections that one search for a connection that misses events visits at most.
const VISITED: usize = 1024;
/// Number of visits, and of lookups of a watched path, that take as long as an event.
pub(super) const PER_EVENT: usize = 4;
/// A connection takes no more undelivered events while this number of output bytes is queued for it.
const MAX_QUEUED_EVENTS: usize = 64 << 10;
/// Number of connections to which an undelivered event is delivered at once if they miss no earlier event, and of slow
/// connections that are closed at once.
const PROMPT: usize = 16;

impl Core {
    /// Begins a turn, which sends about [`CoreConfig::max_part`](super::CoreConfig::max_part) events at once at most.
    pub(super) fn begin_sends(&mut self) {
        self.sends_left = self.config.max_part;
    }

    /// Delivers events at once to some connections that watch these paths. Other connections may take long, because they
    /// miss many events or do not read.
    pub(super) fn deliver_promptly<'p>(&mut self, paths: impl Iterator<Item = &'p Arc<str>>) {
        let mut conns = BTreeSet::new();
        for path in paths {
            conns.extend(self.watches.watchers_of(path, PROMPT - conns.len()));
            if conns.len() == PROMPT {
                break;
            }
        }
        let share = SHARE.min(self.config.max_part) / conns.len().max(1);
        for conn in conns {
            self.catch_up(conn, share);
            self.wake(conn);
        }
    }

    /// Delivers events to the next connection that misses some. Returns the number of events that would take as long.
    pub(super) fn deliver_to_next(&mut self, max: usize) -> usize {
        if self.deliveries.is_empty() || self.round.stalled {
            return 0;
        }
        if let Some(dropped) = self.deliveries.drop_before(self.round.droppable) {
            for event in &dropped {
                self.state.tree.discard_list(&event.acl);
            }
            return 1 + dropped.len() / PER_EVENT;
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
        let mut done = 1 + visited / PER_EVENT;
        if let Some(conn) = next {
            self.round.last = last;
            let before = self.events_seen(conn);
            done += self.catch_up(conn, max.min(SHARE));
            self.wake(conn);
            self.round.progress |= before != self.events_seen(conn);
        } else if visited == VISITED {
            self.round.last = last;
        } else {
            done += self.conns.len() / PER_EVENT + self.finish_round() * PER_CONNECTION;
        }
        done
    }

    /// Finishes a round. If too many events are undelivered, closes some slow watchers, and finishes the round only when none
    /// is left, because the ends of thousands of connections at once would keep the others waiting. Returns the number of
    /// connections that it closed.
    fn finish_round(&mut self) -> usize {
        let round = std::mem::take(&mut self.round);
        // A connection that began to watch during the round was perhaps not visited.
        let lowest = self.conns.keys().map(|&conn| self.events_seen(conn)).min();
        self.round.droppable = lowest.unwrap_or(u64::MAX).min(self.deliveries.end());
        let is_droppable = self.deliveries.end_of_first_part() <= self.round.droppable;
        self.round.stalled = !round.progress && !is_droppable;
        if is_droppable
            || self.config.max_undelivered == 0
            || self.deliveries.bytes() <= self.config.max_undelivered
        {
            return 0;
        }
        // The events of the first part are kept only for the connections that have not taken them.
        let oldest = self.deliveries.end_of_first_part();
        let slow: Vec<ConnId> =
            self.conns.keys().copied().filter(|&conn| self.events_seen(conn) < oldest).take(PROMPT).collect();
        for conn in &slow {
            tracing::warn!(%conn, "too many events wait for the client; closing the connection");
            self.cut_off(*conn);
        }
        if slow.len() == PROMPT {
            self.round = round;
        }
        self.round.stalled = false;
        slow.len()
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

    /// Delivers about [`SHARE`] events that a connection misses. Returns whether it misses none now.
    pub(super) fn catch_up_shortly(&mut self, conn: ConnId) -> bool {
        self.catch_up(conn, SHARE.min(self.config.max_part));
        !self.is_lagging(conn)
    }

    /// Delivers about `max` events that a connection misses. Returns the number of events that would take as long.
    fn catch_up(&mut self, conn: ConnId, max: usize) -> usize {
        let mut done = 0;
        while self.is_lagging(conn) && done < max && self.output_len(conn) < MAX_QUEUED_EVENTS {
            let seen = self.conns.get(&conn).map_or(0, |state| state.events_seen);
            let (found, mut seen, lookups) = self.deliveries.find(&self.watches, conn, seen);
            let mut sent = 0;
            for (after, event) in found {
                sent += weight(&event.path);
                if self.watches.fire_for(conn, event.kind, &event.path) && self.may_read(conn, &event.acl) {
                    self.send_event_frame(conn, &event.frame);
                }
                if sent >= max || self.output_len(conn) >= MAX_QUEUED_EVENTS {
                    seen = after;
                    break;
                }
            }
            done += 1 + sent + lookups / PER_EVENT;
            if let Some(state) = self.conns.get_mut(&conn) {
                state.events_seen = seen;
            }
        }
        if !self.is_lagging(conn)
            && let Some(state) = self.conns.get_mut(&conn)
        {
            state.waits_for_events = false;
        }
        done
    }

    /// Returns whether the client of a connection may read a znode with this access list.
    pub(super) fn may_read(&self, conn: ConnId, acl: &AclList) -> bool {
        let state = self.conns.get(&conn);
        state.is_some_and(|state| state.client.check_permission(acl, perms::READ).is_ok())
    }

    /// Continues the unfinished request of a connection, if it has all its events. Returns whether the next request can be
    /// handled.
    ///
    /// A connection that misses events takes a few once, and waits until [`Core::continue_work`] has delivered the others.
    /// If it took more in each turn, thousands of such connections would keep all others waiting.
    pub fn advance(&mut self, conn: ConnId) -> Readiness {
        let Some(state) = self.conns.get_mut(&conn) else { return Readiness::Ready };
        if state.closing {
            return Readiness::Ready;
        }
        if state.is_ending_session {
            return Readiness::Blocked;
        }
        let waited = std::mem::take(&mut state.waits_for_events);
        if self.is_lagging(conn) && (waited || !self.catch_up_shortly(conn)) {
            if let Some(state) = self.conns.get_mut(&conn) {
                state.waits_for_events = true;
            }
            // This turn takes the output, so that there is room for more. A round that has visited the connection must not
            // end as one in which no connection has room.
            (self.round.stalled, self.round.progress) = (false, true);
            return Readiness::Blocked;
        }
        match self.take_job(conn) {
            None => Readiness::Ready,
            Some(Job::SetWatches(watches)) => self.continue_set_watches(conn, watches),
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
        if let Some(Job::Reply(reply)) = state.job.take_if(|job| matches!(job, Job::Reply(_))) {
            self.catch_up(conn, self.config.max_part);
            if !self.is_lagging(conn) {
                self.send_waiting(conn, &reply);
            }
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
        if !self.is_lagging(conn) || self.catch_up_shortly(conn) {
            return self.reply(conn, xid, shown, result);
        }
        let mut reply = BytesMut::new();
        let zxid = self.state.zxid.0;
        Writer::frame(&mut reply, |writer| encode_reply(xid, zxid, result, writer));
        if let Some(state) = self.conns.get_mut(&conn) {
            state.job = Some(Job::Reply(reply));
        }
    }
}
