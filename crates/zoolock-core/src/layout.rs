//! Semaphores of Curator and kazoo. Each has two directories: one for the permits, and one for a lock that
//! guards them.
//!
//! Both libraries count every child as a permit, whatever its name. Only the children and the data of a
//! directory can show that it belongs to such a semaphore.

use crate::record::Record;

/// The directory layout of a semaphore of another client library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Curator's InterProcessSemaphoreV2: permits are `leases/_c_<uuid>-lease-S`, where `S` is the
    /// sequence number. A mutex in `locks` guards them. The size is not stored.
    Curator,
    /// kazoo's Semaphore: permits are `<hex32>`. A lock in a directory beside that of the permits
    /// guards them. The size is the data of the permits' directory.
    Kazoo,
}

/// Name of the directory of Curator's guarding mutex, below the path of the semaphore.
pub const CURATOR_GUARD: &str = "locks";
/// Name of the directory of Curator's permits, below the path of the semaphore.
pub const CURATOR_LEASES: &str = "leases";
/// Suffix of the path of kazoo's guarding lock. The path of the permits' directory comes before it.
pub const KAZOO_GUARD: &str = "-__lock__";

impl Layout {
    /// Returns the name of the client library.
    pub fn library(self) -> &'static str {
        match self {
            Layout::Curator => "Curator",
            Layout::Kazoo => "kazoo",
        }
    }

    /// Returns the layout that these children and this record prove.
    ///
    /// A semaphore may exist without proof: the server removes an empty directory `locks` while
    /// permits are held, and kazoo does not write the data of a directory that another client
    /// created. A single child called `leases` or `locks`, or with a name of 32 hex digits, is no
    /// proof: it may be the directory of another lock.
    pub fn detect<S: AsRef<str>>(children: &[S], record: Record) -> Option<Layout> {
        let has = |name: &str| children.iter().any(|child| child.as_ref() == name);
        // kazoo's size stays in the data even if no permit is held.
        if matches!(record, Record::KazooSize(_)) {
            return Some(Layout::Kazoo);
        }
        (has(CURATOR_GUARD) && has(CURATOR_LEASES)).then_some(Layout::Curator)
    }
}

/// Returns whether a child's name is that of a permit of kazoo's semaphore: a UUID as 32 hex digits.
pub fn is_kazoo_lease(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

    #[test]
    fn foreign_semaphore_is_proven_by_its_directory() {
        let five = Record::KazooSize(5);
        assert_eq!(Layout::detect(&["locks", "leases"], Record::Empty), Some(Layout::Curator));
        let children = ["leases", "lock-0000000001", "locks"];
        assert_eq!(Layout::detect(&children, Record::Empty), Some(Layout::Curator));
        assert_eq!(Layout::detect::<&str>(&[], five), Some(Layout::Kazoo));
        assert_eq!(Layout::detect(&[HEX], five), Some(Layout::Kazoo));
        assert_eq!(Layout::detect(&["lock-0000000001", HEX], five), Some(Layout::Kazoo));
    }

    #[test]
    fn kazoo_permit_is_32_hex_digits() {
        assert!(is_kazoo_lease(HEX));
    }

    #[test]
    fn nested_locks_are_no_foreign_semaphore() {
        for children in [&["locks"][..], &["leases"], &["locks", "lease"], &[HEX], &[]] {
            assert_eq!(Layout::detect(children, Record::Empty), None, "{children:?}");
            assert_eq!(Layout::detect(children, Record::Foreign), None, "{children:?}");
        }
        let (long, upper) = (format!("{HEX}0"), HEX.to_uppercase());
        for child in [&HEX[1..], &long, &upper, "3f2504e04f8911d39a0c0305e82c330g"] {
            assert!(!is_kazoo_lease(child), "{child}");
        }
    }
}
