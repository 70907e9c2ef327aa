//! Hand-over rates of locks, computed from consecutive reads.

use std::collections::HashMap;
use std::time::Duration;

use zoolock::Snapshot;

/// Time constant of the average: older hand-overs hardly count.
const TIME_CONSTANT: Duration = Duration::from_secs(10);
/// Smallest rate above zero. The screen shows two decimals.
const MIN_RATE: f64 = 0.005;

/// The holder of a lock in one read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HolderRead<'a> {
    pub(crate) path: &'a str,
    /// Token and znode name of the first holder; `None` if the lock is free or cannot be read.
    pub(crate) holder: Option<(&'a str, &'a str)>,
}

impl<'a> HolderRead<'a> {
    /// Returns the holder in a snapshot.
    pub(crate) fn of(lock: &'a Snapshot) -> Self {
        let holder = lock.holder.as_ref();
        Self {
            path: &lock.path,
            holder: holder.and_then(|holder| Some((holder.token.as_deref()?, holder.node.as_str()))),
        }
    }
}

/// Hand-over rates of many locks, as far as reads show them.
///
/// A new token shows that the lock was handed over. The sequence number of the holder's znode shows how often, because each
/// contender takes the next number. So contenders that came and went between two reads count, too, even if they gave up.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    seen: HashMap<String, Seen>,
}

#[derive(Debug)]
struct Seen {
    /// Token of the last seen holder.
    token: Option<String>,
    number: Option<u32>,
    at: Duration,
    /// Hand-overs per second; `None` before the second read.
    rate: Option<f64>,
}

impl Rates {
    /// Records a read of all locks, and forgets all other locks. `now` comes from a monotonic clock.
    pub(crate) fn record_all<'a>(&mut self, now: Duration, reads: impl IntoIterator<Item = HolderRead<'a>>) {
        let mut before = std::mem::take(&mut self.seen);
        for read in reads {
            // The strings are reused: most locks have the same path and holder as in the last read.
            let (path, mut seen) = match before.remove_entry(read.path) {
                Some((path, seen)) => (path, Some(seen)),
                None => (read.path.to_owned(), None),
            };
            update(&mut seen, now, read);
            self.seen.extend(seen.map(|seen| (path, seen)));
        }
    }

    /// Records a read of one lock.
    pub(crate) fn record(&mut self, now: Duration, read: HolderRead<'_>) {
        let mut seen = self.seen.remove(read.path);
        update(&mut seen, now, read);
        self.seen.extend(seen.map(|seen| (read.path.to_owned(), seen)));
    }

    /// Returns the hand-overs per second of a lock, or `None` before its second read.
    pub(crate) fn of(&self, path: &str) -> Option<f64> {
        self.seen.get(path).and_then(|seen| seen.rate)
    }
}

fn update(seen: &mut Option<Seen>, now: Duration, read: HolderRead<'_>) {
    let Some(seen) = seen else {
        *seen = Some(Seen {
            token: read.holder.map(|(token, _)| token.to_owned()),
            number: read.holder.and_then(|(_, node)| number(node)),
            at: now,
            rate: None,
        });
        return;
    };
    let passed = now.saturating_sub(seen.at).as_secs_f64();
    if passed <= 0.0 {
        return;
    }
    let mut count = 0;
    if let Some((token, node)) = read.holder
        && seen.token.as_deref() != Some(token)
    {
        let number = number(node);
        count = match (seen.number, number) {
            // In a new directory the numbers begin again.
            (Some(before), Some(now)) if now > before => now - before,
            _ => 1,
        };
        seen.token = Some(token.to_owned());
        seen.number = number;
    }
    let rate = f64::from(count) / passed;
    let weight = 1.0 - (-passed / TIME_CONSTANT.as_secs_f64()).exp();
    let rate = seen.rate.map_or(rate, |before| before + (rate - before) * weight);
    seen.rate = Some(if rate < MIN_RATE { 0.0 } else { rate });
    seen.at = now;
}

/// Returns the sequence number of a znode: the ten digits at the end of its name.
pub(crate) fn number(node: &str) -> Option<u32> {
    let digits = node.get(node.len().checked_sub(10)?..)?;
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: &str = "/locks/x";

    fn held(token: &'static str, node: &'static str) -> HolderRead<'static> {
        HolderRead { path: X, holder: Some((token, node)) }
    }

    const FREE: HolderRead<'static> = HolderRead { path: X, holder: None };

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn rate_needs_two_reads() {
        let mut rates = Rates::default();
        rates.record_all(second(1), [held("0.1", "a-lock-0000000007")]);
        assert_eq!(rates.of(X), None);
        rates.record_all(second(3), [held("0.9", "a-lock-0000000012")]);
        assert_eq!(rates.of(X), Some(2.5));
        assert_eq!(rates.of("/locks/y"), None);
    }

    #[test]
    fn rate_falls_to_zero_without_hand_overs() {
        let mut rates = Rates::default();
        rates.record(second(0), held("0.1", "a-lock-0000000007"));
        rates.record(second(1), held("0.2", "a-lock-0000000008"));
        assert_eq!(rates.of(X), Some(1.0));
        let mut last = 1.0;
        for n in 2..60 {
            rates.record(second(n), held("0.2", "a-lock-0000000008"));
            let rate = rates.of(X).expect("was seen twice");
            assert!(rate < last || rate == 0.0, "{rate} after {last}");
            last = rate;
        }
        assert_eq!(last, 0.0);
    }

    #[test]
    fn steady_rate_is_exact() {
        let mut rates = Rates::default();
        let nodes: Vec<_> = (0..50).map(|n| (format!("0.{n}"), format!("a-lock-{:010}", n * 4))).collect();
        for (n, (token, node)) in (0..).zip(&nodes) {
            rates.record(second(n), HolderRead { path: X, holder: Some((token, node)) });
        }
        let rate = rates.of(X).expect("was seen often");
        assert!((rate - 4.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn hand_over_counts_after_a_free_moment() {
        let mut rates = Rates::default();
        rates.record(second(0), held("0.1", "a-lock-0000000007"));
        rates.record(second(1), FREE);
        assert_eq!(rates.of(X), Some(0.0));
        rates.record(second(2), held("0.5", "a-lock-0000000008"));
        assert!(rates.of(X).expect("was seen") > 0.0);
    }

    #[test]
    fn missing_or_restarted_numbers_count_once() {
        let mut rates = Rates::default();
        rates.record(second(0), held("0.1", "0a1b2c"));
        rates.record(second(1), held("0.2", "0a1b2d"));
        assert_eq!(rates.of(X), Some(1.0));
        let mut rates = Rates::default();
        rates.record(second(0), held("0.1", "a-lock-0000009000"));
        rates.record(second(2), held("0.2", "a-lock-0000000000"));
        assert_eq!(rates.of(X), Some(0.5));
        assert_eq!(number("-0000000012"), Some(12));
        assert_eq!(number("a\u{e9}000000012"), None);
        assert_eq!(number("12"), None);
    }

    #[test]
    fn missing_locks_are_forgotten() {
        let mut rates = Rates::default();
        rates.record_all(second(0), [held("0.1", "a-lock-0000000001")]);
        rates.record_all(second(1), []);
        rates.record_all(second(2), [held("0.2", "a-lock-0000000002")]);
        assert_eq!(rates.of(X), None);
    }

    #[test]
    fn reads_at_the_same_time_count_once() {
        let mut rates = Rates::default();
        rates.record(second(1), held("0.1", "a-lock-0000000001"));
        rates.record(second(1), held("0.2", "a-lock-0000000002"));
        assert_eq!(rates.of(X), None);
    }
}
