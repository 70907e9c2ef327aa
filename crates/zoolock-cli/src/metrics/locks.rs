//! Metrics of a list of locks: totals, and metrics of the locks with the most waiters.

use zoolock::admin::{PreviousEnd, Snapshot};

use super::family::{MetricFamily, SeriesPoint, SeriesValue};
use crate::base::server_clock;
use crate::base::unix_time::UnixTime as _;
use crate::observe::{longest_holder, longest_wait};

/// Maximum number of locks with series of their own. The number of lock names has no limit, and
/// Prometheus keeps each series for weeks.
const MAX_NAMED: usize = 50;

/// Returns the metric families: totals of all locks, and series for each of the [`MAX_NAMED`] locks with the most waiters.
pub(super) fn families<'a>(locks: impl Iterator<Item = &'a Snapshot>) -> Vec<MetricFamily> {
    families_at(server_clock::now_ms(), locks.collect())
}

fn families_at(now_ms: u64, mut locks: Vec<&Snapshot>) -> Vec<MetricFamily> {
    // If the contender's clock is ahead of this machine's clock, the age is 0.
    let age = |since_ms: u64| now_ms.saturating_sub(since_ms) as f64 / 1000.0;
    let longest = |lock: &Snapshot| longest_wait(lock).map_or(0.0, age);
    // `None` if nothing tells the time of the grant, or if the holders cannot be read.
    let held_seconds = |lock: &Snapshot| match longest_holder(lock) {
        Some(holder) => holder.held_since.unix_ms().map(age),
        None if lock.is_held() || !lock.unread.is_empty() => None,
        None => Some(0.0),
    };
    let count = |which: fn(&Snapshot) -> bool| locks.iter().filter(|lock| which(lock)).count() as f64;
    let waiting = locks.iter().map(|lock| lock.waiting as f64).sum();
    let mut families = vec![
        total("zoolock_locks", "locks that were seen", "1", locks.len() as f64),
        total("zoolock_locks_held", "locks that are held", "1", count(Snapshot::is_held)),
        total("zoolock_locks_waiting", "contenders that wait for a lock", "1", waiting),
        total(
            "zoolock_locks_clashing",
            "locks whose contenders do not see each other, so several may hold",
            "1",
            count(|lock| lock.clash.is_some()),
        ),
        total(
            "zoolock_locks_crashed",
            "locks whose last recorded holder crashed",
            "1",
            count(|lock| lock.previous == PreviousEnd::Crashed),
        ),
        total(
            "zoolock_locks_longest_wait_seconds",
            "longest wait of a current waiter",
            "s",
            locks.iter().copied().map(longest).fold(0.0, f64::max),
        ),
    ];
    locks.sort_by(|a, b| b.waiting.cmp(&a.waiting).then_with(|| a.path.cmp(&b.path)));
    locks.truncate(MAX_NAMED);
    if !locks.is_empty() {
        // A lock whose value is unknown has no series.
        let each = |name, help, unit, value: &dyn Fn(&Snapshot) -> Option<f64>| {
            let point = |lock: &&Snapshot| {
                let labels = vec![("lock".to_owned(), lock.path.clone())];
                Some(SeriesPoint { labels, value: SeriesValue::Gauge(value(lock)?) })
            };
            family(name, help, unit, locks.iter().filter_map(point).collect())
        };
        families.extend([
            each(
                "zoolock_lock_waiters",
                "waiters of this lock (only for the locks with the most waiters)",
                "1",
                &|lock| Some(lock.waiting as f64),
            ),
            each(
                "zoolock_lock_held_seconds",
                "time since the grant; 0 if the lock is free; missing if the time of the grant is unknown",
                "s",
                &held_seconds,
            ),
            each("zoolock_lock_longest_wait_seconds", "longest wait of a current waiter", "s", &|lock| {
                Some(longest(lock))
            }),
        ]);
    }
    families
}

fn total(name: &str, help: &str, unit: &'static str, value: f64) -> MetricFamily {
    family(name, help, unit, vec![SeriesPoint { labels: Vec::new(), value: SeriesValue::Gauge(value) }])
}

fn family(name: &str, help: &str, unit: &'static str, points: Vec<SeriesPoint>) -> MetricFamily {
    MetricFamily { name: name.to_owned(), help: help.to_owned(), unit, points }
}

#[cfg(test)]
mod tests {
    use super::super::text::render;
    use super::*;
    use crate::base::test_snapshots::{entry, lock};
    use crate::base::unix_time::time_at;

    const NOW_MS: u64 = 100_000;

    /// Creates a lock. If it has waiters, it has been held for 7.5 seconds, and the first of them waits for 3 seconds.
    fn lock_of(path: &str, waiters: usize) -> Snapshot {
        let mut contender = entry("lock-0000000001", "0.1");
        (contender.held_since, contender.since) =
            (Some(time_at(NOW_MS - 7_500)), Some(time_at(NOW_MS - 3_000)));
        lock(path, (waiters > 0).then(|| contender.clone()), vec![contender; waiters])
    }

    #[test]
    fn only_most_waited_locks_have_series() {
        let mut locks: Vec<Snapshot> =
            (0..200).map(|number| lock_of(&format!("/locks/{number:03}"), 0)).collect();
        for lock in &mut locks {
            lock.previous = PreviousEnd::Crashed;
        }
        locks[123] = lock_of("/locks/busy", 3);
        locks[124] = lock_of("/locks/unknown", 2);
        locks[124].holder.as_mut().expect("a holder").held_since = None;
        let text = render(&families_at(NOW_MS, locks.iter().collect()));
        for line in [
            "zoolock_locks 200",
            "zoolock_locks_held 2",
            "zoolock_locks_waiting 5",
            "zoolock_locks_crashed 198",
            "zoolock_locks_longest_wait_seconds 3",
            "zoolock_lock_waiters{lock=\"/locks/busy\"} 3",
            "zoolock_lock_held_seconds{lock=\"/locks/busy\"} 7.5",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(!text.contains("zoolock_lock_held_seconds{lock=\"/locks/unknown\"}"), "{text}");
        let named = text.lines().filter(|line| line.starts_with("zoolock_lock_waiters{")).count();
        assert_eq!(named, MAX_NAMED);
    }

    #[test]
    fn no_locks_report_zero() {
        let text = render(&families_at(NOW_MS, Vec::new()));
        assert!(text.contains("\nzoolock_locks 0\n") && !text.contains("zoolock_lock_waiters"), "{text}");
    }
}
