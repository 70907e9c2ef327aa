//! Builds a tree from its records, in any order.

use zoolock_wire::path;

use super::arena::{Arena, ROOT};
use super::meta::NodeMeta;
use super::owner::ZnodeOwner;
use super::{NodeRecord, Tree, znode_size};
use crate::ids::Zxid;

/// The snapshot number of a znode that was inserted as an ancestor of a loaded znode, before its own record was loaded.
const MISSING: u32 = u32::MAX;
const LOADED: u32 = 0;

impl Tree {
    /// Creates a tree from the records of its znodes, in any order.
    ///
    /// # Errors
    /// If the records are no tree: a path is invalid or occurs twice, a parent is missing or ephemeral, or the root has
    /// an owner.
    pub fn from_records(records: impl IntoIterator<Item = NodeRecord>) -> Result<Self, String> {
        let mut tree = Tree::empty(Arena::new(MISSING));
        for record in records {
            tree.load(&record)?;
        }
        for (id, node) in tree.arena.iter() {
            let fault = match (node.snapshot_number, ZnodeOwner::from_number(node.meta.owner)) {
                (MISSING, _) if id == ROOT => "there is no root".to_owned(),
                (MISSING, _) => format!("{:?} is missing but has children", tree.arena.path(id)),
                (_, ZnodeOwner::None) => continue,
                _ if id == ROOT => format!("the root has the owner {:#x}", node.meta.owner),
                (_, ZnodeOwner::Session(_)) if node.child_count() > 0 => {
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
                None => {
                    let meta = NodeMeta::new(Zxid(0), 0, 0);
                    let inserted = self.arena.insert(id, name, None, 0, meta, MISSING);
                    inserted.expect("there is no such child yet")
                }
            };
        }
        let acl = self.acls.add_user(&record.acl);
        let node = self.arena.node_mut(id);
        if node.snapshot_number != MISSING {
            return Err(format!("{path:?} occurs twice"));
        }
        node.set_data(record.data.as_deref());
        (node.acl, node.meta, node.snapshot_number) = (acl, record.meta, LOADED);
        self.size += znode_size(path, record.data.as_deref());
        Ok(())
    }
}
