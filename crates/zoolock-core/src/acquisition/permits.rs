//! The part that only semaphores need: their size, and the `granted` flag in a waiter's znode.
//!
//! A grant of permits deletes no znode, so it would wake no waiter. Therefore a contender that others may have listed
//! as a waiter writes a `granted` flag into its own znode when it is granted. Its successor reads and watches that
//! znode. The first waiter that lacks permits watches the children, since any holder may release the permits that it
//! lacks. So each change wakes two contenders at most.

use super::*;
use crate::layout::Layout;
use crate::queue::QueueDecision;
use crate::record::Size;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SemaphoreState {
    /// Set once the size in the record was found to equal ours. A later difference is a resize.
    pub(super) size_checked: bool,
    /// The predecessor in whose znode a `granted` flag was read. If its permits do not fit into the current size, the
    /// semaphore has been made smaller since then.
    pub(super) granted_before: Option<String>,
    /// Set if another contender may have listed us as a waiter.
    pub(super) seen_waiting: bool,
}

/// The reason why the names of the children give no decision.
#[derive(PartialEq)]
pub(super) enum NoDecision {
    /// The record has no size, and ours must be written.
    SizeMissing,
    Refused(Reason),
}

impl Config {
    /// Returns the reason to fail if the record shows a semaphore that excludes this kind of lock.
    pub(super) fn refusal_by_record(&self, directory: &Directory) -> Option<Reason> {
        let permits = self.kind.is_permits();
        match directory.record {
            Record::Semaphore(size) if size.is_of(directory.czxid) && !permits => Some(Reason::OtherKind),
            // The record alone shows a kazoo semaphore, without a listing.
            record => Layout::detect::<&str>(&[], record).map(Reason::OtherLayout),
        }
    }
}

impl SemaphoreState {
    /// Decides with the size of the semaphore from the record. The size is zero for other kinds of locks.
    pub(super) fn decide(
        &mut self,
        directory: Option<Directory>,
        kind: Kind,
        decide: impl Fn(u32) -> QueueDecision,
    ) -> Result<QueueDecision, NoDecision> {
        let ours = kind.size();
        let decision = match ours.map_or(Ok(0), |ours| self.check_size(directory, ours)) {
            Ok(size) => decide(size),
            // The directory must not become a semaphore while a contender holds it as another kind of lock.
            Err(NoDecision::SizeMissing) if ours.map(decide) == Some(QueueDecision::OtherKind) => {
                QueueDecision::OtherKind
            }
            Err(failure) => return Err(failure),
        };
        // Watches the children of a resized semaphore (a version above 1), because the predecessor may hold without
        // having waited. It then never writes `granted` into its znode, so a watch on that znode is not enough.
        let is_resized = kind.is_permits() && directory.is_some_and(|directory| directory.version > 1);
        let decision = match decision {
            QueueDecision::WaitFor(before) if is_resized || self.granted_before.as_ref() == Some(&before) => {
                QueueDecision::WatchChildren
            }
            decision => decision,
        };
        self.size_checked |= matches!(
            decision,
            QueueDecision::Held | QueueDecision::WatchChildren | QueueDecision::WaitFor(_)
        );
        Ok(decision)
    }

    /// Returns the size of the semaphore from the record. It must equal our configured size at the first check; later
    /// it may change.
    fn check_size(&self, directory: Option<Directory>, ours: u32) -> Result<u32, NoDecision> {
        let refused = |reason| Err(NoDecision::Refused(reason));
        let Some(directory) = directory else { return refused(Reason::ForeignRecord) };
        match directory.record {
            Record::Semaphore(size) if size.is_of(directory.czxid) => {
                let is_known = self.size_checked || size.permits == ours;
                if is_known { Ok(size.permits) } else { refused(Reason::OtherSize(size.permits)) }
            }
            Record::Empty | Record::Semaphore(_) => Err(NoDecision::SizeMissing),
            Record::Marker(marker) if marker.directory != directory.czxid => Err(NoDecision::SizeMissing),
            Record::Marker(_) => refused(Reason::OtherKind),
            Record::Foreign | Record::KazooSize(_) => refused(Reason::ForeignRecord),
        }
    }
}

impl Here<'_, '_> {
    /// Writes our configured size into the record.
    pub(super) fn write_size(&mut self, directory: Option<Directory>) -> Then {
        let (Some(permits), Some(Directory { czxid, version, .. })) = (self.config.kind.size(), directory)
        else {
            return Then::Nothing;
        };
        let request = Request::WriteSize { size: Size { directory: czxid, permits }, version };
        self.send(PositionPurpose::WriteSize, [(RequestKind::Main, request)])
    }
}

impl Position {
    pub(super) fn handle_size_answer(&mut self, answers: &Answers, here: &mut Here) -> Then {
        match answers.main() {
            // Reads again also after a refusal, because another contender may have written the size first, or the
            // directory may be missing.
            Ok(_) => self.read_queue(here),
            Err(failure) if failure.is_transient() => self.read_queue_after(failure, here),
            Err(failure) => Then::Fail(Reason::Refused(failure)),
        }
    }

    /// Writes the `granted` flag into our znode, if our successor may have listed us as a waiter.
    pub(super) fn mark_granted(&mut self, here: &mut Here) -> Then {
        let Some(node) = self.node.filter(|_| self.needs_granted_mark(here)) else { return Then::Nothing };
        let request = Request::MarkGranted { node, version: 0, revoked: false };
        here.send(PositionPurpose::MarkGranted, [(RequestKind::Main, request)])
    }

    fn needs_granted_mark(&self, here: &Here) -> bool {
        let has_waited = here.config.kind.is_permits() && self.permits.seen_waiting;
        has_waited && here.config.rules.tells_grants()
    }

    pub(super) fn handle_mark_granted_answer(&mut self, answers: &Answers, here: &mut Here) -> Then {
        use RequestFailure::{BadVersion, Throttled, Unknown};
        // Does not repeat a refused write. The successor then waits until we release.
        let repeats = matches!(answers.main(), Err(Unknown | Throttled | BadVersion));
        // Does not read our own znode if a read is pending, because its handler writes a missing `granted` flag, too.
        let is_pending = here.is_open(PositionPurpose::WatchOwn) || here.is_open(PositionPurpose::OwnPause);
        if !repeats || is_pending {
            return Then::Nothing;
        }
        here.unwatch(self.own_watch.take());
        here.back_off(PositionPurpose::OwnPause)
    }

    /// Writes the `granted` flag again if another client has overwritten the data, for example with a request to
    /// release.
    pub(super) fn mark_granted_if_missing(&mut self, read: NodeRead, here: &mut Here) -> Then {
        let is_missing = !here.is_open(PositionPurpose::MarkGranted) && !read.flags.granted;
        let Some(node) = self.node.filter(|_| is_missing && self.needs_granted_mark(here)) else {
            return Then::Nothing;
        };
        let request = Request::MarkGranted { node, version: read.version, revoked: *here.revoked };
        here.send(PositionPurpose::MarkGranted, [(RequestKind::Main, request)])
    }
}

impl Rules {
    /// Returns whether the directory had the same children at a listing and at a read of the record
    /// ([`Rule::SizeOfThatMoment`]).
    pub(super) fn is_size_of_that_moment(self, listed: Zxid, read: Zxid) -> bool {
        listed == read || self.off(Rule::SizeOfThatMoment)
    }

    /// Returns whether a waiter writes to its znode that its permits were granted ([`Rule::GrantIsTold`]).
    pub(super) fn tells_grants(self) -> bool {
        !self.off(Rule::GrantIsTold)
    }
}
