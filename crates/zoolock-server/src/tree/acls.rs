//! The access lists. Each list is stored once, as long as a znode has it.

use std::hash::{BuildHasher as _, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use slab::Slab;

use crate::acl::{AclList, stored_bytes};

/// The access lists by number. Clients choose the contents of the lists, so the hash has a random
/// key.
#[derive(Debug, Clone, Default)]
pub(super) struct Acls {
    lists: Slab<SharedAcl>,
    index: HashTable<u32>,
    hasher: RandomState,
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
        let Acls { lists, index, hasher, bytes } = self;
        let hash = hasher.hash_one(&**list);
        let same = |id: &u32| lists[*id as usize].list == *list;
        match index.entry(hash, same, |id| hasher.hash_one(&*lists[*id as usize].list)) {
            Entry::Occupied(known) => {
                let id = *known.get();
                lists[id as usize].users += 1;
                id
            }
            Entry::Vacant(free) => {
                let id = u32::try_from(lists.vacant_key()).expect("there are no more lists than znodes");
                free.insert(id);
                *bytes += memory(list);
                lists.insert(SharedAcl { list: list.clone(), users: 1 });
                id
            }
        }
    }

    /// Counts one znode less with this list. Drops the list if no znode has it.
    pub(super) fn remove_user(&mut self, id: u32) {
        let shared = &mut self.lists[id as usize];
        shared.users -= 1;
        if shared.users == 0 {
            let SharedAcl { list, .. } = self.lists.remove(id as usize);
            self.bytes -= memory(&list);
            let hash = self.hasher.hash_one(&*list);
            if let Ok(entry) = self.index.find_entry(hash, |known| *known == id) {
                entry.remove();
            }
        }
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
    100 + 120 * list.len() + stored_bytes(list)
}
