//! Look-ahead: the steps of a waiter far back in the queue, and the proofs by which it is granted.
//! A flight is a group of requests that are sent together.

use super::*;

const ME: Node = Node { prefix: Prefix::Lock, sequence: Sequence(6), czxid: Zxid(20) };

/// The request that watches the waiter's own znode, if the predecessor has watch 1.
const OWN_FIRST: Request = Request::WatchOwn { node: ME, watch: WatchId(0) };
/// The request that watches the waiter's own znode, if the predecessor has watch 0.
const OWN_SECOND: Request = Request::WatchOwn { node: ME, watch: WatchId(1) };

/// Returns a contender that joined a directory with `children` children.
fn joined_among(children: u32, record: Record) -> Drive {
    let mut drive = Drive::of(Config { looks_ahead: true, ..config(Kind::Mutex) });
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, children, record)));
    drive
}

/// Returns waiter 6 after its second predecessor 4 was deleted. Its predecessor is 5.
fn near_head() -> Drive {
    let mut drive = joined_among(5, Record::Empty);
    drive.answer(watch(4, 0), Ok(theirs()));
    drive.feed(fired(0, true));
    assert_eq!(drive.pending(), [watch(5, 1), Request::ReadDirectory, OWN_FIRST]);
    drive
}

/// Returns the znode of another contender that writes no `held` marker.
fn untracked() -> Reply {
    let flags = NodeFlags { untracked: true, ..NodeFlags::default() };
    Reply::Node { czxid: Zxid(15), owner: SessionId(8), version: 0, flags }
}

fn directory_read(record: Record) -> Result<Reply, RequestFailure> {
    Ok(directory(Zxid(30), 2, record))
}

fn released_by_4() -> Record {
    Record::Marker(released(4))
}

/// Deletes predecessor 5 by firing watch `by`. Returns true if that grants the lock at once.
#[track_caller]
fn grants_on_deletion(drive: &mut Drive, by: u16) -> bool {
    drive.take_reported();
    assert_eq!(drive.pending(), []);
    drive.feed(fired(by, true));
    drive.take_reported().contains(&granted(ME, Previous::Unknown))
}

#[test]
fn lease_is_needed_from_the_deletion_of_the_second_predecessor() {
    let mut drive = joined_among(5, Record::Empty);
    drive.answer(watch(4, 0), Ok(theirs()));
    assert!(!drive.machine.needs_lease());
    drive.feed(fired(0, true));
    assert!(drive.machine.needs_lease());
}

#[test]
fn lease_is_needed_until_another_waiter_is_ahead_and_from_its_end() {
    let mut drive = Drive::start();
    assert!(drive.machine.needs_lease(), "the create may grant the lock");
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 3, Record::Empty)));
    assert!(!drive.machine.needs_lease(), "two contenders are ahead");
    drive.answer(watch(5, 0), Ok(theirs()));
    drive.feed(fired(0, true));
    assert!(drive.machine.needs_lease(), "the predecessor has left");
    drive.answer(Request::ReadDirectory, directory_read(Record::Empty));
    drive.answer(Request::Exists(ME), Ok(mine(ME)));
    let names = [3, 4, 6].map(|sequence| Prefix::Lock.name(Sequence(sequence)));
    drive.answer(Request::List, Ok(children(names.to_vec())));
    drive.answer(Request::ReadDirectory, directory_read(Record::Empty));
    drive.answer(Request::Exists(ME), Ok(mine(ME)));
    assert!(!drive.machine.needs_lease(), "the predecessor gave up, and another waiter is ahead");
    drive.answer(watch(4, 0), Ok(theirs()));
    drive.feed(Event::Cancel);
    assert!(!drive.machine.needs_lease());
}

#[test]
fn deletion_of_proven_head_grants() {
    let mut drive = near_head();
    drive.answer(watch(5, 1), Ok(untracked()));
    drive.answer(Request::ReadDirectory, directory_read(released_by_4()));
    drive.answer(OWN_FIRST, Ok(mine(ME)));
    assert!(grants_on_deletion(&mut drive, 1));
}

#[test]
fn insufficient_proof_grants_nothing() {
    let tracked = Record::Marker(Marker { tracked: true, ..released(4) });
    let broken = Record::Marker(Marker { state: HolderState::Broken, ..released(4) });
    let made_again =
        Directory { czxid: Zxid(30), pzxid: Zxid(31), version: 1, children: 2, record: Record::Empty };
    let of_that = Record::Marker(Marker { directory: Zxid(30), ..released(4) });
    let revoked = NodeFlags { revoked: true, ..NodeFlags::default() };
    let revoked = Reply::Node { czxid: ME.czxid, owner: SESSION, version: 0, flags: revoked };
    for (what, before, directory, own) in [
        ("empty record", untracked(), directory_read(Record::Empty), Ok(mine(ME))),
        (
            "marker of another contender",
            untracked(),
            directory_read(Record::Marker(released(3))),
            Ok(mine(ME)),
        ),
        ("marker of a broken lock", untracked(), directory_read(broken), Ok(mine(ME))),
        ("tracked marker", untracked(), directory_read(tracked), Ok(mine(ME))),
        ("tracked predecessor", theirs(), directory_read(released_by_4()), Ok(mine(ME))),
        (
            "recreated directory",
            untracked(),
            Ok(Reply::Directory(Directory { record: of_that, ..made_again })),
            Ok(mine(ME)),
        ),
        ("failed record read", untracked(), Err(RequestFailure::Unknown), Ok(mine(ME))),
        ("replaced own znode", untracked(), directory_read(released_by_4()), Ok(theirs())),
        ("revoked waiter", untracked(), directory_read(released_by_4()), Ok(revoked)),
    ] {
        let mut drive = near_head();
        drive.answer(watch(5, 1), Ok(before));
        drive.answer(Request::ReadDirectory, directory);
        drive.answer(OWN_FIRST, own);
        assert!(!grants_on_deletion(&mut drive, 1), "{what}");
        assert_eq!(drive.pending()[0], Request::ReadDirectory, "{what}");
    }
}

#[test]
fn missing_predecessor_triggers_listing() {
    let mut drive = near_head();
    drive.answer(watch(5, 1), Err(RequestFailure::NoNode));
    drive.answer(Request::ReadDirectory, directory_read(released_by_4()));
    drive.answer(OWN_FIRST, Ok(mine(ME)));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0))]);
    assert_eq!(drive.pending()[0], Request::List);
}

#[test]
fn missing_predecessor_triggers_record_read() {
    for (record, own) in [(Record::Empty, Ok(mine(ME))), (released_by_4(), Ok(theirs()))] {
        let mut drive = near_head();
        drive.answer(watch(5, 1), Err(RequestFailure::NoNode));
        drive.answer(Request::ReadDirectory, directory_read(record));
        drive.answer(OWN_FIRST, own);
        assert_eq!(drive.pending(), [Request::ReadDirectory, Request::Exists(ME)]);
        assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0))]);
    }
}

/// Returns the second of two contenders. Its watches on the predecessor and on its own znode are
/// pending.
fn second_of_two(record: Record) -> Drive {
    let mut drive = joined_among(2, record);
    assert_eq!(drive.pending(), [watch(5, 0), OWN_SECOND]);
    drive.take_reported();
    drive
}

#[test]
fn early_predecessor_deletion_grants_after_flight() {
    let mut drive = second_of_two(Record::Empty);
    drive.answer(watch(5, 0), Ok(untracked()));
    drive.feed(fired(0, true));
    assert_eq!(drive.take_reported(), []);
    drive.answer(OWN_SECOND, Ok(mine(ME)));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
}

#[test]
fn look_ahead_grants_nothing_without_lease() {
    let mut drive = second_of_two(Record::Empty);
    drive.answer(watch(5, 0), Ok(untracked()));
    drive.feed(fired(0, true));
    drive.lease = false;
    drive.answer(OWN_SECOND, Ok(mine(ME)));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(1))]);

    let mut drive = second_of_two(Record::Empty);
    drive.answer(watch(5, 0), Ok(untracked()));
    drive.answer(OWN_SECOND, Ok(mine(ME)));
    drive.lease = false;
    drive.feed(fired(0, true));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(1))]);
    assert_eq!(drive.pending(), [Request::ReadDirectory, Request::Exists(ME)]);
}

#[test]
fn unwatched_deleted_predecessor_grants_nothing() {
    let mut drive = second_of_two(Record::Empty);
    drive.answer(watch(5, 0), Err(RequestFailure::NoNode));
    drive.answer(OWN_SECOND, Ok(mine(ME)));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(1))]);
    assert_eq!(drive.pending(), [Request::ReadDirectory, Request::Exists(ME)]);
}

#[test]
fn foreign_record_prevents_look_ahead_grant() {
    let mut drive = second_of_two(Record::Foreign);
    drive.answer(watch(5, 0), Ok(untracked()));
    drive.answer(OWN_SECOND, Ok(mine(ME)));
    assert!(!grants_on_deletion(&mut drive, 0));
}

#[test]
fn cancelled_waiter_checks_znode_before_deleting() {
    let mut drive = near_head();
    drive.feed(Event::Cancel);
    drive.sent.drain(..3);
    assert_eq!(drive.pending(), [Request::Sync, Request::Exists(ME)]);
    // The second predecessor was deleted before its watch was set. A round trip has passed since
    // the create, so the contender checks its znode.
    let mut drive = joined_among(5, Record::Empty);
    drive.answer(watch(4, 0), Err(RequestFailure::NoNode));
    assert_eq!(drive.pending(), [watch(5, 0), Request::ReadDirectory, OWN_SECOND]);
    drive.feed(Event::Cancel);
    drive.sent.drain(..3);
    assert_eq!(drive.pending(), [Request::Sync, Request::Exists(ME)]);
    // A new contender deletes its znode without a check: the create reply is recent.
    let mut drive = second_of_two(Record::Empty);
    drive.feed(Event::Cancel);
    drive.sent.drain(..2);
    assert_eq!(drive.pending(), [Request::Delete(ME)]);
}
