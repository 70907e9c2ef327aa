//! The state on which an operation of a multi is decided: the tree with the changes of the earlier
//! operations, which are not applied yet.

use std::collections::HashMap;

use zoolock_wire::{Code, path};

use crate::acl::AclList;
use crate::state::State;
use crate::tree::Tree;

/// The properties of a znode that the decision about a write depends on.
#[derive(Debug, Clone)]
pub(crate) struct PendingZnode {
    pub(crate) version: i32,
    pub(crate) created: i32,
    pub(crate) aversion: i32,
    pub(crate) owner: i64,
    pub(crate) children: usize,
    pub(crate) acl: AclList,
}

pub(crate) struct PendingState<'a> {
    tree: &'a Tree,
    /// The znodes that earlier operations changed, by path. A deleted znode has the value `None`.
    /// There is no map for a single operation.
    changed: Option<HashMap<String, Option<PendingZnode>>>,
}

impl<'a> PendingState<'a> {
    pub(crate) fn for_single(state: &'a State) -> Self {
        PendingState { tree: &state.tree, changed: None }
    }

    pub(crate) fn for_multi(state: &'a State) -> Self {
        PendingState { tree: &state.tree, changed: Some(HashMap::new()) }
    }

    pub(crate) fn get(&self, path: &str) -> Result<PendingZnode, Code> {
        let path = path::normalize(path);
        if let Some(changed) = self.changed.as_ref().and_then(|changed| changed.get(path)) {
            return changed.clone().ok_or(Code::NoNode);
        }
        let node = self.tree.get(path).ok_or(Code::NoNode)?;
        Ok(PendingZnode {
            version: node.version(),
            created: node.created_children(),
            aversion: node.aversion(),
            owner: node.owner(),
            children: node.child_count(),
            acl: node.acl().clone(),
        })
    }

    pub(crate) fn record_change(&mut self, path: &str, znode: impl FnOnce() -> Option<PendingZnode>) {
        if let Some(changed) = &mut self.changed {
            changed.insert(path::normalize(path).to_owned(), znode());
        }
    }
}
