//! The continuation of long work, beside the requests of connections.
//!
//! The core counts work in steps ([`Client`](crate::Client)). A task continues long work in slices and pauses between
//! them. A connection whose last turn was long waits for its next turn until no other such connection has one. So the
//! work of a few clients takes at most about half of the core's time, and a connection with small requests waits for
//! one long turn at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{MutexGuard, Notify, SemaphorePermit, watch};
use tokio::time::{Instant, sleep};

use super::input::InputStatus;
use super::{SharedServer, wait_until_stopped};
use crate::core::ConnId;

/// Number of steps of long work in one turn with the core.
pub(crate) const SLICE_STEPS: usize = 100_000;

/// Maximum number of steps of a request that must be done at once. The transaction that it decides takes about as many
/// steps again.
pub(crate) const MAX_REQUEST_STEPS: usize = 200_000;

/// The largest number of steps of a turn with the core. Tests check that no turn takes more.
pub(crate) const MAX_TURN_STEPS: usize = 500_000;

/// Number of steps after which a connection's turn ends, even if it has more requests.
pub(super) const TURN_STEPS: usize = 20_000;

/// A turn of a connection with more steps is long. Only a request that takes more than [`TURN_STEPS`] alone makes a turn
/// long. The turns of connections that miss events are treated like long ones, because thousands of connections may miss
/// the same events.
const LONG_TURN_STEPS: usize = 2 * TURN_STEPS;

/// Time after a long turn in which the next turn of the connection waits for other long turns.
const MEMORY: Duration = Duration::from_millis(100);

/// The pause after a slice of long work, and after a long turn of a connection.
const PAUSE: Duration = Duration::from_millis(1);

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
            join_freed_blocks();
            sleep(PAUSE).await;
        }
    }
}

/// Lets the allocator join small blocks that a slice has freed. glibc joins them at the next allocation of more than 1 KiB, all
/// at once: 80 ms were measured for a million blocks, while the core was locked.
fn join_freed_blocks() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(4096)));
}

/// The permission for a long turn of a connection. Connections get it in order. A connection that has it takes turns with
/// the task that continues long work. So the pause after long work is free of long work.
pub(super) struct LongTurn<'s>(
    #[expect(dead_code, reason = "it is held until its drop")] SemaphorePermit<'s>,
    #[expect(dead_code, reason = "it is held until its drop")] MutexGuard<'s, ()>,
);

/// The turns of one connection with the core.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// End of the last long turn.
    long_at: Option<Instant>,
    /// Set by the core if the connection misses events.
    lagging: Arc<AtomicBool>,
}

impl Turns {
    /// Returns the flag that the core sets if the connection misses events.
    pub(super) fn lagging(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.lagging)
    }

    /// Waits until the connection may have its next turn. `has_large_frame` says whether the next frame is large, so that
    /// its request may take long.
    pub(super) async fn wait_for_turn<'s>(
        &self,
        shared: &'s SharedServer,
        conn: ConnId,
        has_large_frame: bool,
    ) -> Option<LongTurn<'s>> {
        let was_long = self.long_at.is_some_and(|at| at.elapsed() < MEMORY);
        if !was_long && !has_large_frame && !self.lagging.load(Ordering::Relaxed) {
            return None;
        }
        if let Ok(permit) = shared.long_turns.try_acquire()
            && let Ok(guard) = shared.long_work.try_lock()
        {
            return Some(LongTurn(permit, guard));
        }
        shared.lock().core.begin_wait(conn);
        let permit = shared.long_turns.acquire().await.ok()?;
        Some(LongTurn(permit, shared.long_work.lock().await))
    }

    /// Records a turn. Pauses after a long turn before other connections may have a long turn.
    pub(super) async fn end_turn(&mut self, turn: &InputStatus, permit: Option<LongTurn<'_>>) {
        self.lagging.store(turn.lagging, Ordering::Relaxed);
        if turn.steps > LONG_TURN_STEPS {
            self.long_at = Some(Instant::now());
            if permit.is_some() {
                sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use zoolock_wire::{ConnectRequest, Request, RequestHeader, Writer};

    use super::*;
    use crate::access::Access;
    use crate::serve::fuzzing::FuzzServer;

    async fn send(client: &mut DuplexStream, encode: impl FnOnce(&mut Writer<'_>)) {
        let mut frame = BytesMut::new();
        Writer::frame(&mut frame, encode);
        client.write_all(&frame).await.expect("the server reads");
    }

    async fn receive(client: &mut DuplexStream) {
        let len = client.read_u32().await.expect("a reply");
        client.read_exact(&mut vec![0; len as usize]).await.expect("the rest of the reply");
    }

    #[tokio::test]
    async fn session_lives_while_its_connection_waits_for_a_turn() {
        let server = FuzzServer::new(Access::default()).expect("a thread");
        let shared = Arc::clone(server.shared());
        let (mut client, stream) = duplex(1 << 16);
        let serving = tokio::spawn(server.serve(stream));
        send(&mut client, |writer| ConnectRequest::new_session(4000).encode(writer)).await;
        receive(&mut client).await;
        let ping = |writer: &mut Writer<'_>| {
            RequestHeader { xid: -2, op: Request::Ping.op() }.encode(writer);
            Request::Ping.encode(writer);
        };

        let permit = shared.long_turns.acquire().await.expect("an open semaphore");
        shared.lock().peers.values().for_each(|peer| peer.lagging.store(true, Ordering::Relaxed));
        send(&mut client, ping).await;
        while shared.lock().core.stats().waiting == 0 {
            tokio::task::yield_now().await;
        }
        shared.advance(Duration::from_secs(60));
        assert_eq!(
            shared.lock().core.session_count(),
            1,
            "the session expired although its request was unread"
        );
        drop(permit);
        receive(&mut client).await;
        assert_eq!(shared.lock().core.stats().waiting, 0);
        shared.advance(Duration::from_secs(60));
        assert_eq!(shared.lock().core.session_count(), 0);
        serving.await.expect("no panic");
    }
}
