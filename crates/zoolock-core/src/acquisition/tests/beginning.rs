//! From head of the queue to holder: the delay after a crash, the `held` marker, and how the
//! previous holder left.

use super::*;
use crate::record::Size;

const ME: Node = Node { prefix: Prefix::Lock, sequence: Sequence(4), czxid: Zxid(20) };

fn hold_marker() -> Marker {
    Marker { state: HolderState::Held, tracked: true, ..released(4) }
}

fn write_hold_marker() -> Request {
    Request::Hold { node: Some(ME), marker: hold_marker(), version: 3 }
}

/// Returns a sole contender in a directory with `record`.
fn sole_contender(config: Config, record: Record) -> Drive {
    let mut drive = Drive::of(config);
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 1, record)));
    drive
}

/// Returns a sole contender that is writing its `held` marker.
fn writing_hold_marker(record: Record) -> Drive {
    sole_contender(Config { tracks_crashes: true, ..config(Kind::Mutex) }, record)
}

/// Answers the requests of the next two reads of the queue: the contender is still the head, and
/// the directory has `record`.
fn answer_check(drive: &mut Drive, record: Record) {
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(30), 1, record)));
    drive.answer(Request::Exists(ME), Ok(mine(ME)));
    drive.answer(Request::List, Ok(children(vec![ME.name()])));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(30), 1, record)));
    drive.answer(Request::Exists(ME), Ok(mine(ME)));
}

#[test]
fn waiter_delays_once_after_possible_crash() {
    let mut drive = sole_contender(Config { delay: 50, ..config(Kind::Mutex) }, Record::Empty);
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![Request::Sleep(50)]));
    drive.wake();
    answer_check(&mut drive, Record::Empty);
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
}

#[test]
fn first_contender_of_directory_does_not_delay() {
    let first = Node { sequence: Sequence(0), ..ME };
    let mut drive = Drive::of(Config { delay: 50, ..config(Kind::Mutex) });
    drive.answer(Request::Join, Ok(Reply::Joined(first)));
    drive.answer(Request::ReadDirectory, Ok(directory(first.czxid, 1, Record::Empty)));
    assert_eq!(drive.take_reported(), [granted(first, Previous::Unknown)]);
}

#[test]
fn clean_release_causes_no_delay() {
    let mut drive = sole_contender(Config { delay: 50, ..config(Kind::Mutex) }, Record::Marker(released(3)));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Clean)]);
}

#[test]
fn tracked_release_overwrites_the_hold_marker() {
    let mut drive = writing_hold_marker(Record::Empty);
    assert_eq!(drive.take_reported(), []);
    drive.answer(write_hold_marker(), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
    drive.answer(watch(4, 0), Ok(mine(ME)));
    drive.feed(Event::Release(HolderState::Released));
    let marker = Marker { tracked: true, ..released(4) };
    drive.answer(Request::Release { node: ME, marker, version: Some(4) }, Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

/// A stale size has the czxid of another directory. Either the record was copied with the
/// directory, or the write of the size was delayed until the directory had been recreated.
#[test]
fn size_of_deleted_semaphore_is_overwritten() {
    let record = |directory| Record::Semaphore(Size { directory, permits: 5 });
    let mut drive = sole_contender(config(Kind::Mutex), record(Zxid(77)));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
    drive.feed(Event::Release(HolderState::Released));
    assert!(drive.pending().contains(&Request::Release { node: ME, marker: released(4), version: Some(3) }));

    let mut drive = writing_hold_marker(record(Zxid(77)));
    drive.answer(write_hold_marker(), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);

    let mut drive = sole_contender(config(Kind::Mutex), record(DIRECTORY));
    assert_eq!(drive.take_reported()[0], Action::Failed(Reason::OtherKind));
}

#[test]
fn lease_lost_during_hold_write_grants_nothing() {
    let mut drive = writing_hold_marker(Record::Empty);
    drive.lease = false;
    drive.answer(write_hold_marker(), Ok(Reply::Done));
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
    drive.lease = true;
    drive.feed(Event::LeaseRenewed);
    answer_check(&mut drive, Record::Marker(hold_marker()));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
}

#[test]
fn failed_hold_write_is_retried_after_check() {
    for (failure, pauses) in [
        (RequestFailure::Throttled, true),
        (RequestFailure::BadVersion, false),
        (RequestFailure::NoNode, false),
    ] {
        let mut drive = writing_hold_marker(Record::Empty);
        drive.answer(write_hold_marker(), Err(failure));
        if pauses {
            drive.wake();
        }
        assert_eq!(drive.take_reported(), []);
        answer_check(&mut drive, Record::Empty);
        assert_eq!(drive.pending(), [write_hold_marker()]);
    }
}

#[test]
fn own_hold_marker_preserves_previous_crash() {
    let mut drive = writing_hold_marker(Record::Marker(Marker {
        state: HolderState::Panicked,
        tracked: true,
        ..released(3)
    }));
    drive.answer(write_hold_marker(), Err(RequestFailure::Unknown));
    drive.wake();
    answer_check(&mut drive, Record::Marker(hold_marker()));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Crashed)]);
}

#[test]
fn crash_is_reported_with_its_marker() {
    for state in [HolderState::Panicked, HolderState::Held] {
        let marker = Marker { state, tracked: true, ..released(3) };
        let mut drive = writing_hold_marker(Record::Marker(marker));
        drive.answer(write_hold_marker(), Ok(Reply::Done));
        let found = Action::CrashFound { lock_index: 0, marker };
        assert_eq!(drive.take_all_reported(), [found, granted(ME, Previous::Crashed)]);
    }
    // A reader replaces no marker. A later writer finds the same crash, and reports it.
    let reader = Node { prefix: Prefix::Read, ..ME };
    let mut drive = Drive::of(config(Kind::Read));
    drive.answer(Request::Join, Ok(Reply::Joined(reader)));
    drive.answer(Request::List, Ok(children(vec![reader.name()])));
    let record = Record::Marker(Marker { state: HolderState::Held, tracked: true, ..released(3) });
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 1, record)));
    assert_eq!(drive.take_all_reported(), [granted(reader, Previous::Crashed)]);
    // This contender does not track crashes, but the release marker shows the panic.
    let marker = Marker { state: HolderState::Panicked, ..released(3) };
    let mut drive = sole_contender(config(Kind::Mutex), Record::Marker(marker));
    let found = Action::CrashFound { lock_index: 0, marker };
    assert_eq!(drive.take_all_reported(), [found, granted(ME, Previous::Crashed)]);
}

/// Without an answer to the barrier, the earlier write may still arrive. So the contender does not
/// delete its znode yet.
#[test]
fn cancelled_hold_write_is_undone_behind_a_barrier() {
    for (barrier, decided) in [(Ok(Reply::Done), true), (Err(RequestFailure::Throttled), false)] {
        let mut drive = writing_hold_marker(Record::Empty);
        drive.feed(Event::Cancel);
        drive.answer(write_hold_marker(), Err(RequestFailure::Unknown));
        drive.answer(write_hold_marker(), barrier);
        drive.answer(Request::Sync, Ok(Reply::Done));
        drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 1, Record::Empty)));
        drive.answer(Request::Exists(ME), Ok(mine(ME)));
        let deletes = drive.pending().iter().any(|request| !matches!(request, Request::Sleep(_)));
        assert_eq!(deletes, decided, "{:?}", drive.pending());
    }
}
