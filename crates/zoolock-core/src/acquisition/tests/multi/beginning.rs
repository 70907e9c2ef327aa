//! The `held` markers of a multi-lock that tracks crashes.

use super::*;

/// Returns the record in the first directory: the previous holder died.
fn crashed() -> Marker {
    Marker { state: HolderState::Held, tracked: true, ..marker(0, 3) }
}

fn begun(at: usize) -> Marker {
    Marker { state: HolderState::Held, tracked: true, ..marker(at, NUMBERS[at]) }
}

fn hold_all() -> Request {
    let beginning =
        |lock_index| HoldOp { lock_index, node: node(lock_index), marker: begun(lock_index), version: 3 };
    Request::HoldAll(vec![beginning(0), beginning(1)])
}

/// Returns a contender that is the head of both queues and is writing its `held` markers.
fn recording() -> Drive {
    let mut drive = Drive::start_with(|config| config.tracks_crashes = true);
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Marker(crashed())));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 1, Record::Empty));
    drive.answer(0, watch(0, 4), own(0));
    drive.answer(1, watch(1, 9), own(1));
    assert_eq!(drive.pending(), [(0, hold_all())]);
    drive
}

#[test]
fn all_held_markers_are_written_together() {
    let mut drive = recording();
    assert_eq!(drive.take_reported(), []);
    drive.answer(0, hold_all(), DONE);
    assert_eq!(drive.take_reported(), [granted(Previous::Crashed)]);
    drive.feed(Event::Release(HolderState::Released));
    let release = |at| {
        let left = Marker { state: HolderState::Released, ..begun(at) };
        ReleaseOp { node: node(at), marker: Some((left, Some(4))) }
    };
    drive.answer(0, Request::ReleaseAll(vec![release(0), release(1)]), DONE);
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

#[test]
fn head_of_one_queue_writes_no_held_marker() {
    let mut drive = Drive::start_with(|config| config.tracks_crashes = true);
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Marker(crashed())));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 2, Record::Empty));
    assert_eq!(drive.pending(), [(0, watch(0, 4)), (1, watch(1, 8))]);
}

#[test]
fn unseen_grant_restores_the_record() {
    let mut drive = recording();
    drive.answer(0, hold_all(), DONE);
    drive.feed(Event::Cancel);
    let restored = Request::Release { node: node(0), marker: crashed(), version: Some(4) };
    let broken = Marker { state: HolderState::Broken, ..begun(1) };
    drive.answer(0, restored, DONE);
    drive.answer(1, Request::Release { node: node(1), marker: broken, version: Some(4) }, DONE);
    assert!(drive.machine.is_over());
}

#[test]
fn possibly_written_held_markers_are_undone() {
    let mut drive = recording();
    drive.feed(Event::Cancel);
    drive.answer(0, hold_all(), DONE);
    for at in [0, 1] {
        let barrier = Request::Hold { node: Some(node(at)), marker: begun(at), version: 3 };
        drive.answer(at, barrier, Err(RequestFailure::BadVersion));
        drive.answer(at, Request::Sync, DONE);
        let Ok(Reply::Directory(read)) = directory(at, ME, 1, Record::Marker(begun(at))) else {
            unreachable!()
        };
        drive.answer(at, Request::ReadDirectory, Ok(Reply::Directory(Directory { version: 4, ..read })));
        drive.answer(at, Request::Exists(node(at)), own(at));
        let marker = if at == 0 { crashed() } else { Marker { state: HolderState::Broken, ..begun(1) } };
        drive.answer(at, Request::Release { node: node(at), marker, version: Some(4) }, DONE);
    }
    assert!(drive.machine.is_over());
}

#[test]
fn record_that_another_client_changed_is_read_again() {
    let mut drive = recording();
    drive.answer(0, hold_all(), Err(RequestFailure::BadVersion));
    for at in [0, 1] {
        let record = Record::Marker(Marker { tracked: true, ..marker(at, NUMBERS[at] - 1) });
        drive.answer(at, Request::ReadDirectory, directory(at, ME, 1, record));
        drive.answer(at, Request::Exists(node(at)), own(at));
        drive.answer(at, watch(at as u16, NUMBERS[at]), own(at));
    }
    // All znodes are read again after this wait.
    drive.answer(0, Request::Exists(node(0)), own(0));
    drive.answer(1, Request::Exists(node(1)), own(1));
    drive.answer(0, hold_all(), DONE);
    assert_eq!(drive.take_reported().pop(), Some(granted(Previous::Clean)));
}

#[test]
fn lost_hold_reply_is_found_in_the_records() {
    let mut drive = recording();
    drive.lose_connection();
    drive.wake();
    for at in [0, 1] {
        drive.answer(at, Request::ReadDirectory, directory(at, ME, 1, Record::Marker(begun(at))));
        drive.answer(at, Request::Exists(node(at)), own(at));
        let names = vec![node(at).name()];
        drive.answer(at, Request::List, Ok(Reply::Children { names, pzxid: ME }));
        drive.answer(at, Request::ReadDirectory, directory(at, ME, 1, Record::Marker(begun(at))));
        drive.answer(at, Request::Exists(node(at)), own(at));
        drive.answer(at, watch(at as u16, NUMBERS[at]), own(at));
    }
    drive.answer(0, Request::Exists(node(0)), own(0));
    drive.answer(1, Request::Exists(node(1)), own(1));
    assert_eq!(drive.pending(), [], "the markers are not written again");
    assert_eq!(drive.take_reported().pop(), Some(granted(Previous::Crashed)));
}

#[test]
fn refused_hold_write_fails_without_undo() {
    let mut drive = recording();
    let denied = RequestFailure::Refused(Refusal::Denied);
    drive.answer(0, hold_all(), Err(denied));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Refused(denied))]);
    for at in [0, 1] {
        drive.answer(at, Request::Sync, DONE);
        drive.answer(at, Request::Exists(node(at)), own(at));
        drive.answer(at, Request::Delete(node(at)), DONE);
    }
    assert!(drive.machine.is_over());
}

#[test]
fn znode_deleted_during_hold_write_fails_acquire() {
    let mut drive = recording();
    drive.feed(Event::Fired { watch: WatchId(0x100), deleted: true });
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Broken)]);
}

#[test]
fn lease_that_ends_meanwhile_delays_the_grant() {
    let mut drive = recording();
    drive.lease = false;
    drive.answer(0, hold_all(), DONE);
    assert_eq!(drive.take_reported(), []);
    drive.lease = true;
    drive.feed(Event::LeaseRenewed);
    drive.answer(0, Request::Exists(node(0)), own(0));
    drive.answer(1, Request::Exists(node(1)), own(1));
    assert_eq!(drive.take_reported(), [granted(Previous::Crashed)]);
}
