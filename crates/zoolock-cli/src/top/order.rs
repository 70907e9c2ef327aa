//! Filter and order of the list.

use super::lock::LockRow;

/// Sort key of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortOrder {
    Waiters,
    Longest,
    Rate,
    Held,
}

impl SortOrder {
    pub(super) const ALL: [Self; 4] = [Self::Waiters, Self::Longest, Self::Rate, Self::Held];

    pub(super) fn next(self) -> Self {
        match self {
            Self::Waiters => Self::Longest,
            Self::Longest => Self::Rate,
            Self::Rate => Self::Held,
            Self::Held => Self::Waiters,
        }
    }
}

/// Returns the indices of the locks that match `filter`, sorted by `order`: the largest number or the longest time comes
/// first, or last if `reversed` is set. Locks without a value come last in both directions. Locks that compare equal
/// keep their order in `locks`, which is by path, so that rows do not move back and forth.
pub(super) fn filter_and_sort(
    locks: &[LockRow],
    order: SortOrder,
    reversed: bool,
    filter: &str,
) -> Vec<usize> {
    let filter = filter.to_lowercase();
    let mut places: Vec<usize> = (0..locks.len())
        .filter(|place| filter.is_empty() || matches_filter(&locks[*place], &filter))
        .collect();
    // The sort keys are cached, so that each key is computed only once.
    places.sort_by_cached_key(|place| {
        let lock = &locks[*place];
        let (value, second) = match order {
            SortOrder::Waiters => (Some(number(lock.waiting)), oldest_first(lock.longest_since())),
            SortOrder::Longest => (lock.longest_since().map(age), number(lock.waiting)),
            SortOrder::Rate => (lock.rate.map(thousandths), number(lock.waiting)),
            SortOrder::Held => (lock.held_since().map(age), number(lock.waiting)),
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

/// Returns whether the name of the lock, or the description or the note of a holder, contains the filter.
fn matches_filter(lock: &LockRow, filter: &str) -> bool {
    lock.name.to_lowercase().contains(filter)
        || lock.holders.iter().any(|holder| holder.full_description().to_lowercase().contains(filter))
}

/// Converts a rate to an integer for sorting.
fn thousandths(rate: f64) -> i64 {
    (rate * 1000.0) as i64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::lock::ContenderRow;
    use super::*;

    fn lock(name: &str, waiting: usize, since: Option<u64>, rate: Option<f64>) -> LockRow {
        let waiter = ContenderRow { since_ms: since, ..ContenderRow::default() };
        LockRow { name: name.to_owned(), waiting, waiters: vec![waiter; waiting], rate, ..LockRow::default() }
    }

    fn names(locks: &[LockRow], order: SortOrder, filter: &str) -> Vec<String> {
        filter_and_sort(locks, order, false, filter)
            .into_iter()
            .map(|place| locks[place].name.clone())
            .collect()
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
        assert_eq!(names(&locks, SortOrder::Waiters, ""), ["c", "d", "b", "a", "e"]);
        assert_eq!(names(&locks, SortOrder::Longest, ""), ["d", "b", "c", "a", "e"]);
        assert_eq!(names(&locks, SortOrder::Rate, ""), ["d", "c", "b", "a", "e"]);
    }

    #[test]
    fn reverse_order_keeps_missing_values_last() {
        let locks =
            [lock("a", 0, None, None), lock("b", 1, Some(5), Some(0.0)), lock("c", 3, Some(9), Some(2.0))];
        let names = |order| -> Vec<String> {
            let rows = filter_and_sort(&locks, order, true, "");
            rows.into_iter().map(|place| locks[place].name.clone()).collect()
        };
        assert_eq!(names(SortOrder::Waiters), ["a", "b", "c"]);
        assert_eq!(names(SortOrder::Longest), ["c", "b", "a"]);
        assert_eq!(names(SortOrder::Rate), ["b", "c", "a"]);
    }

    #[test]
    fn unknown_time_of_grant_sorts_as_maximum() {
        let held = |name: &str, since_ms, held_since_ms| {
            let holder = ContenderRow { since_ms, held_since_ms, ..ContenderRow::default() };
            LockRow { name: name.to_owned(), holders: vec![holder], ..LockRow::default() }
        };
        let free = LockRow { name: "free".to_owned(), ..LockRow::default() };
        let locks = [
            free,
            held("waited", Some(1), Some(30)),
            held("unknown", Some(10), None),
            held("known", Some(20), Some(20)),
        ];
        assert_eq!(names(&locks, SortOrder::Held, ""), ["unknown", "known", "waited", "free"]);
    }

    #[test]
    fn filter_matches_names_and_holders_ignoring_case() {
        let holder = ContenderRow {
            description: "Build7 pid 12 (make)".to_owned(),
            note: Some("Release 8".to_owned()),
            ..ContenderRow::default()
        };
        let locks = [
            LockRow { name: "db/Main".to_owned(), ..LockRow::default() },
            LockRow { name: "nightly".to_owned(), holders: vec![holder], ..LockRow::default() },
        ];
        assert_eq!(names(&locks, SortOrder::Waiters, "MAIN"), ["db/Main"]);
        assert_eq!(names(&locks, SortOrder::Waiters, "build7"), ["nightly"]);
        assert_eq!(names(&locks, SortOrder::Waiters, "release"), ["nightly"]);
        assert_eq!(names(&locks, SortOrder::Waiters, "elsewhere"), Vec::<String>::new());
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
        for (order, filter) in [
            (SortOrder::Waiters, ""),
            (SortOrder::Longest, ""),
            (SortOrder::Rate, ""),
            (SortOrder::Held, ""),
            (SortOrder::Waiters, "9/JOB"),
        ] {
            let took = |locks: &[LockRow]| {
                crate::base::test_snapshots::least_cpu_time(3, || {
                    assert!(!filter_and_sort(locks, order, false, filter).is_empty())
                })
            };
            let (some, many) = (took(&some), took(&many));
            assert!(
                many < some * 40 + Duration::from_millis(50),
                "{order:?} {filter:?}: {some:?} and {many:?}"
            );
        }
    }
}
