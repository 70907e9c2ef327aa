//! Locks and contenders for tests.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::lock::{ContenderRow, LockRow};
use super::model::{ReadPace, ReadResult, ScreenModel, ScreenTime, Setting};

/// Time at which the tests start: 2026-01-02 03:04:05 in UTC.
pub(super) const START_MS: u64 = 1_767_323_045_000;

pub(super) fn at(seconds: u64) -> ScreenTime {
    ScreenTime { running: Duration::from_secs(seconds), unix_ms: START_MS + seconds * 1000 }
}

pub(super) fn token(number: u32) -> String {
    format!("00000000-{:016x}-00000000", 0x5_0000_0100_u64 + u64::from(number))
}

/// Creates a contender that joined the queue `ago` seconds before `START_MS`.
pub(super) fn contender(number: u32, ago: u64) -> ContenderRow {
    let (host, program) = (format!("web{number}"), "backup.sh".to_owned());
    ContenderRow {
        node: format!("_c_{number}-lock-{number:010}"),
        token: Some(token(number)),
        revoked: false,
        asked_ms: None,
        since_ms: Some(START_MS - ago * 1000),
        held_since_ms: None,
        role: "exclusive".to_owned(),
        description: format!("{host} pid {} ({program})", 4000 + number),
        host: Some(host),
        pid: Some(4000 + number),
        program: Some(program),
        unrevocable: None,
        note: None,
    }
}

/// Creates a lock that the first contender holds and the others wait for. The holder was granted the lock at once.
pub(super) fn lock(name: &str, contenders: &[ContenderRow]) -> LockRow {
    let (holders, waiters) = contenders.split_at(contenders.len().min(1));
    let granted = |holder: &ContenderRow| ContenderRow { held_since_ms: holder.since_ms, ..holder.clone() };
    LockRow {
        path: format!("/locks/{name}"),
        name: name.to_owned(),
        holders: holders.iter().map(granted).collect(),
        waiters: waiters.to_vec(),
        waiting: waiters.len(),
        previous: "clean",
        ..LockRow::default()
    }
}

pub(super) fn setting() -> Setting {
    Setting {
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
    model.handle_read(ReadResult::Locks(locks, pace()));
    model
}
