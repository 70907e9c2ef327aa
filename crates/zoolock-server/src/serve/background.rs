//! Work that the core does in parts, beside the requests of connections: expiry, events, memory to free.
//!
//! A task does one part after the other and pauses between them. `turns.rs` has the turns of connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::{SharedServer, wait_until_stopped};

/// Approximate number of events, sessions, znodes and watches of one part. It takes about a millisecond.
pub(crate) const PART: usize = 1000;

/// A turn of a connection that takes more processor time is long.
pub(super) const LONG_TURN: Duration = Duration::from_millis(2);

/// The pause after a part of the work, and after a long turn of a connection.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Continues the work of the core until `stop` is set.
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
            let began = Instant::now();
            let _long = shared.long_work.lock().await;
            // Takes as much time as the wait took. With one part after each long turn of a client, thousands of connections
            // would wait for their events for minutes, and dead sessions would keep their locks.
            let until = Instant::now() + began.elapsed();
            loop {
                has_work = shared.with_core(|core, now| {
                    core.continue_work(now);
                    core.has_work()
                });
                sleep(PAUSE).await;
                if !has_work || Instant::now() >= until || *stop.borrow() || shared.register_if_full(&room) {
                    break;
                }
            }
        }
    }
}

/// Lets the allocator join small blocks that were freed. glibc joins those of a thread's arena at the next allocation of more
/// than 1 KiB in the arena, all at once: 80 ms were measured for a million blocks. So each thread does this before it locks
/// the core for a turn.
pub(super) fn join_freed_blocks() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(4096)));
}
