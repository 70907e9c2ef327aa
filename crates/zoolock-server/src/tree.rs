//! The tree of znodes.

mod acls;
mod arena;
mod discarded;
mod last_walk;
mod load;
mod meta;
mod owner;
mod owner_index;
mod slot_index;
mod snapshot;
#[cfg(test)]
mod tests;
mod znode;

use std::sync::Arc;

use bytes::Bytes;
use zoolock_wire::{Acl, Stat, path, perms};

use self::acls::Acls;
use self::arena::Arena;
use self::discarded::Discarded;
pub use self::meta::NodeMeta;
pub use self::owner::{CONTAINER, MAX_TTL_MS, ZnodeOwner, ttl_owner};
use self::owner_index::{OwnerIndex, expiry_time};
use self::snapshot::SnapshotWalk;
pub use self::znode::{NodeRecord, Znode};
use crate::acl::{self, AclList};
use crate::caps::weight;
use crate::ids::{SessionId, Zxid};

/// A chunk of a snapshot ends when its records have at least this many data bytes. This limits the memory that old data takes
/// while the chunk is written.
const CHUNK_BYTES: usize = 4 << 20;

/// Approximate memory of a znode in bytes, besides its name and its data.
const ZNODE_MEMORY: usize = 200;

/// All znodes, by path.
#[derive(Debug, Clone)]
pub struct Tree {
    arena: Arena,
    acls: Acls,
    owner_index: OwnerIndex,
    size: usize,
    snapshot: SnapshotWalk,
    discarded: Discarded,
}

/// The properties of a new znode.
#[derive(Debug, Clone)]
pub(crate) struct NewNode {
    pub(crate) path: Arc<str>,
    pub(crate) data: Option<Bytes>,
    pub(crate) acl: AclList,
    pub(crate) owner: i64,
    /// The parent's new count of created children, or -1 to increment the count.
    pub(crate) parent_created: i32,
    pub(crate) zxid: Zxid,
    pub(crate) time: i64,
}

impl Default for Tree {
    fn default() -> Self {
        Tree::new()
    }
}

impl Tree {
    /// Creates the tree of a fresh server: the root and ZooKeeper's own three znodes.
    pub fn new() -> Self {
        let read_only = AclList::from([Acl::anyone(perms::READ)]);
        let nodes = [
            ("/", acl::open_list(), 0),
            ("/zookeeper", read_only.clone(), 0),
            ("/zookeeper/config", read_only.clone(), -1),
            ("/zookeeper/quota", read_only, 0),
        ];
        let record = |(path, acl, aversion): (&str, AclList, i32)| NodeRecord {
            path: path.to_owned(),
            data: Some(Bytes::new()),
            acl,
            meta: NodeMeta { aversion, ..NodeMeta::new(Zxid(0), 0, 0) },
        };
        Tree::from_records(nodes.map(record)).expect("built-in znodes form a tree")
    }

    fn empty(arena: Arena) -> Self {
        let (acls, owner_index, snapshot) = (Acls::default(), OwnerIndex::default(), SnapshotWalk::default());
        Tree { arena, acls, owner_index, size: 0, snapshot, discarded: Discarded::default() }
    }

    /// Returns a znode. The empty path is the root.
    pub fn get(&self, path: &str) -> Option<Znode<'_>> {
        self.arena.find(path::normalize(path)).map(|id| self.at(id))
    }

    /// Returns the last transaction that changed what a read of this path shows, except access lists, if the tree has it.
    pub(crate) fn last_change(&self, path: &str) -> Option<Zxid> {
        match self.get(path) {
            // At the end of the sequence numbers, a create does not change pzxid.
            Some(node) if node.created_children() == i32::MAX => None,
            Some(node) => Some(node.mzxid().max(node.pzxid())),
            // If the znode was deleted, its parent znode has the transaction.
            None => self.get(path::parent(path).ok()?).map(Znode::pzxid),
        }
    }

    fn at(&self, id: u32) -> Znode<'_> {
        Znode { tree: self, id, node: self.arena.node(id) }
    }

    /// Returns the number of znodes, including the root.
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Returns false, because there is always a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the total length of all paths and data, as `mntr` shows it.
    pub fn approximate_data_size(&self) -> usize {
        self.size
    }

    /// Returns the approximate memory of all znodes and access lists in bytes.
    pub fn memory(&self) -> usize {
        self.size + ZNODE_MEMORY * self.len() + self.acls.bytes()
    }

    /// Frees some of the data and lists that deleted znodes have left, for about as long as `max` small znodes take. Returns
    /// the number of such znodes.
    pub fn free_discarded(&mut self, max: usize) -> usize {
        self.discarded.free(max)
    }

    /// Returns whether [`Tree::free_discarded`] has something to do.
    pub fn has_discarded(&self) -> bool {
        self.discarded.has_some()
    }

    /// Frees an access list later, if the caller has it alone.
    pub(crate) fn discard_list(&mut self, list: &AclList) {
        if !list.is_shared() {
            self.discarded.add_list(list.clone());
        }
    }

    /// Returns the number of ephemerals.
    pub fn ephemerals_count(&self) -> usize {
        self.owner_index.ephemerals_count()
    }

    /// Returns the sessions that own ephemerals, in order of their ids.
    pub fn sessions_with_ephemerals(&self) -> impl Iterator<Item = SessionId> {
        self.owner_index.sessions()
    }

    /// Returns the ephemerals of a session, in order of their paths.
    pub fn ephemerals(&self, session: SessionId) -> Vec<Arc<str>> {
        self.paths(self.owner_index.ephemerals(session))
    }

    /// Returns the ephemerals of a session, in no particular order.
    pub fn ephemerals_unsorted(&self, session: SessionId) -> impl Iterator<Item = String> {
        self.owner_index.ephemerals(session).map(|id| self.arena.path(id))
    }

    /// Returns some ephemerals of a session, in order of their paths: at least one, and at most `max`. A long path counts as
    /// several. If there are more, the choice depends on the history of this process.
    pub fn some_ephemerals(&self, session: SessionId, max: usize) -> Vec<Arc<str>> {
        self.some_paths(self.owner_index.ephemerals(session), max)
    }

    /// Returns the number of ephemerals of a session.
    pub fn count_ephemerals(&self, session: SessionId) -> usize {
        self.owner_index.count_ephemerals(session)
    }

    /// Returns the containers that had a child and have none now, in order of their paths.
    pub fn emptied_containers(&self) -> Vec<Arc<str>> {
        self.paths(self.owner_index.emptied_ids())
    }

    /// Returns some of the znodes to remove at this time, like [`Tree::some_ephemerals`]. These are
    /// [`Tree::emptied_containers`], and znodes without children whose last write is longer ago than their time to live.
    pub fn expired_paths(&self, now_wall_ms: i64, max: usize) -> Vec<Arc<str>> {
        self.some_paths(self.owner_index.expired(now_wall_ms), max)
    }

    /// Returns the paths of the znodes in these slots of the arena. The paths are sorted, because
    /// the order of the slots changes with a restart.
    fn paths(&self, ids: impl Iterator<Item = u32>) -> Vec<Arc<str>> {
        let mut paths: Vec<Arc<str>> = ids.map(|id| self.arena.path(id).into()).collect();
        paths.sort_unstable();
        paths
    }

    fn some_paths(&self, ids: impl Iterator<Item = u32>, max: usize) -> Vec<Arc<str>> {
        let mut count = 0;
        let mut paths: Vec<Arc<str>> = Vec::new();
        for id in ids {
            if !paths.is_empty() && count >= max {
                break;
            }
            let path: Arc<str> = self.arena.path(id).into();
            count += weight(&path);
            paths.push(path);
        }
        paths.sort_unstable();
        paths
    }

    /// Returns the number of descendants of a znode, or `None` if there is no such znode.
    pub fn count_descendants(&self, path: &str) -> Option<usize> {
        self.arena.find(path::normalize(path)).map(|id| self.arena.count_descendants(id))
    }

    /// Returns the records of all znodes, in no particular order.
    pub fn records(&self) -> impl Iterator<Item = NodeRecord> {
        self.arena.iter().map(|(id, _)| self.at(id).record())
    }

    /// Begins a snapshot, in constant time. [`Tree::snapshot_chunk`] then returns the tree as it is now, unaffected by
    /// later changes. A snapshot in progress is abandoned.
    pub fn begin_snapshot(&mut self) {
        self.snapshot.begin(self.arena.end());
    }

    /// Returns the next records of the snapshot: at most `max`, possibly none. Visits at most `max`
    /// slots of the arena, and fewer if their znodes have much data (`CHUNK_BYTES`). A `max` of 0
    /// counts as 1. Returns `None` if the snapshot is complete, or if no snapshot is in progress.
    pub fn snapshot_chunk(&mut self, max: usize) -> Option<Vec<NodeRecord>> {
        let max = max.max(1);
        let mut chunk = self.snapshot.take_saved(max)?;
        let mut bytes = 0;
        for _ in chunk.len()..max {
            if bytes >= CHUNK_BYTES {
                break;
            }
            let Some(id) = self.snapshot.advance() else { break };
            if self.arena.get(id).is_some_and(|node| node.snapshot_number != self.snapshot.number()) {
                let record = self.at(id).record();
                // A long path may have many names, each of which is found on its own.
                bytes += record.data.as_ref().map_or(0, Bytes::len) + 16 * record.path.len();
                chunk.push(record);
            }
        }
        Some(chunk)
    }

    /// Abandons the snapshot in progress.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot.abandon();
    }

    /// Adds a znode that [`crate::prepare()`] allowed.
    pub(crate) fn create(&mut self, new: NewNode) -> Stat {
        let NewNode { path, data, acl, owner, parent_created, zxid, time } = new;
        let (parent_path, name) = path::split(&path);
        let parent = self.find(parent_path);
        let id = self.change_znode(parent, |tree| {
            let node = tree.arena.node_mut(parent);
            // As in ZooKeeper, the count stops at its maximum. The maximum plus one wraps to a
            // negative number, which is not larger than the maximum. So neither the count nor pzxid
            // changes any more.
            let created =
                if parent_created == -1 { node.meta.created.wrapping_add(1) } else { parent_created };
            if created > node.meta.created {
                node.meta.created = created;
                node.meta.pzxid = zxid;
            }
            let acl = tree.acls.add_user(&acl);
            let (meta, snapshot_number) = (NodeMeta::new(zxid, time, owner), tree.snapshot.number());
            let id = tree.arena.insert(parent, name, data.as_deref(), acl, meta, snapshot_number);
            id.expect("name was checked by prepare")
        });
        self.owner_index.add(id, self.arena.node(id));
        self.size += znode_size(&path, data.as_deref());
        self.at(id).stat()
    }

    /// Deletes a znode whose deletion [`crate::prepare()`] allowed.
    pub(crate) fn delete(&mut self, path: &str, zxid: Zxid) {
        let (parent_path, name) = path::split(path);
        let parent = self.find(parent_path);
        let id = self.arena.child(parent, name).expect("znode was checked by prepare");
        self.save_for_snapshot(id);
        let node = self.change_znode(parent, |tree| {
            let meta = &mut tree.arena.node_mut(parent).meta;
            meta.pzxid = meta.pzxid.max(zxid);
            tree.arena.remove(id)
        });
        self.owner_index.remove(id, &node);
        self.remove_list_user(node.acl);
        self.discarded.add_data(node.large_data());
        self.size -= znode_size(path, node.data());
    }

    /// Sets a znode's data.
    pub(crate) fn set_data(
        &mut self,
        path: &str,
        data: Option<&[u8]>,
        version: i32,
        zxid: Zxid,
        time: i64,
    ) -> Stat {
        let id = self.find(path);
        self.change_znode(id, |tree| {
            let node = tree.arena.node_mut(id);
            tree.size -= node.data().map_or(0, <[u8]>::len);
            tree.size += data.map_or(0, <[u8]>::len);
            tree.discarded.add_data(node.large_data());
            node.set_data(data);
            (node.meta.version, node.meta.mzxid, node.meta.mtime) = (version, zxid, time);
        });
        self.at(id).stat()
    }

    /// Sets a znode's access list.
    pub(crate) fn set_acl(&mut self, path: &str, acl: &AclList, version: i32) -> Stat {
        let id = self.find(path);
        self.change_znode(id, |tree| {
            let acl = tree.acls.add_user(acl);
            let node = tree.arena.node_mut(id);
            node.meta.aversion = version;
            let old = std::mem::replace(&mut node.acl, acl);
            tree.remove_list_user(old);
        });
        self.at(id).stat()
    }

    fn remove_list_user(&mut self, list: u32) {
        if let Some(list) = self.acls.remove_user(list) {
            self.discarded.add_list(list);
        }
    }

    /// Sets a znode's count of created children. Returns false if there is no such znode.
    pub(crate) fn set_created_children(&mut self, path: &str, count: i32) -> bool {
        let id = self.arena.find(path::normalize(path));
        id.map(|id| self.change_znode(id, |tree| tree.arena.node_mut(id).meta.created = count)).is_some()
    }

    fn find(&self, path: &str) -> u32 {
        self.arena.find(path::normalize(path)).expect("znode was checked by prepare")
    }

    /// Changes a znode or its children. Updates the snapshot before the change, and the index of expiry times after it.
    fn change_znode<T>(&mut self, id: u32, change: impl FnOnce(&mut Self) -> T) -> T {
        self.save_for_snapshot(id);
        let before = expiry_time(self.arena.node(id));
        let done = change(self);
        self.owner_index.update_expiry(id, before, expiry_time(self.arena.node(id)));
        done
    }

    /// Saves the record of a znode for the snapshot before the znode changes, if the snapshot does not have it yet. The
    /// record shares large data with the znode.
    fn save_for_snapshot(&mut self, id: u32) {
        if self.snapshot.needs_copy(id, self.arena.node(id).snapshot_number) {
            let record = self.at(id).record();
            self.snapshot.save(record);
            self.arena.node_mut(id).snapshot_number = self.snapshot.number();
        }
    }
}

/// Returns the share of a znode in [`Tree::approximate_data_size`]. Java counts the UTF-16 units of
/// a path. Each character that is allowed in a path is one unit, so this function counts
/// characters.
fn znode_size(path: &str, data: Option<&[u8]>) -> usize {
    path.chars().count() + data.map_or(0, <[u8]>::len)
}
