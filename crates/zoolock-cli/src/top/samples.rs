//! Locks and contenders for tests.

use std::time::Duration;

use jiff::tz::TimeZone;
use zoolock::Ticket;
use zoolock::admin::{Deadlock, Entry, OwnerKind, PreviousEnd, WaitGraph};

use super::model::{ReadPace, ReadResult, ScreenModel, ScreenTime, Setting};
use crate::base::test_snapshots;
use crate::base::unix_time::time_at;
use crate::observe::{ListedLock, LockList};

/// Time at which the tests start: 2026-01-02 03:04:05 in UTC.
pub(super) const START_MS: u64 = 1_767_323_045_000;

pub(super) fn at(seconds: u64) -> ScreenTime {
    ScreenTime { running: Duration::from_secs(seconds), unix_ms: START_MS + seconds * 1000 }
}

pub(super) fn token(number: u32) -> String {
    format!("00000000-{:016x}-00000000", 0x5_0000_0100_u64 + u64::from(number))
}

/// Returns the same token as a ticket.
pub(super) fn ticket(number: u32) -> Ticket {
    token(number).parse().expect("a ticket")
}

/// Creates a contender that joined the queue `ago` seconds before `START_MS`.
pub(super) fn contender(number: u32, ago: u64) -> Entry {
    let mut entry = test_snapshots::entry(&format!("_c_{number}-lock-{number:010}"), &token(number));
    (entry.host, entry.pid) = (Some(format!("web{number}")), Some(4000 + number));
    (entry.program, entry.since) = (Some("backup.sh".to_owned()), Some(time_at(START_MS - ago * 1000)));
    entry
}

/// Creates a lock that the first contender holds and the others wait for. The holder was granted the lock at once.
pub(super) fn lock(name: &str, contenders: &[Entry]) -> ListedLock {
    let mut contenders = contenders.iter().cloned();
    let mut holder = contenders.next();
    if let Some(holder) = &mut holder {
        holder.held_since = holder.since;
    }
    let mut lock = test_snapshots::lock(&format!("/locks/{name}"), holder, contenders.collect());
    lock.previous = PreviousEnd::Clean;
    ListedLock { lock, rate: None }
}

/// Creates a read of these locks without deadlocks.
pub(super) fn read(locks: Vec<ListedLock>) -> ReadResult {
    ReadResult::Locks(LockList { locks, ..LockList::default() }, pace())
}

/// Creates a read of a queue without events.
pub(super) fn read_queue(lock: ListedLock) -> ReadResult {
    ReadResult::Queue(Box::new(lock), None, pace())
}

/// Creates a deadlock, whose circle begins with the first name: each owner of `owner_kind` holds a lock, and waits for the
/// next one.
pub(super) fn deadlock(names: &[&str], owner_kind: OwnerKind) -> Deadlock {
    let contender = |number: usize, owner: usize| {
        let mut entry = contender(u32::try_from(number).expect("a small number"), 60);
        (entry.owner, entry.owner_kind) = (Some(owner.to_string()), owner_kind);
        entry
    };
    let count = names.len();
    let places = names.iter().cycle().skip(count - 1).take(count).enumerate();
    let locks = places.map(|(at, name)| {
        lock(name, &[contender(2 * at, at), contender(2 * at + 1, (at + count - 1) % count)]).lock
    });
    let mut found = WaitGraph::of(&locks.collect::<Vec<_>>()).deadlocks();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

pub(super) fn setting() -> Setting {
    Setting {
        root: "/locks".to_owned(),
        title: "zk1:2181 · /locks".to_owned(),
        address: "zk1:2181".to_owned(),
        read_only: false,
        zone: TimeZone::UTC,
    }
}

pub(super) fn pace() -> ReadPace {
    ReadPace { took: Duration::from_millis(12), every: Duration::from_secs(1) }
}

/// Creates a model with four locks, two seconds after its start.
pub(super) fn model() -> ScreenModel {
    let mut model = ScreenModel::new(setting(), at(0));
    model.tick(at(2));
    let mut locks = vec![
        lock("db/main", &[contender(1, 184), contender(2, 60), contender(3, 5)]),
        lock("deploys", &[]),
        lock("nightly", &[contender(4, 7205), contender(5, 7000)]),
        lock("reports", &[contender(6, 1)]),
    ];
    for (lock, rate) in locks.iter_mut().zip([Some(0.25), None, Some(0.0), Some(12.5)]) {
        lock.rate = rate;
    }
    model.handle_read(read(locks));
    model
}
