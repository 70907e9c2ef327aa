//! Hand-over rates of locks, computed from consecutive reads.

use std::collections::HashMap;
use std::time::Duration;

use zoolock::Snapshot;

/// Time constant of the moving average. Hand-overs that are much older than this hardly count.
const TIME_CONSTANT: Duration = Duration::from_secs(10);
/// Threshold below which a rate counts as zero, because the screen shows two decimals.
const MIN_RATE: f64 = 0.005;
/// Number of hand-overs that is implausible between two reads. If the sequence numbers of two reads
/// differ by this much, the lock directory was deleted and created again.
const MAX_HAND_OVERS: u32 = 10_000_000;

/// The holder of a lock, as one read of the lock showed it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HolderRead<'a> {
    pub(crate) path: &'a str,
    /// Token and sequence number of the first holder; `None` if the lock is free or cannot be read.
    pub(crate) holder: Option<(&'a str, Option<u32>)>,
}

impl<'a> HolderRead<'a> {
    /// Returns the holder in a snapshot.
    pub(crate) fn of(lock: &'a Snapshot) -> Self {
        let holder = lock.holder.as_ref();
        Self {
            path: &lock.path,
            holder: holder.and_then(|holder| Some((holder.token.as_deref()?, holder.number()))),
        }
    }
}

/// Hand-over rates of many locks, estimated from consecutive reads.
///
/// A new token shows that the lock was handed over. The sequence numbers of the old and the new
/// holder show how often, because each contender takes the next number. So contenders that joined
/// and left the queue between two reads count, too, even if they gave up.
#[derive(Debug, Default)]
pub(crate) struct HandOverRates {
    seen: HashMap<String, SeenHolder>,
}

#[derive(Debug)]
struct SeenHolder {
    /// Token of the last seen holder.
    token: Option<String>,
    number: Option<u32>,
    at: Duration,
    /// Hand-overs per second; `None` before the second read.
    rate: Option<f64>,
}

impl HandOverRates {
    /// Records a read of all locks, and forgets the locks that are not in `reads`. `now` comes from
    /// a monotonic clock.
    pub(crate) fn record_all<'a>(&mut self, now: Duration, reads: impl IntoIterator<Item = HolderRead<'a>>) {
        let mut before = std::mem::take(&mut self.seen);
        for read in reads {
            // The strings are reused: most locks have the same path and holder as in the last read.
            let (path, mut seen) = match before.remove_entry(read.path) {
                Some((path, seen)) => (path, Some(seen)),
                None => (read.path.to_owned(), None),
            };
            update_seen_holder(&mut seen, now, read);
            self.seen.extend(seen.map(|seen| (path, seen)));
        }
    }

    /// Records a read of one lock.
    pub(crate) fn record(&mut self, now: Duration, read: HolderRead<'_>) {
        let mut seen = self.seen.remove(read.path);
        update_seen_holder(&mut seen, now, read);
        self.seen.extend(seen.map(|seen| (read.path.to_owned(), seen)));
    }

    /// Returns the hand-overs per second of a lock, or `None` before its second read.
    pub(crate) fn of(&self, path: &str) -> Option<f64> {
        self.seen.get(path).and_then(|seen| seen.rate)
    }
}

fn update_seen_holder(seen: &mut Option<SeenHolder>, now: Duration, read: HolderRead<'_>) {
    let Some(seen) = seen else {
        *seen = Some(SeenHolder {
            token: read.holder.map(|(token, _)| token.to_owned()),
            number: read.holder.and_then(|(_, number)| number),
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
    if let Some((token, number)) = read.holder
        && seen.token.as_deref() != Some(token)
    {
        count = hand_overs_between(seen.number, number);
        seen.token = Some(token.to_owned());
        seen.number = number;
    }
    let rate = f64::from(count) / passed;
    let weight = 1.0 - (-passed / TIME_CONSTANT.as_secs_f64()).exp();
    let rate = seen.rate.map_or(rate, |before| before + (rate - before) * weight);
    seen.rate = Some(if rate < MIN_RATE { 0.0 } else { rate });
    seen.at = now;
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
    use super::*;

    const X: &str = "/locks/x";

    fn held(token: &'static str, number: u32) -> HolderRead<'static> {
        HolderRead { path: X, holder: Some((token, Some(number))) }
    }

    const FREE: HolderRead<'static> = HolderRead { path: X, holder: None };

    fn second(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn rate_needs_two_reads() {
        let mut rates = HandOverRates::default();
        rates.record_all(second(1), [held("0.1", 7)]);
        assert_eq!(rates.of(X), None);
        rates.record_all(second(3), [held("0.9", 12)]);
        assert_eq!(rates.of(X), Some(2.5));
        assert_eq!(rates.of("/locks/y"), None);
    }

    #[test]
    fn rate_falls_to_zero_without_hand_overs() {
        let mut rates = HandOverRates::default();
        rates.record(second(0), held("0.1", 7));
        rates.record(second(1), held("0.2", 8));
        assert_eq!(rates.of(X), Some(1.0));
        let mut last = 1.0;
        for n in 2..60 {
            rates.record(second(n), held("0.2", 8));
            let rate = rates.of(X).expect("the lock was read twice");
            assert!(rate < last || rate == 0.0, "{rate} after {last}");
            last = rate;
        }
        assert_eq!(last, 0.0);
    }

    #[test]
    fn steady_rate_is_exact() {
        let mut rates = HandOverRates::default();
        for n in 0..50 {
            let token = format!("0.{n}");
            rates.record(second(n.into()), HolderRead { path: X, holder: Some((&token, Some(n * 4))) });
        }
        let rate = rates.of(X).expect("the lock was read often");
        assert!((rate - 4.0).abs() < 1e-9, "{rate}");
    }

    #[test]
    fn hand_over_counts_after_a_free_moment() {
        let mut rates = HandOverRates::default();
        rates.record(second(0), held("0.1", 7));
        rates.record(second(1), FREE);
        assert_eq!(rates.of(X), Some(0.0));
        rates.record(second(2), held("0.5", 8));
        assert!(rates.of(X).expect("the lock was read twice") > 0.0);
    }

    #[test]
    fn missing_or_restarted_numbers_count_once() {
        let mut rates = HandOverRates::default();
        rates.record(second(0), HolderRead { path: X, holder: Some(("0.1", None)) });
        rates.record(second(1), HolderRead { path: X, holder: Some(("0.2", None)) });
        assert_eq!(rates.of(X), Some(1.0));
        let mut rates = HandOverRates::default();
        rates.record(second(0), held("0.1", 9000));
        rates.record(second(2), held("0.2", 0));
        assert_eq!(rates.of(X), Some(0.5));
    }

    #[test]
    fn missing_locks_are_forgotten() {
        let mut rates = HandOverRates::default();
        rates.record_all(second(0), [held("0.1", 1)]);
        rates.record_all(second(1), []);
        rates.record_all(second(2), [held("0.2", 2)]);
        assert_eq!(rates.of(X), None);
    }

    #[test]
    fn reads_at_the_same_time_count_once() {
        let mut rates = HandOverRates::default();
        rates.record(second(1), held("0.1", 1));
        rates.record(second(1), held("0.2", 2));
        assert_eq!(rates.of(X), None);
    }
}
