//! The safety rules as conditions. Each condition names its rule. Only tests switch a rule off. The rules of one
//! feature are in the file of that feature.

use super::*;

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

    // ---- reads of the queue ----

    /// Returns whether `me` is the only child ([`Rule::AloneByPzxid`]).
    pub(super) fn is_alone(self, directory: &Directory, me: Node) -> bool {
        directory.children == 1 && (directory.pzxid == me.czxid || self.off(Rule::AloneByPzxid))
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

    // ---- grant ----

    /// Returns whether the lock may be granted now ([`Rule::GrantOnLease`]).
    pub(super) fn may_grant(self, is_lease_valid: bool) -> bool {
        is_lease_valid || self.off(Rule::GrantOnLease)
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

    // ---- clean-up ----

    /// Returns whether a delete is repeated only after a check ([`Rule::NoBlindDelete`]).
    pub(super) fn checks_before_repeat(self) -> bool {
        !self.off(Rule::NoBlindDelete)
    }

    /// Returns whether a znode that was not read since a wait is checked before the delete ([`Rule::ReadAfterWait`]).
    pub(super) fn reads_after_wait(self) -> bool {
        !self.off(Rule::ReadAfterWait)
    }
}
