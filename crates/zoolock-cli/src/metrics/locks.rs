//! Metrics of a list of locks: totals, and metrics of the locks with the most waiters.

use std::time::{SystemTime, UNIX_EPOCH};

use zoolock::{Entry, Snapshot};

use super::family::{MetricFamily, SeriesPoint, SeriesValue};

/// Maximum number of locks with series of their own. The number of lock names has no limit, and
/// Prometheus keeps each series for weeks.
const MAX_NAMED: usize = 50;

/// Metrics of a lock.
#[derive(Debug, Clone, PartialEq)]
struct LockMetrics {
    path: String,
    is_held: bool,
    /// `None` if nothing tells the time of the grant, or if the holders cannot be read.
    held_seconds: Option<f64>,
    waiters: usize,
    longest_wait_seconds: f64,
    clashes: bool,
    crashed: bool,
}

/// Returns the metric families: totals of all locks, and series for each of the [`MAX_NAMED`] locks with the most waiters.
pub(super) fn families(locks: &[Snapshot]) -> Vec<MetricFamily> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    families_of(locks.iter().map(|lock| lock_metrics(lock, now_ms)).collect())
}

fn lock_metrics(lock: &Snapshot, now_ms: u64) -> LockMetrics {
    // If the contender's clock is ahead of this machine's clock, the age is 0.
    let age = |since_ms: u64| now_ms.saturating_sub(since_ms) as f64 / 1000.0;
    let held = |holder: &Entry| holder.held_since_ms.map(age);
    LockMetrics {
        path: lock.path.clone(),
        is_held: lock.is_held(),
        held_seconds: match &lock.holder {
            Some(holder) => held(holder),
            // The holders of this lock are not known.
            None if lock.is_held() || !lock.unread.is_empty() => None,
            None => Some(0.0),
        },
        waiters: lock.waiting,
        longest_wait_seconds: lock
            .waiters
            .iter()
            .filter_map(|waiter| waiter.since_ms)
            .map(age)
            .fold(0.0, f64::max),
        clashes: lock.clash.is_some(),
        crashed: lock.previous == "crashed",
    }
}

fn families_of(mut locks: Vec<LockMetrics>) -> Vec<MetricFamily> {
    let count = |which: fn(&LockMetrics) -> bool| locks.iter().filter(|lock| which(lock)).count() as f64;
    let longest = locks.iter().map(|lock| lock.longest_wait_seconds).fold(0.0, f64::max);
    let waiting = locks.iter().map(|lock| lock.waiters as f64).sum();
    let mut families = vec![
        total("zoolock_locks", "locks that were seen", "1", locks.len() as f64),
        total("zoolock_locks_held", "locks that are held", "1", count(|lock| lock.is_held)),
        total("zoolock_locks_waiting", "contenders that wait for a lock", "1", waiting),
        total(
            "zoolock_locks_clashing",
            "locks whose contenders do not see each other, so several may hold",
            "1",
            count(|lock| lock.clashes),
        ),
        total(
            "zoolock_locks_crashed",
            "locks whose last recorded holder crashed",
            "1",
            count(|lock| lock.crashed),
        ),
        total("zoolock_locks_longest_wait_seconds", "longest wait of a current waiter", "s", longest),
    ];
    locks.sort_by(|a, b| b.waiters.cmp(&a.waiters).then_with(|| a.path.cmp(&b.path)));
    locks.truncate(MAX_NAMED);
    if !locks.is_empty() {
        // A lock whose value is unknown has no series.
        let each = |name, help, unit, value: fn(&LockMetrics) -> Option<f64>| {
            let point = |lock: &LockMetrics| {
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
                |lock| Some(lock.waiters as f64),
            ),
            each(
                "zoolock_lock_held_seconds",
                "time since the grant; 0 if the lock is free; missing if the time of the grant is unknown",
                "s",
                |lock| lock.held_seconds,
            ),
            each("zoolock_lock_longest_wait_seconds", "longest wait of a current waiter", "s", |lock| {
                Some(lock.longest_wait_seconds)
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

    fn lock(path: &str, waiters: usize) -> LockMetrics {
        LockMetrics {
            path: path.to_owned(),
            is_held: waiters > 0,
            held_seconds: if path.ends_with("unknown") {
                None
            } else {
                Some(if waiters > 0 { 7.5 } else { 0.0 })
            },
            waiters,
            longest_wait_seconds: waiters as f64,
            clashes: waiters == 3,
            crashed: waiters == 0,
        }
    }

    #[test]
    fn only_most_waited_locks_have_series() {
        let mut locks: Vec<LockMetrics> =
            (0..200).map(|number| lock(&format!("/locks/{number:03}"), 0)).collect();
        locks[123] = lock("/locks/busy", 3);
        locks[124] = lock("/locks/unknown", 2);
        let text = render(&families_of(locks));
        for line in [
            "zoolock_locks 200",
            "zoolock_locks_held 2",
            "zoolock_locks_waiting 5",
            "zoolock_locks_clashing 1",
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
        let text = render(&families_of(Vec::new()));
        assert!(text.contains("\nzoolock_locks 0\n") && !text.contains("zoolock_lock_waiters"), "{text}");
    }
}
