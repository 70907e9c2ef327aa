//! The time spans of dials, attaches, pauses and silence, as shares of the session timeout.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::Instant;

/// The longest pause between two dials of a holder. A holder is a session that may hold locks: it
/// has created an ephemeral znode.
const HOLDER_RETRY: Duration = Duration::from_millis(500);

/// The range of the minimum pause of a new session after an outage. During the pause the holders
/// attach. The minimum is a twelfth of the session timeout, limited to this range.
const NEWCOMER_DELAY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(4);

/// The minimum time limit of a dial, and of an attach to which [`SHORTEST_ATTACH`] does not apply.
/// It matters only if the session timeout is very short.
const SHORTEST_HANDSHAKE: Duration = Duration::from_millis(500);

/// The minimum time limit of an attach, for a holder that can repeat the attach or try another
/// server.
const SHORTEST_ATTACH: Duration = Duration::from_millis(250);

/// The lower limit of [`SessionPace::ping_interval`].
const SHORTEST_PING: Duration = Duration::from_millis(30);

/// The lower limit of [`SessionPace::max_first_retry_delay`].
const MIN_RETRY_LIMIT: Duration = Duration::from_millis(10);

/// The class of a reply, by the time that the reply took. The limits of the classes depend on the
/// session timeout and on the fastest reply of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyPace {
    Quick,
    Usual,
    Slow,
}

/// The oldest request without a reply on a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct OldestUnanswered {
    pub(super) sent: Instant,
    /// Set if the reply needs the leader.
    pub(super) is_write: bool,
    /// The time at which bytes last arrived on the connection.
    pub(super) last_received: Instant,
    /// A random number of the connection. It spreads the times at which many sessions move to
    /// another server.
    pub(super) random: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SessionPace {
    /// The shortest timeout that was granted so far. Before the first grant, the requested timeout
    /// or a longer one.
    pub(super) timeout: Duration,
}

impl SessionPace {
    pub(super) fn new(timeout: Duration) -> SessionPace {
        SessionPace { timeout }
    }

    /// Returns the longest time from one ping to the next. Pings are more frequent during renewals
    /// of a lease, because each renewal also sends a ping.
    pub(super) fn ping_interval(&self) -> Duration {
        (self.timeout / 3).max(SHORTEST_PING)
    }

    /// Returns the deadline of a dial that starts now. With `is_in_haste`, which is set for a holder with several servers, the
    /// deadline is earlier, because a server that was down may accept connections in the next dial. With `sasl` it is later,
    /// because the dial may also get a Kerberos ticket.
    pub(super) fn dial_deadline(&self, now: Instant, is_in_haste: bool, sasl: bool) -> Instant {
        let share = match (sasl, is_in_haste) {
            (true, _) => 4,
            (false, true) => 12,
            (false, false) => 6,
        };
        now.after((self.timeout / share).max(SHORTEST_HANDSHAKE))
    }

    /// Returns the time by which the server must have attached the session.
    pub(super) fn attach_deadline(&self, now: Instant) -> Instant {
        now.after((self.timeout / 4).max(SHORTEST_HANDSHAKE))
    }

    /// Returns the time by which the server must have attached the session of a holder that can repeat the attach or
    /// try another server.
    ///
    /// The holder waits only for a 24th of the session timeout, because its lease runs out meanwhile, and the next attempt
    /// may be faster. On a slow network, where `longer` is longer than that, it waits for `longer`, but at most for a twelfth
    /// of the session timeout. After every two rounds over all servers, one attempt gets more time, because the leader may be
    /// slow. `slow_attaches` is the number of attaches that took too long since the last working connection.
    pub(super) fn short_attach_deadline(
        &self,
        now: Instant,
        longer: Duration,
        slow_attaches: u32,
        servers: u32,
    ) -> Instant {
        let period = servers.saturating_mul(2).saturating_add(1);
        let wait = match (slow_attaches / period, slow_attaches % period == period - 1) {
            (_, false) => longer.clamp(self.timeout / 24, self.timeout / 12),
            (0..=2, true) => self.timeout / 8,
            // After so many slow attaches the lease has ended, and haste no longer helps. Three periods take at least
            // 21/24 of the session timeout.
            (_, true) => return self.attach_deadline(now),
        };
        now.after(wait.max(SHORTEST_ATTACH))
    }

    /// Returns the maximum pause before the next dial, after the first failed dial. A connection
    /// that was attached for less than this time counts as short.
    pub(super) fn max_first_retry_delay(&self) -> Duration {
        (self.timeout / 60).clamp(MIN_RETRY_LIMIT, HOLDER_RETRY)
    }

    /// Returns the pause before the next dial, after this number of failures in a row.
    ///
    /// A holder dials often, because its lease runs out. Other sessions wait longer after each
    /// failure. A server that has just started may limit the number of connections, and the longer
    /// waits leave room for holders there.
    pub(super) fn retry_delay(&self, failures: u32, is_holder: bool, random: u64) -> Duration {
        let shortest = self.max_first_retry_delay();
        let longest = if is_holder {
            shortest
        } else {
            let doublings = failures.saturating_sub(1).min(16);
            (shortest * (1 << doublings)).min(self.timeout / 10).max(shortest)
        };
        random_between(longest / 2, longest, random)
    }

    /// Returns the pause before the next dial of a new session, which no server has created yet.
    /// `rounds` is the number of rounds in which all servers closed the connection during the
    /// handshake. The pause grows with `rounds`, because the servers may be at their connection
    /// limits.
    pub(super) fn retry_delay_after_hang_ups(&self, rounds: u32, random: u64) -> Duration {
        let longest = (HOLDER_RETRY * (1 << rounds.clamp(1, 16))).min(self.timeout / 5).max(HOLDER_RETRY * 2);
        random_between(longest / 2, longest, random)
    }

    /// Returns the pause of a new session, which no server has created yet, after an outage. The
    /// pause begins when a server accepts connections again.
    ///
    /// The pause is longer than the pause between two dials of any holder, because the holders must attach first. It is also
    /// longer than the time for which a holder waits for the answer to a connect request that the server has dropped. That
    /// time is usually a 24th of the session timeout, so this is true if the holder has the same session timeout, below 96 s.
    pub(super) fn newcomer_delay(&self, random: u64) -> Duration {
        let least = (self.timeout / 12).clamp(*NEWCOMER_DELAY.start(), *NEWCOMER_DELAY.end());
        random_between(least, least * 3 / 2, random)
    }

    /// Returns the class of a reply. T is the session timeout. A reply is quick if it took less
    /// than T/24, and slow if it took more than T/12. A server with slow replies may soon count as
    /// silent.
    ///
    /// On a slow network each reply takes long, and fewer requests in flight do not help. So the
    /// fastest reply of the connection counts, too. A reply is also quick if it took less than T/48
    /// more than the fastest reply. A reply is not slow if it took at most T/24 more than the
    /// fastest reply.
    pub(super) fn classify_reply(&self, took: Duration, fastest: Duration) -> ReplyPace {
        let t = self.timeout;
        if took < (t / 24).max(fastest + t / 48) {
            ReplyPace::Quick
        } else if took <= (t / 12).max(fastest + t / 24) {
            ReplyPace::Usual
        } else {
            ReplyPace::Slow
        }
    }

    /// Returns the time at which the connected server counts as silent, if the request `oldest` is
    /// unanswered until then.
    ///
    /// If that request is a write, the session waits longer, because the server answers in order, and a slow write holds back
    /// all later replies, even those to pings. Each session adds a random part of a twelfth of the timeout, because otherwise
    /// many sessions would move to another server at once. Without `may_move_early`, the session waits for a third of the
    /// timeout.
    pub(super) fn silence_deadline(&self, oldest: &OldestUnanswered, may_move_early: bool) -> Instant {
        let latest = oldest.sent.after(self.timeout / 3);
        if !may_move_early {
            return latest;
        }
        let twelfth = self.timeout / 12;
        if oldest.is_write {
            oldest.sent.after(random_between(twelfth * 2, twelfth * 3, oldest.random))
        } else {
            // A long reply may arrive in pieces, so the time counts from the last received bytes.
            let heard = oldest.sent.max(oldest.last_received);
            heard.after(random_between(twelfth, twelfth * 2, oldest.random)).min(latest)
        }
    }
}

/// Returns a time between `least` and `most`, chosen by `random`.
fn random_between(least: Duration, most: Duration, random: u64) -> Duration {
    least + (most - least) * (random % 1024) as u32 / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attach_deadline_is_longer_every_second_round() {
        let pace = SessionPace::new(Duration::from_secs(24));
        let wait = |longer, slow| {
            let now = Instant::default();
            now.until(pace.short_attach_deadline(now, Duration::from_millis(longer), slow, 2)).as_millis()
        };
        let waits: Vec<u128> = (0..20).map(|slow| wait(20, slow)).collect();
        let (round, last) = ([1000, 1000, 1000, 1000, 3000], [1000, 1000, 1000, 1000, 6000]);
        assert_eq!(waits, [round, round, round, last].concat());
        assert_eq!([wait(1500, 0), wait(9000, 0)], [1500, 2000], "on a slow network");
    }

    #[test]
    fn newcomers_wait_longer_than_holders() {
        for timeout in [1, 6, 30, 60].map(Duration::from_secs) {
            let pace = SessionPace::new(timeout);
            let longest = |rounds| pace.retry_delay_after_hang_ups(rounds, 1023);
            assert!(longest(1) <= longest(2) && longest(2) <= longest(9));
            for random in [0, 1023] {
                assert!(pace.retry_delay_after_hang_ups(1, random) >= HOLDER_RETRY);
                assert!(pace.newcomer_delay(random) >= HOLDER_RETRY * 2);
            }
        }
        let delays = [1, 12, 24, 48, 480]
            .map(|secs| SessionPace::new(Duration::from_secs(secs)).newcomer_delay(0).as_secs());
        assert_eq!(delays, [1, 1, 2, 4, 4]);
        let pace = SessionPace::new(Duration::from_secs(30));
        let waits = [1, 2, 3, 4, 1000].map(|rounds| pace.retry_delay_after_hang_ups(rounds, 0).as_millis());
        assert_eq!(waits, [500, 1000, 2000, 3000, 3000]);
    }

    #[test]
    fn holders_retry_often_and_others_back_off() {
        let pace = SessionPace::new(Duration::from_secs(30));
        for failures in [1, 2, 5, 1000] {
            for random in [0, 1023] {
                assert!(pace.retry_delay(failures, true, random) <= Duration::from_millis(500));
                assert!(pace.retry_delay(failures, true, random) >= Duration::from_millis(250));
            }
        }
        assert!(pace.retry_delay(1, false, 1023) <= Duration::from_millis(500));
        assert_eq!(pace.retry_delay(1000, false, 0), Duration::from_millis(1500));
        assert!(pace.retry_delay(1000, false, 1023) > Duration::from_millis(2900));
        let short = SessionPace::new(Duration::from_secs(6));
        assert!(short.retry_delay(9, true, 1023) <= Duration::from_millis(100));
    }
}
