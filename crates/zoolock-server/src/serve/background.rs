//! The continuation of long work, beside the requests of connections.
//!
//! The core counts work in steps ([`Client`](crate::Client)). A task continues long work in slices and pauses between
//! them. `turns.rs` has the turns of connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::{SharedServer, wait_until_stopped};

/// Number of steps of long work in one turn with the core.
pub(crate) const SLICE_STEPS: usize = 100_000;

/// The largest number of steps of a turn with the core: those of a request, with its transaction, and those of the events
/// before it. Tests check that no request of a frame of 1 MiB takes more than 30,000,000.
pub(crate) const MAX_TURN_STEPS: usize = 30_000_000 + SLICE_STEPS;

/// Number of steps after which a connection's turn ends, even if it has more requests.
pub(super) const TURN_STEPS: usize = 20_000;

/// A turn of a connection with more steps is long. Only a request that takes more than [`TURN_STEPS`] alone makes a turn
/// long. The turns of connections that miss events are treated like long ones, because thousands of connections may miss
/// the same events.
pub(super) const LONG_TURN_STEPS: usize = 2 * TURN_STEPS;

/// The pause after a slice of long work, and after a long turn of a connection.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Continues long work until `stop` is set.
pub(crate) async fn continue_work(shared: Arc<SharedServer>, mut stop: watch::Receiver<bool>) {
    let room = Arc::new(Notify::new());
    // An earlier server may have left work.
    shared.work.notify_one();
    loop {
        tokio::select! {
            () = wait_until_stopped(&mut stop) => return,
            () = shared.work.notified() => {}
        }
        let mut has_work = true;
        while has_work && !*stop.borrow() && shared.is_healthy() {
            if shared.register_if_full(&room) {
                tokio::select! {
                    () = wait_until_stopped(&mut stop) => return,
                    () = room.notified() => continue,
                }
            }
            let _long = shared.long_work.lock().await;
            has_work = shared.with_core(|core, now| {
                core.continue_work(now);
                core.has_work()
            });
            sleep(PAUSE).await;
        }
    }
}

/// Lets the allocator join small blocks that were freed. glibc joins those of a thread's arena at the next allocation of more
/// than 1 KiB in the arena, all at once: 80 ms were measured for a million blocks. So each thread does this before it locks
/// the core for a turn.
pub(super) fn join_freed_blocks() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(4096)));
}
