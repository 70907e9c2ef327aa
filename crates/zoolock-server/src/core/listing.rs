//! Lists of many children, which are built in parts.
//!
//! At most [`MAX_LISTINGS`] lists are built at the same time. Others wait for their turn. A client that does not read its
//! output gives its turn to another one, and its list is built later.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::BytesMut;
use zoolock_wire::{Code, ReplyHeader, Writer, perms};

use super::Core;
use super::connection::{Conn, EVERYTHING};
use super::jobs::{CompleteListing, Job, Listing, Readiness};
use crate::ids::ConnId;
use crate::watches::{PathHasher, WatchKinds};

/// Maximum number of children that are listed at once.
pub(super) const LISTED: usize = 4096;
/// Number of bytes of names after which a portion of a list ends.
const LISTED_BYTES: usize = 256 << 10;
/// Maximum size of a list of children in bytes. It is copied to the output at once.
const MAX_LISTING: usize = 6 << 20;
/// Maximum number of lists that are built at the same time. Each takes memory in proportion to its length.
const MAX_LISTINGS: usize = 8;
/// A list is not built while its connection has this number of output bytes. The client does not read them.
const MAX_UNREAD: usize = 1 << 20;
/// Maximum number of names of deleted children that are recorded for the lists of a znode. Above it, the lists that are
/// not complete start over.
const MAX_DELETED: usize = 16_384;
/// Number of times that a list starts over. Then its request fails.
const MAX_RESTARTS: usize = 8;
/// Number of steps for one listed child.
const CHILD_STEPS: usize = 8;
/// Number of steps for the search for a name among the deleted children.
const DELETED_STEPS: usize = 20;

/// The lists that are being built.
#[derive(Debug, Default)]
pub(super) struct Listings {
    /// The connections whose lists are being built.
    active: BTreeSet<ConnId>,
    /// The connections that wait, in order. A connection that does not wait any longer is skipped.
    waiting: VecDeque<ConnId>,
    /// The deleted children of the znodes that are being listed, by path.
    deletions: HashMap<Arc<str>, Deletions>,
    hasher: PathHasher,
}

/// The children of a znode that were deleted while its children are being listed.
#[derive(Debug, Default)]
struct Deletions {
    /// Number of lists that need the record.
    lists: usize,
    /// Number of deletions.
    count: u64,
    /// The number of the last deletion of each name, by the key of the name. A complete list shares the map.
    by_name: Arc<BTreeMap<u128, u64>>,
    /// Number of times that the map was cleared.
    cleared: usize,
}

impl Core {
    /// Begins to list the children of a znode with many children, which the client may read.
    pub(super) fn begin_listing(
        &mut self,
        conn: ConnId,
        path: &str,
        (with_stat, watch): (bool, bool),
        xid: i32,
    ) {
        let listing = Listing {
            xid,
            path: zoolock_wire::path::normalize(path).into(),
            with_stat,
            watch,
            cursor: None,
            names: BytesMut::new(),
            count: 0,
            portions: Vec::new(),
            cleared: 0,
            restarts: 0,
            waits: false,
            complete: None,
        };
        self.continue_listing(conn, Box::new(listing), self.turn_steps);
    }

    /// Returns whether a client reads its output.
    fn reads_output(&self, conn: ConnId) -> bool {
        let reads = |state: &Conn| !state.closing && state.output.len() + state.unwritten < MAX_UNREAD;
        self.conns.get(&conn).is_some_and(reads)
    }

    /// Lets the next connections that wait build their lists.
    fn activate_listings(&mut self) {
        while self.listings.active.len() < MAX_LISTINGS
            && let Some(conn) = self.listings.waiting.pop_front()
        {
            let reads = self.reads_output(conn);
            if let Some(Job::List(listing)) = self.conns.get_mut(&conn).and_then(|state| state.job.as_mut())
                && std::mem::take(&mut listing.waits)
                && reads
            {
                self.listings.active.insert(conn);
                self.wake(conn);
            }
        }
    }

    /// Takes the turns of clients that do not read their output, if others wait. Their lists are built later.
    pub(super) fn give_turns_to_waiting_listings(&mut self) {
        if self.listings.waiting.is_empty() {
            return;
        }
        let active = self.listings.active.iter().copied();
        let stalled: Vec<ConnId> = active.filter(|&conn| !self.reads_output(conn)).collect();
        for conn in stalled {
            let Some(Conn { job, closing, .. }) = self.conns.get_mut(&conn) else { continue };
            // The events that follow a complete list must not be lost.
            let may_wait =
                |job: &Job| matches!(job, Job::List(listing) if *closing || listing.complete.is_none());
            if let Some(Job::List(mut listing)) = job.take_if(|job| may_wait(job)) {
                self.reset_listing(conn, &mut listing);
                self.keep_listing(conn, listing);
            }
        }
    }

    /// Waits until the list may be built. Returns it if that is now.
    fn wait_for_listing(&mut self, conn: ConnId, mut listing: Box<Listing>) -> Option<Box<Listing>> {
        if !self.reads_output(conn) {
            self.reset_listing(conn, &mut listing);
            self.keep_listing(conn, listing);
            return None;
        }
        if !self.listings.active.contains(&conn) {
            if !std::mem::replace(&mut listing.waits, true) {
                self.listings.waiting.push_back(conn);
            }
            self.keep_listing(conn, listing);
            self.give_turns_to_waiting_listings();
            self.activate_listings();
            if !self.listings.active.contains(&conn) {
                self.begin_wait(conn);
                return None;
            }
            return match self.conns.get_mut(&conn)?.job.take() {
                Some(Job::List(listing)) => Some(listing),
                _ => None,
            };
        }
        self.give_turns_to_waiting_listings();
        Some(listing)
    }

    pub(super) fn continue_listing(
        &mut self,
        conn: ConnId,
        mut listing: Box<Listing>,
        max_steps: usize,
    ) -> Readiness {
        let start = self.steps;
        if listing.complete.is_none() {
            match self.wait_for_listing(conn, listing) {
                Some(active) => listing = active,
                None => return Readiness::Blocked,
            }
        }
        while listing.complete.is_none() {
            if let Err(code) = self.list_portion(conn, &mut listing) {
                return self.fail_listing(conn, &listing, code);
            }
            if self.steps - start >= max_steps {
                self.keep_listing(conn, listing);
                return Readiness::Busy;
            }
        }
        let left = max_steps.saturating_sub(self.steps - start);
        let (is_done, steps) = listing.remove_deleted(&self.listings.hasher, left);
        self.steps += steps;
        // A long list is copied in a turn of its own.
        let copy_steps = listing.names.len() / 16;
        let is_last = self.steps == start || self.steps - start + copy_steps <= max_steps;
        if !is_done || !is_last {
            self.keep_listing(conn, listing);
            return Readiness::Busy;
        }
        self.steps += copy_steps;
        self.forget_listing(conn, &listing);
        let Listing { xid, with_stat, names, complete, .. } = *listing;
        let Some(CompleteListing { stat, zxid, kept, events, .. }) = complete else {
            return Readiness::Ready;
        };
        self.send(conn, EVERYTHING, |writer| {
            ReplyHeader { xid, zxid, err: 0 }.encode(writer);
            writer.count(kept);
            writer.raw(&names);
            if with_stat {
                stat.encode(writer);
            }
        });
        if let Some(state) = self.conns.get_mut(&conn).filter(|_| !events.is_empty()) {
            state.output.extend_from_slice(&events);
            self.record_sent(conn, EVERYTHING, events.len());
        }
        Readiness::Ready
    }

    /// Lists the next children.
    ///
    /// # Errors
    /// If the znode is gone, if the client has lost the permission to read it, if the list exceeds [`MAX_LISTING`], or after
    /// [`MAX_RESTARTS`] new starts of the list.
    fn list_portion(&mut self, conn: ConnId, listing: &mut Listing) -> Result<(), Code> {
        let Some(cursor) = listing.cursor else {
            listing.cursor = Some(self.state.tree.open_cursor(&listing.path).ok_or(Code::NoNode)?);
            let deletions = self.listings.deletions.entry(Arc::clone(&listing.path)).or_default();
            deletions.lists += 1;
            listing.cleared = deletions.cleared;
            return Ok(());
        };
        let deletions = self.listings.deletions.get(&listing.path);
        let (deleted, cleared) = deletions.map_or((0, 0), |known| (known.count, known.cleared));
        let is_recorded = cleared == listing.cleared;
        let Listing { names, count, portions, .. } = &mut *listing;
        let mut writer = Writer::new(names);
        let mut bytes = 0;
        let listed = match is_recorded {
            true => self.state.tree.read_children(cursor, LISTED, |name| {
                writer.string(name);
                bytes += name.len();
                bytes < LISTED_BYTES
            }),
            false => None,
        };
        self.steps += bytes / 16;
        let Some((listed, is_complete)) = listed else {
            // The znode was deleted, or too many of its children.
            listing.restarts += 1;
            let restarts = listing.restarts;
            self.close_listing(listing);
            return if restarts > MAX_RESTARTS { Err(Code::Throttled) } else { Ok(()) };
        };
        if names.len() > MAX_LISTING {
            return Err(Code::QuotaExceeded);
        }
        *count += listed;
        portions.push((*count, deleted));
        self.steps += CHILD_STEPS * listed;
        if is_complete { self.complete_listing(conn, listing) } else { Ok(()) }
    }

    fn keep_listing(&mut self, conn: ConnId, listing: Box<Listing>) {
        match self.conns.get_mut(&conn) {
            Some(state) => state.job = Some(Job::List(listing)),
            None => self.forget_listing(conn, &listing),
        }
    }

    fn fail_listing(&mut self, conn: ConnId, listing: &Listing, code: Code) -> Readiness {
        self.forget_listing(conn, listing);
        self.reply(conn, listing.xid, EVERYTHING, Err(code));
        Readiness::Ready
    }

    /// Records that all children are listed. The list shows the state of this moment, and the watch is set now.
    ///
    /// # Errors
    /// If the client may not read the znode in this state.
    fn complete_listing(&mut self, conn: ConnId, listing: &mut Listing) -> Result<(), Code> {
        let node = self.state.tree.get(&listing.path).ok_or(Code::NoNode)?;
        if let Some(state) = self.conns.get(&conn) {
            state.client.check_permission(node.acl(), perms::READ)?;
        }
        let deletions = self.listings.deletions.get(&listing.path);
        listing.complete = Some(CompleteListing {
            stat: node.stat(),
            zxid: self.state.zxid.0,
            deleted: deletions.map(|known| Arc::clone(&known.by_name)).unwrap_or_default(),
            portion: 0,
            checked: 0,
            read: 0,
            written: 0,
            kept: 0,
            events: BytesMut::new(),
        });
        if listing.watch {
            self.add_watch(&listing.path, conn, WatchKinds::CHILD);
        }
        Ok(())
    }

    /// Ends the turn of a list. Its memory is freed.
    fn reset_listing(&mut self, conn: ConnId, listing: &mut Listing) {
        self.forget_listing(conn, listing);
        listing.clear();
        listing.names = BytesMut::new();
        listing.waits = false;
    }

    /// Lets a list start over.
    fn close_listing(&mut self, listing: &mut Listing) {
        self.forget_deletions(listing);
        listing.clear();
    }

    /// Ends the turn of a list that is sent, or whose connection has ended.
    pub(super) fn forget_listing(&mut self, conn: ConnId, listing: &Listing) {
        self.forget_deletions(listing);
        if self.listings.active.remove(&conn) {
            self.activate_listings();
        }
    }

    /// Closes the cursor of a list, and drops the record of deletions if no other list needs it.
    fn forget_deletions(&mut self, listing: &Listing) {
        let Some(cursor) = listing.cursor else { return };
        self.state.tree.close_cursor(cursor);
        if let Some(deletions) = self.listings.deletions.get_mut(&listing.path) {
            deletions.lists -= 1;
            if deletions.lists == 0 {
                self.steps += deletions.by_name.len();
                self.listings.deletions.remove(&listing.path);
            }
        }
    }

    /// Records the deletion of a child for the lists that are being built.
    pub(super) fn record_deletion(&mut self, path: &str) {
        let (parent, name) = zoolock_wire::path::split(path);
        if self.listings.deletions.is_empty() {
            return;
        }
        let Some(deletions) = self.listings.deletions.get_mut(parent) else { return };
        self.steps += DELETED_STEPS + name.len() / 16;
        if deletions.by_name.len() == MAX_DELETED {
            deletions.by_name = Arc::default();
            deletions.cleared += 1;
            self.steps += MAX_DELETED;
        }
        if Arc::strong_count(&deletions.by_name) > 1 {
            // A complete list shares the map, so it is copied.
            self.steps += 2 * deletions.by_name.len();
        }
        deletions.count += 1;
        Arc::make_mut(&mut deletions.by_name).insert(self.listings.hasher.key(name), deletions.count);
    }
}

impl Listing {
    /// Drops the names. The list starts over.
    fn clear(&mut self) {
        self.cursor = None;
        self.names.clear();
        self.count = 0;
        self.portions.clear();
        self.complete = None;
    }

    /// Removes names of deleted children from the complete list, for at most `max_steps` steps. Returns whether all are
    /// removed, and the number of steps.
    fn remove_deleted(&mut self, hasher: &PathHasher, max_steps: usize) -> (bool, usize) {
        let Listing { names, count, portions, complete: Some(complete), .. } = self else {
            return (false, 0);
        };
        if complete.deleted.is_empty() {
            complete.kept = *count;
            return (true, 0);
        }
        let mut steps = 0;
        while complete.checked < *count {
            if steps >= max_steps {
                return (false, steps);
            }
            while portions.get(complete.portion).is_some_and(|(end, _)| *end <= complete.checked) {
                complete.portion += 1;
            }
            let listed_after = portions.get(complete.portion).map_or(0, |(_, deleted)| *deleted);
            let start = complete.read;
            let len = names[start..].first_chunk().map_or(0, |len| u32::from_be_bytes(*len) as usize);
            let end = start + 4 + len;
            // A child that was created again after its deletion is listed again.
            let name = std::str::from_utf8(&names[start + 4..end]).unwrap_or_default();
            let deleted = complete.deleted.get(&hasher.key(name));
            if deleted.is_none_or(|deleted| *deleted <= listed_after) {
                names.copy_within(start..end, complete.written);
                complete.written += end - start;
                complete.kept += 1;
            }
            complete.read = end;
            complete.checked += 1;
            steps += DELETED_STEPS + len / 16;
        }
        names.truncate(complete.written);
        (true, steps)
    }
}
