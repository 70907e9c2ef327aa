//! Output of connections, and the closing of connections whose clients do not read it.

use bytes::BytesMut;
use zoolock_wire::{Code, EventKind, Reply, ReplyHeader, Writer};

use super::Core;
use super::connection::{Conn, EVERYTHING};
use super::deliveries::encode_event_frame;
use super::jobs::Job;
use crate::ids::{ConnId, Zxid};

impl Core {
    pub(super) fn send_event(&mut self, conn: ConnId, kind: EventKind, path: &str) {
        let mut frame = BytesMut::new();
        encode_event_frame(kind, path, &mut frame);
        self.send_event_frame(conn, &frame);
    }

    /// Sends the frame of an event. Closes the connection if its client does not read.
    pub(super) fn send_event_frame(&mut self, conn: ConnId, frame: &[u8]) {
        let Some(state) = self.conns.get_mut(&conn).filter(|state| state.gets_events && !state.closing)
        else {
            return;
        };
        state.output.extend_from_slice(frame);
        self.record_sent(conn, EVERYTHING, frame.len());
        if let Some(state) = self.conns.get_mut(&conn)
            && state.output.len() > self.config.max_output
        {
            tracing::warn!(
                %conn,
                waiting = state.output.len(),
                "client does not read its events; closing the connection"
            );
            self.cut_off(conn);
        }
        self.wake(conn);
    }

    /// Closes a connection at once, and drops its queued output.
    pub(super) fn cut_off(&mut self, conn: ConnId) {
        self.totals.cut_off += 1;
        if let Some(state) = self.conns.get_mut(&conn) {
            self.totals.queued -= state.output.len() + state.unwritten;
            (state.output, state.unwritten) = (BytesMut::new(), 0);
            state.cut_off = true;
            // If `woken` is set, the connection's task was woken before, but has not taken output
            // since, because its own buffer was full. The task must be woken again to close the
            // connection.
            state.woken = false;
        }
        self.end_watches(conn);
        self.close(conn);
    }

    /// Returns whether a connection must be closed at once, without writing its pending output.
    pub fn is_cut_off(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_none_or(|state| state.cut_off)
    }

    /// Sends a frame that may show the effects of transactions up to `shown`.
    pub(super) fn send(&mut self, conn: ConnId, shown: Zxid, body: impl FnOnce(&mut Writer<'_>)) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if state.closing {
            return;
        }
        let before = state.output.len();
        Writer::frame(&mut state.output, body);
        let added = state.output.len() - before;
        self.record_sent(conn, shown, added);
    }

    pub(super) fn record_received(&mut self, conn: ConnId, len: usize) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.received += 1;
        self.totals.received += 1;
        self.totals.bytes_received += len as u64 + 4;
    }

    pub(super) fn record_sent(&mut self, conn: ConnId, shown: Zxid, added: usize) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        state.shown = state.shown.max(shown.min(self.last_change));
        state.sent += 1;
        self.totals.sent += 1;
        self.totals.bytes_sent += added as u64;
        self.record_queued(added);
    }

    fn record_queued(&mut self, added: usize) {
        self.totals.queued += added;
        if self.config.max_queued != 0 && self.totals.queued > self.config.max_queued {
            self.cut_off_largest();
        }
    }

    /// Keeps the unfinished request of a connection.
    pub(super) fn keep_job(&mut self, conn: ConnId, job: Job) {
        let Some(state) = self.conns.get_mut(&conn).filter(|state| !state.closing) else { return };
        let bytes = job.queued_bytes();
        state.job = Some(job);
        self.record_queued(bytes);
    }

    /// Takes the unfinished request of a connection.
    pub(super) fn take_job(&mut self, conn: ConnId) -> Option<Job> {
        let job = self.conns.get_mut(&conn)?.job.take()?;
        self.totals.queued -= job.queued_bytes();
        Some(job)
    }

    /// Cuts off the connection with the most queued bytes, to keep memory for the other connections.
    pub(super) fn cut_off_largest(&mut self) {
        let waiting = Conn::queued_bytes;
        let open = self.conns.iter().filter(|(_, state)| !state.cut_off);
        // A connection whose earlier output is written reads its replies. It is closed only if there is no other.
        let is_slow = |state: &Conn| state.unwritten > 0 || waiting(state) > state.output.len();
        if let Some((&conn, state)) = open.max_by_key(|(_, state)| (is_slow(state), waiting(state))) {
            tracing::warn!(
                %conn,
                waiting = waiting(state),
                total = self.totals.queued,
                "output queues exceed the limit; closing the connection with the largest one"
            );
            self.cut_off(conn);
        }
    }

    pub(super) fn close(&mut self, conn: ConnId) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.closing = true;
            // An unfinished request that counts as queued is not continued.
            let job = state.job.take_if(|job| job.queued_bytes() > 0);
            self.totals.queued -= job.map_or(0, |job| job.queued_bytes());
            self.wake(conn);
        }
    }

    pub(super) fn wake(&mut self, conn: ConnId) {
        if let Some(state) = self.conns.get_mut(&conn)
            && !state.woken
        {
            state.woken = true;
            self.woken.push(conn);
        }
    }
}

/// Encodes a reply with its header.
pub(super) fn encode_reply(xid: i32, zxid: i64, result: Result<Reply, Code>, writer: &mut Writer<'_>) {
    match result {
        Ok(reply) => {
            ReplyHeader { xid, zxid, err: 0 }.encode(writer);
            reply.encode(writer);
        }
        Err(code) => ReplyHeader { xid, zxid, err: code.number() }.encode(writer),
    }
}
