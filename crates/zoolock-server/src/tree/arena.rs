//! The storage of the znodes: numbered slots, one index of names, and a linked list of the children of each znode.
//!
//! A znode has no collection of its own, so a million znodes take little more memory than their data. No function
//! recurses, because a tree may be as deep as a path is long.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::iter::successors;

use bytes::Bytes;
use slab::Slab;

use super::last_walk::LastWalk;
use super::meta::NodeMeta;
use super::slot_index::SlotIndex;
use crate::ids::Zxid;

/// The root's slot.
pub(super) const ROOT: u32 = 0;
/// Number of bytes from which data has its own buffer.
const LARGE_DATA: usize = 1024;
/// The number that stands for no slot.
const NONE: u32 = u32::MAX;

/// The name and the data of a znode.
#[derive(Debug, Clone)]
enum Text {
    /// The name, followed by the data. One buffer saves an allocation per znode.
    Small(Box<[u8]>),
    /// The name, and data of at least [`LARGE_DATA`] bytes. The records of the znode share the data, so that a snapshot does
    /// not copy it.
    Large(Box<(Box<[u8]>, Bytes)>),
}

const _: () = assert!(size_of::<Text>() == size_of::<Box<[u8]>>(), "a znode takes more memory than planned");

impl Text {
    fn new(name: &[u8], data: &[u8]) -> Self {
        if data.len() < LARGE_DATA {
            Text::Small([name, data].concat().into())
        } else {
            Text::Large(Box::new((name.into(), Bytes::copy_from_slice(data))))
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct TreeNode {
    pub(super) meta: NodeMeta,
    /// The number of the access list in [`super::acls::Acls`].
    pub(super) acl: u32,
    /// The number of the newest snapshot that needs no copy of this znode. That snapshot already
    /// has a copy, or began before the znode was created.
    pub(super) snapshot_number: u32,
    text: Text,
    name_len: u32,
    /// Set if the data is not null. Null is not the same as empty.
    has_data: bool,
    parent: u32,
    children: u32,
    /// Number of descendants. A count on request would visit all of them.
    descendants: u32,
    first: u32,
    next: u32,
    /// The previous sibling. In the first child, the last sibling.
    prev: u32,
}

impl TreeNode {
    pub(super) fn name(&self) -> &str {
        std::str::from_utf8(self.name_bytes()).expect("name was taken from a str")
    }

    fn name_bytes(&self) -> &[u8] {
        match &self.text {
            Text::Small(text) => &text[..self.name_len as usize],
            Text::Large(large) => &large.0,
        }
    }

    pub(super) fn data(&self) -> Option<&[u8]> {
        self.has_data.then(|| match &self.text {
            Text::Small(text) => &text[self.name_len as usize..],
            Text::Large(large) => &large.1[..],
        })
    }

    /// Returns the data if it has its own buffer, which is shared.
    pub(super) fn large_data(&self) -> Option<Bytes> {
        match &self.text {
            Text::Large(large) => Some(large.1.clone()),
            Text::Small(_) => None,
        }
    }

    /// Returns the data, which is shared if it is large, and copied otherwise.
    pub(super) fn record_data(&self) -> Option<Bytes> {
        self.large_data().or_else(|| self.data().map(Bytes::copy_from_slice))
    }

    pub(super) fn child_count(&self) -> u32 {
        self.children
    }

    pub(super) fn set_data(&mut self, data: Option<&[u8]>) {
        self.has_data = data.is_some();
        let (data, name_len) = (data.unwrap_or_default(), self.name_len as usize);
        match &mut self.text {
            Text::Small(text) if text.len() - name_len == data.len() => {
                text[name_len..].copy_from_slice(data)
            }
            _ => self.text = Text::new(self.name_bytes(), data),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Arena {
    nodes: Slab<TreeNode>,
    /// The znodes by parent and name.
    index: SlotIndex,
    /// Keyed at random, because clients choose the names.
    hasher: RandomState,
    last_walk: LastWalk,
    /// The first slot that was never used.
    end: u32,
}

impl Arena {
    /// Creates an arena with a root that has this snapshot number.
    pub(super) fn new(snapshot_number: u32) -> Self {
        let (index, hasher) = (SlotIndex::default(), RandomState::new());
        let last_walk = LastWalk::default();
        let mut arena = Arena { nodes: Slab::new(), index, hasher, last_walk, end: ROOT + 1 };
        let meta = NodeMeta::new(Zxid(0), 0, 0);
        arena.nodes.insert(new_node(NONE, "", None, 0, meta, snapshot_number));
        arena
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn end(&self) -> u32 {
        self.end
    }

    pub(super) fn get(&self, id: u32) -> Option<&TreeNode> {
        self.nodes.get(id as usize)
    }

    pub(super) fn node(&self, id: u32) -> &TreeNode {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: u32) -> &mut TreeNode {
        &mut self.nodes[id as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &TreeNode)> {
        (0..self.end).filter_map(|id| Some((id, self.get(id)?)))
    }

    pub(super) fn parent(&self, id: u32) -> Option<u32> {
        to_option(self.node(id).parent)
    }

    /// Returns the children, oldest first.
    pub(super) fn children(&self, id: u32) -> impl Iterator<Item = &TreeNode> {
        let node = |id: u32| to_option(id).map(|id| self.node(id));
        successors(node(self.node(id).first), move |child| node(child.next))
    }

    pub(super) fn find(&self, path: &str) -> Option<u32> {
        match path.strip_prefix('/')? {
            "" => Some(ROOT),
            _ => self.last_walk.find(path, ROOT, |parent, name| self.child(parent, name)),
        }
    }

    pub(super) fn child(&self, parent: u32, name: &str) -> Option<u32> {
        let hash = self.hash(parent, name.as_bytes());
        self.index.find(hash, is_child(&self.nodes, parent, name))
    }

    pub(super) fn path(&self, id: u32) -> String {
        if id == ROOT {
            return "/".to_owned();
        }
        let upwards = || successors(to_option(id), |id| self.parent(*id)).filter(|id| *id != ROOT);
        let len = upwards().map(|id| self.node(id).name_len as usize + 1).sum();
        let mut names: Vec<&str> = upwards().map(|id| self.node(id).name()).collect();
        names.reverse();
        let mut path = String::with_capacity(len);
        for name in names {
            path.push('/');
            path.push_str(name);
        }
        path
    }

    /// Returns the number of descendants.
    pub(super) fn count_descendants(&self, top: u32) -> usize {
        self.node(top).descendants as usize
    }

    /// Adds a child after its siblings. Returns `None` if there is a child with this name.
    pub(super) fn insert(
        &mut self,
        parent: u32,
        name: &str,
        data: Option<&[u8]>,
        acl: u32,
        meta: NodeMeta,
        snapshot_number: u32,
    ) -> Option<u32> {
        let hash = self.hash(parent, name.as_bytes());
        let id = u32::try_from(self.nodes.vacant_key()).ok().and_then(to_option);
        let id = id.expect("memory is full before slot numbers run out");
        if self.index.find_or_insert(hash, id, is_child(&self.nodes, parent, name)).is_some() {
            return None;
        }
        self.nodes.insert(new_node(parent, name, data, acl, meta, snapshot_number));
        self.end = self.end.max(id + 1);
        self.link(parent, id);
        Some(id)
    }

    /// Removes a znode that has no children and is not the root.
    pub(super) fn remove(&mut self, id: u32) -> TreeNode {
        assert!(self.node(id).children == 0 && id != ROOT, "only a childless znode may be deleted");
        self.last_walk.remove(id);
        self.unlink(id);
        let node = self.nodes.remove(id as usize);
        let hash = self.hash(node.parent, node.name_bytes());
        self.index.remove(hash, id);
        node
    }

    fn link(&mut self, parent: u32, id: u32) {
        let first = self.node(parent).first;
        if first == NONE {
            self.node_mut(id).prev = id;
            self.node_mut(parent).first = id;
        } else {
            let last = std::mem::replace(&mut self.node_mut(first).prev, id);
            self.node_mut(last).next = id;
            self.node_mut(id).prev = last;
        }
        self.node_mut(parent).children += 1;
        self.for_each_ancestor(id, |node| node.descendants += 1);
    }

    fn unlink(&mut self, id: u32) {
        let &TreeNode { parent, next, prev, .. } = self.node(id);
        self.for_each_ancestor(id, |node| node.descendants -= 1);
        let parent_node = self.node_mut(parent);
        parent_node.children -= 1;
        if parent_node.first == id {
            parent_node.first = next;
        } else {
            self.node_mut(prev).next = next;
        }
        // If the last child was removed, the first child must link to the new last one.
        let after = if next == NONE { self.node(parent).first } else { next };
        if after != NONE {
            self.node_mut(after).prev = prev;
        }
    }

    fn for_each_ancestor(&mut self, id: u32, change: impl Fn(&mut TreeNode)) {
        let mut next = self.parent(id);
        while let Some(id) = next {
            let node = self.node_mut(id);
            change(node);
            next = to_option(node.parent);
        }
    }

    fn hash(&self, parent: u32, name: &[u8]) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(parent);
        hasher.write(name);
        hasher.finish() as u32
    }
}

fn new_node(
    parent: u32,
    name: &str,
    data: Option<&[u8]>,
    acl: u32,
    meta: NodeMeta,
    snapshot_number: u32,
) -> TreeNode {
    TreeNode {
        meta,
        acl,
        snapshot_number,
        text: Text::new(name.as_bytes(), data.unwrap_or_default()),
        name_len: u32::try_from(name.len()).expect("a name is shorter than the largest frame"),
        has_data: data.is_some(),
        parent,
        children: 0,
        descendants: 0,
        first: NONE,
        next: NONE,
        prev: NONE,
    }
}

fn is_child(nodes: &Slab<TreeNode>, parent: u32, name: &str) -> impl Fn(u32) -> bool {
    move |id| {
        let node = &nodes[id as usize];
        node.parent == parent && node.name_bytes() == name.as_bytes()
    }
}

fn to_option(id: u32) -> Option<u32> {
    (id != NONE).then_some(id)
}
