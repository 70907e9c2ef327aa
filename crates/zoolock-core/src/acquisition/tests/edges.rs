//! Caller events in unusual states.

use super::*;
use crate::acquisition::round_trip::backoff;

#[test]
fn backoff_doubles_until_success() {
    let mut tries = 0;
    let waits: Vec<u32> = (0..9).map(|_| backoff(&mut tries)).collect();
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 640, 640, 640]);

    // The end of a sleep does not reset the backoff.
    let me = node(4, 20);
    let mut drive = Drive::hold(me);
    for pause in [10, 20, 40] {
        drive.answer(watch(4, 0), Err(RequestFailure::Unknown));
        assert_eq!(drive.sent[0].1, Request::Sleep(pause));
        drive.wake();
    }
    drive.answer(watch(4, 0), Ok(mine(me)));
    drive.feed(fired(0, false));
    drive.answer(watch(4, 1), Err(RequestFailure::Unknown));
    assert_eq!(drive.sent[0].1, Request::Sleep(10));
}

#[test]
fn own_watch_counts_once_answered() {
    let me = node(4, 20);
    let mut drive = Drive::hold(me);
    assert!(!drive.machine.watches_own());
    drive.answer(watch(4, 0), Ok(mine(me)));
    assert!(drive.machine.watches_own());
}

#[test]
fn holder_returns_its_znode_until_loss() {
    let me = node(4, 20);
    assert_eq!(Drive::wait(me).machine.held_node(), None);
    let mut drive = Drive::hold_and_watch(me);
    assert_eq!(drive.machine.held_node(), Some(me));
    drive.feed(Event::LeaseLost);
    assert_eq!(drive.machine.held_node(), None);
}

#[test]
fn event_of_another_watch_does_not_end_a_wait() {
    let mut drive = Drive::wait(node(4, 20));
    drive.feed(fired(5, true));
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
    assert!(drive.machine.is_waiting());
}

#[test]
fn znode_is_known_once_the_create_is_answered() {
    let me = node(4, 20);
    let mut drive = Drive::start();
    assert_eq!(drive.machine.node(0), None);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    assert_eq!(drive.machine.node(0), Some(me));
    assert_eq!(drive.machine.node(1), None, "the acquisition has one lock");
}

#[test]
fn failed_create_of_directory_is_retried_or_reported() {
    let without_directory = || {
        let mut drive = Drive::start();
        drive.answer(Request::Join, Err(RequestFailure::NoNode));
        drive.answer(Request::ReadDirectory, Err(RequestFailure::NoNode));
        drive
    };
    for failure in [RequestFailure::Unknown, RequestFailure::Throttled, RequestFailure::NoNode] {
        let mut drive = without_directory();
        drive.answer(Request::MakeDirectory, Err(failure));
        assert!(matches!(drive.pending()[..], [Request::Sleep(_)]), "{:?}", drive.pending());
        drive.wake();
        assert_eq!(drive.pending()[0], Request::Join, "{failure:?}");
    }
    let mut drive = without_directory();
    drive.answer(Request::MakeDirectory, Err(RequestFailure::NodeExists));
    assert_eq!(drive.pending()[0], Request::Join);

    let denied = RequestFailure::Refused(Refusal::Denied);
    let mut drive = without_directory();
    drive.answer(Request::MakeDirectory, Err(denied));
    assert_eq!(drive.take_reported()[0], Action::Failed(Reason::Refused(denied)));
}

#[test]
fn previous_is_displayed_in_one_word() {
    let all = [Previous::Clean, Previous::Crashed, Previous::Unknown];
    assert_eq!(all.map(|previous| previous.to_string()), ["clean", "crashed", "unknown"]);
}

/// The record may show a semaphore, or a `held` marker. So the listing alone grants nothing.
#[test]
fn listing_grants_nothing_without_the_record() {
    let me = node(4, 20);
    let mut drive = Drive::wait(me);
    drive.feed(fired(0, true));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(30), 2, Record::Empty)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    drive.answer(Request::List, Ok(children(vec![me.name()])));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    assert_eq!(drive.take_reported(), []);
    assert!(matches!(drive.pending()[..], [Request::Sleep(_)]), "{:?}", drive.pending());
}

/// The delete of the znode ends the watch. To remove the watch would cost a request.
#[test]
fn release_keeps_watch_that_is_being_set() {
    let me = node(4, 20);
    let mut drive = Drive::hold(me);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(watch(4, 0), Ok(mine(me)));
    assert_eq!(drive.take_reported(), []);
    drive.answer(release(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

/// Another client deleted the znode before the watch was set. A znode of that name is another
/// contender's, and the watch on it is removed.
#[test]
fn znode_missing_at_the_watch_loses_the_lock() {
    let lost = Action::Lost(Loss::Broken);
    let unwatched = Action::Unwatch(WatchId(0));
    for (found, told) in
        [(Err(RequestFailure::NoNode), vec![lost.clone()]), (Ok(theirs()), vec![unwatched, lost])]
    {
        let mut drive = Drive::hold(node(4, 20));
        drive.answer(watch(4, 0), found);
        assert_eq!((drive.take_reported(), drive.pending()), (told, vec![]));
    }
}

/// Another holder came after the one that wrote the marker, and wrote none.
#[test]
fn older_marker_does_not_tell_how_the_previous_holder_left() {
    let me = node(4, 20);
    for state in [HolderState::Released, HolderState::Panicked] {
        let record = Record::Marker(Marker { state, ..released(2) });
        let mut drive = Drive::wait(me);
        drive.feed(fired(0, true));
        drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 1, record)));
        drive.answer(Request::Exists(me), Ok(mine(me)));
        drive.answer(Request::List, Ok(children(vec![me.name()])));
        drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 1, record)));
        drive.answer(Request::Exists(me), Ok(mine(me)));
        assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown)]);
    }
}

#[test]
fn listing_without_our_znode_fails_acquire() {
    let me = Node { prefix: Prefix::Read, ..node(4, 20) };
    let mut drive = Drive::of(config(Kind::Read));
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::List, Ok(children(Vec::new())));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 0, Record::Empty)));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Broken), Action::Finished]);
    assert_eq!(drive.pending(), []);
}

#[test]
fn contender_waits_once_predecessor_is_watched() {
    let me = node(4, 20);
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    assert!(!drive.machine.is_waiting());
    drive.answer(watch(3, 0), Ok(theirs()));
    assert!(drive.machine.is_waiting());
}

#[test]
fn holder_watches_its_znode_again_after_reconnect() {
    let me = node(4, 20);
    let mut drive = Drive::hold_and_watch(me);
    drive.feed(Event::Disconnected);
    drive.feed(Event::Reconnected);
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0))]);
    drive.answer(watch(4, 1), Ok(mine(me)));
    // A late event of the removed watch does not count.
    drive.feed(fired(0, true));
    assert_eq!(drive.take_reported(), []);
    drive.feed(fired(1, true));
    assert_eq!(drive.take_reported(), [Action::Lost(Loss::Broken)]);
}

#[test]
fn timeout_does_not_affect_holder() {
    let me = node(4, 20);
    let mut drive = Drive::hold_and_watch(me);
    drive.feed(Event::TimedOut);
    assert_eq!((drive.take_reported(), &drive.sent), (vec![], &vec![]));
    assert!(!drive.machine.is_leaving());
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(release(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
    // Later events do not affect a contender that has ended.
    drive.feed(Event::TimedOut);
    drive.feed(Event::Cancel);
    assert_eq!((drive.take_reported(), &drive.sent), (vec![], &vec![]));
}

#[test]
fn acquire_cancelled_before_create_reply_is_leaving() {
    let mut drive = Drive::start();
    assert!(!drive.machine.is_leaving());
    drive.feed(Event::Cancel);
    assert!(drive.machine.is_leaving() && !drive.machine.is_over());
    let me = node(4, 20);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    drive.answer(Request::Delete(me), Ok(Reply::Done));
    assert!(drive.machine.is_over());
}

#[test]
fn cancelled_waiter_removes_its_watch() {
    let me = node(4, 20);
    let mut drive = Drive::wait(me);
    drive.feed(Event::Cancel);
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0))]);
    // The contender has waited since the create, so it reads its own znode before the delete.
    drive.answer(Request::Sync, Ok(Reply::Done));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    drive.answer(Request::Delete(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

#[test]
fn watch_set_after_cancel_is_removed() {
    let me = node(4, 20);
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    drive.feed(Event::Cancel);
    assert_eq!(drive.take_reported(), []);
    drive.answer(watch(3, 0), Ok(theirs()));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0))]);
    drive.answer(Request::Delete(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Finished]);
}
