//! What happens to a tenure: somebody else comes, it gets late, it is lost.
//!
//! Each of these tasks knows which acquisition it speaks of; it does not keep the tenure alive.

use std::sync::{Arc, Weak};

use zoolock_core::contender::{Loss, SessionEnd};
use zoolock_core::tenure::Input;

use super::shared::Shared;
use crate::clock;
use crate::driver::Acquisition;
use crate::session::{Connection, WatchReservation, lock};

/// Tells it; whether anybody wanted to know.
fn tell(shared: &Weak<Shared>, number: u64, input: Input) -> bool {
    shared.upgrade().is_some_and(|shared| shared.news(number, input))
}

/// Waits for the loss, and for somebody who asks to let go.
pub(super) async fn heed(shared: Weak<Shared>, acquisition: Arc<Acquisition>, number: u64) {
    let loss = tokio::select! {
        biased;
        loss = acquisition.lost() => loss,
        () = acquisition.revoked() => {
            if !tell(&shared, number, Input::Revoked) {
                return;
            }
            acquisition.lost().await
        }
    };
    if loss == Loss::Unreachable {
        // The node stays until the holder lets go, as anybody's, or the session is over.
        if !tell(&shared, number, Input::Lost) {
            return;
        }
        let mut connection = acquisition.session().connection();
        // It fails with the session.
        let _ = connection.wait_for(|connection| *connection == Connection::Over).await;
    }
    match acquisition.session().end() {
        Some(end @ (SessionEnd::Closed | SessionEnd::AuthFailed)) => {
            if let Some(shared) = shared.upgrade() {
                shared.closed(number, end);
            }
        }
        _ => {
            tell(&shared, number, Input::Gone);
        }
    }
}

/// Looks whether anybody else stands in the queue, and waits for whoever comes.
pub(super) async fn look(shared: Weak<Shared>, acquisition: Arc<Acquisition>, number: u64) {
    let session = acquisition.session().clone();
    let Some(keeper) = session.keeper() else { return };
    let directory = acquisition.directories()[0].as_str();
    // The number of children costs nothing; their names are read only where they are few.
    if matches!(keeper.exists(directory).await, Ok(Some(stat)) if stat.children == 1) {
        session.reserve_anyway(directory.len());
        let _room = WatchReservation::of(session, directory.len());
        if let Ok((names, _, watch)) = keeper.watch_children(directory).await
            && names.len() == 1
        {
            if !tell(&shared, number, Input::Alone) {
                return;
            }
            // It resolves too when nobody watches any more: then who knows.
            watch.await;
        }
    }
    tell(&shared, number, Input::NotAlone);
}

/// Looks at the clock when it is time to.
pub(super) async fn wake(shared: Weak<Shared>, number: u64) {
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
            tell(&shared, number, Input::Alarm);
            return;
        }
        tokio::time::sleep(left).await;
    }
}
