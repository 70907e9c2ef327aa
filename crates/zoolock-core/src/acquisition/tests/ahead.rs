//! Look-ahead: the deletion of the predecessor grants the lock.

use super::*;

const AFTER: u32 = 5;

/// Returns a waiter that is granted when its predecessor is deleted.
///
/// The directory record has version 3. Watch 0 is on the predecessor, watch 1 on the waiter's own
/// znode.
fn proven_waiter(me: Node, watch_own_after: u32) -> Drive {
    let machine = Machine::new(Config { looks_ahead: true, watch_own_after, ..config(Kind::Mutex) }, 1);
    let mut drive = Drive::with(machine);
    drive.feed(Event::Start);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    drive.answer(watch(me.sequence.0 - 1, 0), Ok(untracked_znode(15)));
    drive.answer(watch_own(me), Ok(mine(me)));
    assert_eq!((drive.take_reported(), drive.sent.len()), (Vec::new(), 0));
    drive
}

/// Returns the znode of another contender that writes no `held` marker.
fn untracked_znode(czxid: i64) -> Reply {
    let flags = NodeFlags { untracked: true, ..NodeFlags::default() };
    Reply::Node { czxid: Zxid(czxid), owner: SessionId(8), version: 0, flags }
}

fn watch_own(node: Node) -> Request {
    Request::WatchOwn { node, watch: WatchId(1) }
}

/// Returns the directory after predecessor 3 is deleted.
fn directory_after_deletion(version: i32, record: Record) -> Reply {
    Reply::Directory(Directory { czxid: DIRECTORY, pzxid: Zxid(30), version, children: 1, record })
}

fn release_at_version(me: Node, version: i32) -> Request {
    Request::Release { node: me, marker: released(me.sequence.0), version: Some(version) }
}

#[test]
fn failed_marker_read_is_retried_after_grant() {
    let me = node(4, 20);
    let mut drive = proven_waiter(me, 0);
    drive.feed(fired(0, true));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.wake();
    drive.answer(Request::ReadDirectory, Ok(directory_after_deletion(4, Record::Marker(released(3)))));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown), Action::Previous(Previous::Clean)]);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(release_at_version(me, 4), Ok(Reply::Done));
    assert_eq!(drive.take_reported().last(), Some(&Action::Finished));
}

/// After a reconnect, watches fire in any order.
#[test]
fn interrupted_connection_ends_look_ahead() {
    let mut drive = proven_waiter(node(4, 20), 0);
    drive.feed(Event::Disconnected);
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(1))]);
}

#[test]
fn holder_that_lost_the_lock_ignores_the_record() {
    let me = node(4, 20);
    let mut drive = proven_waiter(me, 0);
    drive.feed(fired(0, true));
    drive.feed(Event::LeaseLost);
    drive.answer(Request::ReadDirectory, Ok(directory_after_deletion(4, Record::Marker(released(3)))));
    let told = drive.take_reported();
    assert!(!told.iter().any(|action| matches!(action, Action::Previous(_))), "{told:?}");

    // A holder that lost the lock before the read sends no read.
    let mut drive = proven_waiter(me, AFTER);
    drive.feed(fired(0, true));
    drive.feed(Event::LeaseLost);
    while drive.pending().iter().any(|request| matches!(request, Request::Sleep(_))) {
        drive.wake();
    }
    assert_eq!(drive.pending(), []);
}

/// The release of the predecessor has overwritten the record once.
#[test]
fn release_before_the_marker_read_expects_the_next_version() {
    let me = node(4, 20);
    let mut drive = proven_waiter(me, AFTER);
    drive.feed(fired(0, true));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown)]);
    drive.feed(Event::Release(HolderState::Released));
    drive.sent.retain(|(_, request)| !matches!(request, Request::Sleep(_)));
    drive.answer(release_at_version(me, 4), Ok(Reply::Done));
    assert_eq!(drive.take_reported().last(), Some(&Action::Finished));
}

/// Returns a waiter whose second predecessor has left. It has found that its predecessor has
/// released, in the flight that should arm the look-ahead.
fn waiter_after_release(me: Node, lease: bool) -> Drive {
    let mut drive = Drive::of(Config { looks_ahead: true, ..config(Kind::Mutex) });
    drive.lease = lease;
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 3, Record::Empty)));
    drive.answer(watch(5, 0), Ok(untracked_znode(15)));
    drive.feed(fired(0, true));
    drive.answer(watch(6, 1), Err(RequestFailure::NoNode));
    drive.answer(Request::ReadDirectory, Ok(directory_after_deletion(5, Record::Marker(released(6)))));
    drive.answer(Request::WatchOwn { node: me, watch: WatchId(0) }, Ok(mine(me)));
    drive
}

#[test]
fn predecessor_released_before_arming_grants_at_once() {
    let me = node(7, 20);
    let mut drive = waiter_after_release(me, true);
    assert_eq!(drive.take_reported(), [granted(me, Previous::Clean)]);
    // Without a lease the grant waits.
    let mut drive = waiter_after_release(me, false);
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0))]);
    assert_eq!(drive.pending(), [Request::ReadDirectory, Request::Exists(me)]);
}

#[test]
fn record_of_recreated_directory_is_ignored() {
    let me = node(4, 20);
    let mut drive = proven_waiter(me, 0);
    drive.feed(fired(0, true));
    let record = Record::Marker(released(3));
    let recreated = Directory { czxid: Zxid(40), pzxid: Zxid(41), version: 4, children: 1, record };
    drive.answer(Request::ReadDirectory, Ok(Reply::Directory(recreated)));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown)]);
    // Without a known record, the release leaves no marker.
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(Request::Withdraw(me), Ok(Reply::Done));
}

#[test]
fn release_keeps_foreign_record() {
    let me = node(4, 20);
    let mut drive = proven_waiter(me, 0);
    drive.feed(fired(0, true));
    drive.answer(Request::ReadDirectory, Ok(directory_after_deletion(4, Record::Foreign)));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown), Action::Previous(Previous::Unknown)]);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(Request::Withdraw(me), Ok(Reply::Done));
}

#[test]
fn waiter_fails_when_its_znode_is_deleted() {
    let me = node(4, 20);
    let mut drive = proven_waiter(me, AFTER);
    drive.feed(fired(1, true));
    let reported = [Action::Unwatch(WatchId(0)), Action::Unwatch(WatchId(1)), Action::Failed(Reason::Broken)];
    assert_eq!(drive.take_reported()[..3], reported);
    assert_eq!(drive.sent, [], "a znode of another contender is not deleted");
}

#[test]
fn changed_znode_ends_look_ahead() {
    let me = node(4, 20);
    for (changed, then) in [(1, None), (0, Some(watch(3, 1)))] {
        let mut drive = proven_waiter(me, AFTER);
        drive.feed(fired(changed, false));
        assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(1))]);
        if let Some(again) = then {
            drive.answer(again, Err(RequestFailure::NoNode));
        } else {
            drive.feed(fired(0, true));
        }
        drive.answer(Request::ReadDirectory, Ok(directory_after_deletion(4, Record::Marker(released(3)))));
        drive.answer(Request::Exists(me), Ok(mine(me)));
        assert_eq!(drive.take_reported(), [granted(me, Previous::Clean)]);
    }
}

/// A client with the permission to create znodes in this directory can choose any name, also that
/// of our direct predecessor. Such a znode is younger than ours. So it was not one of the two
/// children when ours was created, and its deletion grants nothing.
#[test]
fn forged_predecessor_grants_nothing_when_deleted() {
    let me = node(7, 20);
    let mut drive = Drive::of(Config { looks_ahead: true, ..config(Kind::Mutex) });
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    // Two children: our znode, and a holder with a much lower number.
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    drive.answer(watch(6, 0), Ok(untracked_znode(25)));
    drive.answer(watch_own(me), Ok(mine(me)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    drive.feed(fired(0, true));
    let is_grant = |reported: &Action| matches!(reported, Action::Granted(_));
    assert!(!drive.take_reported().iter().any(is_grant), "two holders");
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(26), 2, Record::Empty)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    let names = ["lock-0000000003", "lock-0000000007"].map(str::to_owned).to_vec();
    drive.answer(Request::List, Ok(children(names)));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(26), 2, Record::Empty)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    assert_eq!(drive.machine.waiting_for(), Some("lock-0000000003"));
    assert!(!drive.take_reported().iter().any(is_grant), "two holders");
}
