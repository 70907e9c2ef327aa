//! Events that are not delivered yet.
//!
//! The core delivers a few events at once. If a change has many events for many connections, the core puts the events
//! here. Each connection then gets the events that it watches, in order, before its next request is handled (see
//! [`super::event_turns`]). Events that no connection misses any longer are dropped. So one change cannot occupy the core
//! for long, and the memory for its events does not grow with the number of connections.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use zoolock_wire::{EventKind, ReplyHeader, Writer, encode_event, op};

use crate::acl::AclList;
use crate::commit::PathChange;
use crate::ids::ConnId;
use crate::watches::Watches;

/// Maximum number of events of a part.
const PART: usize = 1024;
/// A part with more bytes gets no more events, so that large events are dropped in time.
const PART_BYTES: usize = 1 << 20;

/// An event, with its frame. All connections that get the event share the frame.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) kind: EventKind,
    pub(super) path: Arc<str>,
    pub(super) acl: AclList,
    pub(super) frame: Bytes,
}

/// The events that at least one connection may still miss. Events are numbered in order.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    parts: VecDeque<EventPart>,
    /// Number of events before the first part.
    dropped: u64,
    /// Approximate memory of all parts in bytes.
    bytes: usize,
}

/// A part of the events, with an index of their paths.
#[derive(Debug, Default)]
struct EventPart {
    /// Number of the first event.
    first: u64,
    events: Vec<Arc<Event>>,
    by_path: BTreeMap<Arc<str>, Vec<usize>>,
    bytes: usize,
}

impl Event {
    pub(super) fn new(change: PathChange) -> Self {
        let mut frame = BytesMut::new();
        encode_event_frame(change.kind, &change.path, &mut frame);
        Event { kind: change.kind, path: change.path, acl: change.acl, frame: frame.freeze() }
    }

    fn bytes(&self) -> usize {
        2 * self.frame.len() + 256
    }
}

/// Appends the frame of an event.
pub(super) fn encode_event_frame(kind: EventKind, path: &str, out: &mut BytesMut) {
    Writer::frame(out, |writer| {
        ReplyHeader { xid: op::XID_EVENT, zxid: -1, err: 0 }.encode(writer);
        encode_event(kind, path, writer);
    });
}

impl Deliveries {
    /// Returns whether there are no events.
    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the number of the next event.
    pub(super) fn end(&self) -> u64 {
        match self.parts.back() {
            Some(last) => last.end(),
            None => self.dropped,
        }
    }

    /// Returns the approximate memory of the events in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an event.
    pub(super) fn push(&mut self, event: Event) {
        if self.parts.back().is_none_or(|part| part.events.len() == PART || part.bytes > PART_BYTES) {
            self.parts.push_back(EventPart { first: self.end(), ..EventPart::default() });
        }
        if let Some(part) = self.parts.back_mut() {
            self.bytes += event.bytes();
            part.bytes += event.bytes();
            part.by_path.entry(Arc::clone(&event.path)).or_default().push(part.events.len());
            part.events.push(Arc::new(event));
        }
    }

    /// Returns the number of the first event after the first part.
    pub(super) fn end_of_first_part(&self) -> u64 {
        self.parts.front().map_or(self.dropped, EventPart::end)
    }

    /// Removes the first part, if all its events are before the event with the number `seen`. Returns its events, for their
    /// access lists.
    pub(super) fn drop_before(&mut self, seen: u64) -> Option<Vec<Arc<Event>>> {
        self.parts.front().filter(|part| part.end() <= seen)?;
        let part = self.parts.pop_front()?;
        self.bytes -= part.bytes;
        self.dropped = part.end();
        Some(part.events)
    }

    /// Finds the events that a connection may get, from the event with the number `seen`, in order and in one part.
    /// Returns the events with the numbers after them, the number up to which all events are found, and the number of
    /// paths that the search looked up.
    pub(super) fn find(
        &self,
        watches: &Watches,
        conn: ConnId,
        seen: u64,
    ) -> (Vec<(u64, Arc<Event>)>, u64, usize) {
        let at = self.parts.partition_point(|part| part.end() <= seen);
        let Some(part) = self.parts.get(at) else { return (Vec::new(), self.end(), 0) };
        let from = seen.saturating_sub(part.first) as usize;
        let mut found: Vec<usize> = Vec::new();
        // Long paths take long to look up, so they count as several.
        let mut looked_up = watches.cost(conn);
        if looked_up > part.events.len() {
            looked_up = 0;
            found.extend(from..part.events.len());
        } else {
            for (path, recursive) in watches.watched_by(conn) {
                found.extend(part.by_path.get(path).into_iter().flatten());
                if recursive {
                    found.extend(part.below(path));
                }
                // Recursive watches on a path and its ancestors find the same events.
                if found.len() > part.events.len() {
                    found = (0..part.events.len()).collect();
                    break;
                }
            }
            found.retain(|at| *at >= from);
            found.sort_unstable();
            found.dedup();
        }
        let number = |at: usize| (part.first + at as u64 + 1, Arc::clone(&part.events[at]));
        (found.into_iter().map(number).collect(), part.end(), looked_up)
    }
}

impl EventPart {
    /// Returns the number of the first event after this part.
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }

    /// Returns the events of all descendants of a path.
    fn below(&self, path: &str) -> impl Iterator<Item = usize> {
        // The paths of the descendants begin with `path/`. The character after the slash is the zero.
        let (start, end) = match path {
            "/" => ("/".to_owned(), "0".to_owned()),
            path => (format!("{path}/"), format!("{path}0")),
        };
        let range = (Bound::Excluded(start.as_str()), Bound::Excluded(end.as_str()));
        let ranged = self.by_path.range::<str, _>(range);
        ranged.flat_map(|(_, events)| events.iter().copied()).collect::<Vec<_>>().into_iter()
    }
}
