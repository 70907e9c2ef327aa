//! Index of znodes that the server removes by itself: the ephemerals of each session, and znodes that expire.

use std::collections::{BTreeMap, BTreeSet};

use super::arena::Node;
use super::owner::Owner;
use crate::ids::SessionId;

/// The expiry time of an emptied container.
const ALWAYS_DUE: i64 = i64::MIN;

/// The znodes of each session, and the znodes that expire.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnerIndex {
    ephemerals: BTreeMap<SessionId, BTreeSet<u32>>,
    ephemerals_count: usize,
    /// Znodes without children that expire, by the last moment of their life. Updated with each change: a search of all
    /// containers at each tick would take time in proportion to the number of locks.
    expiring: BTreeSet<(i64, u32)>,
}

impl OwnerIndex {
    pub(super) fn add(&mut self, id: u32, node: &Node) {
        if let Owner::Session(session) = Owner::of(node.meta.owner) {
            self.ephemerals.entry(session).or_default().insert(id);
            self.ephemerals_count += 1;
        }
        self.update_expiry(id, None, expiry_time(node));
    }

    pub(super) fn remove(&mut self, id: u32, node: &Node) {
        if let Owner::Session(session) = Owner::of(node.meta.owner)
            && let Some(ids) = self.ephemerals.get_mut(&session)
        {
            ids.remove(&id);
            self.ephemerals_count -= 1;
            if ids.is_empty() {
                self.ephemerals.remove(&session);
            }
        }
        self.update_expiry(id, expiry_time(node), None);
    }

    pub(super) fn update_expiry(&mut self, id: u32, before: Option<i64>, after: Option<i64>) {
        if before != after {
            if let Some(before) = before {
                self.expiring.remove(&(before, id));
            }
            if let Some(after) = after {
                self.expiring.insert((after, id));
            }
        }
    }

    pub(super) fn ephemerals(&self, session: SessionId) -> impl Iterator<Item = u32> {
        self.ephemerals.get(&session).into_iter().flatten().copied()
    }

    pub(super) fn ephemerals_count(&self) -> usize {
        self.ephemerals_count
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.ephemerals.keys().copied()
    }

    pub(super) fn emptied(&self) -> impl Iterator<Item = u32> {
        self.expiring.range(..(ALWAYS_DUE + 1, 0)).map(|(_, id)| *id)
    }

    pub(super) fn expired(&self, now_ms: i64) -> impl Iterator<Item = u32> {
        self.expiring.range(..(now_ms, 0)).map(|(_, id)| *id)
    }
}

/// Returns the time at which a znode expires unless it changes, as in ZooKeeper's `ContainerManager`.
pub(super) fn expiry_time(node: &Node) -> Option<i64> {
    if node.child_count() > 0 {
        return None;
    }
    match Owner::of(node.meta.owner) {
        // A container that never had a child may be about to get its first one.
        Owner::Container => (node.meta.created > 0).then_some(ALWAYS_DUE),
        Owner::Ttl(0) | Owner::None | Owner::Session(_) => None,
        Owner::Ttl(ttl_ms) => Some(node.meta.mtime.saturating_add(ttl_ms)),
    }
}
