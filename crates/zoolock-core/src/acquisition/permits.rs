//! The part that only semaphores need: their size, and the `granted` flag in a waiter's znode.
//!
//! A grant of permits deletes no znode, so it would wake no waiter. Therefore a contender that
//! others may have listed as a waiter writes a `granted` flag into its own znode when it is
//! granted. Its successor reads and watches that znode. The first waiter that lacks permits watches
//! the children, since any holder may release the permits that it lacks. So each change wakes two
//! contenders at most.

use super::*;
use crate::record::Size;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SemaphoreState {
    /// Set once the size in the record was found to equal ours. A later difference is a resize.
    pub(super) size_checked: bool,
    /// The predecessor in whose znode a `granted` flag was read. If its permits do not fit into the
    /// current size, the semaphore has been made smaller since then.
    pub(super) granted_before: Option<String>,
    /// Set if another contender may have listed us as a waiter.
    pub(super) seen_waiting: bool,
}

/// The result of a check of the size in the record.
pub(super) enum SizeCheck {
    Size(u32),
    /// The record has no size, and this one must be written.
    Missing(u32),
    Refused(Reason),
}

impl Machine {
    /// Returns the size of the semaphore from the record. It must equal our configured size at the
    /// first check; later it may change.
    pub(super) fn check_size(&self, lock_index: usize, directory: Option<Directory>) -> SizeCheck {
        let Some(ours) = self.config.kind.size() else { return SizeCheck::Size(0) };
        let Some(directory) = directory else { return SizeCheck::Refused(Reason::ForeignRecord) };
        match directory.record {
            Record::Semaphore(size) if size.is_of(directory.czxid) => {
                if !self.positions[lock_index].permits.size_checked && size.permits != ours {
                    return SizeCheck::Refused(Reason::OtherSize(size.permits));
                }
                SizeCheck::Size(size.permits)
            }
            Record::Empty | Record::Semaphore(_) => SizeCheck::Missing(ours),
            Record::Marker(marker) if marker.directory != directory.czxid => SizeCheck::Missing(ours),
            Record::Marker(_) => SizeCheck::Refused(Reason::OtherKind),
            Record::Foreign | Record::KazooSize(_) => SizeCheck::Refused(Reason::ForeignRecord),
        }
    }

    pub(super) fn write_size(&mut self, lock_index: usize, directory: Option<Directory>, step: &mut Step) {
        let (Some(permits), Some(Directory { czxid, version, .. })) = (self.config.kind.size(), directory)
        else {
            return;
        };
        let request = Request::WriteSize { size: Size { directory: czxid, permits }, version };
        self.send_one(lock_index, Purpose::WriteSize, RequestKind::Main, request, step);
    }

    pub(super) fn handle_size_answer(
        &mut self,
        lock_index: usize,
        outcome: Result<Reply, RequestFailure>,
        step: &mut Step,
    ) {
        match outcome {
            // Reads again also after a refusal, because another contender may have written the size
            // first, or the directory may be missing.
            Ok(_) | Err(RequestFailure::BadVersion | RequestFailure::NoNode) => {
                self.read_queue(lock_index, step)
            }
            Err(RequestFailure::Unknown | RequestFailure::Throttled) => {
                self.read_queue_later(lock_index, step)
            }
            Err(failure) => self.fail(Reason::Refused(failure), step),
        }
    }

    /// Writes the `granted` flag into our znode, if our successor may have listed us as a waiter.
    pub(super) fn mark_granted(&mut self, lock_index: usize, me: Node, step: &mut Step) {
        if self.needs_granted_mark(lock_index) {
            let request = Request::MarkGranted { node: me, version: 0, revoked: false };
            self.send_one(lock_index, Purpose::MarkGranted, RequestKind::Main, request, step);
        }
    }

    fn needs_granted_mark(&self, lock_index: usize) -> bool {
        let has_waited = self.config.kind.is_permits() && self.positions[lock_index].permits.seen_waiting;
        has_waited && self.config.rules.tells_grants()
    }

    pub(super) fn handle_mark_granted_answer(
        &mut self,
        lock_index: usize,
        outcome: &Result<Reply, RequestFailure>,
        step: &mut Step,
    ) {
        // Does not repeat a refused write. The successor then waits until we release.
        if !matches!(
            outcome,
            Err(RequestFailure::Unknown | RequestFailure::Throttled | RequestFailure::BadVersion)
        ) {
            return;
        }
        // Does not read our own znode if a read is pending, because its handler writes a missing
        // `granted` flag, too.
        if self.is_open(lock_index, Purpose::WatchOwn) || self.is_open(lock_index, Purpose::OwnPause) {
            return;
        }
        step.actions.extend(self.positions[lock_index].own_watch.take().map(Action::Unwatch));
        self.back_off(lock_index, Purpose::OwnPause, step);
    }

    /// Writes the `granted` flag again if another client has overwritten the data, for example with
    /// a request to release.
    pub(super) fn mark_granted_if_missing(
        &mut self,
        lock_index: usize,
        me: Node,
        read: NodeRead,
        step: &mut Step,
    ) {
        let is_under_way = self.is_open(lock_index, Purpose::MarkGranted);
        if self.needs_granted_mark(lock_index) && !is_under_way && !read.flags.granted {
            let request = Request::MarkGranted { node: me, version: read.version, revoked: self.revoked };
            self.send_one(lock_index, Purpose::MarkGranted, RequestKind::Main, request, step);
        }
    }
}
