//! Logs the outages of a client: one line when a session loses its connection, and one when a server is reached again.
//! Keeps the reason of the current outage for the views.
//!
//! All sessions of a client share one log, so an outage that several sessions notice is logged once.

use std::sync::Mutex;
use std::time::Duration;

use zoolock_client::{DialError, DisconnectReason, End, Endpoint};
use zoolock_core::Instant;

use crate::base::clock;
use crate::base::sync::lock;
use crate::base::telemetry::log_event;

/// Time without an outage after which the next outage is logged in any case. Of the outages that follow each other
/// faster, only the first, second, fourth, eighth and so on are logged.
const CALM: Duration = Duration::from_secs(60);

/// The log of the connections of one client.
#[derive(Default)]
pub(crate) struct ConnectionLog {
    outages: Mutex<OutageCounter>,
    /// The newest failure of a session without a connection: of its last dial, or else the end of its last connection.
    /// `None` after a session was connected, or ended.
    reason: Mutex<Option<String>>,
}

/// Decides which outages and which failed dials are logged.
#[derive(Debug, Default)]
struct OutageCounter {
    /// The outage that has not ended.
    current: Option<Outage>,
    last_end: Option<Instant>,
    /// Number of outages without [`CALM`] in between.
    in_a_row: u32,
    /// Number of dials that reached no server, since a server was last reached.
    failed_dials: u32,
}

#[derive(Debug, Clone, Copy)]
struct Outage {
    since: Instant,
    is_logged: bool,
}

impl ConnectionLog {
    /// Records that a session lost its connection to this server.
    pub(super) fn record_disconnect(&self, server: &Endpoint, reason: DisconnectReason) {
        *lock(&self.reason) = Some(format!("{server}: {reason}"));
        if let Some(in_a_row) = lock(&self.outages).begin(clock::now()) {
            let (server, outages_in_a_row) = (server.clone(), (in_a_row > 1).then_some(in_a_row));
            log_event!(WARN, %server, %reason, outages_in_a_row, "disconnected from the server; connecting again");
        }
    }

    /// Records that a session is attached to this server.
    pub(super) fn record_connect(&self, server: &Endpoint) {
        *lock(&self.reason) = None;
        if let Some(after) = lock(&self.outages).end(clock::now()) {
            let server = server.clone();
            log_event!(INFO, %server, disconnected_for = ?after, "connected to a server again");
        }
    }

    /// Records that a session was closed by this client. It dials no more, so its last failure is no outage.
    pub(super) fn record_close(&self) {
        *lock(&self.reason) = None;
    }

    /// Records that this server was reached, and that the session has ended.
    pub(super) fn record_end(&self, server: &Endpoint, end: End) {
        *lock(&self.reason) = None;
        if let Some(after) = lock(&self.outages).end(clock::now()) {
            let server = server.clone();
            log_event!(INFO, %server, disconnected_for = ?after, reason = %end, "a server was reached again, and the session has ended");
        }
    }

    /// Records a dial that reached no server. A connected session also dials, to find another server before it leaves its
    /// own, so only the failed dial of a session without a connection is the reason of an outage. A dial that had no
    /// server to try has no errors: the failure before it stays the reason.
    pub(super) fn record_failed_dial(&self, errors: &[DialError], is_connected: bool) {
        let reason = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        if !errors.is_empty() && !is_connected {
            *lock(&self.reason) = Some(reason.clone());
        }
        if let Some(attempt) = lock(&self.outages).count_failed_dial() {
            log_event!(DEBUG, attempt, reason, "no server was reached");
        }
    }

    /// Returns the newest failure of a session without a connection, with the address of each server. `None` if a session
    /// was connected or ended since.
    pub(crate) fn outage_reason(&self) -> Option<String> {
        lock(&self.reason).clone()
    }

    /// Records that this server granted a shorter session timeout than before.
    pub(super) fn record_shorter_timeout(&self, server: &Endpoint, timeout: Duration) {
        let server = server.clone();
        log_event!(WARN, %server, ?timeout, "the server granted a shorter session timeout");
    }
}

impl OutageCounter {
    /// Begins an outage, unless one has begun already. Returns the number of outages in a row if the outage is logged.
    fn begin(&mut self, now: Instant) -> Option<u32> {
        if self.current.is_some() {
            return None;
        }
        let is_after_calm = self.last_end.is_none_or(|end| end.until(now) >= CALM);
        self.in_a_row = if is_after_calm { 1 } else { self.in_a_row.saturating_add(1) };
        let is_logged = self.in_a_row.is_power_of_two();
        self.current = Some(Outage { since: now, is_logged });
        self.failed_dials = 0;
        is_logged.then_some(self.in_a_row)
    }

    /// Ends the outage. Returns its length if its start was logged.
    fn end(&mut self, now: Instant) -> Option<Duration> {
        self.failed_dials = 0;
        let outage = self.current.take()?;
        self.last_end = Some(now);
        outage.is_logged.then(|| outage.since.until(now))
    }

    /// Counts a dial that reached no server. Returns the count for the dials that are logged: the first, second,
    /// fourth, eighth and so on.
    fn count_failed_dial(&mut self) -> Option<u32> {
        self.failed_dials = self.failed_dials.saturating_add(1);
        self.failed_dials.is_power_of_two().then_some(self.failed_dials)
    }
}

#[cfg(test)]
mod tests {
    use zoolock_client::{DialFailure, Host};

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::default().after(Duration::from_secs(seconds))
    }

    #[test]
    fn outage_of_several_sessions_is_logged_once() {
        let mut outages = OutageCounter::default();
        assert_eq!(outages.end(at(0)), None, "the first connection ends no outage");
        assert_eq!((outages.begin(at(100)), outages.begin(at(101))), (Some(1), None));
        assert_eq!((outages.end(at(110)), outages.end(at(111))), (Some(Duration::from_secs(10)), None));
    }

    #[test]
    fn outage_reason_is_the_last_failure() {
        let host = Host::Tcp { name: "zk1".to_owned(), port: 2181 };
        let server = Endpoint { host, address: None };
        let message = "connection refused".to_owned();
        let refused = [DialError { endpoint: server.clone(), failure: DialFailure::Refused, message }];
        let log = ConnectionLog::default();
        let closed = Some("zk1:2181: the connection was closed".to_owned());
        log.record_failed_dial(&refused, true);
        assert_eq!(log.outage_reason(), None, "a connected session looks for another server");
        log.record_disconnect(&server, DisconnectReason::Closed);
        assert_eq!(log.outage_reason(), closed);
        log.record_failed_dial(&[], false);
        assert_eq!(log.outage_reason(), closed, "the dial had no server to try");
        log.record_failed_dial(&refused, false);
        assert_eq!(log.outage_reason().as_deref(), Some("zk1:2181: connection refused"));
        log.record_connect(&server);
        assert_eq!(log.outage_reason(), None, "connected");
        log.record_failed_dial(&refused, false);
        log.record_close();
        assert_eq!(log.outage_reason(), None, "closed");
    }

    #[test]
    fn frequent_outages_are_logged_less_and_less() {
        let mut outages = OutageCounter::default();
        let mut logged = Vec::new();
        for number in 1..=20 {
            let begun = outages.begin(at(100 + number));
            assert_eq!(outages.end(at(100 + number)).is_some(), begun.is_some(), "both lines, or none");
            logged.extend(begun);
        }
        assert_eq!(logged, [1, 2, 4, 8, 16]);
        assert_eq!(outages.begin(at(180)), Some(1), "a minute without an outage");
    }

    #[test]
    fn failed_dials_are_logged_less_and_less() {
        let mut outages = OutageCounter::default();
        let logged =
            |outages: &mut OutageCounter| (0..20).filter_map(|_| outages.count_failed_dial()).count();
        assert_eq!(logged(&mut outages), 5);
        outages.begin(at(1));
        assert_eq!(logged(&mut outages), 5, "the count starts again with each outage");
    }
}
