//! The access lists. Each list is stored once, as long as a znode has it.

use slab::Slab;

use super::slot_index::SlotIndex;
use crate::acl::AclList;

/// The access lists by number.
#[derive(Debug, Clone, Default)]
pub(super) struct Acls {
    lists: Slab<SharedAcl>,
    index: SlotIndex,
    /// Approximate memory of the lists in bytes.
    bytes: usize,
}

#[derive(Debug, Clone)]
struct SharedAcl {
    list: AclList,
    users: u32,
}

impl Acls {
    /// Counts one more znode with this list, and stores the list if it is new. Returns the number of the list.
    pub(super) fn add_user(&mut self, list: &AclList) -> u32 {
        let Acls { lists, index, bytes } = self;
        let new = u32::try_from(lists.vacant_key()).expect("there are no more lists than znodes");
        if let Some(id) = index.find_or_insert(list.hash_number(), new, |id| lists[id as usize].list == *list)
        {
            lists[id as usize].users += 1;
            return id;
        }
        *bytes += memory(list);
        lists.insert(SharedAcl { list: list.clone(), users: 1 });
        new
    }

    /// Counts one znode less with this list. Removes and returns the list if no znode has it.
    pub(super) fn remove_user(&mut self, id: u32) -> Option<AclList> {
        let shared = &mut self.lists[id as usize];
        shared.users -= 1;
        if shared.users > 0 {
            return None;
        }
        let SharedAcl { list, .. } = self.lists.remove(id as usize);
        self.bytes -= memory(&list);
        self.index.remove(list.hash_number(), id);
        Some(list)
    }

    pub(super) fn get(&self, id: u32) -> &AclList {
        &self.lists[id as usize].list
    }

    /// Returns the approximate memory of the lists in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.index.len(), self.lists.len());
        self.lists.len()
    }
}

/// Returns the approximate memory of a list in bytes: its entries and their keys.
fn memory(list: &AclList) -> usize {
    100 + 120 * list.len() + list.bytes()
}
