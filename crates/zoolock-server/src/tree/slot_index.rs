//! An index of slots by the hashes of their contents.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Number of tables of an index.
const TABLES: usize = 256;

/// An entry of a table. It stores the hash, so that the table can grow without reading each slot. Reading a million slots
/// would stop the server for a second.
#[derive(Debug, Clone)]
struct SlotEntry {
    hash: u32,
    slot: u32,
}

/// The slots by hash. Each of the tables grows on its own, so that no insertion moves more than a hundredth of the entries.
#[derive(Debug, Clone)]
pub(super) struct SlotIndex {
    tables: Box<[HashTable<SlotEntry>; TABLES]>,
}

impl Default for SlotIndex {
    fn default() -> Self {
        SlotIndex { tables: Box::new(std::array::from_fn(|_| HashTable::new())) }
    }
}

impl SlotIndex {
    /// Returns the slot with this hash for which `matches` returns true.
    pub(super) fn find(&self, hash: u32, matches: impl Fn(u32) -> bool) -> Option<u32> {
        let same = |known: &SlotEntry| known.hash == hash && matches(known.slot);
        self.tables[table_of(hash)].find(spread(hash), same).map(|found| found.slot)
    }

    /// Returns the slot with this hash for which `matches` returns true. If there is none, adds `slot` and returns `None`.
    pub(super) fn find_or_insert(
        &mut self,
        hash: u32,
        slot: u32,
        matches: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let same = |known: &SlotEntry| known.hash == hash && matches(known.slot);
        match self.tables[table_of(hash)].entry(spread(hash), same, |known| spread(known.hash)) {
            Entry::Occupied(known) => Some(known.get().slot),
            Entry::Vacant(free) => {
                free.insert(SlotEntry { hash, slot });
                None
            }
        }
    }

    /// Removes a slot that was added with this hash.
    pub(super) fn remove(&mut self, hash: u32, slot: u32) {
        if let Ok(entry) = self.tables[table_of(hash)].find_entry(spread(hash), |known| known.slot == slot) {
            entry.remove();
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.tables.iter().map(HashTable::len).sum()
    }

    #[cfg(test)]
    pub(super) fn table_sizes(&self) -> (usize, usize) {
        let sizes = || self.tables.iter().map(HashTable::len);
        (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0))
    }
}

/// Returns the table of a hash. The last table gets twice as many hashes as the first one, and those between them differ in
/// steps. So the tables do not all grow at the same number of slots.
fn table_of(hash: u32) -> usize {
    let high = u64::from(hash >> 16);
    ((high * ((4 << 16) - high) / 3) >> 24) as usize
}

/// Spreads a hash over 64 bits, because a table uses the bits at both ends.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
