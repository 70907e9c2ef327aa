//! Logs the outages of a client: one line when a session loses its connection, and one when a server is reached again.
//!
//! All sessions of a client share one log, so an outage that several sessions notice is logged once. The lines are
//! written by a task, because a subscriber may block, and because the events come under the mutex of the session client.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::Level;
use zoolock_client::{DialError, DisconnectReason, End, Endpoint};
use zoolock_core::Instant;

use crate::base::clock;
use crate::base::sync::lock;
use crate::base::tasks::Tasks;

/// Time without an outage after which the next outage is logged in any case. Of the outages that follow each other
/// faster, only the first, second, fourth, eighth and so on are logged.
const CALM: Duration = Duration::from_secs(60);

/// The log of the connections of one client.
pub(crate) struct ConnectionLog {
    tasks: Tasks,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    outages: OutageCounter,
    /// Lines that are not written yet, in order.
    lines: VecDeque<LogLine>,
    /// Set while a task writes the lines.
    is_writing: bool,
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

enum LogLine {
    Disconnected { server: Endpoint, reason: DisconnectReason, in_a_row: u32 },
    Connected { server: Endpoint, after: Duration },
    Ended { server: Endpoint, after: Duration, end: End },
    FailedDial { errors: Vec<DialError>, attempt: u32 },
    ShorterTimeout { server: Endpoint, timeout: Duration },
}

impl ConnectionLog {
    pub(crate) fn new(tasks: &Tasks) -> Arc<ConnectionLog> {
        Arc::new(ConnectionLog { tasks: tasks.clone(), state: Mutex::default() })
    }

    /// Records that a session lost its connection to this server.
    pub(super) fn record_disconnect(self: &Arc<Self>, server: &Endpoint, reason: DisconnectReason) {
        let state = &mut *lock(&self.state);
        if let Some(in_a_row) = state.outages.begin(clock::now()) {
            self.push(state, LogLine::Disconnected { server: server.clone(), reason, in_a_row });
        }
    }

    /// Records that a session is attached to this server.
    pub(super) fn record_connect(self: &Arc<Self>, server: &Endpoint) {
        let state = &mut *lock(&self.state);
        if let Some(after) = state.outages.end(clock::now()) {
            self.push(state, LogLine::Connected { server: server.clone(), after });
        }
    }

    /// Records that this server was reached, and that the session has ended.
    pub(super) fn record_end(self: &Arc<Self>, server: &Endpoint, end: End) {
        let state = &mut *lock(&self.state);
        if let Some(after) = state.outages.end(clock::now()) {
            self.push(state, LogLine::Ended { server: server.clone(), after, end });
        }
    }

    /// Records a dial that reached no server.
    pub(super) fn record_failed_dial(self: &Arc<Self>, errors: &[DialError]) {
        let state = &mut *lock(&self.state);
        if let Some(attempt) = state.outages.count_failed_dial() {
            self.push(state, LogLine::FailedDial { errors: errors.to_vec(), attempt });
        }
    }

    /// Records that this server granted a shorter session timeout than before.
    pub(super) fn record_shorter_timeout(self: &Arc<Self>, server: &Endpoint, timeout: Duration) {
        self.push(&mut lock(&self.state), LogLine::ShorterTimeout { server: server.clone(), timeout });
    }

    /// Queues a line, and starts a task that writes it. Does nothing if no subscriber wants the line.
    fn push(self: &Arc<Self>, state: &mut LogState, line: LogLine) {
        if !line.is_wanted() {
            return;
        }
        state.lines.push_back(line);
        if !std::mem::replace(&mut state.is_writing, true) {
            let log = self.clone();
            self.tasks.spawn(async move { log.write_lines() });
        }
    }

    fn write_lines(&self) {
        loop {
            let line = {
                let state = &mut *lock(&self.state);
                let Some(line) = state.lines.pop_front() else {
                    state.is_writing = false;
                    return;
                };
                line
            };
            line.write();
        }
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

impl LogLine {
    /// Returns whether a subscriber may want this line.
    fn is_wanted(&self) -> bool {
        match self {
            LogLine::Disconnected { .. } | LogLine::ShorterTimeout { .. } => tracing::enabled!(Level::WARN),
            LogLine::Connected { .. } | LogLine::Ended { .. } => tracing::enabled!(Level::INFO),
            LogLine::FailedDial { .. } => tracing::enabled!(Level::DEBUG),
        }
    }

    fn write(self) {
        match self {
            LogLine::Disconnected { server, reason, in_a_row } => {
                let outages_in_a_row = (in_a_row > 1).then_some(in_a_row);
                tracing::warn!(%server, %reason, outages_in_a_row, "disconnected from the server; connecting again");
            }
            LogLine::Connected { server, after } => {
                tracing::info!(%server, disconnected_for = ?after, "connected to a server again");
            }
            LogLine::Ended { server, after, end } => {
                tracing::info!(%server, disconnected_for = ?after, reason = %end, "a server was reached again, and the session has ended");
            }
            LogLine::FailedDial { errors, attempt } => {
                let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
                tracing::debug!(attempt, reason = errors.join("; "), "no server was reached");
            }
            LogLine::ShorterTimeout { server, timeout } => {
                tracing::warn!(%server, ?timeout, "the server granted a shorter session timeout");
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
