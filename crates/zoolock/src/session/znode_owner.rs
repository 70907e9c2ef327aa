//! Finds out which acquisition has a znode of the session.

use zoolock_core::ContenderId;

/// The owner of a znode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZnodeOwner {
    /// This acquisition has the znode.
    Acquisition(ContenderId),
    /// No acquisition is known to have the znode, but one may still learn that it has.
    InDoubt,
    /// No acquisition but the one that searches can have the znode.
    Nobody,
}

/// The acquisition that has created a znode, by its name or its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Creator {
    /// The acquisition that searches.
    Searching,
    /// Another acquisition that had not ended when the listing was handled.
    Pending,
    /// Unknown, because another client has overwritten the data: to ask for a release, or by a late write of `break` or
    /// `revoke`, which was meant for an earlier znode with the same name. Such a late write leaves the UUID of an
    /// acquisition that has ended.
    Unknown,
}

/// Returns whether a znode of the session belongs to the acquisition `own`, which searches for its znodes.
///
/// A znode of an unknown creator belongs to `own` only if no other acquisition of this session may still learn of a znode of
/// its own in the directory, or if the transaction that created it has created a znode of `own` in another directory
/// (`is_of_own_transaction`).
pub(crate) fn is_mine(
    owner: ZnodeOwner,
    own: ContenderId,
    creator: Creator,
    is_of_own_transaction: impl FnOnce() -> bool,
) -> bool {
    match (owner, creator) {
        (ZnodeOwner::Acquisition(owner), _) => owner == own,
        (_, Creator::Searching) => true,
        (_, Creator::Pending) => false,
        (ZnodeOwner::Nobody, Creator::Unknown) => true,
        (ZnodeOwner::InDoubt, Creator::Unknown) => is_of_own_transaction(),
    }
}

/// Returns the owner of a znode. No reply is handled meanwhile, because one thread handles all replies of a session.
///
/// `known`: the acquisition that is registered for the znode. `is_in_doubt`: returns whether an acquisition, except the one
/// that searches, may still learn that it has the znode. Called only if no acquisition is registered, because it looks at all
/// acquisitions.
pub(crate) fn find_znode_owner(known: Option<ContenderId>, is_in_doubt: impl FnOnce() -> bool) -> ZnodeOwner {
    match known {
        Some(owner) => ZnodeOwner::Acquisition(owner),
        None if is_in_doubt() => ZnodeOwner::InDoubt,
        None => ZnodeOwner::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: ContenderId = ContenderId(1);
    const OTHER: ContenderId = ContenderId(2);

    #[test]
    fn znode_is_mine_by_owner_then_creator_then_transaction() {
        use Creator::{Pending, Searching, Unknown};
        use ZnodeOwner::{Acquisition, InDoubt, Nobody};
        // Owner, creator, whether it is mine without and with a znode of the same transaction.
        let rows = [
            (Acquisition(OWN), Searching, [true, true]),
            (Acquisition(OWN), Pending, [true, true]),
            (Acquisition(OWN), Unknown, [true, true]),
            (Acquisition(OTHER), Searching, [false, false]),
            (Acquisition(OTHER), Pending, [false, false]),
            (Acquisition(OTHER), Unknown, [false, false]),
            (InDoubt, Searching, [true, true]),
            (InDoubt, Pending, [false, false]),
            (InDoubt, Unknown, [false, true]),
            (Nobody, Searching, [true, true]),
            (Nobody, Pending, [false, false]),
            (Nobody, Unknown, [true, true]),
        ];
        for (owner, creator, expected) in rows {
            let found = [false, true].map(|of_own| is_mine(owner, OWN, creator, || of_own));
            assert_eq!(found, expected, "{owner:?}, {creator:?}");
        }
    }
}
