//! Lists of many children, which are built in parts.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::BytesMut;
use zoolock_wire::{Code, ReplyHeader, Writer, perms};

use super::jobs::{CompleteListing, Job, Listing, Readiness};
use super::{Core, Now};
use crate::ids::ConnId;
use crate::watches::WatchKinds;

/// Maximum number of children that are listed at once.
pub(super) const LISTED: usize = 4096;
/// Number of bytes of names after which a portion of a list ends.
const LISTED_BYTES: usize = 256 << 10;
/// Approximate memory of a recorded deletion in bytes, without the name.
const DELETED_BYTES: usize = 64;
/// Time in milliseconds after which a list that is being built gives way to another one. Its client does not read.
const STALE_MS: u64 = 5000;
/// Maximum size of a list of children in bytes.
const MAX_LISTING: usize = 16 << 20;
/// Maximum number of lists that are built at the same time. Each takes memory in proportion to its length.
const MAX_LISTINGS: usize = 8;
/// Number of steps for one listed child.
const CHILD_STEPS: usize = 8;

impl Core {
    /// Begins to list the children of a znode with many children, which the client may read.
    pub(super) fn begin_listing(
        &mut self,
        conn: ConnId,
        path: &str,
        (with_stat, watch): (bool, bool),
        xid: i32,
        now: Now,
    ) {
        self.end_stale_listing(now);
        let listings = self.listings.values().map(Vec::len).sum::<usize>();
        let cursor = match listings < MAX_LISTINGS {
            true => self.state.tree.open_cursor(path).ok_or(Code::NoNode),
            false => Err(Code::Throttled),
        };
        match cursor {
            Err(code) => self.reply(conn, xid, Err(code)),
            Ok(cursor) => {
                let path: Arc<str> = zoolock_wire::path::normalize(path).into();
                self.listings.entry(Arc::clone(&path)).or_default().push(conn);
                let listing = Box::new(Listing {
                    xid,
                    path,
                    with_stat,
                    watch,
                    cursor,
                    names: BytesMut::new(),
                    count: 0,
                    deleted: HashMap::new(),
                    deleted_bytes: 0,
                    began_ms: now.mono_ms,
                    complete: None,
                });
                let steps = self.config.slice_steps;
                self.continue_listing(conn, listing, steps);
            }
        }
    }

    /// Closes the connection with the oldest listing if there is no room for another one and it takes too long.
    fn end_stale_listing(&mut self, now: Now) {
        if self.listings.values().map(Vec::len).sum::<usize>() < MAX_LISTINGS {
            return;
        }
        let began = |conn: &ConnId| match &self.conns.get(conn)?.job {
            Some(Job::List(listing)) => Some((listing.began_ms, *conn)),
            _ => None,
        };
        if let Some((began_ms, conn)) = self.listings.values().flatten().filter_map(began).min()
            && now.mono_ms.saturating_sub(began_ms) > STALE_MS
        {
            tracing::warn!(%conn, "client does not read a list of children; closing the connection");
            if let Some(Job::List(listing)) = self.conns.get_mut(&conn).and_then(|state| state.job.take()) {
                self.forget_listing(conn, &listing);
            }
            self.cut_off(conn);
        }
    }

    pub(super) fn continue_listing(
        &mut self,
        conn: ConnId,
        mut listing: Box<Listing>,
        max_steps: usize,
    ) -> Readiness {
        let start = self.steps;
        while listing.complete.is_none() {
            let Listing { cursor, names, count, deleted_bytes, .. } = &mut *listing;
            let mut writer = Writer::new(names);
            let mut bytes = 0;
            let listed = self.state.tree.read_children(*cursor, LISTED, |name| {
                writer.string(name);
                bytes += name.len();
                bytes < LISTED_BYTES
            });
            self.steps += bytes / 16;
            match listed {
                None => return self.fail_listing(conn, &listing, Code::NoNode),
                Some(_) if names.len() > MAX_LISTING || *deleted_bytes > MAX_LISTING => {
                    return self.fail_listing(conn, &listing, Code::QuotaExceeded);
                }
                Some((listed, is_complete)) => {
                    *count += listed;
                    self.steps += CHILD_STEPS * listed;
                    if is_complete && let Err(code) = self.complete_listing(conn, &mut listing) {
                        return self.fail_listing(conn, &listing, code);
                    }
                }
            }
            if self.steps - start >= max_steps {
                return self.keep_listing(conn, listing);
            }
        }
        let left = max_steps.saturating_sub(self.steps - start);
        let (is_done, steps) = listing.remove_deleted(left);
        self.steps += steps;
        if !is_done {
            return self.keep_listing(conn, listing);
        }
        let Listing { xid, with_stat, names, complete, .. } = *listing;
        let Some(CompleteListing { stat, zxid, kept, events, .. }) = complete else {
            return Readiness::Ready;
        };
        self.steps += names.len() / 16;
        self.send(conn, |writer| {
            ReplyHeader { xid, zxid, err: 0 }.encode(writer);
            writer.count(kept);
            writer.raw(&names);
            if with_stat {
                stat.encode(writer);
            }
        });
        if let Some(state) = self.conns.get_mut(&conn).filter(|_| !events.is_empty()) {
            state.output.extend_from_slice(&events);
            self.record_sent(conn, events.len());
        }
        Readiness::Ready
    }

    fn keep_listing(&mut self, conn: ConnId, listing: Box<Listing>) -> Readiness {
        match self.conns.get_mut(&conn) {
            Some(state) => state.job = Some(Job::List(listing)),
            None => self.forget_listing(conn, &listing),
        }
        Readiness::Busy
    }

    fn fail_listing(&mut self, conn: ConnId, listing: &Listing, code: Code) -> Readiness {
        self.forget_listing(conn, listing);
        self.reply(conn, listing.xid, Err(code));
        Readiness::Ready
    }

    /// Records that all children are listed. The list shows the state of this moment, and the watch is set now.
    ///
    /// # Errors
    /// If the client may not read the znode in this state.
    fn complete_listing(&mut self, conn: ConnId, listing: &mut Listing) -> Result<(), Code> {
        self.forget_listing(conn, listing);
        let node = self.state.tree.get(&listing.path).ok_or(Code::NoNode)?;
        if let Some(state) = self.conns.get(&conn) {
            state.client.check_permission(node.acl(), perms::READ)?;
        }
        listing.complete = Some(CompleteListing {
            stat: node.stat(),
            zxid: self.state.zxid.0,
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

    /// Closes the cursor of a listing, and records no further deletions for it.
    pub(super) fn forget_listing(&mut self, conn: ConnId, listing: &Listing) {
        self.state.tree.close_cursor(listing.cursor);
        if let Some(conns) = self.listings.get_mut(&listing.path) {
            conns.retain(|other| *other != conn);
            if conns.is_empty() {
                self.listings.remove(&listing.path);
            }
        }
    }

    /// Records the deletion of a child for the listings that are being built.
    pub(super) fn record_deletion(&mut self, path: &str) {
        if self.listings.is_empty() {
            return;
        }
        let (parent, name) = zoolock_wire::path::split(path);
        for conn in self.listings.get(parent).into_iter().flatten() {
            if let Some(Job::List(listing)) = self.conns.get_mut(conn).and_then(|state| state.job.as_mut()) {
                listing.deleted_bytes += name.len() + DELETED_BYTES;
                if listing.deleted_bytes <= MAX_LISTING {
                    listing.deleted.insert(name.to_owned(), listing.count);
                }
            }
        }
    }
}

impl Listing {
    /// Removes names of deleted children from the complete list, for at most `max_steps` steps. Returns whether all are
    /// removed, and the number of steps.
    fn remove_deleted(&mut self, max_steps: usize) -> (bool, usize) {
        let Listing { names, count, deleted, complete: Some(complete), .. } = self else { return (false, 0) };
        if deleted.is_empty() {
            complete.kept = *count;
            return (true, 0);
        }
        let mut steps = 0;
        while complete.checked < *count {
            if steps >= max_steps {
                return (false, steps);
            }
            let start = complete.read;
            let len = names[start..].first_chunk().map_or(0, |len| u32::from_be_bytes(*len) as usize);
            let end = start + 4 + len;
            // A child that was created again after its deletion is listed again.
            let name = std::str::from_utf8(&names[start + 4..end]).unwrap_or_default();
            if deleted.get(name).is_none_or(|listed| complete.checked >= *listed) {
                names.copy_within(start..end, complete.written);
                complete.written += end - start;
                complete.kept += 1;
            }
            complete.read = end;
            complete.checked += 1;
            steps += CHILD_STEPS + len / 16;
        }
        names.truncate(complete.written);
        (true, steps)
    }
}
