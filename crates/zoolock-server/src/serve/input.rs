//! The turns of connections with the core: requests go in, and output comes out.

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;
use zoolock_wire::op;

use super::background::join_freed_blocks;
use super::outbox::OutputBuffer;
use super::{HIGH_WATER, SharedServer};
use crate::core::{ConnId, Readiness, ReceivedRequest, SessionSeed};
use crate::txn::Password;

/// Maximum length of a frame before a connection is admitted. A connect request with a password
/// fits, and so do credentials.
pub(super) const MAX_GREETING: usize = 8192;

/// Maximum number of frames of a turn, if the server has up to 16 connections. Fewer and longer turns cost less.
const MAX_BATCH: usize = 128;
/// Maximum number of frames of a turn, if the server has 256 connections or more. A connection may wait for a turn of
/// each other.
pub(super) const MIN_BATCH: usize = 8;
/// Number of frames in a turn of each connection together, between these limits. Idle connections count, too.
const ALL_BATCHES: usize = 2048;
/// Time after which a turn ends early, because some requests cost more than others.
pub(super) const BATCH_TIME: Duration = Duration::from_millis(1);

/// Maximum number of frames of a turn after which the task of a connection may write the log by itself. The create of a lock's
/// znode comes with at most two reads and a ping.
const LONE_BATCH: usize = 4;

/// A longer frame is decoded before the core is locked. Its request may take long.
const LARGE_FRAME: usize = 8192;
/// A multi in a longer frame may take long.
const LARGE_MULTI: usize = 2048;

/// Result of handling a connection's input.
#[derive(Default)]
pub(super) struct InputStatus {
    /// Set if the connection closes after the output.
    pub(super) closing: bool,
    /// Set if the next turn should follow at once.
    pub(super) more: bool,
    /// Set if the connection has a session, and has authenticated as the server requires.
    pub(super) admitted: bool,
    /// Set if the input begins with a complete frame. Nothing more is read then.
    pub(super) holds_frame: bool,
    /// Set if the last request is not finished, or the next one waits until the connection has its events.
    pub(super) is_unfinished: bool,
    /// Set if the connection has a long request that it can continue, or asks for a long list.
    pub(super) has_long_request: bool,
    /// Number of requests that the turn has handled.
    pub(super) requests: usize,
    /// Processor time that the turn took. Its elapsed time would also count other processes, which a small request on a busy
    /// machine often waits for.
    pub(super) took: Duration,
    /// Set if the task must write the transactions of this turn ([`Journal::write_here`](super::Journal::write_here)).
    pub(super) must_write: bool,
}

impl SharedServer {
    /// Passes complete frames from `input` to the core, and moves the core's output for the connection to `output`.
    /// `last` is the result of the last turn. `is_long_turn` is set if the turn may take long.
    pub(super) fn handle_input(
        &self,
        conn: ConnId,
        last: &InputStatus,
        is_long_turn: bool,
        input: &mut BytesMut,
        output: &mut OutputBuffer,
    ) -> InputStatus {
        let admitted = last.admitted;
        // A large frame is decoded before the core is locked, because that may take milliseconds. If the last request is
        // not finished, this turn is for that request.
        let mut decoded = match complete_frame_len(input, self.timing.max_frame) {
            Some(Ok(len)) if admitted && len > LARGE_FRAME && !last.is_unfinished => {
                Some(ReceivedRequest::decode(&input[4..4 + len]))
            }
            _ => None,
        };
        join_freed_blocks();
        let started_at = Instant::now();
        let mut inner = self.lock();
        let (turn_began, used_before) = (Instant::now(), processor_time());
        let now = self.now();
        inner.core.end_wait(conn, now);
        inner.core.set_unwritten(conn, output.len());
        let batch = (ALL_BATCHES / inner.peers.len().max(1)).clamp(MIN_BATCH, MAX_BATCH);
        let (mut frames, mut broken, mut asks_for_long_list) = (0, false, false);
        let (mut is_busy, mut is_blocked) = (false, false);
        let more = loop {
            let had_work = frames > 0 || inner.core.is_lagging(conn) || inner.core.has_long_request(conn);
            match inner.core.advance(conn) {
                Readiness::Ready => {}
                Readiness::Busy => {
                    is_busy = true;
                    break true;
                }
                Readiness::Blocked => {
                    is_blocked = true;
                    break false;
                }
            }
            // Events and the end of a long request may use up the turn, too.
            let full = frames == batch || had_work && turn_began.elapsed() > BATCH_TIME;
            // A client that is not admitted must not make the server buffer a large frame.
            let max_len = if inner.core.is_admitted(conn) { usize::MAX } else { MAX_GREETING };
            let longest = max_len.min(self.timing.max_frame);
            if full || inner.core.output_len(conn) >= HIGH_WATER {
                break complete_frame_len(input, longest).is_some();
            }
            match complete_frame_len(input, longest) {
                None => break false,
                Some(Err(len)) => {
                    tracing::debug!(%conn, len, "invalid frame length; closing the connection");
                    broken = true;
                    break false;
                }
                Some(Ok(len)) => {
                    match decoded.take() {
                        Some(request) => inner.core.receive_decoded(conn, request, now),
                        None if admitted && len > LARGE_FRAME => break true,
                        None if frames > 0 && !is_long_turn && may_take_long(input, len) => break true,
                        None if !is_long_turn && inner.core.asks_for_long_list(conn, &input[4..4 + len]) => {
                            asks_for_long_list = true;
                            break true;
                        }
                        None => inner.core.receive(conn, &input[4..4 + len], now, random_session_seed),
                    }
                    input.advance(4 + len);
                    frames += 1;
                }
            }
        };
        let holds_frame = complete_frame_len(input, self.timing.max_frame).is_some();
        // A turn with a request has recorded this already.
        if holds_frame && frames == 0 {
            inner.core.record_alive(conn, now);
        }
        // The session timeout is recorded before the answer that grants the session is sent. So
        // even after a crash, the next server waits until that session has expired.
        let is_recorded = self.record_session_timeout(&mut inner, false);
        if !is_recorded && inner.core.session_timeout_ms(conn) > inner.recorded_timeout_ms {
            tracing::warn!("refusing a new session, because its timeout is not recorded");
            self.end_turn(&mut inner, Some(conn));
            return InputStatus { closing: true, holds_frame, ..InputStatus::default() };
        }
        let shown = inner.core.last_shown(conn);
        let closing = output.fill(shown, |bytes| inner.core.take_output(conn, bytes)) || broken;
        // The client may have sent more, which is not read. A client that does not take its output is perhaps dead.
        if is_blocked && holds_frame && output.len() < HIGH_WATER {
            inner.core.begin_wait(conn);
        }
        let was_active = inner.last_active == Some(conn);
        if frames > 0 {
            inner.last_active = Some(conn);
            inner.latency.add(frames as u64, started_at.elapsed());
        }
        let is_small = frames <= LONE_BATCH && input.is_empty();
        let is_alone = self.timing.may_block && was_active && is_small;
        let must_write = self.journal_decided(&mut inner, is_alone);
        self.end_turn(&mut inner, Some(conn));
        let admitted = inner.core.is_admitted(conn);
        let has_long_request = asks_for_long_list || !is_blocked && inner.core.has_long_request(conn);
        let is_unfinished = is_busy || is_blocked || has_long_request;
        InputStatus {
            closing,
            more,
            admitted,
            holds_frame,
            is_unfinished,
            has_long_request,
            requests: frames,
            took: processor_time().saturating_sub(used_before),
            must_write,
        }
    }
}

/// Returns the length of the frame at the start of `input`, if it is complete. A length that is negative or above `max`
/// is an error.
pub(super) fn complete_frame_len(input: &BytesMut, max: usize) -> Option<Result<usize, i32>> {
    let len = i32::from_be_bytes(*input.first_chunk()?);
    match usize::try_from(len) {
        Ok(len) if len <= max => (input.len() - 4 >= len).then_some(Ok(len)),
        _ => Some(Err(len)),
    }
}

/// Returns whether the request at the start of `input`, a frame of `len` bytes, may take long.
fn may_take_long(input: &BytesMut, len: usize) -> bool {
    let is_multi = || input.get(8..12).is_some_and(|op| op == op::MULTI.to_be_bytes());
    len > LARGE_FRAME || len > LARGE_MULTI && is_multi()
}

/// The request at the start of a connection's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextRequest {
    /// There is no complete request.
    None,
    Short,
    /// The request may take long, because it is large.
    Long,
}

impl NextRequest {
    pub(super) fn of(input: &BytesMut, max_frame: usize) -> Self {
        match complete_frame_len(input, max_frame) {
            None => NextRequest::None,
            Some(Ok(len)) if may_take_long(input, len) => NextRequest::Long,
            Some(_) => NextRequest::Short,
        }
    }
}

/// Returns the processor time that this thread has used.
fn processor_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.try_into().unwrap_or_default(), used.tv_nsec.try_into().unwrap_or_default())
}

fn random_session_seed() -> SessionSeed {
    let mut random = [0; 24];
    getrandom::fill(&mut random).expect("the random source worked when the server started");
    let (id, password) = random.split_first_chunk::<8>().expect("24 bytes hold 8");
    SessionSeed {
        id: u64::from_be_bytes(*id),
        password: Password(password.try_into().expect("24 bytes hold 8 and 16")),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::access::Access;
    use crate::serve::fuzzing::FuzzServer;

    /// Takes long to log, without processor time.
    struct SlowLog;

    impl SlowLog {
        const TIME: Duration = Duration::from_millis(100);
    }

    impl Subscriber for SlowLog {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            thread::sleep(SlowLog::TIME);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test]
    async fn turn_that_waits_for_the_machine_is_not_long() {
        let server = FuzzServer::new(Access::default()).expect("a thread");
        let conn = server.shared().lock().core.add_connection(std::net::Ipv4Addr::LOCALHOST.into());
        // No request to connect, which the server logs while it handles it.
        let (mut input, mut output) = (BytesMut::from(&[0, 0, 0, 1, 0][..]), OutputBuffer::default());
        let began = Instant::now();
        let status = tracing::subscriber::with_default(SlowLog, || {
            server.shared().handle_input(conn, &InputStatus::default(), false, &mut input, &mut output)
        });
        assert!(status.closing && began.elapsed() >= SlowLog::TIME, "nothing was logged");
        assert!(status.took < SlowLog::TIME / 2, "{:?}", status.took);
    }
}
