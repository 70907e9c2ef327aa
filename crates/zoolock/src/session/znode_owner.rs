//! Looks for the acquisition that has a znode of the session, while replies are handled on other threads.

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

/// Looks for the owner of a znode.
///
/// `known`: returns the acquisition that is registered for the znode.
///
/// `is_in_doubt`: returns whether an acquisition, except the one that searches, may still learn that it has the znode. Called
/// only if no acquisition is registered, because it looks at all acquisitions.
///
/// Asks for the registered acquisition again after the doubt, because an acquisition registers its znode first, and only
/// then is no longer in doubt. Without the second question, a znode would have no owner if its reply is handled between the
/// first question and the doubt, and another acquisition would take it.
pub(crate) fn find_znode_owner(
    known: impl Fn() -> Option<ContenderId>,
    is_in_doubt: impl FnOnce() -> bool,
) -> ZnodeOwner {
    if let Some(owner) = known() {
        return ZnodeOwner::Acquisition(owner);
    }
    let is_in_doubt = is_in_doubt();
    match known() {
        Some(owner) => ZnodeOwner::Acquisition(owner),
        None if is_in_doubt => ZnodeOwner::InDoubt,
        None => ZnodeOwner::Nobody,
    }
}
