//! The background tasks of a shared hold: they report loss, revocation, other contenders and timers.
//!
//! Each of these tasks belongs to one acquisition. None of the tasks keeps the shared hold alive.

use std::sync::{Arc, Weak};

use zoolock_core::acquisition::{Loss, SessionEnd};
use zoolock_core::tenure::TenureInput;

use super::shared::SharedHold;
use crate::base::clock;
use crate::base::sync::lock;
use crate::engine::Acquisition;
use crate::session::{Connection, WatchReservation};

/// Reports an event of acquisition `number` to the state machine. Returns whether that acquisition is still
/// current.
fn report(shared: &Weak<SharedHold>, number: u64, input: TenureInput) -> bool {
    shared.upgrade().is_some_and(|shared| shared.handle_event_of(number, input))
}

/// Reports a revocation, the loss, and the end of the session.
pub(super) async fn watch_loss(shared: Weak<SharedHold>, acquisition: Arc<Acquisition>, number: u64) {
    let loss = tokio::select! {
        biased;
        loss = acquisition.lost() => loss,
        () = acquisition.revoked() => {
            if !report(&shared, number, TenureInput::Revoked) {
                return;
            }
            acquisition.lost().await
        }
    };
    if loss == Loss::Unreachable {
        // The znode stays until the lock is released or the session has ended. So this task then waits for
        // the session's end.
        if !report(&shared, number, TenureInput::Lost) {
            return;
        }
        let mut connection = acquisition.session().connection();
        // The wait fails if the session is dropped. The session has then ended, too.
        let _ = connection.wait_for(|connection| *connection == Connection::Ended).await;
    }
    match acquisition.session().end() {
        Some(end @ (SessionEnd::Closed | SessionEnd::AuthFailed)) => {
            if let Some(shared) = shared.upgrade() {
                shared.handle_session_end(number, end);
            }
        }
        _ => {
            report(&shared, number, TenureInput::Gone);
        }
    }
}

/// Reports whether the queue has other contenders. If it has none, waits until another contender
/// may have queued, and reports this.
pub(super) async fn watch_other_contenders(
    shared: Weak<SharedHold>,
    acquisition: Arc<Acquisition>,
    number: u64,
) {
    let session = acquisition.session().clone();
    let Some(zk) = session.zk() else { return };
    let directory = acquisition.directories()[0].as_str();
    // The number of children is cheap to read. The children are listed and watched only if there is one
    // child.
    if matches!(zk.exists(directory).await, Ok(Some(stat)) if stat.children == 1) {
        session.reserve_anyway(directory.len());
        let _reservation = WatchReservation::of(session, directory.len());
        if let Ok((names, _, watch)) = zk.watch_children(directory).await
            && names.len() == 1
        {
            if !report(&shared, number, TenureInput::Alone) {
                return;
            }
            // `watch` also resolves if the session loses the watch. Another contender may then have
            // queued unnoticed.
            watch.await;
        }
    }
    report(&shared, number, TenureInput::NotAlone);
}

/// Waits for the time of the alarm, which may change during the wait, and then reports the alarm.
pub(super) async fn run_alarm(shared: Weak<SharedHold>, number: u64) {
    loop {
        let left = {
            let Some(shared) = shared.upgrade() else { return };
            let state = &mut *lock(&shared.state);
            match state.alarm {
                Some(at) if state.number == number => {
                    let left = clock::now().until(at);
                    if left.is_zero() {
                        state.alarm = None;
                    }
                    left
                }
                _ => return,
            }
        };
        if left.is_zero() {
            report(&shared, number, TenureInput::Alarm);
            return;
        }
        tokio::time::sleep(left).await;
    }
}
