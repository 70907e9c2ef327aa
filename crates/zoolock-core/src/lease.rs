//! The lease: how long a holder may rely on its session.
//!
//! ZooKeeper expires a session if the leader gets no report of it for the session timeout T. Then
//! ZooKeeper deletes the session's ephemeral znodes. So a holder may rely on its lock until
//! `min(confirmed, told) + T - T/12`:
//!
//! * `confirmed` is the send time of the newest write that a quorum confirmed. A leader that is cut
//!   off from the quorum still answers reads and `sync`. Meanwhile the other servers have elected a
//!   new leader, which measures the session's silence. A leader that is cut off cannot confirm a
//!   write.
//! * `told` is the send time of the newest request of which the leader surely knows. The leader
//!   does not measure a session's silence from the requests that it confirms, but from the reports
//!   of the server to which the client is connected. That server answers the leader's pings, and
//!   each answer reports the sessions from which the server has received requests.
//! * T/12 allows for the drift of the clocks ([`DRIFT_MARGIN`]).
//!
//! Three answered requests prove that the leader was told of the first one:
//!
//! 1. The second request is sent at least a report interval after the answer to the first. The
//!    leader has sent a ping in between, and that ping is ahead of the second answer on the
//!    connection between the leader and the server. So when the client receives the second answer,
//!    the server has reported the session.
//! 2. The third request is sent after the answer to the second, so the report is ahead of the third
//!    request on that connection. When the client receives the third answer, the leader has the
//!    report.
//!
//! An attach (the client connects to a server again) tells the leader directly: the leader starts
//! the session timeout again when it confirms the session to that server.

use std::collections::VecDeque;
use std::time::Duration;

pub use zoolock_wire::Instant;

/// Number of beats in a session timeout. A session that holds a lock sends a request at each beat. Every second request is
/// a write. Twelve is the smallest number for which every lease has time to spare, and no lease is lost while every answer comes
/// within an eighth of the timeout (tests `every_lease_has_time_to_spare` and `lease_survives_answers_late_by_an_eighth`).
pub const BEATS: u32 = 12;

/// The session timeout T divided by the part of it that allows for the drift of the clocks. A holder relies on its lock for
/// at most 11/12 T by its own clock, and the leader keeps the session for T by the leader's clock. So the holder stops in
/// time if its clock runs at 11/12 of the rate of the leader's clock, or faster, as two clocks right to within 1/24 do.
pub const DRIFT_MARGIN: u32 = 12;

/// Returns the report interval. If a request is sent this long after the answer to an earlier one, the leader has sent a
/// ping in between. The leader pings every half tick. The interval is three quarters of a tick, because a ping may be late.
/// If a beat is longer, the interval is as long as the beat, but at most a tick.
///
/// The smallest timeout that a server grants is two ticks, unless the server is configured otherwise. So an unknown tick is
/// at most half of the timeout, and the ping interval at most a quarter.
fn report_interval(timeout: Duration, tick: Option<Duration>) -> Duration {
    match tick {
        Some(tick) => (tick * 3 / 4).max(tick.min(timeout / BEATS)),
        None => timeout / 4,
    }
}

/// Returns the length of a steady lease. A lease is steady if every request is answered without a
/// delay. The length counts from the send time of the newest write to the end of the lease.
pub fn steady_length(timeout: Duration, tick: Option<Duration>) -> Duration {
    let beat = (timeout / BEATS).max(Duration::from_nanos(1));
    let before_second = report_interval(timeout, tick).as_nanos() / beat.as_nanos() + 1;
    // The third request is one beat after the second. Every second request is a write.
    let beats = u32::try_from(before_second + 1).unwrap_or(u32::MAX).max(2);
    timeout.saturating_sub(timeout / DRIFT_MARGIN).saturating_sub(beat.saturating_mul(beats))
}

/// Returns the time that is left of a steady lease after a third of the timeout without an answer.
pub fn spare_time(timeout: Duration, tick: Option<Duration>) -> Duration {
    steady_length(timeout, tick).saturating_sub(timeout / 3)
}

/// The lease of one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The shortest session timeout that a server granted.
    timeout: Duration,
    /// The tick of the servers, if it is known.
    tick: Option<Duration>,
    /// The send time of the newest write that a quorum confirmed.
    confirmed: Option<Instant>,
    /// The send time of the newest request of which the leader surely knows.
    told: Instant,
    /// Requests that the server has reported to the leader: the send time of each, and the time at
    /// which the client received the proof of the report. The oldest is first.
    reported: VecDeque<(Instant, Instant)>,
    /// Answered requests: the send time and the answer time of each. The oldest is first.
    answered: VecDeque<(Instant, Instant)>,
    end: Option<Instant>,
    /// The number of acquisitions that need the lease.
    users: usize,
}

impl Lease {
    /// Creates the lease of a session that was requested at `requested`, and for which a server granted this timeout. The
    /// lease is not valid before the first confirmation. `tick` is the tick of the servers, if it is known.
    pub fn new(timeout: Duration, tick: Option<Duration>, requested: Instant) -> Lease {
        Lease {
            timeout,
            tick,
            confirmed: None,
            told: requested,
            reported: VecDeque::new(),
            answered: VecDeque::new(),
            end: None,
            users: 0,
        }
    }

    /// Records that a server attached the session again. The attach was requested at `sent`, and `timeout` is the shortest
    /// timeout that was granted so far. If it is shorter than before, the lease may end earlier.
    pub fn record_attach(&mut self, sent: Instant, timeout: Duration) {
        self.told = self.told.max(sent);
        // The new server knows nothing of the old requests.
        self.reported.clear();
        self.answered.clear();
        if timeout < self.timeout {
            self.timeout = timeout;
            let cut = sent.after(self.lifetime_after_report());
            self.end = self.end.map(|end| end.min(cut));
        }
    }

    /// Sets the tick of the servers.
    pub fn set_tick(&mut self, tick: Duration) {
        self.tick = Some(tick);
    }

    /// Records that a quorum confirmed a write that was sent at `sent`. Returns whether the end of the lease has moved.
    pub fn record_confirmed_write(&mut self, sent: Instant, now: Instant) -> bool {
        self.confirmed = self.confirmed.max(Some(sent));
        self.record_answer(sent, now)
    }

    /// Records that one more acquisition needs the lease. Returns whether a write is due now.
    ///
    /// A session without such an acquisition *rests*: it sends no writes, and its lease may run out. The lease from before a
    /// rest ends here if it is low, less than a third of the timeout is left, or a renewal is almost overdue, because a lock
    /// that was granted on it could be lost before a renewal is answered. Then only a new write begins a lease.
    pub fn begin_use(&mut self, now: Instant) -> bool {
        self.users += 1;
        if self.users > 1 {
            return false;
        }
        let left = self.end.map_or(Duration::ZERO, |end| now.until(end));
        let is_old = self.confirmed.is_some_and(|sent| sent.until(now) > self.timeout / 4);
        if self.is_low(now) || left < self.timeout / 3 || is_old {
            (self.end, self.confirmed) = (None, None);
        }
        self.confirmed.is_none_or(|sent| sent.until(now) > self.timeout / 6)
    }

    /// Records that one acquisition fewer needs the lease.
    pub fn end_use(&mut self) {
        self.users -= 1;
    }

    /// Returns whether an acquisition needs the lease.
    pub fn is_in_use(&self) -> bool {
        self.users > 0
    }

    /// Records the answer to any request that was sent at `sent`. Returns whether the end of the lease has moved.
    pub fn record_answer(&mut self, sent: Instant, now: Instant) -> bool {
        while let Some((first, known)) = self.reported.front()
            && sent >= *known
        {
            self.told = self.told.max(*first);
            self.reported.pop_front();
        }
        let wait = report_interval(self.timeout, self.tick);
        let mut newest = None;
        while let Some((first, answered)) = self.answered.front()
            && sent >= answered.after(wait)
        {
            newest = Some((*first, now));
            self.answered.pop_front();
        }
        self.reported.extend(newest);
        // Keep only some of the answers, to save memory: at most one for each quarter of the interval.
        if self.answered.back().is_none_or(|(last, _)| sent >= last.after(wait / 4)) {
            self.answered.push_back((sent, now));
        }
        self.extend(now)
    }

    /// Extends the lease as far as the answers prove. Returns whether its end has moved.
    fn extend(&mut self, now: Instant) -> bool {
        let Some(confirmed) = self.confirmed else { return false };
        let end = confirmed.min(self.told).after(self.lifetime_after_report());
        let moves = if self.is_valid(now) {
            self.end.is_none_or(|known| known < end)
        } else {
            // The lease has ended, or has not begun. It becomes valid only if it then lasts until
            // the next renewal is answered, and until the leader can be told of a newer request.
            // After a gap without answers, no request from before the gap can extend the lease.
            let told_again = match (self.reported.is_empty(), self.answered.front()) {
                (true, Some((_, answered))) => {
                    answered.after(report_interval(self.timeout, self.tick) + self.timeout / 6)
                }
                _ => now,
            };
            now.after(self.timeout / 4).max(told_again) <= end
        };
        if moves {
            self.end = Some(end);
        }
        moves
    }

    /// Returns the end of the lease; `None` if the lease has not begun, or ended with a rest.
    pub fn valid_until(&self) -> Option<Instant> {
        self.end
    }

    /// Returns the time from which a renewal is overdue, if no write is confirmed before then; `None` if the lease has not
    /// begun. This time is a third of the timeout after the newest confirmed write was sent. A session sends a write every
    /// sixth of the timeout, so at least one write was unconfirmed for a sixth of the timeout by then. If the lease ends
    /// sooner than a sixth of the timeout after that, a renewal is overdue a sixth before the end.
    pub fn overdue_from(&self) -> Option<Instant> {
        let before_end = u64::try_from((self.timeout / 6).as_nanos()).unwrap_or(u64::MAX);
        Some(self.confirmed?.after(self.timeout / 3).min(Instant(self.end?.0.saturating_sub(before_end))))
    }

    /// Returns the session timeout that the lease counts with.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns whether little of the lease is left, so that the session must renew it more often: less than the length of a
    /// steady lease minus a quarter of the timeout. Also returns true if the lease has not begun.
    pub fn is_low(&self, now: Instant) -> bool {
        let low = steady_length(self.timeout, self.tick).saturating_sub(self.timeout / 4);
        self.end.is_none_or(|end| now.until(end) < low)
    }

    /// Returns whether the lease ends within a sixth of the timeout. Then the session may have to
    /// attach on another connection.
    pub fn ends_soon(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now < end && now.until(end) < self.timeout / 6)
    }

    /// Returns whether the newest confirmed write was sent after the newest request of which the leader surely knows.
    pub fn is_confirmed_last(&self) -> bool {
        self.confirmed.is_some_and(|confirmed| confirmed > self.told)
    }

    /// Returns whether a write is needed between two beats, because it continues the proof that the leader was told of the
    /// session, and the lease is not valid or ends soon. `last_sent`: the time at which the newest renewal was sent.
    pub fn needs_renewal_now(&self, now: Instant, last_sent: Instant) -> bool {
        if !self.is_in_use() || (self.is_valid(now) && !self.ends_soon(now)) {
            return false;
        }
        let wait = report_interval(self.timeout, self.tick);
        let reported = self.reported.iter().map(|(_, known)| *known);
        let mut times = reported.chain(self.answered.iter().map(|(_, answered)| answered.after(wait)));
        times.any(|from| last_sent < from && from <= now)
    }

    /// Returns whether a lease that ends soon can hardly be renewed on this connection, even if answers are prompt.
    ///
    /// One cause is a connected server that has no quorum and confirms nothing. The other cause is an outage: too few
    /// requests have been answered since to prove in time that the leader was told of the session. An attach helps in both
    /// cases: it tells the leader at once. Call this just before a request is sent. It counts with a request at each beat.
    pub fn needs_attach(&self, now: Instant) -> bool {
        let Some(end) = self.end.filter(|_| self.ends_soon(now)) else { return false };
        let beat = self.timeout / BEATS;
        let last_sent = match (self.reported.is_empty(), self.answered.front()) {
            _ if !self.is_confirmed_last() => return true,
            // Of the three requests that prove a report, the third is sent now.
            (false, _) => now,
            // The second request is sent now or at a later beat, and the third one at the beat after that.
            (true, Some((_, answered))) => {
                let second = answered.after(report_interval(self.timeout, self.tick));
                if second <= now { now.after(beat) } else { second.after(beat * 2) }
            }
            (true, None) => return true,
        };
        last_sent.after(beat / 2) > end
    }

    /// Returns whether a holder may rely on its lock at `now`.
    pub fn is_valid(&self, now: Instant) -> bool {
        self.end.is_some_and(|end| now < end)
    }

    /// Returns how long the session surely lives after a request of which the leader was told.
    fn lifetime_after_report(&self) -> Duration {
        self.timeout - self.timeout / DRIFT_MARGIN
    }
}

#[cfg(test)]
mod tests;
