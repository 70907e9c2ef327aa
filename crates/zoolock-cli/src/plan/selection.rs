//! The choice and the order of the locks that `ls` lists.

use std::time::Duration;

use zoolock::Snapshot;

use crate::args::ListOrder;
use crate::observe::{LockList, arrange, held_since};

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
    /// Returns the listed locks in their order. `now_ms`: the current Unix time in milliseconds.
    pub(crate) fn apply<'a>(&self, list: &'a LockList, now_ms: u64) -> Vec<&'a Snapshot> {
        let places = arrange(&list.locks, self.order, false, |lock| self.contains(lock, now_ms));
        places.into_iter().map(|place| &list.locks[place].lock).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::test_snapshots::{entry, lock};

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
            let list = LockList::of(locks());
            let listed = selection.apply(&list, 100_000);
            listed.into_iter().map(|lock| lock.path.replace("/locks/", "")).collect::<Vec<_>>()
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
