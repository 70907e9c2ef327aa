//! The safety rules. Each rule closes a hole in the protocol.
//!
//! A rule can be switched off only in builds with the feature `weaken`. In these builds the model
//! checker shows that it finds a violation if the rule is off. In all other builds [`Rules::all`]
//! is the only value.

/// A safety rule. The text of each rule says what goes wrong without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Rule {
    /// A release marker counts only if it has the czxid of the directory from which it was read.
    /// Without this rule, an old marker in a directory that was copied or created again grants the lock
    /// to the wrong contender.
    MarkerOfThisDirectory = 1,
    /// A contender is alone if the directory has one child *and* the last change of the children
    /// was its own create.
    /// Without this rule, that child may be another contender's, and the contender's own znode may be
    /// deleted already.
    AloneByPzxid = 1 << 1,
    /// After a wait a contender reads the directory first and its own znode after it.
    /// Without this rule, a marker may grant the lock to a contender whose znode is deleted.
    OwnNodeAfterDirectory = 1 << 2,
    /// A contender identifies its znode by czxid and owner, not by name.
    /// Without this rule, in a directory that was created again, the contender takes another
    /// contender's znode of that name for its own.
    IdentityByCzxid = 1 << 3,
    /// A grant that the caller does not take within the claim timeout is given back.
    /// Without this rule, a caller that never polls its future keeps all other contenders out until
    /// its session ends.
    ClaimInTime = 1 << 4,
    /// If the release transaction is refused, the znode is deleted without a marker.
    /// Without this rule, the znode stays, and blocks all other contenders until the holder's session
    /// ends.
    ReleaseWithoutRecord = 1 << 5,
    /// A delete is never repeated without a sync and a read that returns the contender's own czxid.
    /// Without this rule, the second delete may delete another contender's znode of the same name.
    NoBlindDelete = 1 << 6,
    /// A directory near the end of its sequence numbers is retired: contenders leave it, and it is
    /// deleted when it is empty.
    /// Without this rule, names repeat, numbers turn negative, or creates are refused for ever.
    RetireNearTheEnd = 1 << 7,
    /// A reader leaves no marker when it releases, and neither does a writer that has become a
    /// reader.
    /// Without this rule, the marker of a reader grants the lock to the next contender, while other
    /// readers still read.
    ReadersLeaveNoMarker = 1 << 8,
    /// When a waiter is granted permits, it writes this to its own znode.
    /// Without this rule, the waiters behind it are never woken, because a grant deletes no znode.
    GrantIsTold = 1 << 9,
    /// A holder that tracks crashes writes its `held` marker in one transaction with a check of its
    /// own znode.
    /// Without this rule, a contender whose znode is deleted overwrites the record of the next holder.
    HeldWithOwnNode = 1 << 10,
    /// A crash is concluded only from a record that was read after the deletion of the predecessors
    /// was seen.
    /// Without this rule, a holder that releases after the read of the record is reported as crashed.
    CrashedAfterDeletion = 1 << 11,
    /// All znodes of a multi-lock are read again before its grant, unless no queue has changed
    /// since the create.
    /// Without this rule, the deletion of one znode during the wait for another lock goes unnoticed.
    VerifyAll = 1 << 12,
    /// If one znode of a multi-lock is missing at its release, the other znodes are deleted one by
    /// one.
    /// Without this rule, they stay until the end of the session.
    ReleaseTheRest = 1 << 13,
    /// A contender whose predecessor is younger reads whether its own znode still exists.
    /// Without this rule, in a directory that was created again, the contender waits for a newer
    /// contender. If the newer contender waits for this contender in another queue, both wait for ever.
    WaitForOlder = 1 << 14,
    /// If the predecessor is deleted before it could be watched, the waiter reads the queue again.
    /// Without this rule, nothing ever wakes the waiter.
    LookWhenGone = 1 << 15,
    /// If the predecessor is deleted, the waiter reads the queue again.
    /// Without this rule, a waiter that gives up grants a lock that it never held.
    LookAfterWait = 1 << 16,
    /// After a reconnect every waiter reads the queue again.
    /// Without this rule, a deletion during the disconnect wakes no waiter, unless the client sets its
    /// watches again.
    LookAfterReconnect = 1 << 17,
    /// After a create whose reply was lost, the contender searches for the znodes that this create
    /// may have made.
    /// Without this rule, an unknown znode blocks all contenders, this one included, until the end of
    /// the session.
    SearchAfterLostReply = 1 << 18,
    /// Before the search for the znodes of a create whose reply was lost, another create is sent.
    /// No earlier request can arrive after that create.
    /// Without this rule, the create whose reply was lost may arrive after the search.
    CreateBeforeSearch = 1 << 19,
    /// A grant needs a lease that is valid now.
    /// Without this rule, a waiter whose session has expired meanwhile may be granted the lock.
    GrantOnLease = 1 << 20,
    /// A contender that gives up restores the record only if the record is still its own `held`
    /// marker.
    /// Without this rule, an upgrade that gives up overwrites the marker that the next holder has
    /// written meanwhile.
    UndoWhatIsThere = 1 << 21,
    /// If the deletion of the predecessor will grant the lock to a waiter, the waiter watches its
    /// own znode.
    /// Without this rule, the znodes of both may be deleted, and the waiter is granted a lock that
    /// another contender holds.
    AheadWithOwnNode = 1 << 22,
    /// The deletion of the predecessor grants the lock only if no contender can be before the
    /// predecessor.
    /// Without this rule, a predecessor that gives up grants the lock, although others wait or hold
    /// before it.
    AheadByProof = 1 << 23,
    /// The deletion of the predecessor grants the lock only if the predecessor writes no `held`
    /// marker.
    /// Without this rule, a waiter behind a predecessor that does write a `held` marker is granted the
    /// lock without a read of the record. So it does not know that it must write one, too, and its
    /// crash is taken for a clean release.
    AheadUntracked = 1 << 24,
    /// Look-ahead ends when the connection is interrupted. What was proven on one connection grants
    /// nothing on the next connection.
    /// Without this rule, a waiter may be granted the lock although its own znode is already deleted,
    /// because watches fire in any order after a reconnect.
    AheadOnOneConnection = 1 << 25,
    /// A holder that leaves no marker writes to its znode before it deletes the znode, in the same
    /// transaction.
    /// Without this rule, a waiter that is granted the lock by the deletion assumes that the record is
    /// a release marker. Its own release then overwrites what a third party has written to the record.
    LeaveAloud = 1 << 26,
    /// The size of a semaphore is applied to a listing only if the children did not change between
    /// the two reads.
    /// Without this rule, a contender whose own znode was deleted may be granted permits, because the
    /// semaphore was enlarged after that.
    SizeOfThatMoment = 1 << 27,
    /// A writer becomes a reader only in the directory in which it wrote.
    /// Without this rule, in a directory that was created again, the writer takes the position of
    /// another writer with the same number. Then it reads beside other holders.
    DowngradeInPlace = 1 << 28,
    /// A refusal by the connected server alone does not count as the create before a search
    /// ([`Rule::CreateBeforeSearch`]).
    /// Without this rule, the create whose reply was lost may arrive after the search, and nothing
    /// finds its znode.
    BarrierPassesLeader = 1 << 29,
    /// A multi-lock writes its `held` markers in all directories at once, when it is the head of
    /// all queues.
    /// Without this rule, a contender that waits in another queue and dies is taken for a holder that
    /// crashed.
    BeginTogether = 1 << 30,
    /// A contender that gives up after a wait reads its own znode before it deletes the znode.
    /// Without this rule, a contender whose znode was deleted during the wait deletes another
    /// contender's znode of that name.
    ReadAfterWait = 1 << 31,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Rule; 32] = [
        Rule::MarkerOfThisDirectory,
        Rule::AloneByPzxid,
        Rule::OwnNodeAfterDirectory,
        Rule::IdentityByCzxid,
        Rule::ClaimInTime,
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
        Rule::BarrierPassesLeader,
        Rule::BeginTogether,
        Rule::ReadAfterWait,
    ];
}

/// The rules in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    #[cfg(feature = "weaken")]
    off: u32,
}

impl Rules {
    /// Returns all rules.
    pub const fn all() -> Rules {
        Rules {
            #[cfg(feature = "weaken")]
            off: 0,
        }
    }

    /// Returns all rules but one, to show that this one is needed.
    #[cfg(feature = "weaken")]
    pub const fn without(rule: Rule) -> Rules {
        Rules { off: rule as u32 }
    }

    #[cfg(feature = "weaken")]
    pub(crate) const fn off(self, rule: Rule) -> bool {
        self.off & rule as u32 != 0
    }

    #[cfg(not(feature = "weaken"))]
    pub(crate) const fn off(self, _: Rule) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_switches_off_one_rule() {
        for off in Rule::ALL {
            for rule in Rule::ALL {
                assert!(!Rules::all().off(rule));
                assert_eq!(Rules::without(off).off(rule), rule == off, "{rule:?} without {off:?}");
            }
        }
    }
}
