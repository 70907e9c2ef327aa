//! Waits of callers: for the grant or the failure, the end of the hold, a request to release, and the release.

use std::sync::Arc;

use zoolock_core::Event;
use zoolock_core::acquisition::{Loss, Node, Previous, ReleaseOutcome};

use super::{Acquisition, AcquisitionState, HoldEnd, Progress, release_state_of_this_thread};
use crate::base::events::LockEvent;
use crate::base::sync::lock;

impl Acquisition {
    /// Waits for the grant or the failure, and takes the grant.
    pub(crate) async fn wait_for_outcome(self: &Arc<Self>) -> Progress {
        self.wait(|state| (!matches!(state.progress, Progress::Pending)).then_some(())).await;
        // The grant may be given back until the machine knows that the caller has taken it.
        let state = &mut *lock(&self.state);
        if state.machine.is_unclaimed() {
            self.step(state, Event::Claimed);
            if let Progress::Granted(_) = state.progress {
                self.report(state, LockEvent::Acquired);
                if state.revoked {
                    self.report(state, LockEvent::Revoked);
                }
                self.start_foreign_contender_monitor(state);
            }
        }
        state.progress.clone()
    }

    pub(crate) fn is_decided(&self) -> bool {
        !matches!(lock(&self.state).progress, Progress::Pending)
    }

    /// Waits until the server has shown that the lock is not free, or the acquisition is decided.
    pub(crate) async fn wait_until_busy_or_decided(&self) {
        let is_known =
            |state: &AcquisitionState| state.is_busy || !matches!(state.progress, Progress::Pending);
        self.wait(|state| is_known(state).then_some(())).await;
    }

    /// Waits until the lock is released or lost.
    pub(crate) async fn hold_ended(&self) -> HoldEnd {
        self.wait(|state| state.hold_end).await
    }

    /// Returns the end of the hold, once the lock is released or lost.
    pub(crate) fn hold_end(&self) -> Option<HoldEnd> {
        lock(&self.state).hold_end
    }

    /// Waits until the lock is lost.
    pub(crate) async fn lost(&self) -> Loss {
        self.wait(AcquisitionState::loss).await
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        lock(&self.state).loss()
    }

    /// Waits until another client asks for the release.
    pub(crate) async fn revoked(&self) {
        self.wait(|state| state.revoked.then_some(())).await;
    }

    pub(crate) fn is_revoked(&self) -> bool {
        lock(&self.state).revoked
    }

    /// Waits until this holder has read its own znode and watches it, is asked to release, or has
    /// lost the lock. Starts the read at once.
    pub(crate) async fn wait_for_own_node_read(&self) {
        let knows = |state: &AcquisitionState| {
            state.revoked || state.hold_end.is_some() || state.machine.watches_own()
        };
        if knows(&lock(&self.state)) {
            return;
        }
        // All timers may fire, because after the grant the only ones are those of this read, of retries, and of the claim,
        // which the guard shows to be over.
        if let Some(zk) = self.session.zk() {
            zk.fire_timers_now(self.id);
        }
        self.wait(|state| knows(state).then_some(())).await;
    }

    /// Returns how the previous holder left, if this has been read since the grant.
    pub(crate) fn previous(&self) -> Option<Previous> {
        lock(&self.state).previous
    }

    /// Turns a writer into a reader. Returns the znode that holds the lock now, or the loss if the
    /// lock was lost first. If the server refused the downgrade, the returned znode is still the
    /// writer's.
    pub(crate) async fn downgrade(self: &Arc<Self>) -> Result<Node, Loss> {
        self.handle_event(Event::Downgrade);
        self.wait(|state| state.downgraded.map(Ok).or(state.loss().map(Err))).await
    }

    /// Returns whether the release is done.
    pub(crate) fn is_released(&self) -> bool {
        lock(&self.state).departed.is_some()
    }

    /// Waits until the release is done.
    pub(crate) async fn wait_for_release(&self) -> ReleaseOutcome {
        self.wait(|state| state.departed).await
    }

    /// Releases the lock in the background.
    pub(crate) fn release(self: &Arc<Self>) {
        let left = release_state_of_this_thread();
        let state = &mut *lock(&self.state);
        state.in_background = true;
        self.handle_event_in(state, Event::Release(left));
        state.in_background = false;
    }

    pub(super) async fn wait<T>(&self, ready: impl Fn(&AcquisitionState) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(value) = ready(&lock(&self.state)) {
                return value;
            }
            changed.await;
        }
    }
}
