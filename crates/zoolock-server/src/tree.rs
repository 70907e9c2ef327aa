//! The znodes.

mod acls;
mod arena;
mod load;
mod owned;
mod owner;
mod snapshot;
#[cfg(test)]
mod tests;
mod znode;

use std::sync::Arc;

use bytes::Bytes;
use zoolock_wire::{Acl, Stat, path, perms};

use self::acls::Acls;
use self::arena::{Arena, Meta};
use self::owned::{Owned, due};
pub use self::owner::{CONTAINER, MAX_TTL_MS, Owner, ttl_owner};
use self::snapshot::Snapshot;
pub use self::znode::{NodeRecord, Znode};
use crate::acl::{self, AclList};
use crate::ids::{SessionId, Zxid};

/// How much data a chunk of a snapshot copies: a thousand large znodes would be the memory that they take, again.
const CHUNK_BYTES: usize = 4 << 20;

/// All znodes, by path.
#[derive(Debug, Clone)]
pub struct Tree {
    arena: Arena,
    acls: Acls,
    owned: Owned,
    size: usize,
    snapshot: Snapshot,
}

/// What a new znode is made of.
#[derive(Debug, Clone)]
pub(crate) struct NewNode {
    pub(crate) path: Arc<str>,
    pub(crate) data: Option<Bytes>,
    pub(crate) acl: AclList,
    pub(crate) owner: i64,
    /// What the parent's count of creations becomes.
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
    /// Makes the tree of a fresh server: the root and ZooKeeper's own three znodes.
    pub fn new() -> Self {
        let read_only: AclList = Arc::new([Acl::anyone(perms::READ)]);
        let nodes = [
            ("/", acl::open(), 0),
            ("/zookeeper", acl::open(), 0),
            ("/zookeeper/config", read_only, -1),
            ("/zookeeper/quota", acl::open(), 0),
        ];
        let zero = Zxid::from_wire(0);
        let record = |(path, acl, aversion): (&str, AclList, i32)| NodeRecord {
            path: path.to_owned(),
            data: Some(Bytes::new()),
            acl,
            czxid: zero,
            mzxid: zero,
            pzxid: zero,
            ctime: 0,
            mtime: 0,
            version: 0,
            created: 0,
            aversion,
            owner: 0,
        };
        Tree::from_records(nodes.map(record)).expect("they make a tree")
    }

    fn empty(arena: Arena) -> Self {
        let (acls, owned, snapshot) = (Acls::default(), Owned::default(), Snapshot::default());
        Tree { arena, acls, owned, size: 0, snapshot }
    }

    /// Looks a znode up; the empty path is the root.
    pub fn get(&self, path: &str) -> Option<Znode<'_>> {
        self.arena.find(path::normal(path)).map(|id| self.at(id))
    }

    fn at(&self, id: u32) -> Znode<'_> {
        Znode { tree: self, id, node: self.arena.node(id) }
    }

    /// How many znodes there are, the root included.
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Never: there is always a root.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The lengths of all paths and data, as `mntr` shows it.
    pub fn approximate_data_size(&self) -> usize {
        self.size
    }

    /// How many ephemerals there are.
    pub fn ephemerals_count(&self) -> usize {
        self.owned.ephemerals_count()
    }

    /// The sessions that have ephemerals, in order of their ids.
    pub fn owners(&self) -> impl Iterator<Item = SessionId> {
        self.owned.sessions()
    }

    /// The ephemerals of a session, in order of their paths.
    pub fn ephemerals(&self, session: SessionId) -> Vec<Arc<str>> {
        self.paths(self.owned.ephemerals(session))
    }

    /// The containers that had a child and have none now, in order of their paths.
    pub fn emptied_containers(&self) -> Vec<Arc<str>> {
        self.paths(self.owned.emptied())
    }

    /// What is to be removed at this time: [`Tree::emptied_containers`], and what has had neither writes nor children
    /// for longer than its time to live. In order of their paths.
    pub fn expired(&self, now_wall_ms: i64) -> Vec<Arc<str>> {
        self.paths(self.owned.expired(now_wall_ms))
    }

    /// Sorted, since the slots are others after a restart.
    fn paths(&self, ids: impl Iterator<Item = u32>) -> Vec<Arc<str>> {
        let mut paths: Vec<Arc<str>> = ids.map(|id| self.arena.path(id).into()).collect();
        paths.sort_unstable();
        paths
    }

    /// How many znodes lie below this one, or `None` where it does not exist.
    pub fn descendants(&self, path: &str) -> Option<usize> {
        self.arena.find(path::normal(path)).map(|id| self.arena.descendants(id))
    }

    /// All znodes by themselves, in no particular order.
    pub fn records(&self) -> impl Iterator<Item = NodeRecord> {
        self.arena.iter().map(|(id, _)| self.at(id).record())
    }

    /// Begins a snapshot, in no time: [`Tree::snapshot_chunk`] then gives the tree as it is now, whatever happens to it
    /// meanwhile. One that was under way is abandoned.
    pub fn begin_snapshot(&mut self) {
        self.snapshot.begin(self.arena.end());
    }

    /// Takes some more of the snapshot: `max` records at most, perhaps none, in a time that `max` bounds (but at least
    /// one slot is looked at). `None` when it is complete, or there is none.
    pub fn snapshot_chunk(&mut self, max: usize) -> Option<Vec<NodeRecord>> {
        let max = max.max(1);
        let mut chunk = self.snapshot.take_aside(max)?;
        let mut bytes = 0;
        for _ in chunk.len()..max {
            if bytes >= CHUNK_BYTES {
                break;
            }
            let Some(id) = self.snapshot.advance() else { break };
            if self.arena.get(id).is_some_and(|node| node.meta.mark != self.snapshot.mark()) {
                let record = self.at(id).record();
                bytes += record.data.as_ref().map_or(0, Bytes::len);
                chunk.push(record);
            }
        }
        Some(chunk)
    }

    /// Gives a snapshot up.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot.abandon();
    }

    /// Adds a znode that [`crate::prepare`] allowed.
    pub(crate) fn create(&mut self, new: NewNode) -> Stat {
        let NewNode { path, data, acl, owner, parent_created, zxid, time } = new;
        let (above, name) = path::split(&path);
        let parent = self.find(above);
        let id = self.change(parent, |tree| {
            let node = tree.arena.node_mut(parent);
            // ZooKeeper sticks at the end of the numbers for this very comparison: the wrapped, negative count never
            // is the larger one, so neither the count nor pzxid move again. -1 means "count for yourself" there.
            let created =
                if parent_created == -1 { node.meta.created.wrapping_add(1) } else { parent_created };
            if created > node.meta.created {
                node.meta.created = created;
                node.meta.pzxid = zxid;
            }
            let meta = Meta {
                acl: tree.acls.take(&acl),
                czxid: zxid,
                mzxid: zxid,
                pzxid: zxid,
                ctime: time,
                mtime: time,
                version: 0,
                created: 0,
                aversion: 0,
                owner,
                mark: tree.snapshot.mark(),
            };
            let id = tree.arena.insert(parent, name, data.as_deref(), meta);
            id.expect("prepare saw that the name is free, and nothing came between")
        });
        self.owned.add(id, self.arena.node(id));
        self.size += size(&path, data.as_deref());
        self.at(id).stat()
    }

    /// Removes a znode that [`crate::prepare`] allowed to go.
    pub(crate) fn delete(&mut self, path: &str, zxid: Zxid) {
        let (above, name) = path::split(path);
        let parent = self.find(above);
        let id = self.arena.child(parent, name).expect("prepare saw the znode, and nothing came between");
        self.preserve(id);
        let node = self.change(parent, |tree| {
            let meta = &mut tree.arena.node_mut(parent).meta;
            meta.pzxid = meta.pzxid.max(zxid);
            tree.arena.remove(id)
        });
        self.owned.remove(id, &node);
        self.acls.give_back(node.meta.acl);
        self.size -= size(path, node.data());
    }

    /// Writes a znode's data.
    pub(crate) fn set_data(
        &mut self,
        path: &str,
        data: Option<&[u8]>,
        version: i32,
        zxid: Zxid,
        time: i64,
    ) -> Stat {
        let id = self.find(path);
        self.change(id, |tree| {
            let node = tree.arena.node_mut(id);
            tree.size -= node.data().map_or(0, <[u8]>::len);
            tree.size += data.map_or(0, <[u8]>::len);
            node.set_data(data);
            (node.meta.version, node.meta.mzxid, node.meta.mtime) = (version, zxid, time);
        });
        self.at(id).stat()
    }

    /// Writes a znode's access list.
    pub(crate) fn set_acl(&mut self, path: &str, acl: &AclList, version: i32) -> Stat {
        let id = self.find(path);
        self.change(id, |tree| {
            let acl = tree.acls.take(acl);
            let meta = &mut tree.arena.node_mut(id).meta;
            meta.aversion = version;
            let old = std::mem::replace(&mut meta.acl, acl);
            tree.acls.give_back(old);
        });
        self.at(id).stat()
    }

    /// Sets a znode's count of creations; false where there is no such znode.
    pub(crate) fn set_created(&mut self, path: &str, count: i32) -> bool {
        let id = self.arena.find(path::normal(path));
        id.map(|id| self.change(id, |tree| tree.arena.node_mut(id).meta.created = count)).is_some()
    }

    fn find(&self, path: &str) -> u32 {
        self.arena.find(path::normal(path)).expect("prepare saw the znode, and nothing came between")
    }

    /// Changes a znode, or its children, and what the snapshot and the list of the due know of it.
    fn change<T>(&mut self, id: u32, change: impl FnOnce(&mut Self) -> T) -> T {
        self.preserve(id);
        let before = due(self.arena.node(id));
        let done = change(self);
        self.owned.change(id, before, due(self.arena.node(id)));
        done
    }

    /// Lets the snapshot have a znode that is about to change, if it needs it.
    fn preserve(&mut self, id: u32) {
        if self.snapshot.lacks(id, self.arena.node(id).meta.mark) {
            let record = self.at(id).record();
            self.snapshot.put_aside(record);
            self.arena.node_mut(id).meta.mark = self.snapshot.mark();
        }
    }
}

/// What a znode adds to [`Tree::approximate_data_size`]: Java counts its paths in UTF-16, where each character that a
/// path may have is one.
fn size(path: &str, data: Option<&[u8]>) -> usize {
    path.chars().count() + data.map_or(0, <[u8]>::len)
}
