//! The metadata of a znode.

use crate::ids::Zxid;

/// The metadata of a znode, without its access list and without values that follow from other
/// znodes, such as the number of children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of the znode")]
pub struct NodeMeta {
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

impl NodeMeta {
    /// Returns the metadata of a znode that a transaction creates at this time.
    pub fn new(zxid: Zxid, time: i64, owner: i64) -> Self {
        NodeMeta {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time,
            mtime: time,
            version: 0,
            created: 0,
            aversion: 0,
            owner,
        }
    }
}
