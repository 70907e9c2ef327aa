//! Retirement of a directory near its last sequence number.

use super::*;

/// Returns a contender that deleted its znodes and reads the second directory, where another
/// contender remains.
fn retiring() -> Drive {
    let mut drive = Drive::start_with(|config| config.retire_from = Sequence(9));
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 2, Record::Empty));
    drive.answer(0, Request::Delete(node(0)), DONE);
    drive.answer(1, Request::Delete(node(1)), DONE);
    assert_eq!(drive.pending(), [(1, Request::ReadDirectory)]);
    drive
}

#[test]
fn deleted_or_recreated_directory_triggers_rejoin() {
    let mut drive = retiring();
    drive.answer(1, Request::ReadDirectory, NO_NODE);
    assert_eq!(drive.pending()[0], (0, Request::JoinAll));

    let mut drive = retiring();
    drive.answer(1, Request::ReadDirectory, directory(1, Zxid(51), 1, Record::Empty));
    drive.wake();
    let (czxid, pzxid) = (Zxid(60), Zxid(61));
    let another = Directory { czxid, pzxid, version: 0, children: 1, record: Record::Empty };
    drive.answer(1, Request::ReadDirectory, Ok(Reply::Directory(another)));
    assert_eq!(drive.pending()[0], (0, Request::JoinAll));
}

#[test]
fn failed_retirement_read_or_delete_is_retried() {
    let mut drive = retiring();
    drive.answer(1, Request::ReadDirectory, Err(RequestFailure::Unknown));
    assert_eq!(drive.pending(), [(1, Request::Sleep(10))]);
    drive.wake();
    drive.answer(1, Request::ReadDirectory, directory(1, Zxid(51), 0, Record::Empty));
    drive.answer(1, Request::DeleteDirectory, Err(RequestFailure::NotEmpty));
    assert_eq!(drive.pending(), [(1, Request::Sleep(10))]);
    drive.wake();
    assert_eq!(drive.pending(), [(1, Request::ReadDirectory)]);
}

#[test]
fn cancelled_acquire_does_not_retire_directory() {
    let mut drive = Drive::start_with(|config| config.retire_from = Sequence(9));
    drive.feed(Event::Cancel);
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 2, Record::Empty));
    drive.answer(0, Request::Delete(node(0)), DONE);
    drive.answer(1, Request::Delete(node(1)), DONE);
    assert_eq!((drive.take_reported(), drive.pending()), (vec![Action::Finished], vec![]));
}

/// The sequence counter of the second directory has reached its maximum.
#[test]
fn create_refused_at_number_limit_retires_that_directory() {
    let full = |lock_index| Err(RequestFailure::NodeExistsAt(lock_index));
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, full(1));
    for at in [0, 1] {
        drive.answer(at, Request::ReadDirectory, directory(at, ME, 1, Record::Empty));
    }
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![(1, Request::ReadDirectory)]));

    // An earlier create may have succeeded, so the contender searches for its znodes first.
    let mut drive = Drive::start();
    drive.lose_connection();
    drive.wake();
    drive.answer(0, Request::JoinAll, full(1));
    for at in [0, 1] {
        drive.answer(at, Request::FindMine, Ok(Reply::Mine(Vec::new())));
    }
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![(1, Request::ReadDirectory)]));

    // There is no third directory, so the reply is invalid, and the acquisition fails.
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, full(2));
    drive.lose_connection();
    assert_eq!(drive.take_reported()[0], Action::Failed(Reason::Refused(RequestFailure::NodeExistsAt(2))));
}

#[test]
fn denied_retirement_read_fails() {
    let denied = RequestFailure::Refused(Refusal::Denied);
    let mut drive = retiring();
    drive.answer(1, Request::ReadDirectory, Err(denied));
    assert_eq!(drive.take_reported()[0], Action::Failed(Reason::Refused(denied)));
}
