//! Large data and long access lists that no znode has any more. They are freed later in portions.
//!
//! To free a megabyte, or the thousand entries of a list, takes up to a tenth of a millisecond. One multi can delete
//! thousands of znodes with such data. So a deletion only moves the data here, and the core frees a portion at a time.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::acl::AclList;

/// Data with fewer bytes is freed at once.
const LARGE_DATA: usize = 16 << 10;
/// Number of entries of a list that take as long to free as a small znode. A list with fewer entries is freed at once.
const ENTRIES: usize = 8;

/// The data and the lists that are not freed yet, the oldest first.
#[derive(Debug, Clone, Default)]
pub(super) struct Discarded {
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Clone)]
enum Waiting {
    Data(Bytes),
    List(AclList),
}

impl Discarded {
    /// Adds the data that a znode loses, if it has its own buffer.
    pub(super) fn add_data(&mut self, data: Option<Bytes>) {
        if let Some(data) = data.filter(|data| data.len() >= LARGE_DATA) {
            self.waiting.push_back(Waiting::Data(data));
        }
    }

    /// Adds a list that no znode has.
    pub(super) fn add_list(&mut self, list: AclList) {
        if list.len() >= ENTRIES {
            self.waiting.push_back(Waiting::List(list));
        }
    }

    /// Frees some of the memory, for about as long as `max` small znodes take. Returns the number of such znodes.
    pub(super) fn free(&mut self, max: usize) -> usize {
        let mut freed = 0;
        while freed < max
            && let Some(next) = self.waiting.pop_front()
        {
            freed += match next {
                Waiting::Data(data) => 1 + data.len() / LARGE_DATA,
                Waiting::List(list) => 1 + list.len() / ENTRIES,
            };
        }
        freed
    }

    /// Returns whether there is memory to free.
    pub(super) fn has_some(&self) -> bool {
        !self.waiting.is_empty()
    }
}
