//! How long a holder may believe that it holds.
//!
//! ZooKeeper gives the lock away when the session has been silent for its timeout T. The holder therefore stops
//! believing at two thirds of T after it *sent* the newest request that the leader confirmed. The third left over
//! covers the bucket of the server's expiry clock, the drift of the two clocks, and what is on its way. Pings and reads
//! renew nothing: a follower that was cut off from the leader answers both.
//!
//! A leader does not count a session's silence from the requests that it confirms, but from what the server that we are
//! connected to tells it every half tick: whom it has heard of. So one confirmation says that the session lives, and
//! not that it goes on living: after a pause it may end a moment later. Three say more:
//!
//! * A second one is sent a while after the first was answered. The leader has asked that server meanwhile, and its question
//!   is on their connection before the answer to our second one. So when we have that, the server has said whom it has
//!   heard of: of us.
//! * A third one is sent when the second was answered. What the server has said is on the connection before it. So when the
//!   third is confirmed, the leader has been told, and counts the silence from after the first one or later.

use std::collections::VecDeque;
use std::time::Duration;

use crate::pace::Pace;

/// A point on a clock that goes on counting while the machine sleeps (CLOCK_BOOTTIME), in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The point `d` later.
    pub fn after(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `self` to `later`, zero if that is past.
    pub fn until(self, later: Instant) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }
}

/// What confirms that the leader still knows our session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Renewal {
    /// A `sync`. A leader that was cut off may answer it for syncLimit ticks, so it is enough only for a long T.
    Sync,
    /// A write, which no cut-off leader can confirm.
    Write,
}

/// The lease of one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    timeout: Duration,
    ensemble: Ensemble,
    /// When the newest request was sent of which the leader has been told for certain.
    told: Instant,
    /// Those since of which our server has said that it heard of them: when they were sent, and when we knew it.
    said: VecDeque<(Instant, Instant)>,
    /// Those since: when they were sent and answered. All are oldest first.
    answered: VecDeque<(Instant, Instant)>,
    end: Option<Instant>,
}

/// What the ensemble is configured to. A client cannot see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ensemble {
    /// `tickTime`, 2 s unless set.
    pub tick: Duration,
    /// `syncLimit` in ticks, 5 unless set.
    pub sync_limit: u32,
}

impl Default for Ensemble {
    fn default() -> Self {
        Ensemble { tick: Duration::from_secs(2), sync_limit: 5 }
    }
}

impl Ensemble {
    /// The shortest session timeout that leaves room for the server's rounding.
    pub fn shortest_timeout(&self) -> Duration {
        self.tick * 3
    }

    /// Which request renews a session with this timeout.
    pub fn renewal(&self, timeout: Duration, strict: bool) -> Renewal {
        // It is to last for half of the timeout at least.
        let enough = (self.tick * self.sync_limit * 3).max(self.tick * (self.sync_limit + 2) * 2);
        if !strict && timeout >= enough { Renewal::Sync } else { Renewal::Write }
    }
}

impl Ensemble {
    /// How long one confirmation of this kind lasts, at most.
    pub fn span(&self, timeout: Duration, how: Renewal) -> Duration {
        let span = timeout * 2 / 3;
        match how {
            Renewal::Write => span,
            // The others may have elected another leader, which counts from then on, as soon as the one that answers was
            // cut off. It notices after syncLimit ticks and one more; the rest is for the clocks.
            Renewal::Sync => {
                let left = self.tick * (self.sync_limit + 1) + self.tick.max(timeout / 20);
                span.min(timeout.saturating_sub(left))
            }
        }
    }

    /// What is left of a lease that was renewed all the time when nothing has been confirmed for a third of T.
    pub fn spare(&self, timeout: Duration, how: Renewal) -> Duration {
        let interval = Pace::interval(self, timeout).max(Duration::from_nanos(1));
        let mut since_said = interval;
        while since_said <= self.while_said(timeout) {
            since_said += interval;
        }
        let since_told = since_said + interval;
        let span = self.span(timeout, how).min(Lease::after_told(timeout).saturating_sub(since_told));
        span.saturating_sub(timeout / 3)
    }

    /// How long before another one a request must have been answered for the leader to have asked in between: half a tick
    /// and what makes its pings late, and a whole tick where the timeout has room for it.
    fn while_said(&self, timeout: Duration) -> Duration {
        (self.tick * 3 / 4).max(self.tick.min(timeout / 12))
    }
}

impl Lease {
    /// A lease on a session with the *negotiated* timeout, which was asked for at `began`. Not yet confirmed.
    pub fn new(timeout: Duration, ensemble: Ensemble, began: Instant) -> Lease {
        Lease { timeout, ensemble, told: began, said: VecDeque::new(), answered: VecDeque::new(), end: None }
    }

    /// The leader answered a request at `now` that was sent at `sent`. How it was confirmed says how long to believe; says
    /// whether that moved the end.
    pub fn confirm(&mut self, sent: Instant, now: Instant, how: Renewal) -> bool {
        self.hear(sent, now);
        let span = self.ensemble.span(self.timeout, how);
        let end = sent.after(span).min(self.told.after(Lease::after_told(self.timeout)));
        let moves = if self.is_valid(now) {
            self.end.is_none_or(|known| known < end)
        } else {
            // Nobody is to be granted what is lost again before the next renewal is answered, or before the leader can be
            // told of a newer request: after a gap nothing that was sent before it helps.
            let told_again = match (self.said.is_empty(), self.answered.front()) {
                (true, Some((_, answered))) => {
                    answered.after(self.ensemble.while_said(self.timeout) + self.timeout / 6)
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

    /// The same where that is no reason to believe for longer, but one to believe another one that comes after it.
    pub fn hear(&mut self, sent: Instant, now: Instant) {
        while let Some((first, known)) = self.said.front()
            && sent >= *known
        {
            self.told = self.told.max(*first);
            self.said.pop_front();
        }
        let wait = self.ensemble.while_said(self.timeout);
        let mut newest = None;
        while let Some((first, answered)) = self.answered.front()
            && sent >= answered.after(wait)
        {
            newest = Some((*first, now));
            self.answered.pop_front();
        }
        self.said.extend(newest);
        // Not more of them than are needed.
        if self.answered.back().is_none_or(|(last, _)| sent >= last.after(wait / 4)) {
            self.answered.push_back((sent, now));
        }
    }

    /// The end of belief, if anything was ever confirmed.
    pub fn valid_until(&self) -> Option<Instant> {
        self.end
    }

    /// How long the session lives for certain after a request of which the leader was told, but for the drift of clocks.
    fn after_told(timeout: Duration) -> Duration {
        timeout * 11 / 12
    }

    /// Whether to renew before that is due: answers are slow, or there are none.
    pub fn is_low(&self, now: Instant) -> bool {
        self.end.is_none_or(|end| now.until(end) < self.timeout * 5 / 12)
    }

    /// Whether a holder may believe at `now`.
    pub fn is_valid(&self, now: Instant) -> bool {
        self.valid_until().is_some_and(|end| now < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    fn lease() -> Lease {
        Lease::new(T, Ensemble::default(), at(99))
    }

    #[test]
    fn nothing_is_believed_before_the_first_confirmation() {
        assert!(!lease().is_valid(at(0)));
        assert_eq!(lease().valid_until(), None);
    }

    #[test]
    fn belief_ends_two_thirds_after_the_sending_of_the_newest_confirmed_request() {
        let mut lease = lease();
        assert!(lease.confirm(at(100), at(101), Renewal::Write));
        assert!(lease.is_valid(at(119)));
        assert!(!lease.is_valid(at(120)));
        assert!(lease.confirm(at(105), at(105), Renewal::Write));
        assert!(lease.is_valid(at(124)));
        assert!(!lease.is_valid(at(125)));
    }

    #[test]
    fn a_sync_is_believed_for_less_since_a_leader_that_was_left_may_answer_it() {
        let mut lease = lease();
        assert!(lease.confirm(at(100), at(100), Renewal::Sync));
        assert_eq!(lease.valid_until(), Some(at(116)));
        assert!(lease.confirm(at(101), at(101), Renewal::Write));
        assert!(!lease.confirm(at(102), at(102), Renewal::Sync), "the write says more");
        assert_eq!(lease.valid_until(), Some(at(121)));
    }

    #[test]
    fn the_same_end_is_no_news() {
        let mut lease = lease();
        assert!(lease.confirm(at(100), at(101), Renewal::Write));
        assert!(!lease.confirm(at(100), at(102), Renewal::Write));
    }

    #[test]
    fn it_is_low_when_less_than_five_twelfths_of_the_timeout_are_left() {
        let mut lease = Lease::new(Duration::from_secs(24), Ensemble::default(), at(99));
        assert!(lease.is_low(at(100)));
        lease.confirm(at(100), at(100), Renewal::Write);
        assert_eq!(lease.valid_until(), Some(at(116)));
        assert!(!lease.is_low(at(106)));
        assert!(lease.is_low(Instant(at(106).0 + 1)));
    }

    #[test]
    fn an_older_confirmation_that_comes_late_takes_nothing_back() {
        let mut lease = lease();
        lease.confirm(at(105), at(106), Renewal::Write);
        assert!(!lease.confirm(at(100), at(107), Renewal::Write));
        assert_eq!(lease.valid_until(), Some(at(125)));
    }

    #[test]
    fn four_renewals_fit_into_what_one_of_them_lasts() {
        let span = |how| Ensemble::default().span(T, how);
        let interval = Pace::interval(&Ensemble::default(), T);
        assert_eq!(interval * 4, span(Renewal::Write));
        assert!(interval * 3 < span(Renewal::Sync));
    }

    #[test]
    fn there_is_time_to_spare_when_nothing_was_confirmed_for_a_third_of_the_timeout() {
        let spare = |seconds, how| Ensemble::default().spare(Duration::from_secs(seconds), how);
        // Of what was sent shortly before the last renewal the leader had not been told.
        assert_eq!(spare(30, Renewal::Write), Duration::from_millis(7500));
        assert_eq!(spare(30, Renewal::Sync), Duration::from_secs(6));
        assert_eq!(spare(12, Renewal::Write), Duration::from_secs(3));
        assert_eq!(spare(6, Renewal::Write), Duration::from_secs(1));
    }

    #[test]
    fn a_lease_that_is_renewed_all_the_time_keeps_what_there_is_to_spare() {
        for (seconds, how) in
            [(30, Renewal::Write), (30, Renewal::Sync), (12, Renewal::Write), (6, Renewal::Write)]
        {
            let (timeout, ensemble) = (Duration::from_secs(seconds), Ensemble::default());
            let mut lease = Lease::new(timeout, ensemble, at(100));
            let (mut sent, late) = (at(100), Duration::from_millis(30));
            for _ in 0..50 {
                let answered = sent.after(late);
                lease.confirm(sent, answered, how);
                let end = lease.valid_until().expect("confirmed");
                let left = sent.after(timeout / 3).until(end);
                assert!(left >= ensemble.spare(timeout, how), "{timeout:?}, {how:?}: {left:?}");
                sent = sent.after(Pace::interval(&ensemble, timeout));
            }
        }
    }

    #[test]
    fn the_clock_neither_runs_over_nor_below() {
        assert_eq!(at(100).until(at(103)), Duration::from_secs(3));
        assert_eq!(at(103).until(at(100)), Duration::ZERO);
        assert_eq!(at(100).after(Duration::MAX), Instant(u64::MAX));
    }

    #[test]
    fn after_a_silence_one_confirmation_is_not_enough() {
        let mut lease = lease();
        lease.confirm(at(100), at(100), Renewal::Write);
        lease.confirm(at(129), at(130), Renewal::Write);
        assert!(!lease.is_valid(at(130)), "it may end before the leader hears of us");
        lease.confirm(at(131), at(131), Renewal::Write);
        assert!(!lease.is_valid(at(131)), "nor has it asked by then");
        lease.confirm(at(132), at(133), Renewal::Write);
        assert!(!lease.is_valid(at(133)), "the answer may be on its way");
        assert!(lease.confirm(at(133), at(134), Renewal::Write));
        assert_eq!(lease.valid_until(), Some(at(153)));
    }

    #[test]
    fn after_a_pause_belief_goes_by_the_request_before() {
        let mut lease = lease();
        lease.confirm(at(100), at(100), Renewal::Write);
        // The leader may count from 99 on, and let the session go at 129.
        lease.confirm(at(115), at(115), Renewal::Write);
        assert_eq!(lease.valid_until(), Some(Instant(126_500_000_000)));
        // By now from 100 on: it asked before it answered at 115, and has been answered.
        lease.confirm(at(116), at(116), Renewal::Write);
        assert_eq!(lease.valid_until(), Some(Instant(127_500_000_000)));
    }

    #[test]
    fn who_was_heard_of_is_believed_at_once() {
        let mut lease = lease();
        for t in [110, 118, 126, 134] {
            lease.hear(at(t), at(t));
        }
        assert_eq!(lease.valid_until(), None);
        assert!(lease.confirm(at(141), at(141), Renewal::Write));
        assert_eq!(lease.valid_until(), Some(Instant(153_500_000_000)));
    }

    #[test]
    fn what_is_sent_all_the_time_is_remembered_now_and_then() {
        let mut lease = lease();
        for t in 100_000..140_000 {
            let now = Instant(t * 1_000_000);
            lease.confirm(now, now, Renewal::Write);
        }
        assert!(lease.answered.len() < 6, "{}", lease.answered.len());
        let end = lease.valid_until().expect("confirmed");
        assert!(end >= at(159), "{end:?}");
    }

    #[test]
    fn a_sync_renews_only_where_a_cut_off_leader_cannot_matter() {
        let e = Ensemble::default();
        assert_eq!(e.renewal(Duration::from_secs(30), false), Renewal::Sync);
        assert_eq!(e.renewal(Duration::from_secs(30), true), Renewal::Write);
        assert_eq!(e.renewal(Duration::from_secs(29), false), Renewal::Write);
        assert_eq!(e.shortest_timeout(), Duration::from_secs(6));
    }

    #[test]
    fn whatever_renews_leaves_time_to_spare() {
        for sync_limit in 1..=20 {
            let ensemble = Ensemble { sync_limit, ..Ensemble::default() };
            for seconds in 6..=300 {
                let timeout = Duration::from_secs(seconds);
                let spare = ensemble.spare(timeout, ensemble.renewal(timeout, false));
                assert!(spare >= timeout / 6, "{spare:?} of {timeout:?}, syncLimit {sync_limit}");
            }
        }
    }
}
