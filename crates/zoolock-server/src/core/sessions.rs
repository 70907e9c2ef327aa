//! Sessions, from the connect request to their end.

use std::net::IpAddr;

use zoolock_wire::{ConnectRequest, ConnectResponse, Hidden};

use super::connection::{Conn, EVERYTHING, HandshakePhase, NOTHING};
use super::{Core, Now, SessionSeed};
use crate::ids::ConnId;
use crate::ids::SessionId;
use crate::txn::{Change, Password};

impl Core {
    pub(super) fn handle_connect_request(
        &mut self,
        conn: ConnId,
        frame: &[u8],
        now: Now,
        seed: impl FnOnce() -> SessionSeed,
    ) {
        let request = match ConnectRequest::decode(frame) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%conn, %error, "not a connect request; closing the connection");
                return self.close(conn);
            }
        };
        if request.last_zxid_seen > self.state.zxid.0 {
            tracing::info!(
                %conn,
                seen = request.last_zxid_seen,
                zxid = %self.state.zxid,
                "client has seen a later zxid than this server; closing the connection"
            );
            return self.close(conn);
        }
        let max_sessions = self.config.max_sessions;
        let reason = match max_sessions != 0 && self.state.sessions.len() >= max_sessions {
            _ if request.session != 0 => None,
            true => Some("there are too many sessions"),
            false if self.are_free_connections_reserved(conn) => {
                Some("the free connections are reserved for holders")
            }
            false => None,
        };
        if let Some(reason) = reason {
            tracing::warn!(%conn, reason, "refusing a new session");
            self.totals.refused += 1;
            return self.close(conn);
        }
        let (min, max) = (self.config.min_timeout_ms, self.config.max_timeout_ms);
        let timeout_ms = u32::try_from(request.timeout_ms).unwrap_or(0).max(min).min(max);
        let granted = if request.session == 0 {
            self.begin_session(timeout_ms, now, seed())
        } else {
            self.find_session_with_password(&request)
        };
        // A restart restores the timeout that a session began with. So a client that reconnects is
        // granted no longer timeout.
        let known = granted.as_ref().and_then(|(session, _)| self.state.sessions.get(session));
        let timeout_ms = known.map_or(timeout_ms, |known| timeout_ms.min(known.timeout_ms));
        let refused = granted.is_none();
        let (session, password) = granted.unwrap_or((SessionId::NONE, Password([0; 16])));
        let response = ConnectResponse {
            protocol: 0,
            timeout_ms: if refused { 0 } else { i32::try_from(timeout_ms).unwrap_or(i32::MAX) },
            session: session.0,
            password: Hidden(password.0.to_vec()),
            read_only: request.read_only.map(|_| false),
        };
        if !refused {
            self.attach(conn, session, timeout_ms, request.session == 0, now);
        }
        // A client knows the password of its session from an answer that has waited for the log.
        let shown = if request.session == 0 || refused { EVERYTHING } else { NOTHING };
        self.send(conn, shown, |writer| response.encode(writer));
        if refused {
            tracing::info!(
                %conn,
                session = format_args!("{:#x}", request.session),
                "unknown session or wrong password; refusing"
            );
            self.close(conn);
        }
    }

    /// Returns whether all free connections are reserved for sessions that own ephemerals and have
    /// no connection.
    fn are_free_connections_reserved(&self, conn: ConnId) -> bool {
        let (total, per_address) = (self.config.max_connections, self.config.max_connections_per_address);
        let detached = self.state.sessions.len().saturating_sub(self.attached.len());
        let most = self.conns.len() + detached;
        if (total == 0 || most <= total) && (per_address == 0 || most <= per_address) {
            return false;
        }
        let Some(peer) = self.conns.get(&conn).map(|conn| conn.peer) else { return false };
        let is_here = |address: Option<&IpAddr>| address.is_none_or(|address| *address == peer);
        let open = || self.conns.values().filter(|conn| !conn.closing);
        let here = if per_address == 0 { 0 } else { open().filter(|conn| conn.peer == peer).count() };
        let (mut reserved, mut reserved_here) = (0, 0);
        let detached =
            self.state.tree.sessions_with_ephemerals().filter(|session| {
                !self.attached.contains_key(session) && !self.state.ending.contains(session)
            });
        for session in detached {
            reserved += 1;
            reserved_here += usize::from(is_here(self.last_addresses.get(&session)));
        }
        // At most a quarter is reserved, because sessions that hang up could lock out new clients otherwise.
        let is_full = |max: usize, open, kept: usize| max != 0 && open + kept.min(max.div_ceil(4)) > max;
        is_full(total, open().count(), reserved) || is_full(per_address, here, reserved_here)
    }

    pub(super) fn begin_session(
        &mut self,
        timeout_ms: u32,
        now: Now,
        seed: SessionSeed,
    ) -> Option<(SessionId, Password)> {
        let mut session = SessionId::from_random(seed.id);
        while self.state.sessions.contains_key(&session) || self.state.ending.contains(&session) {
            session = session.next();
        }
        let password = seed.password;
        let change = Change::CreateSession { timeout_ms, password: password.clone() };
        self.commit_change(session, change, now).ok()?;
        Some((session, password))
    }

    pub(super) fn find_session_with_password(
        &self,
        request: &ConnectRequest,
    ) -> Option<(SessionId, Password)> {
        let id = SessionId(request.session);
        let known = self.state.sessions.get(&id);
        known
            .filter(|known| known.password.matches(&request.password.0))
            .map(|known| (id, known.password.clone()))
    }

    pub(super) fn attach(
        &mut self,
        conn: ConnId,
        session: SessionId,
        timeout_ms: u32,
        mut began_session: bool,
        now: Now,
    ) {
        if let Some(old) = self.attached.insert(session, conn) {
            // If the session was not admitted on its old connection, the session ends when the new
            // connection ends, unless the new connection is admitted before.
            let old_phase = self.conns.get(&old).map(|old| old.phase);
            began_session |= matches!(
                old_phase,
                Some(HandshakePhase::Attached { began_session: true, admitted: false, .. })
            );
            tracing::info!(session = format_args!("{session:#x}"), "session moves to a new connection");
            self.end_watches(old);
            self.close(old);
        }
        self.last_addresses.remove(&session);
        self.longest_timeout_ms = self.longest_timeout_ms.max(timeout_ms);
        self.expiry.extend_session(session, timeout_ms, now.mono_ms);
        if let Some(state) = self.conns.get_mut(&conn) {
            let admitted = self.config.access.admits_without_auth(state.client.identities());
            state.phase = HandshakePhase::Attached { session, timeout_ms, began_session, admitted };
        }
    }

    /// Records that a client is alive although its next request must wait.
    pub fn record_alive(&mut self, conn: ConnId, now: Now) {
        if let Some(Conn { phase: HandshakePhase::Attached { session, timeout_ms, .. }, .. }) =
            self.conns.get(&conn)
            && self.attached.get(session) == Some(&conn)
        {
            self.expiry.extend_session(*session, *timeout_ms, now.mono_ms);
        }
    }

    /// Begins a time in which the server does not read from a connection, because others are served first, or because it
    /// misses events. The session of the connection does not expire in this time, because its client may have sent requests.
    pub fn begin_wait(&mut self, conn: ConnId) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.waits_for_server = true;
        }
    }

    /// Ends the time that [`Core::begin_wait`] began. The session gets its whole timeout again.
    pub fn end_wait(&mut self, conn: ConnId, now: Now) {
        if let Some(state) = self.conns.get_mut(&conn)
            && std::mem::take(&mut state.waits_for_server)
        {
            self.record_alive(conn, now);
        }
    }

    /// Returns the connection of a session, if the server does not read from it at present.
    pub(super) fn waiting_connection(&self, session: SessionId) -> Option<ConnId> {
        let conn = self.attached.get(&session)?;
        self.conns.get(conn).filter(|state| state.waits_for_server && !state.closing)?;
        Some(*conn)
    }

    /// Updates and returns the longest session timeout granted, in milliseconds, or zero without
    /// sessions. A client may rely on its session for at most this time after the server has ended.
    pub fn update_longest_timeout_ms(&mut self) -> u32 {
        if self.state.sessions.is_empty() {
            self.longest_timeout_ms = 0;
        }
        self.longest_timeout_ms
    }

    /// Returns the session timeout of a connection in milliseconds, or zero without a session.
    pub fn session_timeout_ms(&self, conn: ConnId) -> u32 {
        match self.conns.get(&conn).map(|conn| conn.phase) {
            Some(HandshakePhase::Attached { timeout_ms, .. }) => timeout_ms,
            Some(HandshakePhase::New) | None => 0,
        }
    }

    pub(super) fn end_if_never_admitted(&mut self, conn: ConnId, now: Now) {
        if let Some(HandshakePhase::Attached { session, began_session: true, admitted: false, .. }) =
            self.conns.get(&conn).map(|conn| conn.phase)
            // If another connection has taken the session over, the session does not end with this
            // connection.
            && self.attached.get(&session) == Some(&conn)
        {
            self.end_session(session, self.config.max_part, now);
        }
    }

    /// Ends a session and closes its connection. Deletes about `max` of its ephemerals, and the others later. Returns the
    /// number of short paths that would take as long. The connection gets no events for the deleted ephemerals, because
    /// its client would take such an event for a deletion by another client.
    pub(super) fn end_session(&mut self, session: SessionId, max: usize, now: Now) -> usize {
        self.expiry.remove(session);
        self.last_addresses.remove(&session);
        if let Some(&conn) = self.attached.get(&session) {
            self.end_watches(conn);
        }
        let mut deleted = 0;
        if self.state.sessions.contains_key(&session) {
            match self.delete_ephemerals(session, None, max, now) {
                Ok(count) => deleted = count,
                // No transaction number is left for ending the session. A later tick tries again.
                Err(_) => self.expiry.extend_session(session, self.config.tick_ms, now.mono_ms),
            }
        }
        if let Some(conn) = self.attached.remove(&session) {
            self.close(conn);
        }
        deleted
    }
}
