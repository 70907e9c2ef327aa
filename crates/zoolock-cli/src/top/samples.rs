//! Locks and contenders for tests.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::lock::{Lock, Person};
use super::model::{Model, News, Now, Pace, Setting};

/// 2026-01-02 03:04:05 in UTC.
pub(super) const NOON: u64 = 1_767_323_045_000;

pub(super) fn at(seconds: u64) -> Now {
    Now { running: Duration::from_secs(seconds), unix_ms: NOON + seconds * 1000 }
}

pub(super) fn token(number: u32) -> String {
    format!("00000000-{:016x}-00000000", 0x5_0000_0100_u64 + u64::from(number))
}

/// Creates a contender that arrived `ago` seconds before the start of the tests.
pub(super) fn person(number: u32, ago: u64) -> Person {
    let (host, program) = (format!("web{number}"), "backup.sh".to_owned());
    Person {
        node: format!("_c_{number}-lock-{number:010}"),
        token: Some(token(number)),
        asked: false,
        since_ms: Some(NOON - ago * 1000),
        role: "alone".to_owned(),
        words: format!("{host} pid {} ({program})", 4000 + number),
        host: Some(host),
        pid: Some(4000 + number),
        program: Some(program),
        note: None,
    }
}

/// Creates a lock that the first contender holds and the others wait for.
pub(super) fn lock(name: &str, people: &[Person]) -> Lock {
    let (holders, waiters) = people.split_at(people.len().min(1));
    Lock {
        path: format!("/locks/{name}"),
        name: name.to_owned(),
        holders: holders.to_vec(),
        waiters: waiters.to_vec(),
        waiting: waiters.len(),
        previous: "clean",
        ..Lock::default()
    }
}

pub(super) fn setting() -> Setting {
    Setting { place: "zk1:2181 · /locks".to_owned(), read_only: false, zone: TimeZone::UTC }
}

pub(super) fn pace() -> Pace {
    Pace { took: Duration::from_millis(12), every: Duration::from_secs(1) }
}

/// Creates a model with four locks, two seconds after its start.
pub(super) fn model() -> Model {
    let mut model = Model::new(setting(), at(0));
    model.tick(at(2));
    let mut locks = vec![
        lock("db/main", &[person(1, 184), person(2, 60), person(3, 5)]),
        lock("deploys", &[]),
        lock("nightly", &[person(4, 7205), person(5, 7000)]),
        lock("reports", &[person(6, 1)]),
    ];
    for (lock, rate) in locks.iter_mut().zip([Some(0.25), None, Some(0.0), Some(12.5)]) {
        lock.rate = rate;
    }
    model.hear(News::Locks(locks, pace()));
    model
}
