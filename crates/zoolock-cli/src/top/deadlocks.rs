//! Deadlocks among the locks of the list.

use zoolock::Deadlock;

use super::text::{cut_end, width};
use crate::render::text::format_circle;
use crate::verbs::deadlocks::is_certain;

/// Maximum number of waiters that one read of the list describes. If more locks have waiters, the read describes one
/// waiter of each lock.
const MAX_WAITERS_READ: usize = 2_000;
/// Maximum number of waiters that a read describes of one lock.
const MAX_WAITERS_OF_LOCK: usize = 1_000;

/// A deadlock, as the screen shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeadlockRow {
    /// The circle of locks, such as `a → b → a`.
    pub(super) circle: String,
    /// Number of owners that wait for each other.
    pub(super) owners: usize,
    /// Set if each owner of the circle is one task or program.
    pub(super) is_certain: bool,
}

impl DeadlockRow {
    pub(super) fn of(deadlock: &Deadlock, root: &str) -> DeadlockRow {
        DeadlockRow {
            circle: format_circle(deadlock, root),
            owners: deadlock.owners,
            is_certain: is_certain(deadlock),
        }
    }
}

/// Describes deadlocks in at most `columns` columns. Names the locks of as many deadlocks as possible, and only the number of
/// owners of the others.
pub(super) fn fit_circles(deadlocks: &[DeadlockRow], columns: usize) -> String {
    let count = |owners: usize| format!("{owners} {}", if owners == 1 { "owner" } else { "owners" });
    let describe = |named: usize| {
        let texts = deadlocks.iter().enumerate().map(|(at, row)| match at < named {
            true => row.circle.clone(),
            false => count(row.owners),
        });
        texts.collect::<Vec<_>>().join(", ")
    };
    let mut texts = (0..=deadlocks.len()).rev().map(describe);
    let fitting = texts.find(|text| width(&cut_end(text, usize::MAX)) <= columns);
    fitting.unwrap_or_else(|| count(deadlocks.iter().map(|row| row.owners).sum()))
}

/// Returns the number of waiters per lock that the next read describes. The search for deadlocks needs all waiters, and
/// each waiter costs a request. `waiting` is the number of waiters of each lock at the last read.
pub(super) fn waiters_to_read(waiting: impl Iterator<Item = usize> + Clone) -> usize {
    let fits =
        |limit: usize| waiting.clone().map(|count| count.min(limit)).sum::<usize>() <= MAX_WAITERS_READ;
    let (mut low, mut high) = (1, MAX_WAITERS_OF_LOCK);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use zoolock::{Entry, Snapshot, WaitGraph};

    use super::*;
    use crate::base::test_snapshots::entry;

    fn contender(number: u32, owner: &str) -> Entry {
        let mut entry = entry(&format!("lock-{number:010}"), &format!("0.{number}"));
        entry.owner = Some(owner.to_owned());
        entry
    }

    /// Creates a lock that the first owner holds and the second owner waits for.
    fn lock(name: &str, number: u32, holder: &str, waiter: &str) -> Snapshot {
        let mut lock = Snapshot::default();
        lock.path = format!("/locks/{name}");
        lock.holder = Some(contender(number, holder));
        lock.waiters = vec![contender(number + 1, waiter)];
        lock.waiting = 1;
        lock
    }

    fn rows(locks: &[Snapshot]) -> Vec<DeadlockRow> {
        let deadlocks = WaitGraph::of(locks).deadlocks();
        deadlocks.iter().map(|deadlock| DeadlockRow::of(deadlock, "/locks")).collect()
    }

    #[test]
    fn row_names_the_circle() {
        let found = rows(&[lock("a", 1, "x", "y"), lock("b", 3, "y", "x"), lock("c", 5, "z", "x")]);
        assert_eq!((found.len(), found[0].is_certain), (1, true));
        let circle = &found[0].circle;
        assert!(["a → b → a", "b → a → b"].contains(&circle.as_str()), "{circle}");
    }

    #[test]
    fn long_circles_are_counted_and_not_cut() {
        let row = |circle: &str, owners| DeadlockRow { circle: circle.to_owned(), owners, is_certain: true };
        let rows = [row("a → b → a", 2), row("c → d → e → c", 3)];
        for (columns, text) in [
            (24, "a → b → a, c → d → e → c"),
            (23, "a → b → a, 3 owners"),
            (18, "2 owners, 3 owners"),
            (17, "5 owners"),
        ] {
            assert_eq!(fit_circles(&rows, columns), text);
        }
    }

    #[test]
    fn deadlock_of_sessions_stays_uncertain() {
        let mut locks = [lock("a", 1, "x", "y"), lock("b", 3, "y", "x")];
        for lock in &mut locks {
            for entry in lock.holder.iter_mut().chain(&mut lock.waiters) {
                entry.owner_kind = "session";
            }
        }
        assert_eq!(rows(&locks).iter().map(|row| row.is_certain).collect::<Vec<_>>(), [false]);
    }

    #[test]
    fn waiters_to_read_are_limited() {
        let of = |waiting: &[usize]| waiters_to_read(waiting.iter().copied());
        assert_eq!(of(&[]), 1_000);
        assert_eq!(of(&[0, 3, 700]), 1_000);
        assert_eq!(of(&[100_000]), 1_000);
        assert_eq!(of(&[5_000, 5_000, 5_000, 200]), 600);
        assert_eq!(of(&[9; 100_000]), 1);
    }
}
