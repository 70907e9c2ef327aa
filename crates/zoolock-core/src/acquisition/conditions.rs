//! The safety rules as conditions. Each condition names its rule. Only tests switch a rule off.

use super::*;
use crate::rules::Rule;

impl Rules {
    // ---- create, search, retire ----

    /// Returns whether a create whose reply was lost may have succeeded ([`Rule::SearchAfterLostReply`]).
    pub(super) fn may_exist_after_lost_reply(self) -> bool {
        !self.off(Rule::SearchAfterLostReply)
    }

    /// Returns whether another create is sent as a barrier before the search ([`Rule::CreateBeforeSearch`]).
    pub(super) fn creates_before_search(self) -> bool {
        !self.off(Rule::CreateBeforeSearch)
    }

    /// Returns whether a refused create is followed by a barrier ([`Rule::BarrierPassesLeader`]).
    pub(super) fn barrier_passes_leader(self) -> bool {
        !self.off(Rule::BarrierPassesLeader)
    }

    /// Returns whether directories near the end of their numbers are retired ([`Rule::RetireNearTheEnd`]).
    pub(super) fn retires(self) -> bool {
        !self.off(Rule::RetireNearTheEnd)
    }

    // ---- reads of the queue ----

    /// Returns whether `me` is the only child ([`Rule::AloneByPzxid`]).
    pub(super) fn is_alone(self, directory: &Directory, me: Node) -> bool {
        directory.children == 1 && (directory.pzxid == me.czxid || self.off(Rule::AloneByPzxid))
    }

    /// Returns whether the directory had the same children at a listing and at a read of the record
    /// ([`Rule::SizeOfThatMoment`]).
    pub(super) fn is_size_of_that_moment(self, listed: Zxid, read: Zxid) -> bool {
        listed == read || self.off(Rule::SizeOfThatMoment)
    }

    /// Returns whether a read of our own znode follows a read of the directory ([`Rule::OwnNodeAfterDirectory`]).
    pub(super) fn reads_own_node(self) -> bool {
        !self.off(Rule::OwnNodeAfterDirectory)
    }

    /// Returns whether the children are listed before the record is read ([`Rule::CrashedAfterDeletion`]).
    pub(super) fn lists_before_record(self) -> bool {
        !self.off(Rule::CrashedAfterDeletion)
    }

    /// Returns whether the znode that was read is `me` ([`Rule::IdentityByCzxid`]).
    pub(super) fn is_own(self, me: Node, czxid: Zxid, owner: SessionId, session: SessionId) -> bool {
        (czxid == me.czxid && owner == session) || self.off(Rule::IdentityByCzxid)
    }

    /// Returns the marker in a record, if it counts in this directory ([`Rule::MarkerOfThisDirectory`]).
    pub(super) fn marker_in(self, directory: &Directory) -> Option<Marker> {
        match directory.record {
            Record::Marker(marker) if self.off(Rule::MarkerOfThisDirectory) => Some(marker),
            record => record.marker_of(directory.czxid),
        }
    }

    // ---- waiting ----

    /// Returns whether a waiter behind a younger predecessor reads its own znode ([`Rule::WaitForOlder`]).
    pub(super) fn waits_for_older(self) -> bool {
        !self.off(Rule::WaitForOlder)
    }

    /// Returns whether the queue is read again if the predecessor was missing ([`Rule::LookWhenGone`]).
    pub(super) fn reads_when_missing(self) -> bool {
        !self.off(Rule::LookWhenGone)
    }

    /// Returns true only if [`Rule::LookAfterWait`] is off. Then the deletion of the predecessor grants the lock
    /// without another read.
    pub(super) fn end_of_wait_grants(self) -> bool {
        self.off(Rule::LookAfterWait)
    }

    /// Returns true only if [`Rule::LookAfterReconnect`] is off. Then a watch still counts after a reconnect.
    pub(super) fn watch_survives_reconnect(self) -> bool {
        self.off(Rule::LookAfterReconnect)
    }

    // ---- look-ahead ----

    /// Returns whether a waiter that looks ahead watches its own znode ([`Rule::AheadWithOwnNode`]).
    pub(super) fn watches_own_node_ahead(self) -> bool {
        !self.off(Rule::AheadWithOwnNode)
    }

    /// Returns whether the predecessor counts as the head of the queue ([`Rule::AheadByProof`]).
    pub(super) fn is_head(self, is_proven: bool) -> bool {
        is_proven || self.off(Rule::AheadByProof)
    }

    /// Returns whether the predecessor counts as a holder that writes no `held` marker ([`Rule::AheadUntracked`]).
    pub(super) fn is_untracked(self, untracked: bool) -> bool {
        untracked || self.off(Rule::AheadUntracked)
    }

    /// Returns whether look-ahead ends with the connection ([`Rule::AheadOnOneConnection`]).
    pub(super) fn look_ahead_ends_with_connection(self) -> bool {
        !self.off(Rule::AheadOnOneConnection)
    }

    /// Returns whether look-ahead may grant the lock, given the state of the connection
    /// ([`Rule::AheadOnOneConnection`]).
    pub(super) fn may_hold_ahead(self, is_offline: bool) -> bool {
        !is_offline || self.off(Rule::AheadOnOneConnection)
    }

    // ---- grant ----

    /// Returns whether the lock may be granted now ([`Rule::GrantOnLease`]).
    pub(super) fn may_grant(self, is_lease_valid: bool) -> bool {
        is_lease_valid || self.off(Rule::GrantOnLease)
    }

    /// Returns whether the znodes of a multi-lock are read again before the grant ([`Rule::VerifyAll`]).
    pub(super) fn verifies_all(self) -> bool {
        !self.off(Rule::VerifyAll)
    }

    /// Returns true only if [`Rule::BeginTogether`] is off. Then each `held` marker of a multi-lock is written in a
    /// transaction of its own.
    pub(super) fn begins_alone(self) -> bool {
        self.off(Rule::BeginTogether)
    }

    /// Returns whether the `held` marker is written with a check of our own znode ([`Rule::HeldWithOwnNode`]).
    pub(super) fn checks_own_node_at_beginning(self) -> bool {
        !self.off(Rule::HeldWithOwnNode)
    }

    /// Returns whether a waiter writes to its znode that its permits were granted ([`Rule::GrantIsTold`]).
    pub(super) fn tells_grants(self) -> bool {
        !self.off(Rule::GrantIsTold)
    }

    // ---- release ----

    /// Returns true only if [`Rule::ReadersLeaveNoMarker`] is off and `me` is a reader. Then the reader leaves a
    /// marker.
    pub(super) fn reader_marks(self, me: Node) -> bool {
        me.prefix.reads() && self.off(Rule::ReadersLeaveNoMarker)
    }

    /// Returns whether a holder that leaves no marker writes to this znode before the delete ([`Rule::LeaveAloud`]).
    pub(super) fn writes_before_delete(self, me: Node) -> bool {
        me.prefix.is_computable() && !self.off(Rule::LeaveAloud)
    }

    /// Returns whether a znode is deleted without a marker after the server has refused its release
    /// ([`Rule::ReleaseWithoutRecord`]).
    pub(super) fn releases_without_record(self) -> bool {
        !self.off(Rule::ReleaseWithoutRecord)
    }

    /// Returns true only if [`Rule::ReleaseTheRest`] is off. Then all znodes stay if the joint release is refused.
    pub(super) fn leaves_the_rest(self) -> bool {
        self.off(Rule::ReleaseTheRest)
    }

    /// Returns whether a writer becomes a reader only in its own directory ([`Rule::DowngradeInPlace`]).
    pub(super) fn downgrades_in_place(self) -> bool {
        !self.off(Rule::DowngradeInPlace)
    }

    // ---- clean-up ----

    /// Returns whether a delete is repeated only after a check ([`Rule::NoBlindDelete`]).
    pub(super) fn checks_before_repeat(self) -> bool {
        !self.off(Rule::NoBlindDelete)
    }

    /// Returns whether a znode that was not read since a wait is checked before the delete ([`Rule::ReadAfterWait`]).
    pub(super) fn reads_after_wait(self) -> bool {
        !self.off(Rule::ReadAfterWait)
    }

    /// Returns whether the record is restored only if it is still our `held` marker ([`Rule::UndoWhatIsThere`]).
    pub(super) fn undoes_what_is_there(self) -> bool {
        !self.off(Rule::UndoWhatIsThere)
    }
}
