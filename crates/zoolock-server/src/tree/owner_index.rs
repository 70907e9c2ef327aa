//! Index of znodes that the server removes by itself: the ephemerals of each session, and znodes that expire.

use std::collections::{BTreeMap, BTreeSet};

use super::arena::TreeNode;
use super::owner::ZnodeOwner;
use crate::ids::SessionId;

/// The expiry time of a container that had a child and has none now.
const ALWAYS_DUE: i64 = i64::MIN;

/// The znodes of each session, and the znodes that expire.
#[derive(Debug, Clone, Default)]
pub(super) struct OwnerIndex {
    ephemerals: BTreeMap<SessionId, BTreeSet<u32>>,
    ephemerals_count: usize,
    /// Childless znodes that expire, by expiry time. Updated with each change, because a search of
    /// all containers at each check would take time in proportion to the number of locks.
    expiring: BTreeSet<(i64, u32)>,
}

impl OwnerIndex {
    pub(super) fn add(&mut self, id: u32, node: &TreeNode) {
        if let ZnodeOwner::Session(session) = ZnodeOwner::from_number(node.meta.owner) {
            self.ephemerals.entry(session).or_default().insert(id);
            self.ephemerals_count += 1;
        }
        self.update_expiry(id, None, expiry_time(node));
    }

    pub(super) fn remove(&mut self, id: u32, node: &TreeNode) {
        if let ZnodeOwner::Session(session) = ZnodeOwner::from_number(node.meta.owner)
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

    pub(super) fn count_ephemerals(&self, session: SessionId) -> usize {
        self.ephemerals.get(&session).map_or(0, BTreeSet::len)
    }

    pub(super) fn ephemerals_count(&self) -> usize {
        self.ephemerals_count
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.ephemerals.keys().copied()
    }

    pub(super) fn emptied_ids(&self) -> impl Iterator<Item = u32> {
        self.expiring.range(..(ALWAYS_DUE + 1, 0)).map(|(_, id)| *id)
    }

    pub(super) fn expired(&self, now_ms: i64) -> impl Iterator<Item = u32> {
        self.expiring.range(..(now_ms, 0)).map(|(_, id)| *id)
    }
}

/// Returns the time after which a znode expires unless it changes, as in ZooKeeper's `ContainerManager`.
pub(super) fn expiry_time(node: &TreeNode) -> Option<i64> {
    if node.child_count() > 0 {
        return None;
    }
    match ZnodeOwner::from_number(node.meta.owner) {
        // A container that never had a child is kept, because its first child may be about to be created.
        ZnodeOwner::Container => (node.meta.created > 0).then_some(ALWAYS_DUE),
        ZnodeOwner::Ttl(0) | ZnodeOwner::None | ZnodeOwner::Session(_) => None,
        ZnodeOwner::Ttl(ttl_ms) => Some(node.meta.mtime.saturating_add(ttl_ms)),
    }
}
