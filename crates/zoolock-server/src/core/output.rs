//! Output of connections, and the closing of connections whose clients do not read it.

use bytes::BytesMut;
use zoolock_wire::{EventKind, ReplyHeader, Writer, encode_event, op};

use super::Core;
use super::connection::Conn;
use crate::ids::ConnId;

impl Core {
    pub(super) fn send_event(&mut self, conn: ConnId, kind: EventKind, path: &str) {
        self.send(conn, |writer| {
            ReplyHeader { xid: op::XID_EVENT, zxid: -1, err: 0 }.encode(writer);
            encode_event(kind, path, writer);
        });
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
            self.totals.queued -= state.output.len();
            state.output = BytesMut::new();
            state.cut_off = true;
            // If `woken` is set, the connection's task was woken before, but has not taken output
            // since, because its own buffer was full. The task must be woken again to close the
            // connection.
            state.woken = false;
        }
        self.close(conn);
    }

    /// Returns whether a connection must be closed at once, without writing its pending output.
    pub fn is_cut_off(&self, conn: ConnId) -> bool {
        self.conns.get(&conn).is_none_or(|state| state.cut_off)
    }

    pub(super) fn send(&mut self, conn: ConnId, body: impl FnOnce(&mut Writer<'_>)) {
        let Some(state) = self.conns.get_mut(&conn) else { return };
        if state.closing {
            return;
        }
        let before = state.output.len();
        Writer::frame(&mut state.output, body);
        let added = state.output.len() - before;
        state.counts.sent += 1;
        state.counts.last_zxid = self.state.zxid.0;
        self.totals.sent += 1;
        self.totals.bytes_sent += added as u64;
        self.totals.queued += added;
        if self.config.max_queued != 0 && self.totals.queued > self.config.max_queued {
            self.cut_off_largest();
        }
    }

    /// Cuts off the connection with the most queued bytes, to keep memory for the other connections.
    pub(super) fn cut_off_largest(&mut self) {
        let waiting = |state: &Conn| state.output.len() + state.unwritten;
        let open = self.conns.iter().filter(|(_, state)| !state.closing);
        if let Some((&conn, state)) = open.max_by_key(|(_, state)| waiting(state)) {
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
