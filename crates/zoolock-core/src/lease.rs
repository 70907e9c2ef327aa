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

    /// Returns the end of the lease; `None` if the lease has not begun.
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

    /// Returns the time after which a request must be sent so that its answer continues the proof that the leader was told
    /// of the session; `None` if no request was answered on this connection.
    pub fn proof_continues_after(&self) -> Option<Instant> {
        match (self.reported.front(), self.answered.front()) {
            (Some((_, known)), _) => Some(*known),
            (None, Some((_, answered))) => Some(answered.after(report_interval(self.timeout, self.tick))),
            (None, None) => None,
        }
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
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(24);
    const TICK: Option<Duration> = Some(Duration::from_secs(2));

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    /// Returns a lease with a report interval of two seconds, which lasts for 22 s.
    fn lease() -> Lease {
        Lease::new(T, TICK, at(99))
    }

    #[test]
    fn lease_needs_an_attach_in_its_last_sixth() {
        let mut lease = lease();
        assert!(!lease.needs_attach(at(100)), "the lease has not begun");
        lease.record_confirmed_write(at(100), at(100));
        // The lease ends at 99 + 22 s. The request at 100 does not help, because no later one was answered.
        let needed: Vec<u64> = (100..125).filter(|now| lease.needs_attach(at(*now))).collect();
        assert_eq!(needed, [119, 120]);
        // After an outage a write is confirmed. The third answer would come too late.
        lease.record_attach(at(99), T);
        lease.record_confirmed_write(at(118), at(118));
        assert!(lease.needs_attach(at(119)));
        lease.record_attach(at(119), T);
        lease.record_confirmed_write(at(120), at(120));
        assert!(!lease.needs_attach(at(121)));
    }

    #[test]
    fn lease_that_no_quorum_confirms_needs_an_attach() {
        let mut lease = lease();
        lease.record_confirmed_write(at(100), at(100));
        for second in [104, 108, 112] {
            lease.record_answer(at(second), at(second));
        }
        assert!(lease.ends_soon(at(119)) && !lease.is_confirmed_last());
        assert!(lease.needs_attach(at(119)), "the leader knows of the session, but no quorum confirms it");
    }

    #[test]
    fn late_third_answer_requires_an_attach() {
        let mut lease = lease();
        lease.record_confirmed_write(at(100), at(100));
        lease.record_attach(at(99), T);
        lease.record_confirmed_write(at(117), at(117));
        // The second request is sent after 119, the third two seconds later, and the lease ends at 121.
        assert!(lease.is_confirmed_last());
        assert!(lease.needs_attach(at(118)));
    }

    #[test]
    fn proof_continues_after_the_report_interval_and_after_the_second_answer() {
        let mut lease = lease();
        assert_eq!(lease.proof_continues_after(), None);
        // The report interval is two seconds.
        for (sent, answered, after) in [(100, 101, 103), (103, 104, 104)] {
            lease.record_answer(at(sent), at(answered));
            assert_eq!(lease.proof_continues_after(), Some(at(after)));
        }
    }

    #[test]
    fn limits_of_a_lease_are_exact() {
        let mut lease = lease();
        assert!(lease.is_low(at(100)), "the lease has not begun");
        lease.record_confirmed_write(at(100), at(100));
        // The lease ends at 121. A steady lease has 16 s left, and a low lease has less than 10 s.
        assert!(!lease.is_low(at(111)) && lease.is_low(at(112)));
        assert!(!lease.ends_soon(at(117)) && lease.ends_soon(at(118)) && lease.ends_soon(at(120)));
        assert!(!lease.ends_soon(at(121)), "the lease has ended");
        assert!(lease.is_valid(at(120)) && !lease.is_valid(at(121)));
        assert!(lease.is_confirmed_last());
        lease.record_attach(at(98), T);
        assert_eq!(lease.valid_until(), Some(at(121)), "the same timeout cuts nothing");
        lease.record_attach(at(100), T);
        assert!(!lease.is_confirmed_last(), "the write and the attach were sent together");
    }

    #[test]
    fn tick_that_is_learned_later_counts() {
        let mut lease = Lease::new(T, None, at(99));
        lease.set_tick(Duration::from_secs(2));
        for second in [100, 102, 103] {
            lease.record_confirmed_write(at(second), at(second));
        }
        assert_eq!(lease.valid_until(), Some(at(122)));
    }

    #[test]
    fn lease_is_invalid_before_first_confirmation() {
        let mut lease = lease();
        assert!(!lease.is_valid(at(0)));
        assert!(!lease.record_answer(at(100), at(100)));
        assert_eq!(lease.valid_until(), None);
    }

    #[test]
    fn lease_follows_the_request_reported_to_the_leader() {
        let mut lease = lease();
        assert!(lease.record_confirmed_write(at(100), at(100)));
        // The leader knows of the session since 99, when the session was requested.
        assert_eq!(lease.valid_until(), Some(at(121)));
        assert!(!lease.record_confirmed_write(at(102), at(102)), "the answers to 100 and 102 prove a report");
        assert!(lease.record_confirmed_write(at(103), at(103)), "and the answer to 103 proves its arrival");
        assert_eq!(lease.valid_until(), Some(at(122)));
    }

    #[test]
    fn lease_follows_the_newest_confirmed_write() {
        let mut lease = lease();
        lease.record_confirmed_write(at(100), at(100));
        for second in 101..=115 {
            lease.record_answer(at(second), at(second));
        }
        assert_eq!(lease.valid_until(), Some(at(122)), "a leader that was cut off also answers reads");
        lease.record_confirmed_write(at(116), at(116));
        assert_eq!(lease.valid_until(), Some(at(135)), "the leader knows of the request at 113");
    }

    #[test]
    fn report_needs_the_interval_of_the_pings() {
        let mut lease = lease();
        for half in 200..208 {
            let now = Instant(half * 500_000_000);
            lease.record_confirmed_write(now, now);
        }
        // The answers to the requests at 101, 103 and 103.5 prove that the leader was told of the
        // first.
        assert_eq!(lease.valid_until(), Some(at(123)));
        let mut unknown = Lease::new(T, None, at(99));
        for second in 100..=106 {
            unknown.record_confirmed_write(at(second), at(second));
        }
        assert_eq!(unknown.valid_until(), Some(at(121)), "a quarter of the timeout has to pass");
        unknown.record_confirmed_write(at(107), at(107));
        assert_eq!(unknown.valid_until(), Some(at(122)));
    }

    #[test]
    fn late_answer_to_older_request_changes_nothing() {
        let mut lease = lease();
        lease.record_confirmed_write(at(105), at(106));
        assert!(!lease.record_confirmed_write(at(100), at(107)));
        assert_eq!(lease.valid_until(), Some(at(121)));
    }

    #[test]
    fn attach_tells_the_leader() {
        let mut lease = lease();
        lease.record_confirmed_write(at(100), at(100));
        lease.record_attach(at(110), T);
        assert_eq!(lease.valid_until(), Some(at(121)), "no write was confirmed since");
        assert!(lease.record_confirmed_write(at(111), at(111)));
        assert_eq!(lease.valid_until(), Some(at(132)));
    }

    #[test]
    fn attach_to_another_server_forgets_the_old_requests() {
        let mut lease = lease();
        lease.record_confirmed_write(at(100), at(100));
        lease.record_confirmed_write(at(103), at(103));
        lease.record_attach(at(104), T);
        // With the old answers, this answer would prove that the leader was told of the request at 103.
        lease.record_confirmed_write(at(106), at(106));
        lease.record_confirmed_write(at(107), at(107));
        assert_eq!(lease.valid_until(), Some(at(126)));
    }

    #[test]
    fn shorter_timeout_cuts_the_lease() {
        let mut lease = lease();
        lease.record_confirmed_write(at(100), at(100));
        lease.record_attach(at(101), T / 2);
        assert_eq!(lease.valid_until(), Some(at(112)));
        lease.record_confirmed_write(at(102), at(102));
        assert_eq!((lease.valid_until(), lease.timeout()), (Some(at(112)), T / 2));
        // A longer timeout changes nothing.
        lease.record_attach(at(103), T);
        lease.record_confirmed_write(at(104), at(104));
        assert_eq!(lease.valid_until(), Some(at(114)));
    }

    #[test]
    fn shorter_timeout_extends_no_lease() {
        let mut lease = lease();
        lease.record_confirmed_write(at(100), at(100));
        lease.record_attach(at(115), T / 2);
        assert_eq!(lease.valid_until(), Some(at(121)));
    }

    #[test]
    fn one_confirmation_after_a_silence_is_not_enough() {
        let mut lease = lease();
        lease.record_confirmed_write(at(100), at(100));
        lease.record_confirmed_write(at(129), at(130));
        assert!(!lease.is_valid(at(130)), "the session may end before the leader is told of it");
        lease.record_confirmed_write(at(132), at(132));
        assert!(!lease.is_valid(at(132)), "the report may be on its way");
        assert!(lease.record_confirmed_write(at(133), at(134)));
        assert_eq!(lease.valid_until(), Some(at(151)));
    }

    #[test]
    fn frequent_requests_take_little_memory() {
        let mut lease = lease();
        for milli in 100_000..140_000 {
            let now = Instant(milli * 1_000_000);
            lease.record_confirmed_write(now, now);
        }
        assert!(lease.answered.len() < 6 && lease.reported.len() < 6, "{lease:?}");
        assert!(lease.valid_until() >= Some(at(159)), "{lease:?}");
    }

    #[test]
    fn lengths_are_those_of_the_guide() {
        let length = |seconds, tick| steady_length(Duration::from_secs(seconds), tick).as_millis();
        assert_eq!(length(30, TICK), 22_500);
        assert_eq!(length(30, None), 15_000);
        assert_eq!(length(12, TICK), 8_000);
        assert_eq!(length(6, TICK), 3_000);
        assert_eq!(spare_time(Duration::from_secs(30), TICK), Duration::from_millis(12_500));
        assert_eq!(spare_time(Duration::from_secs(30), None), Duration::from_secs(5));
    }

    #[test]
    fn steady_lease_has_its_length() {
        for (seconds, tick) in
            [(30, TICK), (30, None), (12, TICK), (12, None), (6, TICK), (6, None), (300, TICK)]
        {
            let timeout = Duration::from_secs(seconds);
            let mut lease = Lease::new(timeout, tick, at(100));
            let (mut sent, late) = (at(100), Duration::from_millis(5));
            for beat in 0..100 {
                let answered = sent.after(late);
                if beat % 2 == 0 {
                    lease.record_confirmed_write(sent, answered);
                } else {
                    lease.record_answer(sent, answered);
                }
                if beat % 2 == 0 {
                    let left = sent.until(lease.valid_until().expect("lease is confirmed"));
                    assert!(left >= steady_length(timeout, tick), "{timeout:?}, {tick:?}: {left:?}");
                }
                assert!(beat < 12 || beat % 2 == 1 || !lease.is_low(answered), "{timeout:?}, {tick:?}");
                sent = sent.after(timeout / BEATS);
            }
        }
    }

    /// Sends the requests of a session on a healthy server. The session learns the tick at different beats.
    #[test]
    fn no_renewal_is_overdue_on_a_healthy_server() {
        for seconds in [6, 10, 12, 30, 40, 300] {
            let (timeout, late) = (Duration::from_secs(seconds), Duration::from_millis(25));
            for learned_at in [0, 4, 8, usize::MAX] {
                let mut lease =
                    Lease::new(timeout, (learned_at == 0).then_some(Duration::from_secs(2)), at(100));
                let (mut sent, mut pace) = (at(100), crate::pace::Pace::new());
                for beat in 0..60 {
                    if let Some(overdue) = lease.overdue_from() {
                        assert!(sent.after(late) < overdue, "{timeout:?}, beat {beat}: {lease:?}");
                    }
                    if beat == learned_at {
                        lease.set_tick(Duration::from_secs(2).min(timeout / 3));
                    }
                    let answered = sent.after(late);
                    match pace.next_beat(lease.is_low(sent)) {
                        true => lease.record_confirmed_write(sent, answered),
                        false => lease.record_answer(sent, answered),
                    };
                    sent = sent.after(timeout / BEATS);
                }
            }
        }
    }

    #[test]
    fn renewal_is_overdue_after_a_third_or_before_the_end() {
        let mut lease = lease();
        assert_eq!(lease.overdue_from(), None);
        lease.record_confirmed_write(at(100), at(100));
        assert_eq!(lease.overdue_from(), Some(at(108)));
        // Writes are confirmed, but the leader is not told, so the lease still ends at 121.
        lease.record_attach(at(99), T);
        lease.record_confirmed_write(at(110), at(110));
        assert_eq!((lease.valid_until(), lease.overdue_from()), (Some(at(121)), Some(at(117))));
    }

    #[test]
    fn every_lease_has_time_to_spare() {
        for seconds in 6..=300 {
            let timeout = Duration::from_secs(seconds);
            for tick in [TICK, None] {
                assert!(spare_time(timeout, tick) >= timeout / 7, "{timeout:?}, {tick:?}");
            }
        }
    }

    #[test]
    fn no_timeout_makes_a_length_overflow() {
        for timeout in
            [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(1), T, Duration::MAX / 100]
        {
            for tick in [Some(Duration::ZERO), TICK, Some(Duration::from_secs(3600)), None] {
                assert!(steady_length(timeout, tick) <= timeout);
                let mut lease = Lease::new(timeout, tick, at(100));
                lease.record_confirmed_write(at(100), at(100));
                lease.is_low(at(100));
            }
        }
    }

    /// The lease of a holder with the slowest clock ends when the leader may expire the session.
    #[test]
    fn margin_covers_the_promised_drift() {
        let mut lease = lease();
        for second in [100, 102, 103] {
            lease.record_confirmed_write(at(second), at(second));
        }
        let own = at(100).until(lease.valid_until().expect("lease is confirmed"));
        // The rates of the holder's and of the leader's clock, in parts of the true rate.
        for (holder, leader, is_covered) in
            [(11, 12, true), (23, 25, true), (22, 23, true), (19, 21, false), (10, 11, false)]
        {
            let by_leader = own * leader / holder;
            assert_eq!(by_leader <= T, is_covered, "{holder}/{leader}: {by_leader:?}");
        }
    }

    #[test]
    fn clock_neither_overflows_nor_underflows() {
        assert_eq!(at(100).until(at(103)), Duration::from_secs(3));
        assert_eq!(at(103).until(at(100)), Duration::ZERO);
        assert_eq!(at(100).after(Duration::MAX), Instant(u64::MAX));
    }
}
