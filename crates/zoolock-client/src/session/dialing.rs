//! The dials of a session: the first one, the next one after a loss, and moves to another server.

use std::time::Duration;

use super::connection::SessionConnection;
use super::{ConnectionId, Dial, DisconnectReason, Instant, Output, RequestError, Session, SessionState};

/// The maximum number of short connections in a row that are replaced without a pause. A short
/// connection ends soon after the attach.
const MAX_SHORT_CONNECTIONS: u32 = 3;

impl Session {
    /// Reports that a dial succeeded, TLS included. Returns whether the session uses the
    /// connection. It does not if the dial was aborted. After an outage, a new session does not use
    /// its first connection either: it lets existing sessions attach first.
    #[must_use]
    pub fn dial_succeeded(&mut self, id: ConnectionId, now: Instant, random: u64) -> bool {
        if !matches!(self.dial, Dial::Dialing { id: dialed, .. } if dialed == id) {
            return false;
        }
        self.dial = Dial::Idle;
        let follows_outage = std::mem::take(&mut self.follows_outage);
        if follows_outage && self.id == 0 {
            // This session is new, so it lets the sessions that hold locks attach first.
            self.dial = Dial::Waiting { until: now.after(self.pace.newcomer_delay(random)) };
            return false;
        }
        if let Some(old) = &self.connection {
            let loss = if self.must_move(now) {
                DisconnectReason::LeaseEndsSoon
            } else {
                DisconnectReason::Silent(old.silent_for(now))
            };
            self.last_move = Some(now);
            self.drop_connection(loss, now);
        }
        // A session in haste waits for an attach only for a short time. A session with an ephemeral znode is always in
        // haste, because it may hold a lock. Any other session is in haste once for each server, because a server that hangs
        // must not delay it. Later attaches get more time, because each attach that a new session gives up may leave a
        // session on the server. With SASL no session is in haste, because the exchange may need a ticket first.
        let is_first_round = self.slow_attaches < self.config.servers;
        let is_in_haste = (self.has_ephemeral || is_first_round) && !self.config.sasl;
        let others = self.config.servers.saturating_sub(1);
        // A short wait helps only if there is another server to try, or if the server may have dropped the connect request,
        // as Apache ZooKeeper 3.8.0 does until it has loaded its database.
        let deadline = if is_in_haste && (others > 0 || follows_outage) {
            let longer = self.ping_time * 3;
            let slow_attaches = if others > 0 { self.slow_attaches } else { 0 };
            self.pace.short_attach_deadline(now, longer, slow_attaches, self.config.servers)
        } else {
            self.pace.attach_deadline(now)
        };
        let mut connection = SessionConnection::new(id, now, deadline, random);
        connection.write_connect(self.id, &self.password, self.newest_zxid, self.requested_timeout());
        self.connection = Some(connection);
        true
    }

    /// Reports that a dial failed.
    pub fn dial_failed(&mut self, id: ConnectionId, now: Instant, random: u64) {
        if matches!(self.dial, Dial::Dialing { id: dialed, .. } if dialed == id) {
            self.dial = Dial::Idle;
            // Before a name resolves, a dial reaches no server, so its failure shows no outage of the servers.
            self.follows_outage |= self.config.servers > 0;
            self.retry_dial(now, random);
        }
    }

    /// Attaches the session on a new connection, to save a lease that ends soon: the leader counts
    /// the session timeout from the attach on.
    ///
    /// `works`: set if the connected server has confirmed the last write. If it has no old request to answer either, it
    /// is dialed first, otherwise another server.
    ///
    /// `is_hopeless`: set if no pending reply can renew the lease. If it is not set, nothing happens
    /// until the oldest pending request has waited for an eighth of the timeout.
    ///
    /// In both cases nothing happens until the session has been attached for twice as long as the
    /// attach took, because the first request can hardly be answered earlier. This wait is at least
    /// a fifteenth and at most a sixth of the timeout.
    ///
    /// A session without an ephemeral znode never reattaches, because such a session may be local to
    /// its server. Then no other server knows the session.
    pub fn reattach(&mut self, is_hopeless: bool, works: bool, now: Instant) {
        let Some(connection) = self.connection.as_ref().filter(|_| self.has_ephemeral) else { return };
        let Some(attached_at) = connection.attached_at else { return };
        let attach_time = connection.connect_sent.until(attached_at);
        let answer_time = (attach_time * 2).clamp(self.pace.timeout / 15, self.pace.timeout / 6);
        let has_had_time = attached_at.until(now) >= answer_time;
        let waited = connection.oldest_unanswered().map_or(Duration::ZERO, |oldest| oldest.sent.until(now));
        let is_hopeless = is_hopeless || waited > self.pace.timeout / 8;
        if self.is_connected() && has_had_time && is_hopeless {
            // Does not begin with a server that has not answered for a 24th of the timeout, because an attach gets no more
            // time than that.
            self.same_first = works && waited <= self.pace.timeout / 24;
            self.must_move_until = Some(now.after(self.pace.timeout / 6));
            if self.dial == Dial::Idle {
                self.start_dial(now);
            }
        }
    }

    /// Returns the time at which the session dials another server, if the connected server stays
    /// silent until then.
    pub(super) fn move_time(&self) -> Option<Instant> {
        let connection = self.connection.as_ref().filter(|connection| connection.is_attached())?;
        let silent = self.pace.silence_deadline(&connection.oldest_unanswered()?, self.has_ephemeral);
        // At most one move per third of the session timeout.
        let earliest = self.last_move.map_or(silent, |last| last.after(self.pace.timeout / 3));
        Some(silent.max(earliest))
    }

    fn must_move(&self, now: Instant) -> bool {
        self.must_move_until.is_some_and(|until| now < until)
    }

    /// Stops a dial if the connected server has answered meanwhile. Does not stop the dial of a
    /// reattach before the time `must_move_until`.
    pub(super) fn stop_needless_move(&mut self, now: Instant) {
        let is_attached = self.connection.as_ref().is_some_and(SessionConnection::is_attached);
        if is_attached
            && !self.must_move(now)
            && self.dial != Dial::Idle
            && self.move_time().is_none_or(|at| now < at)
        {
            if let Dial::Dialing { id, .. } = self.dial {
                self.outputs.push_back(Output::AbortDial { id, is_late: false });
            }
            self.dial = Dial::Idle;
            self.failures = 0;
        }
    }

    pub(super) fn start_dial(&mut self, now: Instant) {
        self.last_connection += 1;
        let id = ConnectionId(self.last_connection);
        let is_in_haste = self.has_ephemeral && self.config.servers > 1;
        self.dial =
            Dial::Dialing { id, deadline: self.pace.dial_deadline(now, is_in_haste, self.config.sasl) };
        let attached = self.connection.as_ref().filter(|connection| connection.is_attached());
        // After a silence of a third of the timeout, the connected server is dialed, too, because it may work although its
        // connection is broken.
        let is_fresh = attached.is_some_and(|connection| connection.silent_for(now) < self.pace.timeout / 3);
        let avoid_current = is_fresh && !self.must_move(now);
        let same_first = self.same_first && self.must_move(now);
        self.outputs.push_back(Output::Dial { id, avoid_current, same_first });
    }

    fn retry_dial(&mut self, now: Instant, random: u64) {
        self.failures = self.failures.saturating_add(1);
        let hang_ups = self.hang_ups / self.config.servers.max(1);
        let delay = if self.id == 0 && hang_ups > 0 {
            self.pace.retry_delay_after_hang_ups(hang_ups, random)
        } else {
            // A session without an ephemeral znode holds no lock, so it may wait longer.
            self.pace.retry_delay(self.failures, self.has_ephemeral, random)
        };
        self.dial = Dial::Waiting { until: now.after(delay) };
    }

    /// Drops the connection. Starts the next dial at once or after a pause, unless a dial is under
    /// way.
    pub(super) fn drop_and_redial(&mut self, loss: DisconnectReason, now: Instant, random: u64) {
        // The next dial starts at once after these losses, and after any other loss with the pause of a failed dial:
        // - An attached connection was closed. If it was attached only for a short time, only a few times in a row.
        // - A server closed the connection during the handshake, until all servers have done so. The next server may
        //   attach the session, because this one may be at its connection limit, behind the leader, read-only, or without
        //   a leader.
        // - A server did not attach a holder in time, and there are others. The lease may end soon, and the attach took
        //   longer than the pause.
        let attached = self.connection.as_ref().and_then(|connection| connection.attached_at);
        let is_urgent = match attached.filter(|_| loss == DisconnectReason::Closed) {
            Some(since) if since.until(now) >= self.pace.max_first_retry_delay() => {
                self.short_connections = 0;
                true
            }
            Some(_) => {
                self.short_connections = self.short_connections.saturating_add(1);
                self.short_connections <= MAX_SHORT_CONNECTIONS
            }
            None if loss == DisconnectReason::Closed => {
                self.hang_ups = self.hang_ups.saturating_add(1);
                self.follows_outage |= self.id != 0;
                !self.hang_ups.is_multiple_of(self.config.servers.max(1))
            }
            None => {
                matches!(loss, DisconnectReason::Silent(_)) && self.has_ephemeral && self.config.servers > 1
            }
        };
        self.drop_connection(loss, now);
        match self.dial {
            Dial::Dialing { .. } => {}
            Dial::Idle | Dial::Waiting { .. } if is_urgent => self.start_dial(now),
            Dial::Waiting { .. } => {}
            Dial::Idle => self.retry_dial(now, random),
        }
    }

    /// Fails the requests of the connection and closes it.
    fn drop_connection(&mut self, loss: DisconnectReason, now: Instant) {
        let Some(connection) = self.connection.take() else { return };
        self.must_move_until = None;
        let was_attached = connection.is_attached();
        let leaves_write = connection.has_write_older_than(self.pace.timeout / 24, now);
        let id = connection.id;
        self.fail_requests(
            connection.into_lost_requests(),
            RequestError::ConnectionLoss,
            RequestError::NotSent,
        );
        self.outputs.push_back(Output::Close { id, leaves_write });
        if was_attached {
            self.outputs.push_back(Output::State(SessionState::Disconnected(loss)));
        }
    }

    /// Returns the timeout to request. A reattach requests the timeout that was granted at the
    /// creation of the session.
    fn requested_timeout(&self) -> Duration {
        self.created_with.unwrap_or(self.config.timeout)
    }
}
