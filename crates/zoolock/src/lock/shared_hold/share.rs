//! One task's share of a lock that passes among the tasks of a process. A task's turn begins with
//! its grant, and ends with its release.

use std::sync::{Arc, OnceLock};

use tokio::sync::oneshot;
use zoolock_core::tenure::{LocalId, ReleaseKind, TenureInput};

use super::shared::SharedHold;
use crate::base::error::Error;
use crate::base::events::LockEvent;
use crate::base::options::Options;
use crate::base::sync::lock;
use crate::lock::held::Held;

/// A task's turn with the shared lock.
pub(crate) struct Share {
    shared: Arc<SharedHold>,
    task: LocalId,
    pass: u32,
    /// Set once the task has received the grant.
    seen: bool,
    turn: Arc<TurnResult>,
}

/// The end of a turn; empty until the turn has ended. Callers that wait for the release of the
/// guard read this value.
#[derive(Debug, Default)]
pub(crate) struct TurnResult(OnceLock<TurnEnd>);

/// The state of the lock after a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnEnd {
    /// The process still has the lock.
    PassedOn,
    /// The lock was released at the end of the turn, or had been lost.
    Released,
}

impl TurnResult {
    pub(crate) fn end(&self) -> Option<TurnEnd> {
        self.0.get().copied()
    }
}

impl Share {
    pub(super) fn new(shared: Arc<SharedHold>, task: LocalId, pass: u32) -> Share {
        Share { shared, task, pass, seen: false, turn: Arc::default() }
    }

    /// Returns the number of earlier turns with the same znode.
    pub(crate) fn pass(&self) -> u32 {
        self.pass
    }

    /// Records that the task has received the grant.
    pub(crate) fn record_seen(&mut self) {
        self.seen = true;
    }

    pub(crate) fn turn(&self) -> Arc<TurnResult> {
        self.turn.clone()
    }

    /// Ends the turn, unless it has ended already. `options`: the options of the handle that acquired the
    /// lock.
    pub(crate) fn end_turn(&self, left: ReleaseKind, options: &Options) {
        if self.turn.end().is_none() {
            let input = match left {
                _ if !self.seen => TenureInput::GiveUp(self.task),
                ReleaseKind::Untouched => TenureInput::GiveUp(self.task),
                ReleaseKind::Released => TenureInput::Done { who: self.task, panicked: false },
                ReleaseKind::Panicked => TenureInput::Done { who: self.task, panicked: true },
            };
            let end = self.shared.end_turn(self.task, input, options);
            // This cannot fail: no other code sets the end.
            let _ = self.turn.0.set(end);
        }
    }
}

/// A task that waits for its turn. Dropping this gives up the request.
pub(super) struct WaitingTask {
    pub(super) shared: Arc<SharedHold>,
    pub(super) task: LocalId,
    pub(super) answer: oneshot::Receiver<Result<Held, Error>>,
}

impl WaitingTask {
    pub(super) async fn granted(&mut self) -> Result<Held, Error> {
        (&mut self.answer).await.unwrap_or_else(|_| Err(Error::closed()))
    }
}

impl Drop for WaitingTask {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            return;
        }
        let state = &mut *lock(&self.shared.state);
        if let Some(waiter) = state.waiting.remove(&self.task) {
            state.stop_events(self.task);
            self.shared.handle_event(state, TenureInput::GiveUp(self.task));
            waiter.options.listeners.tell(LockEvent::GaveUp);
        }
        // If a grant was sent but not received, it is dropped with the channel after this. Dropping
        // the grant passes the lock on.
    }
}
