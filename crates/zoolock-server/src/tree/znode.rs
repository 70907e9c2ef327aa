//! One znode, to look at.

use bytes::Bytes;
use zoolock_wire::Stat;

use super::Tree;
use super::arena::Node;
use super::owner::Owner;
use crate::acl::AclList;
use crate::ids::Zxid;

/// A znode as it stands in the tree.
#[derive(Clone, Copy)]
pub struct Znode<'a> {
    pub(super) tree: &'a Tree,
    pub(super) id: u32,
    pub(super) node: &'a Node,
}

impl<'a> Znode<'a> {
    /// The data; null is not the same as empty.
    pub fn data(self) -> Option<&'a [u8]> {
        self.node.data()
    }

    /// Who may do what.
    pub fn acl(self) -> &'a AclList {
        self.tree.acls.get(self.node.meta.acl)
    }

    /// The transaction that created it.
    pub fn czxid(self) -> Zxid {
        self.node.meta.czxid
    }

    /// The transaction that wrote its data last.
    pub fn mzxid(self) -> Zxid {
        self.node.meta.mzxid
    }

    /// The transaction that changed its children last.
    pub fn pzxid(self) -> Zxid {
        self.node.meta.pzxid
    }

    /// How often the data was written.
    pub fn version(self) -> i32 {
        self.node.meta.version
    }

    /// How many children were ever created: the number of the next sequential one. (`Stat.cversion` counts
    /// deletions too.)
    pub fn created(self) -> i32 {
        self.node.meta.created
    }

    /// How often the access list was written.
    pub fn aversion(self) -> i32 {
        self.node.meta.aversion
    }

    /// The number that says whom it belongs to; [`Owner::of`] reads it.
    pub fn owner(self) -> i64 {
        self.node.meta.owner
    }

    /// How many children it has.
    pub fn child_count(self) -> usize {
        self.node.children() as usize
    }

    /// The names of the children, the oldest first. (After a restart, in the order in which they were loaded.)
    pub fn children(self) -> impl Iterator<Item = &'a str> {
        self.tree.arena.children(self.id).map(Node::name)
    }

    /// The metadata as a client sees it.
    pub fn stat(self) -> Stat {
        let meta = &self.node.meta;
        let num_children = as_i32(self.child_count());
        Stat {
            czxid: meta.czxid.get(),
            mzxid: meta.mzxid.get(),
            ctime: meta.ctime,
            mtime: meta.mtime,
            version: meta.version,
            // Creations plus deletions, wrapping as Java's arithmetic does.
            cversion: meta.created.wrapping_mul(2).wrapping_sub(num_children),
            aversion: meta.aversion,
            // Only a session shows, as in DataNode.getClientEphemeralOwner.
            ephemeral_owner: match Owner::of(meta.owner) {
                Owner::Session(session) => session.get(),
                _ => 0,
            },
            data_length: as_i32(self.data().map_or(0, <[u8]>::len)),
            num_children,
            pzxid: meta.pzxid.get(),
        }
    }

    pub(super) fn record(self) -> NodeRecord {
        let meta = &self.node.meta;
        NodeRecord {
            path: self.tree.arena.path(self.id),
            data: self.data().map(Bytes::copy_from_slice),
            acl: self.acl().clone(),
            czxid: meta.czxid,
            mzxid: meta.mzxid,
            pzxid: meta.pzxid,
            ctime: meta.ctime,
            mtime: meta.mtime,
            version: meta.version,
            created: meta.created,
            aversion: meta.aversion,
            owner: meta.owner,
        }
    }
}

/// One znode by itself, as a snapshot keeps it. What is not here follows from the other znodes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the znode")]
pub struct NodeRecord {
    pub path: String,
    pub data: Option<Bytes>,
    pub acl: AclList,
    pub czxid: Zxid,
    pub mzxid: Zxid,
    pub pzxid: Zxid,
    pub ctime: i64,
    pub mtime: i64,
    pub version: i32,
    pub created: i32,
    pub aversion: i32,
    pub owner: i64,
}

fn as_i32(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}
