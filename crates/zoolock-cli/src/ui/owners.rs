//! The owners of all contenders. One owner may hold one lock and wait for another.

use std::collections::HashMap;

use zoolock::{Entry, Snapshot};

/// An owner, with all its contenders.
pub(super) struct OwnerRow<'a> {
    /// The owner's first contender, whose details the page shows for the owner.
    pub(super) entry: &'a Entry,
    pub(super) holds: Vec<(&'a str, &'a Entry)>,
    pub(super) waits: Vec<(&'a str, &'a Entry)>,
}

/// Returns the owners of all contenders, in the order of the locks.
pub(super) fn owners(locks: &[Snapshot]) -> Vec<OwnerRow<'_>> {
    let mut known: HashMap<(&str, &str), usize> = HashMap::new();
    let mut owners: Vec<OwnerRow<'_>> = Vec::new();
    for lock in locks {
        let path = lock.path.as_str();
        let holders = lock.holders().map(|entry| (entry, true));
        for (entry, holds) in holders.chain(lock.waiters.iter().map(|entry| (entry, false))) {
            let index = *known.entry(key(path, entry)).or_insert_with(|| {
                let (holds, waits) = (Vec::new(), Vec::new());
                owners.push(OwnerRow { entry, holds, waits });
                owners.len() - 1
            });
            let places = if holds { &mut owners[index].holds } else { &mut owners[index].waits };
            places.push((path, entry));
        }
    }
    owners
}

/// Returns the key that identifies an owner. A contender without an owner is its own owner.
fn key<'a>(path: &'a str, entry: &'a Entry) -> (&'a str, &'a str) {
    match &entry.owner {
        Some(owner) => (entry.owner_kind, owner),
        // Paths begin with a slash and owner kinds do not, so these keys differ from all others.
        None => (path, &entry.node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    #[test]
    fn contenders_are_grouped_by_owner() {
        let mut other = entry("lock-0000000001", "0.2.0");
        other.owner = Some("job-8".to_owned());
        let rows = [
            lock("/locks/a", Some(entry("lock-0000000000", "0.1.0")), vec![other.clone()]),
            lock("/locks/b", Some(other), vec![entry("lock-0000000001", "0.3.0")]),
        ];
        let owners = owners(&rows);
        let places = |owner: &OwnerRow<'_>| (owner.holds.len(), owner.waits.len());
        assert_eq!(owners.iter().map(places).collect::<Vec<_>>(), [(1, 1), (1, 1)]);
    }
}
