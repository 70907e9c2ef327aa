//! Upgrades, downgrades, crash records of upgraded readers, and foreign semaphores.

use super::*;
use crate::layout::Layout;

fn node_with_prefix(prefix: Prefix, sequence: i32, czxid: i64) -> Node {
    Node { prefix, sequence: Sequence(sequence), czxid: Zxid(czxid) }
}

fn start(kind: Kind) -> Drive {
    let machine = Machine::new(config(kind), 1);
    let mut drive = Drive::with(machine);
    drive.feed(Event::Start);
    drive
}

/// Returns a reader and the contender that upgrades it.
fn upgrading() -> (Node, Drive) {
    let reader = node_with_prefix(Prefix::Read, 4, 20);
    (reader, start(Kind::Upgrade { from: reader }))
}

#[test]
fn upgrade_without_reader_fails_and_deletes_znode() {
    let (_, mut drive) = upgrading();
    let me = node_with_prefix(Prefix::Write, 5, 21);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::List, Ok(children(vec![me.name()])));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 1, Record::Empty)));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Broken)]);
    drive.answer(Request::Sync, Ok(Reply::Done));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    drive.answer(Request::Delete(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

#[test]
fn upgrade_does_not_recreate_deleted_directory() {
    let (_, mut drive) = upgrading();
    drive.answer(Request::Join, Err(RequestFailure::NoNode));
    drive.answer(Request::List, Err(RequestFailure::NoNode));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::NoNode));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Broken), Action::Finished]);
}

#[test]
fn upgrade_fails_in_recreated_directory() {
    let (reader, mut drive) = upgrading();
    let me = node_with_prefix(Prefix::Write, 5, 31);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::List, Ok(children(vec![reader.name(), me.name()])));
    let Reply::Directory(seen) = directory(me.czxid, 2, Record::Empty) else {
        unreachable!("reply is a directory")
    };
    let again = Directory { czxid: Zxid(30), ..seen };
    drive.answer(Request::ReadDirectory, Ok(Reply::Directory(again)));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Broken)]);
}

#[test]
fn lost_downgrade_is_not_resent_over_replaced_znode() {
    let me = node_with_prefix(Prefix::Write, 4, 20);
    let mut drive = start(Kind::Write);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::List, Ok(children(vec![me.name()])));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 1, Record::Empty)));
    drive.answer(Request::Watch { name: me.name(), watch: WatchId(0) }, Ok(mine(me)));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown)]);
    drive.feed(Event::Downgrade);
    drive.answer_downgrade(me, Err(RequestFailure::Unknown));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.wake();
    drive.answer(Request::Sync, Ok(Reply::Done));
    drive.answer(Request::Exists(me), Ok(theirs()));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0)), Action::Lost(Loss::Broken)]);
    assert_eq!(drive.sent, []);
}

#[test]
fn lost_downgrade_is_resent_unless_znode_was_replaced() {
    for look in [true, false] {
        let me = node_with_prefix(Prefix::Write, 4, 20);
        let mut drive = start(Kind::Write);
        drive.answer(Request::Join, Ok(Reply::Joined(me)));
        drive.answer(Request::List, Ok(children(vec![me.name()])));
        drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 1, Record::Empty)));
        drive.answer(Request::Watch { name: me.name(), watch: WatchId(0) }, Ok(mine(me)));
        drive.feed(Event::Downgrade);
        drive.answer_downgrade(me, Err(RequestFailure::Unknown));
        drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
        drive.wake();
        drive.answer(Request::Sync, Ok(Reply::Done));
        drive.answer(Request::Exists(me), if look { Ok(mine(me)) } else { Err(RequestFailure::NoNode) });
        let reader = node_with_prefix(Prefix::Read, 4, 22);
        drive.answer_downgrade(me, Ok(reader));
        drive.answer(Request::ReadDirectory, Ok(directory(reader.czxid, 1, Record::Empty)));
        assert_eq!(drive.take_reported().last(), Some(&Action::Downgraded(reader)));
    }
}

/// Returns waiter 4, which lists the queue of a directory where crashes are tracked. The record is
/// the `held` marker of an upgraded reader, number 6. The waiter's predecessor, number 3, was
/// deleted.
fn waiter_with_hold_record() -> (Node, Record, Drive) {
    let (me, begun) = (node(4, 20), Marker { state: HolderState::Held, tracked: true, ..released(6) });
    let record = Record::Marker(begun);
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(22), 2, record)));
    drive.answer(watch(3, 0), Err(RequestFailure::NoNode));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(22), 2, record)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    (me, record, drive)
}

/// As [`waiter_with_hold_record`]. The waiter has then listed the queue, with or without the znode of that holder, and
/// writes its own record.
fn waiter_that_writes_its_record(holder_is_present: bool) -> (Node, Marker, Drive) {
    let (me, record, mut drive) = waiter_with_hold_record();
    let holder = holder_is_present.then(|| Prefix::Write.name(Sequence(6)));
    drive.answer(Request::List, Ok(children([me.name()].into_iter().chain(holder).collect())));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(22), 2, record)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    (me, Marker { state: HolderState::Held, tracked: true, ..released(4) }, drive)
}

#[test]
fn cancel_restores_record_if_hold_was_written() {
    let begun = Marker { state: HolderState::Held, tracked: true, ..released(4) };
    let another = Marker { state: HolderState::Panicked, sequence: Sequence(5), ..begun };
    let cases = [
        (RequestFailure::BadVersion, None, false),
        (RequestFailure::Unknown, Some(begun), true),
        (RequestFailure::Unknown, Some(another), false),
    ];
    for (failure, found, takes_back) in cases {
        let (me, record, mut drive) = waiter_with_hold_record();
        drive.answer(Request::List, Ok(children(vec![me.name()])));
        drive.answer(Request::ReadDirectory, Ok(directory(Zxid(22), 1, record)));
        drive.answer(Request::Exists(me), Ok(mine(me)));
        let hold = Request::Hold { node: Some(me), marker: begun, version: 3 };
        drive.answer(hold.clone(), Err(failure));
        drive.feed(Event::Cancel);
        let leaving = |(_, request): &(_, Request)| match request {
            Request::Delete(_) => Some(None),
            Request::Release { version, .. } => Some(*version),
            _ => None,
        };
        match found {
            Some(found) => {
                // The reply to the write was lost, so the record may have the `held` marker. The
                // contender sends the write again as a barrier. Then it reads the record and its
                // own znode.
                drive.sent.retain(|(_, request)| !matches!(request, Request::Sleep(_)));
                drive.answer(hold, Err(RequestFailure::BadVersion));
                drive.answer(Request::Sync, Ok(Reply::Done));
                drive.answer(Request::ReadDirectory, Ok(directory(Zxid(22), 1, Record::Marker(found))));
            }
            None => {
                // A read of the queue was pending at the cancel. The contender has waited since its
                // create, so it reads its own znode before the delete.
                drive.answer(Request::ReadDirectory, Ok(directory(Zxid(22), 1, record)));
                drive.answer(Request::Exists(me), Ok(mine(me)));
                drive.answer(Request::Sync, Ok(Reply::Done));
            }
        }
        drive.answer(Request::Exists(me), Ok(mine(me)));
        assert_eq!(
            drive.sent.iter().find_map(leaving),
            Some(takes_back.then_some(3)),
            "{failure:?}, {found:?}"
        );
    }
}

#[test]
fn present_writer_znode_is_not_a_crash() {
    for (there, previous) in [(true, Previous::Unknown), (false, Previous::Crashed)] {
        let (me, marker, mut drive) = waiter_that_writes_its_record(there);
        drive.answer(Request::Hold { node: Some(me), marker, version: 3 }, Ok(Reply::Done));
        assert_eq!(drive.take_reported(), [granted(me, previous)]);
    }
}

#[test]
fn cancelled_waiter_records_crash_only_without_znode() {
    for (there, left) in [(true, HolderState::Broken), (false, HolderState::Held)] {
        let (me, begun, mut drive) = waiter_that_writes_its_record(there);
        let hold = Request::Hold { node: Some(me), marker: begun, version: 3 };
        drive.answer(hold.clone(), Err(RequestFailure::Unknown));
        drive.feed(Event::Cancel);
        drive.sent.retain(|(_, request)| !matches!(request, Request::Sleep(_)));
        drive.answer(hold, Err(RequestFailure::BadVersion));
        drive.answer(Request::Sync, Ok(Reply::Done));
        drive.answer(Request::ReadDirectory, Ok(directory(Zxid(22), 1, Record::Marker(begun))));
        drive.answer(Request::Exists(me), Ok(mine(me)));
        let marker = drive.sent.iter().find_map(|(_, request)| match request {
            Request::Release { marker, .. } => Some(*marker),
            _ => None,
        });
        assert_eq!(marker.map(|marker| (marker.sequence, marker.state)), Some((Sequence(6), left)));
    }
}

#[test]
fn foreign_semaphore_is_refused_by_every_kind() {
    let listing = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let (curators, kazoos) = (listing(&["locks", "leases"]), listing(&["3f2504e04f8911d39a0c0305e82c3301"]));
    for (others, record, layout) in
        [(curators, Record::Empty, Layout::Curator), (kazoos, Record::KazooSize(5), Layout::Kazoo)]
    {
        for kind in [Kind::Read, Kind::Write, Kind::Permits { take: 1, size: 5 }] {
            let mut drive = start(kind);
            let me = node_with_prefix(drive.machine.config.prefix(), 4, 20);
            drive.answer(Request::Join, Ok(Reply::Joined(me)));
            drive.answer(Request::List, Ok(children([&[me.name()][..], &others].concat())));
            drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 3, record)));
            assert_eq!(drive.take_reported(), [Action::Failed(Reason::OtherLayout(layout))], "{kind:?}");
        }
    }
}
