//! Builds a tree from its records, in any order.

use zoolock_wire::path;

use super::arena::{Arena, Meta, ROOT};
use super::owner::Owner;
use super::{NodeRecord, Tree, size};
use crate::ids::Zxid;

/// The snapshot number of a znode that was created for its children, and whose own record was not loaded yet.
const MISSING: u32 = u32::MAX;
const LOADED: u32 = 0;

impl Tree {
    /// Creates a tree from the records of its znodes, in any order.
    ///
    /// # Errors
    /// If the records are no tree: a path is invalid or occurs twice, a parent is missing or ephemeral, or the root has
    /// an owner.
    pub fn from_records(records: impl IntoIterator<Item = NodeRecord>) -> Result<Self, String> {
        let mut tree = Tree::empty(Arena::new(missing()));
        for record in records {
            tree.load(&record)?;
        }
        for (id, node) in tree.arena.iter() {
            let fault = match (node.meta.snapshot_number, Owner::of(node.meta.owner)) {
                (MISSING, _) if id == ROOT => "there is no root".to_owned(),
                (MISSING, _) => format!("{:?} is missing but has children", tree.arena.path(id)),
                (_, Owner::None) => continue,
                _ if id == ROOT => format!("the root has the owner {:#x}", node.meta.owner),
                (_, Owner::Session(_)) if node.child_count() > 0 => {
                    format!("{:?} is an ephemeral and has children", tree.arena.path(id))
                }
                _ => {
                    tree.owner_index.add(id, node);
                    continue;
                }
            };
            return Err(fault);
        }
        Ok(tree)
    }

    fn load(&mut self, record: &NodeRecord) -> Result<(), String> {
        let path = record.path.as_str();
        path::validate(path).map_err(|_| format!("{path:?} is not a valid path"))?;
        let names = path.split('/').filter(|name| !name.is_empty());
        let mut id = ROOT;
        for name in names {
            id = match self.arena.child(id, name) {
                Some(child) => child,
                None => self.arena.insert(id, name, None, missing()).expect("there is no such child yet"),
            };
        }
        let acl = self.acls.add_user(&record.acl);
        let node = self.arena.node_mut(id);
        if node.meta.snapshot_number != MISSING {
            return Err(format!("{path:?} occurs twice"));
        }
        node.set_data(record.data.as_deref());
        node.meta = Meta {
            acl,
            czxid: record.czxid,
            mzxid: record.mzxid,
            pzxid: record.pzxid,
            ctime: record.ctime,
            mtime: record.mtime,
            version: record.version,
            created: record.created,
            aversion: record.aversion,
            owner: record.owner,
            snapshot_number: LOADED,
        };
        self.size += size(path, record.data.as_deref());
        Ok(())
    }
}

fn missing() -> Meta {
    let zero = Zxid::from_wire(0);
    Meta {
        acl: 0,
        czxid: zero,
        mzxid: zero,
        pzxid: zero,
        ctime: 0,
        mtime: 0,
        version: 0,
        created: 0,
        aversion: 0,
        owner: 0,
        snapshot_number: MISSING,
    }
}
