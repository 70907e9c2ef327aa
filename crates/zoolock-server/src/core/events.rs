//! The watches of connections, and the events of changes.

use std::sync::Arc;

use super::Core;
use super::deliveries::Event;
use super::event_turns::PER_EVENT;
use crate::caps::weight;
use crate::commit::PathChange;
use crate::ids::ConnId;
use crate::watches::WatchKinds;

impl Core {
    /// Fires the watches of events. As in ZooKeeper, a client gets no event if it has no permission to read the znode.
    /// Its one-shot watch is removed nevertheless.
    pub(super) fn fire_watches(&mut self, events: Vec<PathChange>) {
        let mut undelivered = Vec::new();
        for event in events {
            let weight = weight(&event.path);
            // An event that nobody watches is dropped. Others wait behind those that are not delivered yet.
            let max = if self.deliveries.is_empty() { self.sends_left / weight } else { 0 };
            // The search for recursive watches on the ancestors of a deep znode counts, even if it finds none.
            let search = if self.watches.has_recursive() { weight / 2 } else { 0 };
            let audience = match search == 0 || self.sends_left >= weight {
                true => self.watches.audience(event.kind, &event.path, max),
                false => None,
            };
            if let Some((conns, visited)) = audience {
                let cost = weight * conns.len() + visited / PER_EVENT + search;
                self.sends_left = self.sends_left.saturating_sub(cost);
                self.deliver_now(event, &conns);
            } else {
                undelivered.push(Arc::clone(&event.path));
                self.deliveries.push(Event::new(event));
            }
        }
        if !undelivered.is_empty() {
            self.round.stalled = false;
            self.deliver_promptly(undelivered.iter());
        }
    }

    fn deliver_now(&mut self, event: PathChange, conns: &[ConnId]) {
        if conns.is_empty() {
            return;
        }
        self.watches.use_up(event.kind, &event.path, conns);
        let event = Event::new(event);
        for &conn in conns {
            if self.may_read(conn, &event.acl) {
                self.send_event_frame(conn, &event.frame);
            }
        }
    }

    /// Adds a watch of a connection. Closes the connection if its watches exceed their limit, and the one with the most
    /// watches if those of all connections exceed theirs.
    pub(super) fn add_watch(&mut self, path: &str, conn: ConnId, kinds: WatchKinds) {
        // The watches of a connection that is being closed have ended.
        if self.conns.get(&conn).is_none_or(|state| state.closing) {
            return;
        }
        if self.watches.count(conn) == 0
            && let Some(state) = self.conns.get_mut(&conn)
        {
            state.events_seen = self.deliveries.end();
        }
        self.watches.add(path, conn, kinds);
        // Otherwise clients that watch, leave and come back could add watches faster than they are forgotten.
        self.watches.forget_ended(2 + path.len() / 512);
        let (max, max_total) = (self.config.max_watches, self.config.max_total_watches);
        if max != 0 && self.watches.cost(conn) > max {
            tracing::warn!(
                %conn,
                budget_connection_watches_limit = max,
                "a client watches too many paths; closing its connection"
            );
            self.cut_off(conn);
        }
        if max_total != 0
            && self.watches.total_cost() > max_total
            && let Some(most) = self.watches.most_expensive()
        {
            tracing::warn!(conn = %most, max_total, "too many watches in all; closing the connection with the most");
            self.cut_off(most);
        }
    }

    /// Ends the watches of a connection, which gets no events from now on.
    pub(super) fn end_watches(&mut self, conn: ConnId) {
        self.watches.end_connection(conn);
        // Perhaps no other connection misses events, so that they can be dropped.
        self.round.stalled = false;
        if let Some(state) = self.conns.get_mut(&conn) {
            state.gets_events = false;
        }
    }
}
