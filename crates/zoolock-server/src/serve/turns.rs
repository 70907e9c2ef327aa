//! The turns of a connection with the core.
//!
//! A connection with a large request waits for its turn until no other such connection has one, and no other long work is
//! done. After a long turn, a connection with a small request does so too, for a second at most. So a connection with small
//! requests rarely waits for more than one long turn, and the work of a few clients takes at most about half of the core's
//! time.

use std::time::Duration;

use tokio::sync::{MutexGuard, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout_at};

use super::SharedServer;
use super::background::{LONG_TURN, PAUSE};
use super::input::{BATCH_TIME, InputStatus, MIN_BATCH, NextRequest};
use crate::core::ConnId;

/// Time after a long turn in which the next turn of the connection waits for other long turns.
const MEMORY: Duration = Duration::from_secs(1);

/// The permission for a long turn of a connection. Connections get it in order. While a connection has it, no other long
/// work is done, also in its pause.
pub(super) struct LongTurn<'s> {
    began: Instant,
    _permit: SemaphorePermit<'s>,
    _guard: MutexGuard<'s, ()>,
}

/// The turns of one connection with the core.
#[derive(Debug)]
pub(super) struct Turns {
    /// End of the last long turn.
    long_at: Option<Instant>,
    /// The last time at which other tasks could run, and the number of requests since then.
    others_ran: (Instant, usize),
}

impl Turns {
    pub(super) fn new() -> Self {
        Turns { long_at: None, others_ran: (Instant::now(), 0) }
    }

    /// Waits until the connection may have its next turn. `next` is its next request. `has_long_request` is set if it has one
    /// that is not finished. A turn with neither only takes the output of the connection, which does not take long.
    ///
    /// A connection with a small request waits at most until its last long turn is [`MEMORY`] ago: that turn was perhaps the
    /// only one, and any number of connections may wait before it.
    pub(super) async fn wait_for_turn<'s>(
        &self,
        shared: &'s SharedServer,
        conn: ConnId,
        next: NextRequest,
        has_long_request: bool,
    ) -> Option<LongTurn<'s>> {
        let waits_until = match (next, self.long_at) {
            (NextRequest::Long, _) => None,
            _ if has_long_request => None,
            (NextRequest::Short, Some(at)) if at.elapsed() < MEMORY => Some(at + MEMORY),
            _ => return None,
        };
        if let Ok(permit) = shared.long_turns.try_acquire()
            && let Ok(guard) = shared.long_work.try_lock()
        {
            return Some(LongTurn { began: Instant::now(), _permit: permit, _guard: guard });
        }
        shared.lock().core.begin_wait(conn);
        let turn = async {
            let permit = shared.long_turns.acquire().await.ok()?;
            let guard = shared.long_work.lock().await;
            Some(LongTurn { began: Instant::now(), _permit: permit, _guard: guard })
        };
        match waits_until {
            Some(end) => timeout_at(end, turn).await.ok()?,
            None => turn.await,
        }
    }

    /// Records a turn. Pauses after a long turn, and after each turn of a long request, for as long as the turn took, before
    /// other connections may have a long turn. Without the pause, the next such turn would often lock the core before a
    /// connection that waits for the lock is awake.
    pub(super) async fn end_turn(&mut self, turn: &InputStatus, permit: Option<LongTurn<'_>>) {
        self.others_ran.1 += turn.requests;
        let is_long = turn.took > LONG_TURN || turn.has_long_request;
        if is_long {
            self.long_at = Some(Instant::now());
        }
        if is_long && let Some(LongTurn { began, .. }) = &permit {
            sleep(PAUSE.max(began.elapsed())).await;
        }
    }

    /// Goes to the end of the run queue if the last turn has left `more` to do, or if there were many requests or much time
    /// since the task last `waited` or went there. Otherwise a client that sends many requests would keep its thread. A yield
    /// after each request of a client that awaits its replies would wake a second thread for nothing.
    pub(super) async fn let_others_run(&mut self, more: bool, waited: bool) {
        let (at, requests) = self.others_ran;
        let is_due = more || requests >= MIN_BATCH || at.elapsed() > BATCH_TIME;
        if is_due && !waited {
            tokio::task::yield_now().await;
        }
        if is_due || waited {
            self.others_ran = (Instant::now(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::{Bytes, BytesMut};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::sync::watch;
    use tokio::task::JoinHandle;
    use zoolock_wire::{ConnectRequest, Request, RequestHeader, Writer};

    use super::*;
    use crate::access::Access;
    use crate::core::CoreConfig;
    use crate::serve::background::continue_work;
    use crate::serve::fuzzing::FuzzServer;
    use crate::serve::outbox::OutputBuffer;
    use crate::serve::{HIGH_WATER, MAX_OUTPUT};

    async fn send(client: &mut DuplexStream, encode: impl FnOnce(&mut Writer<'_>)) {
        let mut frame = BytesMut::new();
        Writer::frame(&mut frame, encode);
        client.write_all(&frame).await.expect("the server reads");
    }

    async fn receive(client: &mut DuplexStream) {
        let len = client.read_u32().await.expect("a reply");
        client.read_exact(&mut vec![0; len as usize]).await.expect("the rest of the reply");
    }

    async fn connect(server: &FuzzServer) -> (DuplexStream, JoinHandle<()>) {
        let (mut client, stream) = duplex(1 << 16);
        let serving = tokio::spawn(server.serve(stream));
        send(&mut client, |writer| ConnectRequest::new_session(4000).encode(writer)).await;
        receive(&mut client).await;
        (client, serving)
    }

    async fn send_request(client: &mut DuplexStream, request: &Request) {
        send(client, |writer| {
            RequestHeader { xid: 1, op: request.op() }.encode(writer);
            request.encode(writer);
        })
        .await;
    }

    /// Sends a request that may take long, because its frame is long.
    async fn send_long_request(client: &mut DuplexStream) {
        let data = Some(Bytes::from(vec![7; 10_000]));
        send_request(client, &Request::SetData { path: "/".into(), data, version: -1 }).await;
    }

    async fn wait_until_one_waits(shared: &SharedServer) {
        let began = Instant::now();
        while shared.lock().core.stats().waiting == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "no connection waits");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn session_lives_while_its_connection_waits_for_a_turn() {
        let server = FuzzServer::new(Access::default()).expect("a thread");
        let shared = Arc::clone(server.shared());
        let permit = shared.long_turns.acquire().await.expect("an open semaphore");
        let (mut client, serving) = connect(&server).await;
        send_long_request(&mut client).await;
        wait_until_one_waits(&shared).await;
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

    #[tokio::test]
    async fn long_turn_waits_for_other_long_work() {
        let server = FuzzServer::new(Access::default()).expect("a thread");
        let shared = Arc::clone(server.shared());
        let work = shared.long_work.lock().await;
        let (mut client, serving) = connect(&server).await;
        send_long_request(&mut client).await;
        wait_until_one_waits(&shared).await;
        drop(work);
        receive(&mut client).await;
        drop(client);
        serving.await.expect("no panic");
    }

    /// A thousand clients that miss events would keep each other, and a client with one long turn, waiting for seconds. The
    /// session of such a client does not expire before the server has read its request.
    #[tokio::test]
    async fn connection_that_misses_events_waits_for_no_long_turn() {
        const EVENTS: usize = 5000;
        let parts = CoreConfig { max_part: 10, max_output: MAX_OUTPUT, ..CoreConfig::default() };
        let server = FuzzServer::with_config(parts).expect("a thread");
        let shared = Arc::clone(server.shared());
        let (stop, stopped) = watch::channel(false);
        let (mut watcher, _serving) = connect(&server).await;
        let (mut writer, _serving) = connect(&server).await;
        send_request(&mut watcher, &Request::AddWatch { path: "/".into(), mode: 0 }).await;
        receive(&mut watcher).await;
        let set = Request::SetData { path: "/".into(), data: None, version: -1 };
        send_request(&mut writer, &Request::Multi(vec![set; EVENTS])).await;
        receive(&mut writer).await;
        let _permit = shared.long_turns.acquire().await.expect("an open semaphore");
        send_request(&mut watcher, &Request::Ping).await;
        wait_until_one_waits(&shared).await;
        shared.advance(Duration::from_secs(60));
        tokio::spawn(continue_work(Arc::clone(&shared), stopped));
        let received = async {
            for _ in 0..=EVENTS {
                receive(&mut watcher).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), received).await.expect("all events and the reply");
        assert_eq!(
            shared.lock().core.session_count(),
            1,
            "the session of the writer, which sent nothing, expires"
        );
        drop(stop);
    }

    /// The server reads no request of this client either, but the client is perhaps dead.
    #[tokio::test]
    async fn session_of_client_that_reads_no_events_expires() {
        let parts = CoreConfig { max_part: 1000, max_output: MAX_OUTPUT, ..CoreConfig::default() };
        let server = FuzzServer::with_config(parts).expect("a thread");
        let shared = Arc::clone(server.shared());
        let (_stop, stopped) = watch::channel(false);
        let (mut watcher, _serving) = connect(&server).await;
        let (mut writer, _serving) = connect(&server).await;
        send_request(&mut watcher, &Request::AddWatch { path: "/".into(), mode: 0 }).await;
        receive(&mut watcher).await;
        let set = Request::SetData { path: "/".into(), data: None, version: -1 };
        for _ in 0..2 * HIGH_WATER / (10_000 * 30) {
            send_request(&mut writer, &Request::Multi(vec![set.clone(); 10_000])).await;
            receive(&mut writer).await;
        }
        send_request(&mut watcher, &Request::Ping).await;
        wait_until_one_waits(&shared).await;
        tokio::spawn(continue_work(Arc::clone(&shared), stopped));
        let began = Instant::now();
        while shared.lock().core.session_count() > 0 {
            assert!(began.elapsed() < Duration::from_secs(30), "the session has not expired");
            shared.advance(Duration::from_secs(1));
            sleep(10 * PAUSE).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn small_request_waits_a_limited_time_after_a_long_turn() {
        let server = FuzzServer::new(Access::default()).expect("a thread");
        let shared = Arc::clone(server.shared());
        let conn = shared.lock().core.add_connection(std::net::Ipv4Addr::LOCALHOST.into());
        let mut turns = Turns::new();
        turns.end_turn(&InputStatus { took: 2 * LONG_TURN, ..InputStatus::default() }, None).await;
        let (_permit, long_at) =
            (shared.long_turns.acquire().await.expect("an open semaphore"), Instant::now());
        let short = turns.wait_for_turn(&shared, conn, NextRequest::Short, false);
        assert!(tokio::time::timeout(10 * MEMORY, short).await.expect("a limited wait").is_none());
        assert_eq!(long_at.elapsed().as_secs(), MEMORY.as_secs());
        assert!(turns.wait_for_turn(&shared, conn, NextRequest::Short, false).await.is_none());
        let long = turns.wait_for_turn(&shared, conn, NextRequest::Long, false);
        assert!(tokio::time::timeout(10 * MEMORY, long).await.is_err(), "a large request did not wait");
    }

    #[tokio::test(start_paused = true)]
    async fn long_work_goes_on_for_as_long_as_it_waited() {
        const SESSIONS: usize = 100;
        let parts = CoreConfig { max_part: 1, max_output: MAX_OUTPUT, ..CoreConfig::default() };
        let server = FuzzServer::with_config(parts).expect("a thread");
        let shared = Arc::clone(server.shared());
        for _ in 0..SESSIONS {
            let conn = shared.lock().core.add_connection(std::net::Ipv4Addr::LOCALHOST.into());
            let (mut input, mut output) = (BytesMut::new(), OutputBuffer::default());
            Writer::frame(&mut input, |writer| ConnectRequest::new_session(4000).encode(writer));
            shared.handle_input(conn, &InputStatus::default(), false, &mut input, &mut output);
            let now = shared.now();
            shared.lock().core.remove_connection(conn, now);
        }
        let long_turn = shared.long_work.lock().await;
        let (_stop, stopped) = watch::channel(false);
        tokio::spawn(continue_work(Arc::clone(&shared), stopped));
        sleep(50 * PAUSE).await;
        shared.advance(Duration::from_secs(60));
        drop(long_turn);
        let _next = shared.long_work.lock().await;
        let expired = SESSIONS - shared.lock().core.session_count();
        assert!((40..=60).contains(&expired), "{expired} sessions expired");
    }

    #[tokio::test]
    async fn long_work_waits_for_a_long_turn() {
        let server = FuzzServer::new(Access::default()).expect("a thread");
        let shared = Arc::clone(server.shared());
        let mut turns = Turns::new();
        let conn = shared.lock().core.add_connection(std::net::Ipv4Addr::LOCALHOST.into());
        let permit = turns.wait_for_turn(&shared, conn, NextRequest::Long, false).await;
        assert!(shared.long_work.try_lock().is_err() && shared.long_turns.try_acquire().is_err());
        let unfinished = InputStatus { has_long_request: true, ..InputStatus::default() };
        {
            let mut ending = std::pin::pin!(turns.end_turn(&unfinished, permit));
            let poll =
                |cx: &mut std::task::Context<'_>| std::task::Poll::Ready(ending.as_mut().poll(cx).is_ready());
            assert!(!std::future::poll_fn(poll).await, "no pause between the parts of a long request");
            assert!(shared.long_work.try_lock().is_err(), "other long work may begin in the pause");
            ending.await;
        }
        assert!(shared.long_work.try_lock().is_ok() && shared.long_turns.try_acquire().is_ok());
        for (next, has_long_request, waits) in [
            (NextRequest::None, false, false),
            (NextRequest::None, true, true),
            (NextRequest::Short, false, true),
        ] {
            let permit = turns.wait_for_turn(&shared, conn, next, has_long_request).await;
            assert_eq!(permit.is_some(), waits, "{next:?}, {has_long_request}");
        }
    }
}
