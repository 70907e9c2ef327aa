//! Every time span of a session, as a share of its timeout.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::Instant;

/// The longest pause between two dials of a session that holds locks.
const HOLDER_RETRY: Duration = Duration::from_millis(500);

/// The range of the shortest pause of a new session that lets holders attach first. The pause grows with the session
/// timeout.
const NEWCOMER_DELAY: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(4);

/// The shortest limit on a dial, and on an attach without haste. A server may grant a timeout that is too short for
/// both.
const SHORTEST_HANDSHAKE: Duration = Duration::from_millis(500);

/// The shortest limit on an attach of a holder that can repeat it or try another server.
const SHORTEST_ATTACH: Duration = Duration::from_millis(250);

/// The shortest time between two pings.
const SHORTEST_PING: Duration = Duration::from_millis(30);

/// The shortest pause between two dials.
const SHORTEST_RETRY: Duration = Duration::from_millis(10);

/// The time that a reply took, compared with the session timeout and with the fastest reply of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplyPace {
    Quick,
    Usual,
    Slow,
}

/// The oldest request without a reply on a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct OldestPending {
    pub(super) sent: Instant,
    /// Set if the reply needs the leader.
    pub(super) is_write: bool,
    /// The time at which bytes last arrived on the connection.
    pub(super) last_received: Instant,
    /// The random number of the connection, which spreads the moves of many sessions over time.
    pub(super) random: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct SessionPace {
    /// The shortest timeout that was granted so far. Before the first grant, an assumed one.
    pub(super) timeout: Duration,
}

impl SessionPace {
    pub(super) fn new(timeout: Duration) -> SessionPace {
        SessionPace { timeout }
    }

    /// Returns the time between two pings, if no renewal is sent between them.
    pub(super) fn ping_interval(&self) -> Duration {
        (self.timeout / 3).max(SHORTEST_PING)
    }

    /// Returns the time by which a dial must have succeeded. A holder with several servers (`is_in_haste`) dials all of
    /// them again sooner, because a server that was down may accept by then. With `sasl`, a dial includes the time to
    /// get a ticket.
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
    /// The lease runs out meanwhile, and the next attempt may work. So the holder waits for a short time, or for
    /// `longer` on a slow network. After each second round over the servers it waits longer once, because the leader
    /// may be slow. `slow_attaches` is the number of attaches that took too long since the last working connection.
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
            (0, true) => self.timeout / 8,
            // The lease has ended by now.
            (_, true) => return self.attach_deadline(now),
        };
        now.after(wait.max(SHORTEST_ATTACH))
    }

    /// Returns the shortest time between two dials.
    pub(super) fn shortest_retry(&self) -> Duration {
        (self.timeout / 60).clamp(SHORTEST_RETRY, HOLDER_RETRY)
    }

    /// Returns the pause before the next dial.
    ///
    /// A holder dials often, because its lease runs out. Other sessions wait longer after each failure. So they leave
    /// room for holders on a server that has just started and limits its connections.
    pub(super) fn retry_delay(&self, failures: u32, is_holder: bool, random: u64) -> Duration {
        let shortest = self.shortest_retry();
        let longest = if is_holder {
            shortest
        } else {
            let doublings = failures.saturating_sub(1).min(16);
            (shortest * (1 << doublings)).min(self.timeout / 10).max(shortest)
        };
        random_between(longest / 2, longest, random)
    }

    /// Returns the pause of a session that does not exist yet, after this number of rounds in which all servers hung
    /// up. The servers may be at their connection limits.
    pub(super) fn hang_up_delay(&self, rounds: u32, random: u64) -> Duration {
        let longest = (HOLDER_RETRY * (1 << rounds.clamp(1, 16))).min(self.timeout / 5).max(HOLDER_RETRY * 2);
        random_between(longest / 2, longest, random)
    }

    /// Returns the pause of a session that does not exist yet, after a server accepts again.
    ///
    /// The holders attach during the pause. It is longer than the pause between two dials of any holder. For holders
    /// with the same timeout, it is also longer than their wait for the answer to a connect request that the server
    /// dropped.
    pub(super) fn newcomer_delay(&self, random: u64) -> Duration {
        let least = (self.timeout / 12).clamp(*NEWCOMER_DELAY.start(), *NEWCOMER_DELAY.end());
        random_between(least, least * 3 / 2, random)
    }

    /// Returns the pace of a reply. T is the session timeout: a reply is quick within T/24 and slow after T/12, when
    /// the server may soon count as silent.
    ///
    /// On a slow network each reply takes long, and fewer requests in flight do not help. So the fastest reply of the
    /// connection counts, too. A reply is also quick if it took at most T/48 more than the fastest. It is not slow if
    /// it took at most T/24 more.
    pub(super) fn of_reply(&self, took: Duration, fastest: Duration) -> ReplyPace {
        let t = self.timeout;
        if took < (t / 24).max(fastest + t / 48) {
            ReplyPace::Quick
        } else if took <= (t / 12).max(fastest + t / 24) {
            ReplyPace::Usual
        } else {
            ReplyPace::Slow
        }
    }

    /// Returns the time at which an attached server counts as silent.
    ///
    /// The oldest request without a reply decides. If it is a write, the session waits longer: the server answers in
    /// order, so a slow write holds back all later replies, even those to pings. Sessions spread their moves over a
    /// twelfth of the timeout, so that they do not all reach a slow leader at once.
    pub(super) fn silence_deadline(&self, oldest: &OldestPending, may_move_early: bool) -> Instant {
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
        let waits: Vec<u128> = (0..11).map(|slow| wait(20, slow)).collect();
        assert_eq!(waits, [1000, 1000, 1000, 1000, 3000, 1000, 1000, 1000, 1000, 6000, 1000]);
        assert_eq!([wait(1500, 0), wait(9000, 0)], [1500, 2000], "on a slow network");
    }

    #[test]
    fn newcomers_wait_longer_than_holders() {
        for timeout in [1, 6, 30, 60].map(Duration::from_secs) {
            let pace = SessionPace::new(timeout);
            let longest = |rounds| pace.hang_up_delay(rounds, 1023);
            assert!(longest(1) <= longest(2) && longest(2) <= longest(9));
            for random in [0, 1023] {
                assert!(pace.hang_up_delay(1, random) >= HOLDER_RETRY);
                assert!(pace.newcomer_delay(random) >= HOLDER_RETRY * 2);
            }
        }
        let delays = [1, 12, 24, 48, 480]
            .map(|secs| SessionPace::new(Duration::from_secs(secs)).newcomer_delay(0).as_secs());
        assert_eq!(delays, [1, 1, 2, 4, 4]);
        let pace = SessionPace::new(Duration::from_secs(30));
        let waits = [1, 2, 3, 4, 1000].map(|rounds| pace.hang_up_delay(rounds, 0).as_millis());
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
