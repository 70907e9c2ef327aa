//! The part that only semaphores need: their size, and the record of a grant in a waiter's znode.
//!
//! A grant of permits deletes no znode, so it would wake no waiter. A waiter that was not granted at once
//! therefore writes its grant into its own znode. Its successor reads and watches that znode. The first
//! waiter that lacks permits watches the children, since any holder may free what it needs. So each change
//! wakes two contenders at most.

use super::*;
use crate::record::Size;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct State {
    /// Set if the size was compared with ours, once.
    pub(super) size_checked: bool,
    /// The predecessor whose znode says that it was granted. If its permits do not fit, the semaphore was
    /// made smaller.
    pub(super) granted_before: Option<String>,
    /// Set if another contender may have listed us as a waiter.
    pub(super) seen_waiting: bool,
}

/// The size according to the record.
pub(super) enum SizeCheck {
    Size(u32),
    /// The record has no size, and this one must be written.
    Missing(u32),
    Refused(Reason),
}

impl Contender {
    /// Returns the size of the semaphore from the record. It must equal ours when we queue; later it may
    /// change.
    pub(super) fn check_size(&self, directory: Option<Directory>) -> SizeCheck {
        let Some(ours) = self.config.kind.size() else { return SizeCheck::Size(0) };
        let Some(directory) = directory else { return SizeCheck::Refused(Reason::ForeignRecord) };
        match directory.record {
            Record::Semaphore(size) if size.is_of(directory.czxid) => {
                if !self.permits.size_checked && size.permits != ours {
                    return SizeCheck::Refused(Reason::OtherSize(size.permits));
                }
                SizeCheck::Size(size.permits)
            }
            Record::Empty | Record::Semaphore(_) => SizeCheck::Missing(ours),
            Record::Marker(marker) if marker.directory != directory.czxid => SizeCheck::Missing(ours),
            Record::Marker(_) => SizeCheck::Refused(Reason::OtherKind),
            Record::Foreign | Record::Leases(_) => SizeCheck::Refused(Reason::ForeignRecord),
        }
    }

    pub(super) fn write_size(&mut self, me: Node, directory: Option<Directory>, context: &mut StepContext) {
        let (Some(size), Some(directory)) = (self.config.kind.size(), directory) else { return };
        self.phase = Phase::WritingSize { me };
        let size = Size { directory: directory.czxid, permits: size };
        self.send(Purpose::WriteSize, Request::WriteSize { size, version: directory.version }, context);
    }

    pub(super) fn size_written(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        let Phase::WritingSize { me } = self.phase else { return };
        match outcome {
            // The record has a size now, even if another contender wrote it.
            Ok(_) | Err(Failure::BadVersion | Failure::NoNode) => self.look(me, context),
            Err(Failure::Unknown | Failure::Throttled) => self.pause(After::Look(me), context),
            Err(failure) => self.fail(Reason::Refused(failure), context),
        }
    }

    /// Tells the successor that we were granted, if it may have seen us wait.
    pub(super) fn say_granted(&mut self, me: Node, context: &mut StepContext) {
        if self.tells_grants() {
            let request = Request::SayGranted { node: me, version: 0, revoked: false };
            self.send(Purpose::SayGranted, request, context);
        }
    }

    fn tells_grants(&self) -> bool {
        let waited = self.config.kind.is_permits() && self.permits.seen_waiting;
        waited && self.on(Rule::GrantIsTold)
    }

    pub(super) fn said_granted(&mut self, outcome: Result<Reply, Failure>, context: &mut StepContext) {
        // A refused write is not repeated: then the successor waits until we leave.
        if !matches!(outcome, Err(Failure::Unknown | Failure::Throttled | Failure::BadVersion)) {
            return;
        }
        // The next read of our own znode returns the version, and a missing grant is written then.
        let looks = |purpose: &Purpose| matches!(purpose, Purpose::WatchOwn(_) | Purpose::PauseOwn);
        if self.pending.iter().any(|(_, purpose)| looks(purpose)) {
            return;
        }
        if let Phase::Held { watch, .. } = &mut self.phase
            && let Some(watch) = watch.take()
        {
            context.actions.push(Action::Unwatch(watch));
        }
        let wait = self.backoff();
        self.send(Purpose::PauseOwn, Request::Sleep(wait), context);
    }

    /// Handles a read of our own znode: its flags, and the version of its data.
    pub(super) fn read_own(&mut self, me: Node, version: i32, says: Says, context: &mut StepContext) {
        if says.revoked && !self.revoked {
            self.revoked = true;
            context.actions.push(Action::Revoked);
        }
        // Another client may have overwritten the data, for example with a revocation.
        let unheard = self.tells_grants();
        let under_way = self.pending.iter().any(|(_, purpose)| *purpose == Purpose::SayGranted);
        if unheard && !under_way && !says.granted {
            let request = Request::SayGranted { node: me, version, revoked: self.revoked };
            self.send(Purpose::SayGranted, request, context);
        }
    }
}
