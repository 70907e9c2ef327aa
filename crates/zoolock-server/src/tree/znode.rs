//! Read access to one znode.

use bytes::Bytes;
use zoolock_wire::Stat;

use super::Tree;
use super::arena::TreeNode;
use super::meta::NodeMeta;
use super::owner::ZnodeOwner;
use crate::acl::AclList;
use crate::ids::Zxid;

/// A znode in the tree.
#[derive(Clone, Copy)]
pub struct Znode<'a> {
    pub(super) tree: &'a Tree,
    pub(super) id: u32,
    pub(super) node: &'a TreeNode,
}

impl<'a> Znode<'a> {
    /// Returns the data, or `None` if the data is null. Null is not the same as empty.
    pub fn data(self) -> Option<&'a [u8]> {
        self.node.data()
    }

    /// Returns the access list.
    pub fn acl(self) -> &'a AclList {
        self.tree.acls.get(self.node.acl)
    }

    /// Returns the transaction that created the znode.
    pub fn czxid(self) -> Zxid {
        self.node.meta.czxid
    }

    /// Returns the transaction that last wrote the data.
    pub fn mzxid(self) -> Zxid {
        self.node.meta.mzxid
    }

    /// Returns the transaction that last created or deleted a child.
    pub fn pzxid(self) -> Zxid {
        self.node.meta.pzxid
    }

    /// Returns the data version: the number of writes.
    pub fn version(self) -> i32 {
        self.node.meta.version
    }

    /// Returns the number of children ever created. It is the number of the next sequential child. (`Stat.cversion`
    /// also counts deletions.)
    pub fn created_children(self) -> i32 {
        self.node.meta.created
    }

    /// Returns the version of the access list: the number of its writes.
    pub fn aversion(self) -> i32 {
        self.node.meta.aversion
    }

    /// Returns the number that encodes the owner. [`ZnodeOwner::from_number`] decodes it.
    pub fn owner(self) -> i64 {
        self.node.meta.owner
    }

    /// Returns the number of children.
    pub fn child_count(self) -> usize {
        self.node.child_count() as usize
    }

    /// Returns the names of the children, oldest first. After a restart, the children are in the
    /// order in which they were loaded.
    pub fn children(self) -> impl Iterator<Item = &'a str> {
        self.tree.arena.children(self.id).map(TreeNode::name)
    }

    /// Returns the metadata in the form in which clients get it.
    pub fn stat(self) -> Stat {
        let meta = &self.node.meta;
        let num_children = as_i32(self.child_count());
        Stat {
            czxid: meta.czxid.0,
            mzxid: meta.mzxid.0,
            ctime: meta.ctime,
            mtime: meta.mtime,
            version: meta.version,
            // Creations plus deletions, wrapping as Java's arithmetic does.
            cversion: meta.created.wrapping_mul(2).wrapping_sub(num_children),
            aversion: meta.aversion,
            // Only the id of a session is shown, as in DataNode.getClientEphemeralOwner.
            ephemeral_owner: match ZnodeOwner::from_number(meta.owner) {
                ZnodeOwner::Session(session) => session.0,
                _ => 0,
            },
            data_length: as_i32(self.data().map_or(0, <[u8]>::len)),
            num_children,
            pzxid: meta.pzxid.0,
        }
    }

    pub(super) fn record(self) -> NodeRecord {
        NodeRecord {
            path: self.tree.arena.path(self.id),
            data: self.node.record_data(),
            acl: self.acl().clone(),
            meta: self.node.meta,
        }
    }
}

/// The record of one znode in a snapshot. The other properties of the znode follow from the other records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the znode")]
pub struct NodeRecord {
    pub path: String,
    pub data: Option<Bytes>,
    pub acl: AclList,
    pub meta: NodeMeta,
}

fn as_i32(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}
