//! Filter and order of the list.

use std::cmp::Reverse;

use super::lock::LockRow;

/// Sort key of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SortOrder {
    Waiters,
    Longest,
    Rate,
}

impl SortOrder {
    pub(super) const ALL: [Self; 3] = [Self::Waiters, Self::Longest, Self::Rate];

    pub(super) fn next(self) -> Self {
        match self {
            Self::Waiters => Self::Longest,
            Self::Longest => Self::Rate,
            Self::Rate => Self::Waiters,
        }
    }
}

/// Returns the indices of the locks that match `filter`, sorted by `order`. Locks that compare equal keep their order in
/// `locks`, which is by path, so that rows do not move back and forth.
pub(super) fn filter_and_sort(locks: &[LockRow], order: SortOrder, filter: &str) -> Vec<usize> {
    let filter = filter.to_lowercase();
    let mut places: Vec<usize> = (0..locks.len())
        .filter(|place| filter.is_empty() || matches_filter(&locks[*place], &filter))
        .collect();
    // The sort keys are cached, so that each key is computed only once.
    match order {
        SortOrder::Waiters => places.sort_by_cached_key(|place| {
            let lock = &locks[*place];
            (Reverse(lock.waiting), lock.longest_since().unwrap_or(u64::MAX))
        }),
        SortOrder::Longest => places.sort_by_cached_key(|place| {
            let lock = &locks[*place];
            (lock.longest_since().unwrap_or(u64::MAX), Reverse(lock.waiting))
        }),
        SortOrder::Rate => places.sort_by_cached_key(|place| {
            let lock = &locks[*place];
            (Reverse(thousandths(lock.rate)), Reverse(lock.waiting))
        }),
    }
    places
}

/// Returns whether the name of the lock or the description of a holder contains the filter.
fn matches_filter(lock: &LockRow, filter: &str) -> bool {
    lock.name.to_lowercase().contains(filter)
        || lock.holders.iter().any(|holder| holder.description.to_lowercase().contains(filter))
}

/// Converts a rate to an integer for sorting. A lock without a rate sorts last.
fn thousandths(rate: Option<f64>) -> i64 {
    rate.map_or(-1, |rate| (rate * 1000.0) as i64)
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
        filter_and_sort(locks, order, filter).into_iter().map(|place| locks[place].name.clone()).collect()
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
    fn filter_matches_names_and_holders_ignoring_case() {
        let holder =
            ContenderRow { description: "Build7 pid 12 (make)".to_owned(), ..ContenderRow::default() };
        let locks = [
            LockRow { name: "db/Main".to_owned(), ..LockRow::default() },
            LockRow { name: "nightly".to_owned(), holders: vec![holder], ..LockRow::default() },
        ];
        assert_eq!(names(&locks, SortOrder::Waiters, "MAIN"), ["db/Main"]);
        assert_eq!(names(&locks, SortOrder::Waiters, "build7"), ["nightly"]);
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
            (SortOrder::Waiters, "9/JOB"),
        ] {
            let took = |locks: &[LockRow]| {
                crate::base::test_snapshots::least_cpu_time(3, || {
                    assert!(!filter_and_sort(locks, order, filter).is_empty())
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
