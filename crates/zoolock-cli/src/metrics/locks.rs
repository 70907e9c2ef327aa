//! Metrics of a list of locks: totals, and metrics of the locks with the most waiters.

use std::time::{SystemTime, UNIX_EPOCH};

use zoolock::{Entry, Snapshot};

use super::{Family, Point, Value};

/// Maximum number of locks with series of their own. Names are unbounded, and Prometheus keeps each series for weeks.
const NAMED: usize = 50;

/// Metrics of a lock.
#[derive(Debug, Clone, PartialEq)]
struct Figures {
    path: String,
    is_held: bool,
    held_seconds: f64,
    waiters: usize,
    longest_wait_seconds: f64,
    clashes: bool,
    crashed: bool,
}

/// Returns the metric families: totals of all locks, and one series for each of the first [`NAMED`] locks.
pub(super) fn families(locks: &[Snapshot]) -> Vec<Family> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    of(locks.iter().map(|lock| figures(lock, now_ms)).collect())
}

fn figures(lock: &Snapshot, now_ms: u64) -> Figures {
    // The contender's clock may be ahead of this one: the age is never negative.
    let since = |entry: &Entry| Some(now_ms.saturating_sub(entry.since_ms?) as f64 / 1000.0);
    Figures {
        path: lock.path.clone(),
        is_held: lock.is_held(),
        held_seconds: lock.holder.as_ref().and_then(since).unwrap_or(0.0),
        waiters: lock.waiting,
        longest_wait_seconds: lock.waiters.iter().filter_map(since).fold(0.0, f64::max),
        clashes: lock.clash.is_some(),
        crashed: lock.previous == "crashed",
    }
}

fn of(mut locks: Vec<Figures>) -> Vec<Family> {
    let count = |which: fn(&Figures) -> bool| locks.iter().filter(|lock| which(lock)).count() as f64;
    let longest = locks.iter().map(|lock| lock.longest_wait_seconds).fold(0.0, f64::max);
    let waiting = locks.iter().map(|lock| lock.waiters as f64).sum();
    let mut families = vec![
        total("zoolock_locks", "locks that were seen", "1", locks.len() as f64),
        total("zoolock_locks_held", "locks that are held", "1", count(|lock| lock.is_held)),
        total("zoolock_locks_waiting", "contenders that wait for a lock", "1", waiting),
        total(
            "zoolock_locks_clashing",
            "locks that several may hold, since their clients do not see each other",
            "1",
            count(|lock| lock.clashes),
        ),
        total("zoolock_locks_crashed", "locks whose last holder crashed", "1", count(|lock| lock.crashed)),
        total("zoolock_locks_longest_wait_seconds", "longest wait of a current waiter", "s", longest),
    ];
    locks.sort_by(|a, b| b.waiters.cmp(&a.waiters).then_with(|| a.path.cmp(&b.path)));
    locks.truncate(NAMED);
    if !locks.is_empty() {
        let each = |name, help, unit, value: fn(&Figures) -> f64| {
            let point = |lock: &Figures| Point {
                labels: vec![("lock".to_owned(), lock.path.clone())],
                value: Value::Gauge(value(lock)),
            };
            family(name, help, unit, locks.iter().map(point).collect())
        };
        families.extend([
            each(
                "zoolock_lock_waiters",
                "who waits for this lock, of those that most wait for",
                "1",
                |lock| lock.waiters as f64,
            ),
            each(
                "zoolock_lock_held_seconds",
                "how long its holder has been there; 0: it is free",
                "s",
                |lock| lock.held_seconds,
            ),
            each("zoolock_lock_longest_wait_seconds", "how long its first waiter has waited", "s", |lock| {
                lock.longest_wait_seconds
            }),
        ]);
    }
    families
}

fn total(name: &str, help: &str, unit: &'static str, value: f64) -> Family {
    family(name, help, unit, vec![Point { labels: Vec::new(), value: Value::Gauge(value) }])
}

fn family(name: &str, help: &str, unit: &'static str, points: Vec<Point>) -> Family {
    Family { name: name.to_owned(), help: help.to_owned(), unit, points }
}

#[cfg(test)]
mod tests {
    use super::super::text::render;
    use super::*;

    fn lock(path: &str, waiters: usize) -> Figures {
        Figures {
            path: path.to_owned(),
            is_held: waiters > 0,
            held_seconds: if waiters > 0 { 7.5 } else { 0.0 },
            waiters,
            longest_wait_seconds: waiters as f64,
            clashes: waiters == 3,
            crashed: waiters == 0,
        }
    }

    #[test]
    fn totals_are_of_all_locks_and_names_of_those_that_most_wait_for() {
        let mut locks: Vec<Figures> =
            (0..200).map(|number| lock(&format!("/locks/{number:03}"), 0)).collect();
        locks[123] = lock("/locks/busy", 3);
        let text = render(&of(locks));
        for line in [
            "zoolock_locks 200",
            "zoolock_locks_held 1",
            "zoolock_locks_waiting 3",
            "zoolock_locks_clashing 1",
            "zoolock_locks_crashed 199",
            "zoolock_locks_longest_wait_seconds 3",
            "zoolock_lock_waiters{lock=\"/locks/busy\"} 3",
            "zoolock_lock_held_seconds{lock=\"/locks/busy\"} 7.5",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        let named = text.lines().filter(|line| line.starts_with("zoolock_lock_waiters{")).count();
        assert_eq!(named, NAMED);
    }

    #[test]
    fn where_there_are_no_locks_that_is_said() {
        let text = render(&of(Vec::new()));
        assert!(text.contains("\nzoolock_locks 0\n") && !text.contains("zoolock_lock_waiters"), "{text}");
    }
}
