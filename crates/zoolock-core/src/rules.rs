//! The safety rules, each of which closes a hole that was found by search.
//!
//! A rule can be switched off only in builds with the feature `weaken`, in which the model shows that it finds the
//! hole again. Everywhere else [`Rules::all`] is the only value there is.

/// One safety rule. The text says what goes wrong without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Rule {
    /// The release marker is believed only if it names the czxid of the directory it was read from.
    /// Without: a directory deleted and copied or made again grants to the wrong contender.
    MarkerOfThisDirectory = 1,
    /// Alone in the directory means: one child *and* the last change of the children was our own create.
    /// Without: the one child may be somebody else's, ours having been deleted in between.
    AloneByPzxid = 1 << 1,
    /// After a wait the directory is read first and our own znode after it.
    /// Without: a marker grants to a contender whose znode is gone.
    OwnNodeAfterDirectory = 1 << 2,
    /// Our znode is known by czxid and owner, not by name.
    /// Without: a directory made again gives our name to somebody else.
    IdentityByCzxid = 1 << 3,
    /// Only an exclusive holder writes the marker; those who give up only delete.
    /// Without: a waiter that cancels hands the lock on behind the back of the holder.
    MarkerByHolderOnly = 1 << 4,
    /// When the release transaction is refused the node is deleted alone.
    /// Without: the node of a holder that left blocks everybody until its session ends.
    ReleaseWithoutRecord = 1 << 5,
    /// A delete is never sent again without sync, exists, and our own czxid in the answer.
    /// Without: the second delete takes the lock from the next owner of the name.
    NoBlindDelete = 1 << 6,
    /// A directory near the end of its numbers is retired.
    /// Without: names repeat, turn negative, or are refused for ever.
    RetireNearTheEnd = 1 << 7,
    /// Readers only delete, and so does a writer that has become one.
    /// Without: a reader's marker names it as the one that left first, while other readers still read.
    ReadersLeaveNoMarker = 1 << 8,
    /// A waiter that is granted permits says so in its own znode.
    /// Without: a grant deletes nothing, so whoever waits behind is never told.
    GrantIsTold = 1 << 9,
    /// A holder that tracks crashes says that it has begun in one transaction with a check of its own znode.
    /// Without: one whose znode is gone writes over the record of the next holder.
    HeldWithOwnNode = 1 << 10,
    /// A crash is concluded from a record that was read after those before us were seen to be gone.
    /// Without: a holder that releases between the two is taken for dead.
    CrashedAfterDeletion = 1 << 11,
    /// All znodes of a multi-lock are looked at again before it is granted.
    /// Without: one that was deleted while another was waited for goes unnoticed.
    VerifyAll = 1 << 12,
    /// When one znode of a multi-lock is missing at its release, the others go one by one.
    /// Without: they stay until the end of the session.
    ReleaseTheRest = 1 << 13,
    /// Whoever finds that the one before it is younger looks whether its own znode is still there.
    /// Without: in a directory made again it waits for a stranger, which may wait for it in another queue.
    WaitForOlder = 1 << 14,
    /// Where the one before us is gone before it could be watched, we look again.
    /// Without: nothing will ever wake us.
    LookWhenGone = 1 << 15,
    /// When the one before us goes, we look again.
    /// Without: a waiter that gives up hands on what it never held.
    LookAfterWait = 1 << 16,
    /// After a reconnect, whoever waits looks again.
    /// Without: what went while there was no connection wakes nobody, unless the client sets its watches again.
    LookAfterReconnect = 1 << 17,
    /// After a create whose reply was lost, all that it may have made is searched for.
    /// Without: a znode that nobody knows of blocks everybody, us included, until the end of the session.
    SearchAfterLostReply = 1 << 18,
    /// Before that search we create again, behind which nothing that was sent before can still arrive.
    /// Without: it arrives after the search.
    CreateBeforeSearch = 1 << 19,
    /// A grant takes a lease that is valid now.
    /// Without: whoever was granted may have lost its session while it waited.
    GrantOnLease = 1 << 20,
    /// One that gives up takes back the mark of its beginning only where that is still the record.
    /// Without: an upgrade that gives up after its reader is gone writes over how the next holder left.
    UndoWhatIsThere = 1 << 21,
    /// Whoever is to be granted by the going of the one before it watches its own znode.
    /// Without: both may be gone, and it would hold what is another's.
    AheadWithOwnNode = 1 << 22,
    /// The going of the one before us grants only where nobody can stand before that one.
    /// Without: it gave up, and others wait or hold before it.
    AheadByProof = 1 << 23,
    /// It grants only behind one that does not say in the record that it has begun.
    /// Without: whoever is granted does not say so either, and its crash is taken for a clean end.
    AheadUntracked = 1 << 24,
    /// What was learnt over one connection grants nothing over the next.
    /// Without: watches that fire after a reconnect do so in any order, and our own node may be gone.
    AheadOnOneConnection = 1 << 25,
    /// A holder that leaves no marker writes to its znode before it deletes it, in the same transaction.
    /// Without: whoever is granted by its going takes the record to be as a release leaves it, and writes over what
    /// somebody else has written there.
    LeaveAloud = 1 << 26,
    /// The size of a semaphore goes with a listing only if nothing has happened to the children since.
    /// Without: it was made larger after our own znode had been deleted.
    SizeOfThatMoment = 1 << 27,
    /// A writer becomes a reader only in the directory in which it wrote.
    /// Without: where that was made again it takes the place of another writer of the same number, and reads beside others.
    DowngradeInPlace = 1 << 28,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 29] = [
        Rule::MarkerOfThisDirectory,
        Rule::AloneByPzxid,
        Rule::OwnNodeAfterDirectory,
        Rule::IdentityByCzxid,
        Rule::MarkerByHolderOnly,
        Rule::ReleaseWithoutRecord,
        Rule::NoBlindDelete,
        Rule::RetireNearTheEnd,
        Rule::ReadersLeaveNoMarker,
        Rule::GrantIsTold,
        Rule::HeldWithOwnNode,
        Rule::CrashedAfterDeletion,
        Rule::VerifyAll,
        Rule::ReleaseTheRest,
        Rule::WaitForOlder,
        Rule::LookWhenGone,
        Rule::LookAfterWait,
        Rule::LookAfterReconnect,
        Rule::SearchAfterLostReply,
        Rule::CreateBeforeSearch,
        Rule::GrantOnLease,
        Rule::UndoWhatIsThere,
        Rule::AheadWithOwnNode,
        Rule::AheadByProof,
        Rule::AheadUntracked,
        Rule::AheadOnOneConnection,
        Rule::LeaveAloud,
        Rule::SizeOfThatMoment,
        Rule::DowngradeInPlace,
    ];
}

/// The rules in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    off: u32,
}

impl Rules {
    /// All of them.
    pub const fn all() -> Rules {
        Rules { off: 0 }
    }

    /// All but one, to show what it is good for.
    #[cfg(feature = "weaken")]
    pub const fn without(rule: Rule) -> Rules {
        Rules { off: rule as u32 }
    }

    pub(crate) const fn on(self, rule: Rule) -> bool {
        self.off & rule as u32 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_one_of_them_all_others_are_in_force() {
        for off in Rule::ALL {
            for rule in Rule::ALL {
                assert!(Rules::all().on(rule));
                assert_eq!(Rules::without(off).on(rule), rule != off, "{rule:?} without {off:?}");
            }
        }
    }
}
