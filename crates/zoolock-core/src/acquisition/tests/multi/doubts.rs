//! Lost, refused and impossible replies.

use super::*;

fn refused() -> Result<Reply, RequestFailure> {
    Err(RequestFailure::Refused(Refusal::Denied))
}

const NONE: fn() -> Result<Reply, RequestFailure> = || Ok(Reply::Mine(Vec::new()));

#[test]
fn incomplete_join_reply_fails_acquire() {
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, Ok(Reply::AllJoined(vec![node(0)])));
    drive.lose_connection();
    assert_eq!(drive.take_reported()[0], Action::Failed(Reason::Refused(RequestFailure::Unknown)));
}

/// The answer does not name the directory whose numbers have run out.
#[test]
fn refused_join_without_a_place_retires_nothing() {
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, Err(RequestFailure::NodeExists));
    drive.lose_connection();
    assert_eq!(drive.take_reported()[0], Action::Failed(Reason::Refused(RequestFailure::NodeExists)));
}

#[test]
fn failed_create_in_doubt_still_searches() {
    let denied = RequestFailure::Refused(Refusal::Denied);
    let told = vec![Action::Failed(Reason::Refused(denied)), Action::Finished];
    for (failure, told) in [(RequestFailure::NoNode, vec![]), (denied, told)] {
        let mut drive = Drive::start();
        drive.lose_connection();
        drive.wake();
        drive.answer(0, Request::JoinAll, Err(failure));
        assert_eq!(drive.pending(), [(0, Request::FindMine), (1, Request::FindMine)]);
        for at in [0, 1] {
            drive.answer(at, Request::FindMine, NONE());
        }
        assert_eq!(drive.take_reported(), told);
    }
}

#[test]
fn timeout_in_doubt_ends_after_empty_search() {
    let mut drive = Drive::start();
    drive.lose_connection();
    drive.feed(Event::TimedOut);
    drive.wake();
    drive.answer(0, Request::JoinAll, refused());
    for at in [0, 1] {
        drive.answer(at, Request::FindMine, NO_NODE);
    }
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::TimedOut), Action::Finished]);
}

#[test]
fn denied_search_keeps_last_created_znodes() {
    let mut drive = in_doubt();
    for at in [0, 1] {
        drive.answer(at, Request::FindMine, refused());
    }
    let kept = |at| Request::Exists(node_of(at, Zxid(52)));
    let looks = [(0, Request::ReadDirectory), (0, kept(0)), (1, Request::ReadDirectory), (1, kept(1))];
    assert_eq!(drive.pending(), looks);
}

/// Returns a contender that creates both directories, because its join found none.
fn making_directories() -> Drive {
    let mut drive = Drive::start();
    drive.answer(0, Request::JoinAll, NO_NODE);
    drive.answer(0, Request::ReadDirectory, NO_NODE);
    drive.answer(1, Request::ReadDirectory, NO_NODE);
    drive
}

#[test]
fn join_waits_for_every_directory() {
    let mut drive = making_directories();
    drive.answer(0, Request::MakeDirectory, DONE);
    assert_eq!(drive.pending(), [(1, Request::MakeDirectory)]);
    drive.answer(1, Request::MakeDirectory, DONE);
    assert_eq!(drive.pending()[0], (0, Request::JoinAll));
}

#[test]
fn cancel_during_directory_creation_ends_at_once() {
    let mut drive = making_directories();
    drive.feed(Event::Cancel);
    assert_eq!(drive.take_reported(), [Action::Finished]);
    drive.answer(0, Request::MakeDirectory, DONE);
    drive.answer(1, Request::MakeDirectory, DONE);
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
}

#[test]
fn cancelled_multi_acquire_does_not_retry_failed_create() {
    let mut drive = Drive::start();
    drive.feed(Event::Cancel);
    drive.answer(0, Request::JoinAll, Err(RequestFailure::Throttled));
    drive.lose_connection();
    drive.wake();
    assert_eq!(drive.take_reported(), [Action::Finished]);
    assert!(drive.pending().iter().all(|(_, request)| *request != Request::JoinAll));
}

#[test]
fn join_backoff_doubles_with_each_failure() {
    let mut drive = Drive::start();
    for pause in [10, 20, 40] {
        drive.lose_connection();
        assert_eq!(drive.pending(), [(0, Request::Sleep(pause))]);
        drive.wake();
    }
}
