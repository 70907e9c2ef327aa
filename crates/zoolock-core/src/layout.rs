//! Semaphores of other makes, which are more than one directory: permits, and a lock that guards the taking of them.
//!
//! Both count children, all of them, whatever they are called; nothing but the children tells that such a one is there.

use crate::record::Record;

/// How a semaphore of another make is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layout {
    /// Curator's InterProcessSemaphoreV2: permits are `leases/_c_<uuid>-lease-S`, guarded by a mutex in `locks`. Its
    /// size is written nowhere.
    Curator,
    /// kazoo's Semaphore: permits are `<hex32>`, guarded by a lock in a directory beside it. Its size is its data.
    Kazoo,
}

/// Where Curator's guard is, below the name of the semaphore.
pub const CURATOR_GUARD: &str = "locks";
/// Where Curator's permits are.
pub const CURATOR_LEASES: &str = "leases";
/// What kazoo adds to the name of the semaphore for its guard.
pub const KAZOO_GUARD: &str = "-__lock__";

impl Layout {
    /// Returns the name of the client library.
    pub fn library(self) -> &'static str {
        match self {
            Layout::Curator => "Curator",
            Layout::Kazoo => "kazoo",
        }
    }

    /// Which semaphore lives in a directory with these children and this record, as far as they prove it.
    ///
    /// One that does not prove it may be there all the same: an empty `locks` is removed by the service while the
    /// permits are held, and kazoo leaves the data alone in a directory that others have made. But locks may be called
    /// `leases`, or by 32 digits, too, and are not to be taken for a semaphore because of that.
    pub fn proven_by<S: AsRef<str>>(children: &[S], record: Record) -> Option<Layout> {
        let has = |name: &str| children.iter().any(|child| child.as_ref() == name);
        // Also while nobody has a permit: its size stays.
        if matches!(record, Record::Leases(_)) {
            return Some(Layout::Kazoo);
        }
        (has(CURATOR_GUARD) && has(CURATOR_LEASES)).then_some(Layout::Curator)
    }
}

/// Whether a child may be a permit of kazoo's: the hex digits of a UUID.
pub fn is_kazoo_lease(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "3f2504e04f8911d39a0c0305e82c3301";

    #[test]
    fn a_semaphore_of_another_make_is_told_from_what_is_in_its_directory() {
        let five = Record::Leases(5);
        assert_eq!(Layout::proven_by(&["locks", "leases"], Record::Empty), Some(Layout::Curator));
        let children = ["leases", "lock-0000000001", "locks"];
        assert_eq!(Layout::proven_by(&children, Record::Empty), Some(Layout::Curator));
        assert_eq!(Layout::proven_by::<&str>(&[], five), Some(Layout::Kazoo));
        assert_eq!(Layout::proven_by(&[HEX], five), Some(Layout::Kazoo));
        assert_eq!(Layout::proven_by(&["lock-0000000001", HEX], five), Some(Layout::Kazoo));
    }

    #[test]
    fn a_permit_of_kazoos_is_32_hex_digits() {
        assert!(is_kazoo_lease(HEX));
    }

    #[test]
    fn locks_below_a_lock_are_not_taken_for_one() {
        for children in [&["locks"][..], &["leases"], &["locks", "lease"], &[HEX], &[]] {
            assert_eq!(Layout::proven_by(children, Record::Empty), None, "{children:?}");
            assert_eq!(Layout::proven_by(children, Record::Foreign), None, "{children:?}");
        }
        let (long, upper) = (format!("{HEX}0"), HEX.to_uppercase());
        for child in [&HEX[1..], &long, &upper, "3f2504e04f8911d39a0c0305e82c330g"] {
            assert!(!is_kazoo_lease(child), "{child}");
        }
    }
}
