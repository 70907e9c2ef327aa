//! Sample locks and a processor-time measurement, for tests.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use zoolock::Ticket;
use zoolock::admin::{Entry, Family, OwnerKind, PreviousEnd, Role};

use crate::base::unix_time::time_at;

/// Runs `work` `rounds` times, and returns the shortest processor time of a run. Counts only this thread, so other load on
/// the machine does not matter.
pub(crate) fn least_cpu_time(rounds: usize, mut work: impl FnMut()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("time is not negative");
    let round = |_| {
        let begun = now();
        work();
        now() - begun
    };
    (0..rounds).map(round).min().expect("at least one round")
}

/// Returns the ticket with this text, or with this number: `0.7` is the ticket of the transaction 7.
pub(crate) fn ticket(text: &str) -> Ticket {
    text.parse().unwrap_or_else(|_| {
        let number: u64 = text.split('.').nth(1).and_then(|number| number.parse().ok()).expect("a number");
        format!("00000000-{number:016x}-00000000").parse().expect("a ticket")
    })
}

/// Creates an exclusive contender with a znode name in zoolock's own format.
pub(crate) fn entry(node: &str, token: &str) -> Entry {
    let mut entry = Entry::default();
    (entry.node, entry.token) = (node.to_owned(), Some(ticket(token)));
    (entry.family, entry.role, entry.weight) = (Family::Native, Role::Exclusive, 1);
    (entry.host, entry.pid, entry.since) = (Some("host".to_owned()), Some(7), Some(time_at(1_000)));
    (entry.owner, entry.owner_kind) = (Some("job-7".to_owned()), OwnerKind::Owner);
    entry
}

/// Creates a lock with this holder and these waiters.
pub(crate) fn lock(path: &str, holder: Option<Entry>, waiters: Vec<Entry>) -> zoolock::admin::Snapshot {
    let mut lock = zoolock::admin::Snapshot::default();
    (lock.path, lock.holder, lock.previous) = (path.to_owned(), holder, PreviousEnd::Unknown);
    (lock.waiting, lock.waiters) = (waiters.len(), waiters);
    lock
}
