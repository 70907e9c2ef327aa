//! The choice and the order of the locks that `ls` lists.

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use zoolock::Snapshot;

use crate::args::ListOrder;

/// The locks that `ls` lists, and their order.
#[derive(Debug, Clone)]
pub(crate) struct ListSelection {
    pub(crate) order: ListOrder,
    /// Leaves out the locks without waiters.
    pub(crate) waiting: bool,
    /// Leaves out the locks without a holder on this host.
    pub(crate) held_by: Option<String>,
    /// Leaves out the locks that have certainly been held for less than this time.
    pub(crate) older: Option<Duration>,
}

impl ListSelection {
    /// Removes the locks that are not listed, and sorts the others. `now_ms`: the current Unix time in milliseconds.
    pub(crate) fn apply(&self, locks: &mut Vec<Snapshot>, now_ms: u64) {
        locks.retain(|lock| self.contains(lock, now_ms));
        locks.sort_by(|a, b| natural_order(&a.path, &b.path));
        match self.order {
            ListOrder::Name => {}
            ListOrder::Waiting => locks.sort_by_key(|lock| Reverse(lock.waiting)),
            ListOrder::Held => locks.sort_by_key(|lock| held_since(lock).unwrap_or(u64::MAX)),
            ListOrder::Longest => locks.sort_by_key(|lock| {
                lock.waiters.iter().filter_map(|waiter| waiter.since_ms).min().unwrap_or(u64::MAX)
            }),
        }
    }

    fn contains(&self, lock: &Snapshot, now_ms: u64) -> bool {
        let is_on = |host: &String| lock.holders().any(|holder| holder.host.as_ref() == Some(host));
        let is_old = |age: Duration| {
            let latest = now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            held_since(lock).is_some_and(|since| since <= latest)
        };
        (!self.waiting || lock.waiting > 0)
            && self.held_by.as_ref().is_none_or(is_on)
            && self.older.is_none_or(is_old)
    }
}

/// Returns the time of the grant, or if it is unknown, the earliest possible one.
pub(crate) fn held_since(lock: &Snapshot) -> Option<u64> {
    lock.holders().filter_map(|holder| holder.held_since_ms.or(holder.since_ms)).min()
}

/// Compares two names. Numbers in names are compared as numbers, so `job-2` comes before `job-10`.
pub(crate) fn natural_order(a: &str, b: &str) -> Ordering {
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
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

    #[test]
    fn numbers_in_names_are_compared_as_numbers() {
        let mut names = vec!["a/job-10", "a/job-9/x", "a", "b", "a/job-9", "a/job-010", "a-1", "a/job-9b"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["a", "a/job-9", "a/job-9/x", "a/job-9b", "a/job-010", "a/job-10", "a-1", "b"]);
    }

    #[test]
    fn locks_are_selected_and_sorted() {
        let holder = |host: &str, since, held_since| {
            let mut holder = entry("lock-0000000001", "0.1");
            (holder.host, holder.since_ms, holder.held_since_ms) = (Some(host.to_owned()), since, held_since);
            Some(holder)
        };
        let waiter = |since| {
            let mut waiter = entry("lock-0000000002", "0.2");
            waiter.since_ms = Some(since);
            vec![waiter]
        };
        let locks = || {
            vec![
                lock("/locks/10", holder("web1", Some(1_000), Some(90_000)), waiter(50_000)),
                lock("/locks/9", holder("web2", Some(20_000), None), Vec::new()),
                lock("/locks/8", None, waiter(40_000)),
            ]
        };
        let all = ListSelection { order: ListOrder::Name, waiting: false, held_by: None, older: None };
        let listed = |selection: ListSelection| {
            let mut locks = locks();
            selection.apply(&mut locks, 100_000);
            locks.into_iter().map(|lock| lock.path.replace("/locks/", "")).collect::<Vec<_>>()
        };
        assert_eq!(listed(all.clone()), ["8", "9", "10"]);
        assert_eq!(listed(ListSelection { order: ListOrder::Held, ..all.clone() }), ["9", "10", "8"]);
        assert_eq!(listed(ListSelection { order: ListOrder::Longest, ..all.clone() }), ["8", "10", "9"]);
        assert_eq!(listed(ListSelection { order: ListOrder::Waiting, ..all.clone() }), ["8", "10", "9"]);
        assert_eq!(listed(ListSelection { waiting: true, ..all.clone() }), ["8", "10"]);
        assert_eq!(listed(ListSelection { held_by: Some("web1".to_owned()), ..all.clone() }), ["10"]);
        // Lock 9 may have been held since 20 s, lock 10 has been held for 10 s.
        let older = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(listed(ListSelection { older: older(11), ..all.clone() }), ["9"]);
        assert_eq!(listed(ListSelection { older: older(10), ..all }), ["9", "10"]);
    }
}
