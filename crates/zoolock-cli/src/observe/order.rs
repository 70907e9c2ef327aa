//! Filters and sorts a list of locks.

use std::cmp::Ordering;

use zoolock::admin::Snapshot;

use super::lock::{ListedLock, held_since, longest_wait};
use crate::args::ListOrder;

/// Returns the indices of the locks that `is_wanted` accepts, sorted by `order`: the largest number or the longest time
/// comes first, or last if `reversed` is set. Locks without a value come last in both directions. Locks that compare equal
/// keep their order in `locks`, which is by name, so that rows do not move back and forth.
pub(crate) fn arrange(
    locks: &[ListedLock],
    order: ListOrder,
    reversed: bool,
    is_wanted: impl Fn(&Snapshot) -> bool,
) -> Vec<usize> {
    let mut places: Vec<usize> = (0..locks.len()).filter(|place| is_wanted(&locks[*place].lock)).collect();
    // The sort keys are cached, so that each key is computed only once.
    places.sort_by_cached_key(|place| {
        let ListedLock { lock, rate } = &locks[*place];
        let waiting = number(lock.waiting);
        let (value, second) = match order {
            ListOrder::Name => (Some(0), 0),
            ListOrder::Waiting => (Some(waiting), oldest_first(longest_wait(lock))),
            ListOrder::Longest => (longest_wait(lock).map(age), waiting),
            ListOrder::Rate => (rate.map(thousandths), waiting),
            ListOrder::Held => (held_since(lock).map(age), waiting),
        };
        let key = if reversed {
            (value.unwrap_or_default(), second)
        } else {
            (-value.unwrap_or_default(), -second)
        };
        (value.is_none(), key)
    });
    places
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Returns a value that grows with the time since `since_ms`.
fn age(since_ms: u64) -> i64 {
    -i64::try_from(since_ms).unwrap_or(i64::MAX)
}

/// Returns a value that grows with the time since `since_ms`. An unknown time has the smallest value.
fn oldest_first(since_ms: Option<u64>) -> i64 {
    since_ms.map_or(-i64::MAX, age)
}

/// Converts a rate to an integer for sorting.
fn thousandths(rate: f64) -> i64 {
    (rate * 1000.0) as i64
}

/// Returns whether the name of a lock, or the host, program, note or identifier of a holder, contains `text`, which is in
/// lower case. An empty text is in every lock.
pub(crate) fn has_text(lock: &Snapshot, name: &str, text: &str) -> bool {
    let contains = |field: &str| field.to_lowercase().contains(text);
    contains(name)
        || lock.holders().any(|holder| {
            let fields = [&holder.host, &holder.program, &holder.note, &holder.identifier];
            fields.into_iter().flatten().any(|field| contains(field))
        })
}

/// Compares two names. Numbers in names are compared as numbers, so `job-2` comes before `job-10`.
pub(super) fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (parts(a), parts(b));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return a.cmp(b),
            (a, b) => match a.cmp(&b) {
                Ordering::Equal => {}
                order => return order,
            },
        }
    }
}

/// A part of a name. A slash comes before all other parts, so that a lock comes before its neighbours and directly
/// before the locks below it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Slash,
    /// A number, without leading zeros: its length and its digits.
    Number(usize, &'a str),
    Text(&'a str),
}

fn parts(name: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let is_same = |c: char| c != '/' && c.is_ascii_digit() == first.is_ascii_digit();
        let end = match first {
            '/' => 1,
            _ => rest.find(|c| !is_same(c)).unwrap_or(rest.len()),
        };
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(match first {
            '/' => Part::Slash,
            '0'..='9' => {
                let digits = part.trim_start_matches('0');
                Part::Number(digits.len(), digits)
            }
            _ => Part::Text(part),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::test_snapshots::{entry, least_cpu_time, lock as lock_of};
    use crate::base::unix_time::time_at;

    /// Returns a lock whose waiters joined the queue at `since`.
    fn lock(name: &str, waiting: usize, since: Option<u64>, rate: Option<f64>) -> ListedLock {
        let mut waiter = entry("lock-0000000002", "0.2");
        waiter.since = since.map(time_at);
        ListedLock { lock: lock_of(name, None, vec![waiter; waiting]), rate }
    }

    fn names(locks: &[ListedLock], order: ListOrder, reversed: bool) -> Vec<&str> {
        let places = arrange(locks, order, reversed, |_| true);
        places.into_iter().map(|place| locks[place].lock.path.as_str()).collect()
    }

    #[test]
    fn numbers_in_names_are_compared_as_numbers() {
        let mut names = vec!["a/job-10", "a/job-9/x", "a", "b", "a/job-9", "a/job-010", "a-1", "a/job-9b"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["a", "a/job-9", "a/job-9/x", "a/job-9b", "a/job-010", "a/job-10", "a-1", "b"]);
    }

    #[test]
    fn largest_comes_first_and_equals_keep_order() {
        let locks = [
            lock("a", 0, None, None),
            lock("b", 1, Some(5), Some(0.0)),
            lock("c", 3, Some(9), Some(2.0)),
            lock("d", 1, Some(1), Some(20.0)),
            lock("e", 0, None, None),
        ];
        assert_eq!(names(&locks, ListOrder::Name, false), ["a", "b", "c", "d", "e"]);
        assert_eq!(names(&locks, ListOrder::Waiting, false), ["c", "d", "b", "a", "e"]);
        assert_eq!(names(&locks, ListOrder::Longest, false), ["d", "b", "c", "a", "e"]);
        assert_eq!(names(&locks, ListOrder::Rate, false), ["d", "c", "b", "a", "e"]);
    }

    #[test]
    fn reverse_order_keeps_missing_values_last() {
        let locks =
            [lock("a", 0, None, None), lock("b", 1, Some(5), Some(0.0)), lock("c", 3, Some(9), Some(2.0))];
        assert_eq!(names(&locks, ListOrder::Waiting, true), ["a", "b", "c"]);
        assert_eq!(names(&locks, ListOrder::Longest, true), ["c", "b", "a"]);
        assert_eq!(names(&locks, ListOrder::Rate, true), ["b", "c", "a"]);
    }

    #[test]
    fn unknown_time_of_grant_sorts_as_maximum() {
        let held = |name: &str, since_ms, held_since_ms: Option<u64>| {
            let mut holder = entry("lock-0000000001", "0.1");
            (holder.since, holder.held_since) = (Some(time_at(since_ms)), held_since_ms.map(time_at));
            ListedLock { lock: lock_of(name, Some(holder), vec![]), rate: None }
        };
        let locks = [
            lock("free", 0, None, None),
            held("waited", 1, Some(30)),
            held("unknown", 10, None),
            held("known", 20, Some(20)),
        ];
        assert_eq!(names(&locks, ListOrder::Held, false), ["unknown", "known", "waited", "free"]);
    }

    #[test]
    fn filter_searches_names_and_holders_ignoring_case() {
        let mut holder = entry("lock-0000000001", "0.1");
        (holder.host, holder.note) = (Some("Build7".to_owned()), Some("Release 8".to_owned()));
        let lock = lock_of("/locks/nightly", Some(holder), vec![]);
        for (text, is_in_lock) in
            [("", true), ("build7", true), ("release", true), ("night", true), ("locks", false)]
        {
            assert_eq!(has_text(&lock, "Nightly", text), is_in_lock, "{text}");
        }
    }

    /// Ten times as many locks must take about ten times as long, not a hundred times.
    #[test]
    fn sorting_time_is_nearly_linear() {
        let made = |count: usize| {
            let lock = |n: usize| {
                let busy = n.wrapping_mul(7919) % 10;
                let rate = Some(n.wrapping_mul(104_729) as f64 % 13.0);
                lock(&format!("team/{n}/job"), busy, Some(n as u64 % 997), rate)
            };
            (0..count).map(lock).collect::<Vec<_>>()
        };
        let (some, many) = (made(10_000), made(100_000));
        for (order, text) in [
            (ListOrder::Waiting, ""),
            (ListOrder::Longest, ""),
            (ListOrder::Rate, ""),
            (ListOrder::Held, ""),
            (ListOrder::Waiting, "9/job"),
        ] {
            let took = |locks: &[ListedLock]| {
                least_cpu_time(3, || {
                    let places = arrange(locks, order, false, |lock| has_text(lock, &lock.path, text));
                    assert!(!places.is_empty())
                })
            };
            let (some, many) = (took(&some), took(&many));
            assert!(
                many < some * 40 + Duration::from_millis(50),
                "{order:?} {text:?}: {some:?} and {many:?}"
            );
        }
    }
}
