//! How long a holder may believe that it holds.
//!
//! ZooKeeper gives the lock away when the session has been silent for its timeout T. The holder therefore stops
//! believing at two thirds of T after it *sent* the newest request that the leader confirmed. The third left over
//! covers the follower's touch table, half a tick, the bucket of the server's expiry clock, and the drift of the two
//! clocks. Pings and reads renew nothing: a follower that was cut off from the leader answers both.

use std::time::Duration;

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
///
/// The leader's clock for a session does not start again when it answers a request of ours, but when the server that we
/// are connected to tells it whom it has heard of, up to half a tick later. So a session that was silent for its whole
/// timeout may end right after a request was confirmed. An answer after such a silence is therefore doubted until another
/// request is confirmed that was sent a tick after it: the session lived then, so the clock had been started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lease {
    timeout: Duration,
    tick: Duration,
    /// When the newest request was sent of which it is certain that it started the leader's clock again.
    heard: Instant,
    /// When a request was sent and answered after a silence.
    doubted: Option<(Instant, Instant)>,
    confirmed: Option<Instant>,
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
        if !strict && timeout >= self.tick * self.sync_limit * 3 { Renewal::Sync } else { Renewal::Write }
    }
}

impl Lease {
    /// A lease on a session with the *negotiated* timeout, which was asked for at `began`. Not yet confirmed. `tick`: that
    /// of the ensemble.
    pub fn new(timeout: Duration, tick: Duration, began: Instant) -> Lease {
        Lease { timeout, tick, heard: began, doubted: None, confirmed: None }
    }

    /// The leader answered a request at `now` that was sent at `sent`, and may stop doing so: that says nothing about how
    /// long to believe, but that there was no silence. Says whether it is certain that it started the leader's clock.
    pub fn hear(&mut self, sent: Instant, now: Instant) -> bool {
        let silent = |heard: Instant| now >= heard.after(Lease::span(self.timeout));
        if silent(self.heard) {
            match self.doubted {
                Some((first, answered)) if sent >= answered.after(self.tick) => {
                    self.heard = self.heard.max(first);
                    if silent(self.heard) {
                        self.doubted = Some((sent, now));
                        return false;
                    }
                }
                Some(_) => return false,
                None => {
                    self.doubted = Some((sent, now));
                    return false;
                }
            }
        }
        (self.heard, self.doubted) = (self.heard.max(sent), None);
        true
    }

    /// The leader confirmed a request at `now` that was sent at `sent`. Says whether that moved the end.
    pub fn confirm(&mut self, sent: Instant, now: Instant) -> bool {
        if !self.hear(sent, now) || self.confirmed.is_some_and(|newest| newest >= sent) {
            return false;
        }
        self.confirmed = Some(sent);
        true
    }

    /// The end of belief: nothing was ever confirmed, or two thirds of the timeout after the newest confirmation.
    pub fn valid_until(&self) -> Option<Instant> {
        self.confirmed.map(|sent| sent.after(Lease::span(self.timeout)))
    }

    /// How long one confirmation lasts.
    pub fn span(timeout: Duration) -> Duration {
        timeout * 2 / 3
    }

    /// How often to renew.
    pub fn interval(timeout: Duration) -> Duration {
        timeout / 6
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
        Lease::new(T, Duration::from_secs(2), at(99))
    }

    #[test]
    fn nothing_is_believed_before_the_first_confirmation() {
        assert!(!lease().is_valid(at(0)));
        assert_eq!(lease().valid_until(), None);
    }

    #[test]
    fn belief_ends_two_thirds_after_the_sending_of_the_newest_confirmed_request() {
        let mut lease = lease();
        assert!(lease.confirm(at(100), at(101)));
        assert!(lease.is_valid(at(119)));
        assert!(!lease.is_valid(at(120)));
        assert!(lease.confirm(at(105), at(105)));
        assert!(lease.is_valid(at(124)));
        assert!(!lease.is_valid(at(125)));
    }

    #[test]
    fn an_older_confirmation_that_comes_late_takes_nothing_back() {
        let mut lease = lease();
        lease.confirm(at(105), at(106));
        assert!(!lease.confirm(at(100), at(107)));
        assert_eq!(lease.valid_until(), Some(at(125)));
    }

    #[test]
    fn four_renewals_fit_into_what_one_of_them_lasts() {
        assert_eq!(Lease::interval(T) * 4, Lease::span(T));
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
        lease.confirm(at(100), at(100));
        assert!(!lease.confirm(at(129), at(130)), "the session may end before the leader hears of us");
        assert!(!lease.confirm(at(131), at(131)), "nor has it heard of us by then");
        assert!(!lease.is_valid(at(131)));
        assert!(lease.confirm(at(132), at(133)));
        assert_eq!(lease.valid_until(), Some(at(152)));
        assert!(lease.confirm(at(151), at(151)), "no silence since");
    }

    #[test]
    fn who_is_heard_of_was_not_silent() {
        let mut lease = lease();
        for t in [105, 115, 125, 135] {
            assert!(lease.hear(at(t), at(t)));
        }
        assert_eq!(lease.valid_until(), None);
        assert!(lease.confirm(at(150), at(150)));
    }

    #[test]
    fn what_was_doubted_long_ago_proves_nothing_of_now() {
        let mut lease = lease();
        assert!(!lease.confirm(at(200), at(200)));
        assert!(!lease.confirm(at(230), at(230)));
        assert!(lease.confirm(at(235), at(235)));
    }

    #[test]
    fn a_sync_renews_only_where_a_cut_off_leader_cannot_matter() {
        let e = Ensemble::default();
        assert_eq!(e.renewal(Duration::from_secs(30), false), Renewal::Sync);
        assert_eq!(e.renewal(Duration::from_secs(30), true), Renewal::Write);
        assert_eq!(e.renewal(Duration::from_secs(29), false), Renewal::Write);
        assert_eq!(e.shortest_timeout(), Duration::from_secs(6));
    }
}
