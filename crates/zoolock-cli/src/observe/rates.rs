//! Hand-over rates of locks, computed from consecutive reads.

use std::collections::HashMap;
use std::time::Duration;

use zoolock::Ticket;
use zoolock::admin::Snapshot;

/// Time constant of the moving average. Hand-overs that are much older than this hardly count.
const TIME_CONSTANT: Duration = Duration::from_secs(10);
/// Threshold below which a rate counts as zero, because the screen shows two decimals.
const MIN_RATE: f64 = 0.005;
/// Number of hand-overs that is implausible between two reads. If the sequence numbers of two reads
/// differ by this much, the lock directory was deleted and created again.
const MAX_HAND_OVERS: u32 = 10_000_000;

/// Hand-over rates of many locks, estimated from consecutive reads.
///
/// A new token shows that the lock was handed over. The sequence numbers of the old and the new
/// holder show how often, because each contender takes the next number. So contenders that joined
/// and left the queue between two reads count, too, even if they gave up.
#[derive(Debug, Default)]
pub(super) struct HandOverRates {
    seen: HashMap<String, SeenHolder>,
}

#[derive(Debug)]
struct SeenHolder {
    /// Token of the last seen holder.
    token: Option<Ticket>,
    number: Option<u32>,
    at: Duration,
    /// Hand-overs per second; `None` before the second read.
    rate: Option<f64>,
}

impl HandOverRates {
    /// Records a read of all locks, and forgets the locks that are not in `locks`. `now` comes from
    /// a monotonic clock.
    pub(super) fn record_all<'a>(&mut self, now: Duration, locks: impl IntoIterator<Item = &'a Snapshot>) {
        let mut before = std::mem::take(&mut self.seen);
        for lock in locks {
            // The strings are reused: most locks have the same path and holder as in the last read.
            let (path, seen) = match before.remove_entry(&lock.path) {
                Some((path, seen)) => (path, Some(seen)),
                None => (lock.path.clone(), None),
            };
            self.seen.insert(path, SeenHolder::after(seen, now, lock));
        }
    }

    /// Records a read of one lock, and returns its hand-overs per second.
    pub(super) fn record(&mut self, now: Duration, lock: &Snapshot) -> Option<f64> {
        let seen = SeenHolder::after(self.seen.remove(&lock.path), now, lock);
        let rate = seen.rate;
        self.seen.insert(lock.path.clone(), seen);
        rate
    }

    /// Returns the hand-overs per second of a lock, or `None` before its second read.
    pub(super) fn of(&self, path: &str) -> Option<f64> {
        self.seen.get(path).and_then(|seen| seen.rate)
    }
}

impl SeenHolder {
    /// Returns the holder and the rate after a read of `lock`. `seen` is the result of the read before.
    fn after(seen: Option<SeenHolder>, now: Duration, lock: &Snapshot) -> SeenHolder {
        let holder = lock.holder.as_ref().and_then(|holder| Some((holder.token?, holder.number())));
        let Some(mut seen) = seen else {
            let (token, number) = holder.map_or((None, None), |(token, number)| (Some(token), number));
            return SeenHolder { token, number, at: now, rate: None };
        };
        let passed = now.saturating_sub(seen.at).as_secs_f64();
        if passed <= 0.0 {
            return seen;
        }
        let mut count = 0;
        if let Some((token, number)) = holder
            && seen.token != Some(token)
        {
            count = hand_overs_between(seen.number, number);
            seen.token = Some(token);
            seen.number = number;
        }
        let rate = f64::from(count) / passed;
        let weight = 1.0 - (-passed / TIME_CONSTANT.as_secs_f64()).exp();
        let rate = seen.rate.map_or(rate, |before| before + (rate - before) * weight);
        seen.rate = Some(if rate < MIN_RATE { 0.0 } else { rate });
        seen.at = now;
        seen
    }
}

/// Returns the number of hand-overs between two holders with these sequence numbers.
fn hand_overs_between(before: Option<u32>, now: Option<u32>) -> u32 {
    match (before, now) {
        (Some(before), Some(now)) if now > before && now - before < MAX_HAND_OVERS => now - before,
        // A number is unknown, or the lock directory is new and its numbers began again.
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;

    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    const X: &str = "/locks/x";

    /// Returns a lock whose holder has this token. `number` is at the end of the name of its znode.
    fn held(token: &str, number: impl Display) -> Snapshot {
        lock(X, Some(entry(&format!("lock-{number:0>10}"), token)), vec![])
    }

    fn free() -> Snapshot {
        lock(X, None, vec![])
    }

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn rate_needs_two_reads() {
        let mut rates = HandOverRates::default();
        rates.record_all(second(1), &[held("0.1", 7)]);
        assert_eq!(rates.of(X), None);
        rates.record_all(second(3), &[held("0.9", 12)]);
        assert_eq!(rates.of(X), Some(2.5));
        assert_eq!(rates.of("/locks/y"), None);
    }

    #[test]
    fn rate_falls_to_zero_without_hand_overs() {
        let mut rates = HandOverRates::default();
        rates.record(second(0), &held("0.1", 7));
        rates.record(second(1), &held("0.2", 8));
        assert_eq!(rates.of(X), Some(1.0));
        let mut last = 1.0;
        for n in 2..60 {
            rates.record(second(n), &held("0.2", 8));
            let rate = rates.of(X).expect("the lock was read twice");
            assert!(rate < last || rate == 0.0, "{rate} after {last}");
            last = rate;
        }
        assert_eq!(last, 0.0);
    }

    #[test]
    fn steady_rate_is_exact() {
        let mut rates = HandOverRates::default();
        for n in 0..50_u64 {
            let token = format!("0.{n}");
            rates.record(second(n), &held(&token, n * 4));
        }
        let rate = rates.of(X).expect("the lock was read often");
        assert!((rate - 4.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn hand_over_counts_after_a_free_moment() {
        let mut rates = HandOverRates::default();
        rates.record(second(0), &held("0.1", 7));
        rates.record(second(1), &free());
        assert_eq!(rates.of(X), Some(0.0));
        rates.record(second(2), &held("0.5", 8));
        assert!(rates.of(X).expect("the lock was read twice") > 0.0);
    }

    #[test]
    fn missing_or_restarted_numbers_count_once() {
        let mut rates = HandOverRates::default();
        rates.record(second(0), &held("0.1", "x"));
        rates.record(second(1), &held("0.2", "x"));
        assert_eq!(rates.of(X), Some(1.0));
        let mut rates = HandOverRates::default();
        rates.record(second(0), &held("0.1", 9000));
        rates.record(second(2), &held("0.2", 0));
        assert_eq!(rates.of(X), Some(0.5));
    }

    #[test]
    fn missing_locks_are_forgotten() {
        let mut rates = HandOverRates::default();
        rates.record_all(second(0), &[held("0.1", 1)]);
        rates.record_all(second(1), &[]);
        rates.record_all(second(2), &[held("0.2", 2)]);
        assert_eq!(rates.of(X), None);
    }

    #[test]
    fn reads_at_the_same_time_count_once() {
        let mut rates = HandOverRates::default();
        rates.record(second(1), &held("0.1", 1));
        rates.record(second(1), &held("0.2", 2));
        assert_eq!(rates.of(X), None);
    }
}
