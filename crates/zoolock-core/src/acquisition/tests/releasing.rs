//! Downgrades, and the marker that each kind writes at release.

use super::*;

fn node_with_prefix(prefix: Prefix, sequence: i32, czxid: i64) -> Node {
    Node { prefix, sequence: Sequence(sequence), czxid: Zxid(czxid) }
}

/// Returns a sole contender that holds the lock and watches its own znode.
fn sole_holder(kind: Kind, me: Node) -> Drive {
    let mut drive = Drive::of(config(kind));
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::List, Ok(children(vec![me.name()])));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 1, Record::Empty)));
    drive.answer(Request::Watch { name: me.name(), watch: WatchId(0) }, Ok(mine(me)));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown)]);
    drive
}

/// A marker would grant the lock to the next writer while other readers hold it.
#[test]
fn reader_release_writes_no_marker() {
    let me = node_with_prefix(Prefix::Read, 4, 20);
    let mut drive = sole_holder(Kind::Read, me);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(Request::Delete(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

#[test]
fn release_during_downgrade_deletes_reader() {
    let (me, reader) = (node_with_prefix(Prefix::Write, 4, 20), node_with_prefix(Prefix::Read, 4, 22));
    let mut drive = sole_holder(Kind::Write, me);
    drive.feed(Event::Downgrade);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer_downgrade(me, Ok(reader));
    drive.answer(Request::ReadDirectory, Ok(directory(reader.czxid, 1, Record::Empty)));
    drive.sent.retain(|(_, request)| !matches!(request, Request::Watch { .. }));
    assert_eq!(drive.pending(), [Request::Delete(reader)]);
    drive.answer(Request::Delete(reader), Ok(Reply::Done));
    let reported = drive.take_reported();
    assert_eq!(reported[reported.len() - 2..], [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

#[test]
fn only_a_holder_is_downgraded() {
    let me = node(4, 20);
    let mut waiter = Drive::wait(me);
    let mut loser = Drive::hold_and_watch(me);
    loser.feed(fired(0, true));
    for drive in [&mut waiter, &mut loser] {
        drive.take_reported();
        drive.feed(Event::Downgrade);
        assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
    }
}

#[test]
fn lease_lost_during_downgrade_sets_no_new_watch() {
    let (me, reader) = (node_with_prefix(Prefix::Write, 4, 20), node_with_prefix(Prefix::Read, 4, 22));
    let mut drive = sole_holder(Kind::Write, me);
    drive.feed(Event::Downgrade);
    drive.feed(Event::LeaseLost);
    drive.answer_downgrade(me, Ok(reader));
    drive.answer(Request::ReadDirectory, Ok(directory(reader.czxid, 1, Record::Empty)));
    assert_eq!(drive.take_reported().last(), Some(&Action::Lost(Loss::Unreachable)));
    assert_eq!(drive.pending(), []);
}

#[test]
fn downgraded_holder_watches_its_new_znode() {
    let (me, reader) = (node_with_prefix(Prefix::Write, 4, 20), node_with_prefix(Prefix::Read, 4, 22));
    let mut drive = sole_holder(Kind::Write, me);
    drive.feed(Event::Downgrade);
    drive.answer_downgrade(me, Ok(reader));
    drive.answer(Request::ReadDirectory, Ok(directory(reader.czxid, 1, Record::Empty)));
    drive.answer(Request::Watch { name: reader.name(), watch: WatchId(0) }, Ok(mine(reader)));
    drive.feed(fired(0, true));
    assert_eq!(drive.take_reported().last(), Some(&Action::Lost(Loss::Broken)));
}

#[test]
fn read_after_failed_sync_causes_no_downgrade() {
    let me = node_with_prefix(Prefix::Write, 4, 20);
    let mut drive = sole_holder(Kind::Write, me);
    drive.feed(Event::Downgrade);
    drive.answer_downgrade(me, Err(RequestFailure::Unknown));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.wake();
    drive.answer(Request::Sync, Err(RequestFailure::Throttled));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    assert!(matches!(drive.pending()[..], [Request::Sleep(_)]), "{:?}", drive.pending());
    drive.wake();
    assert_eq!(drive.pending(), [Request::Sync, Request::Exists(me)]);
}

/// The transaction alone does not name the reader's znode. A read that finds none proves nothing if it was lost.
#[test]
fn downgrade_needs_the_read_of_the_reader() {
    use RequestFailure::{NoNode, NodeExists, Throttled, Unknown};
    let (me, reader) = (node_with_prefix(Prefix::Write, 4, 20), node_with_prefix(Prefix::Read, 4, 22));
    let (done, denied) = (Ok(Reply::Done), RequestFailure::Refused(Refusal::Denied));
    let becomes_reader = vec![Action::Downgraded(reader)];
    let stays_writer = vec![Action::Downgraded(me)];
    let loses = vec![Action::Lost(Loss::Broken)];
    let tries_again = vec![];
    let rows = [
        (done.clone(), Ok(reader), &becomes_reader),
        (done.clone(), Err(NoNode), &loses),
        (done.clone(), Err(Unknown), &tries_again),
        (done.clone(), Err(Throttled), &tries_again),
        (done, Err(denied), &tries_again),
        // An earlier downgrade has succeeded.
        (Err(NoNode), Ok(reader), &becomes_reader),
        (Err(NoNode), Err(NoNode), &loses),
        (Err(NoNode), Err(Unknown), &tries_again),
        (Err(NoNode), Err(denied), &loses),
        (Err(Unknown), Ok(reader), &tries_again),
        (Err(Unknown), Err(NoNode), &tries_again),
        (Err(Throttled), Err(NoNode), &tries_again),
        (Err(denied), Err(NoNode), &stays_writer),
        (Err(denied), Err(Unknown), &tries_again),
        (Err(NodeExists), Err(NoNode), &stays_writer),
    ];
    for (transaction, read, reported) in rows {
        let case = format!("{transaction:?}, {read:?}");
        let mut drive = sole_holder(Kind::Write, me);
        drive.feed(Event::Downgrade);
        drive.take_reported();
        drive.answer(Request::Downgrade { node: me, marker: None }, transaction);
        drive.answer(Request::FindReader(me), read.map(Reply::Joined));
        drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 1, Record::Empty)));
        assert_eq!(drive.take_reported(), *reported, "{case}");
        let sleeps = matches!(drive.pending()[..], [Request::Sleep(_)]);
        assert_eq!(sleeps, reported.is_empty(), "{case}: {:?}", drive.pending());
    }
}

/// The directory may have been recreated, with another writer as number 4. The downgrade would then
/// replace that writer's znode.
#[test]
fn refused_downgrade_is_resent_only_after_check() {
    let me = node_with_prefix(Prefix::Write, 4, 20);
    for (found, is_mine) in [(mine(me), true), (theirs(), false)] {
        let mut drive = sole_holder(Kind::Write, me);
        drive.feed(Event::Downgrade);
        drive.take_reported();
        drive.answer(Request::Downgrade { node: me, marker: None }, Err(RequestFailure::BadVersion));
        drive.answer(Request::FindReader(me), Err(RequestFailure::NoNode));
        drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 1, Record::Empty)));
        assert_eq!(drive.pending(), [Request::Sync, Request::Exists(me)]);
        drive.answer(Request::Sync, Ok(Reply::Done));
        drive.answer(Request::Exists(me), Ok(found));
        if is_mine {
            let again = Request::Downgrade { node: me, marker: None };
            assert_eq!(drive.pending(), [again, Request::FindReader(me), Request::ReadDirectory]);
        } else {
            assert_eq!((drive.take_reported(), drive.pending()), (vec![Action::Lost(Loss::Broken)], vec![]));
        }
    }
}

/// The directory was recreated, and another writer there had the same number. The downgrade
/// replaced that writer's znode, so the new reader znode belongs to a lock that this contender
/// never held.
#[test]
fn downgrade_in_recreated_directory_loses_lock() {
    let (me, reader) = (node_with_prefix(Prefix::Write, 4, 20), node_with_prefix(Prefix::Read, 4, 92));
    let again =
        Directory { czxid: Zxid(90), pzxid: Zxid(92), version: 0, children: 1, record: Record::Empty };
    for (found, departs) in [
        (Ok(Reply::Directory(again)), true),
        (Err(RequestFailure::NoNode), true),
        (Err(RequestFailure::Refused(Refusal::Denied)), false),
    ] {
        let mut drive = sole_holder(Kind::Write, me);
        drive.feed(Event::Downgrade);
        drive.take_reported();
        drive.answer_downgrade(me, Ok(reader));
        assert_eq!(drive.take_reported(), [], "downgrade waits for the directory read");
        drive.answer(Request::ReadDirectory, found);
        if departs {
            assert_eq!(drive.take_reported(), [Action::Lost(Loss::Broken)]);
            assert_eq!(drive.pending(), [Request::Sync, Request::Exists(reader)]);
            drive.answer(Request::Sync, Ok(Reply::Done));
            drive.answer(Request::Exists(reader), Ok(mine(reader)));
            drive.answer(Request::Delete(reader), Ok(Reply::Done));
            drive.feed(Event::Release(HolderState::Released));
            assert_eq!(
                drive.take_reported(),
                [Action::Released(ReleaseOutcome::Lost(Loss::Broken)), Action::Finished]
            );
        } else {
            assert_eq!(
                drive.take_reported(),
                [Action::Downgraded(reader)],
                "a denied directory read does not fail the downgrade"
            );
        }
    }
}

/// The retry reads the directory again, after the transaction.
#[test]
fn downgrade_is_retried_if_directory_read_failed() {
    let (me, reader) = (node_with_prefix(Prefix::Write, 4, 20), node_with_prefix(Prefix::Read, 4, 22));
    let mut drive = sole_holder(Kind::Write, me);
    drive.feed(Event::Downgrade);
    drive.take_reported();
    drive.answer_downgrade(me, Ok(reader));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.wake();
    drive.answer(Request::Sync, Ok(Reply::Done));
    drive.answer(Request::Exists(me), Err(RequestFailure::NoNode));
    drive.answer_downgrade(me, Ok(reader));
    drive.answer(Request::ReadDirectory, Ok(directory(reader.czxid, 1, Record::Empty)));
    assert_eq!(drive.take_reported(), [Action::Downgraded(reader)]);
}

/// Returns an upgraded reader in a directory with `record`.
fn upgraded_reader(record: Record) -> (Node, Drive) {
    let (reader, me) = (node_with_prefix(Prefix::Read, 4, 20), node_with_prefix(Prefix::Write, 5, 21));
    let mut drive = Drive::of(config(Kind::Upgrade { from: reader }));
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::List, Ok(children(vec![reader.name(), me.name()])));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, record)));
    (me, drive)
}

#[test]
fn tracked_upgrade_release_writes_downgraded_marker() {
    let before = Marker { tracked: true, ..released(3) };
    for (left, marker) in
        [(HolderState::Released, Some(HolderState::Downgraded)), (HolderState::Panicked, None)]
    {
        let (me, mut drive) = upgraded_reader(Record::Marker(before));
        let of_mine = |left| Marker { state: left, ..Marker { tracked: true, ..released(5) } };
        let hold = Request::Hold { node: Some(me), marker: of_mine(HolderState::Held), version: 3 };
        drive.answer(hold, Ok(Reply::Done));
        drive.answer(Request::Watch { name: me.name(), watch: WatchId(0) }, Ok(mine(me)));
        assert_eq!(drive.take_reported(), [granted(me, Previous::Clean)]);
        drive.feed(Event::Release(left));
        // A holder that panics leaves its `held` marker in place.
        let leaves = marker.map_or(Request::Delete(me), |left| Request::Release {
            node: me,
            marker: of_mine(left),
            version: Some(4),
        });
        assert_eq!(drive.pending(), [leaves]);
    }
}

#[test]
fn untracked_upgrade_writes_no_marker_and_keeps_znode() {
    let (me, mut drive) = upgraded_reader(Record::Empty);
    drive.answer(Request::Watch { name: me.name(), watch: WatchId(0) }, Ok(mine(me)));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown)]);
    drive.feed(Event::Downgrade);
    assert_eq!((drive.take_reported(), drive.pending()), (vec![Action::Downgraded(me)], vec![]));
    drive.feed(Event::Release(HolderState::Released));
    assert_eq!(drive.pending(), [Request::Delete(me)]);
}

#[test]
fn session_expiry_after_release_reports_nothing() {
    let me = node(4, 20);
    let mut drive = Drive::hold_and_watch(me);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(release(me), Ok(Reply::Done));
    drive.take_reported();
    drive.feed(Event::SessionOver(SessionEnd::Expired));
    assert_eq!(drive.take_reported(), []);
}

/// The loss was already reported, so the expiry reports nothing. The release reports the first
/// loss.
#[test]
fn lost_lock_releases_after_session_expiry() {
    let lost_by = |event, loss: &[Action]| {
        let mut drive = Drive::hold_and_watch(node(4, 20));
        drive.feed(event);
        assert_eq!(drive.take_reported(), loss);
        drive
    };
    let unreachable = [Action::Unwatch(WatchId(0)), Action::Lost(Loss::Unreachable)];
    for (mut drive, loss) in [
        (lost_by(Event::LeaseLost, &unreachable), Loss::Unreachable),
        (lost_by(fired(0, true), &[Action::Lost(Loss::Broken)]), Loss::Broken),
    ] {
        drive.feed(Event::SessionOver(SessionEnd::Expired));
        assert_eq!(drive.take_reported(), []);
        drive.feed(Event::Release(HolderState::Released));
        assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Lost(loss)), Action::Finished]);
        assert_eq!(drive.pending(), []);
    }
}

#[test]
fn session_expiry_during_downgrade_loses_lock() {
    let loss = Loss::SessionOver(SessionEnd::Expired);
    for released_before in [false, true] {
        let mut drive = sole_holder(Kind::Write, node_with_prefix(Prefix::Write, 4, 20));
        drive.feed(Event::Downgrade);
        if released_before {
            drive.feed(Event::Release(HolderState::Released));
        }
        drive.take_reported();
        drive.feed(Event::SessionOver(SessionEnd::Expired));
        if !released_before {
            assert_eq!(drive.take_reported(), [Action::Lost(loss)]);
            drive.feed(Event::Release(HolderState::Released));
        }
        let reported = drive.take_reported();
        assert_eq!(
            reported[reported.len() - 2..],
            [Action::Released(ReleaseOutcome::Lost(loss)), Action::Finished]
        );
    }
}

#[test]
fn repeated_release_failures_make_longer_pauses() {
    let me = node(4, 20);
    let mut drive = Drive::hold_and_watch(me);
    drive.feed(Event::Release(HolderState::Released));
    let mut pauses = Vec::new();
    for _ in 0..4 {
        drive.answer(release(me), Err(RequestFailure::Unknown));
        if let [Request::Sleep(wait)] = drive.pending()[..] {
            pauses.push(wait);
            drive.wake();
        }
        drive.answer(Request::Sync, Ok(Reply::Done));
        drive.answer(Request::Exists(me), Ok(mine(me)));
    }
    assert_eq!(pauses, [10, 20, 40], "the first failure is checked at once");
}

#[test]
fn another_znode_may_exist_until_answers_exclude_it() {
    let (me, reader) = (node_with_prefix(Prefix::Write, 4, 20), node_with_prefix(Prefix::Read, 4, 22));
    let may_exist = |drive: &Drive| drive.machine.may_learn_of_node(0);

    let mut drive = Drive::of(config(Kind::Write));
    assert!(may_exist(&drive), "the reply to the create may name one");
    drive.answer(Request::Join, Err(RequestFailure::Unknown));
    drive.answer(Request::List, Err(RequestFailure::Unknown));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    assert!(may_exist(&drive), "the create in doubt may have made one");

    let mut drive = sole_holder(Kind::Write, me);
    assert!(!may_exist(&drive));
    drive.feed(Event::Downgrade);
    assert!(may_exist(&drive), "a downgrade makes another");
    drive.answer_downgrade(me, Ok(reader));
    drive.answer(Request::ReadDirectory, Ok(directory(reader.czxid, 1, Record::Empty)));
    assert!(!may_exist(&drive));

    let mut drive = Drive::of(config(Kind::Write));
    let denied = RequestFailure::Refused(Refusal::Denied);
    drive.answer(Request::Join, Err(denied));
    drive.answer(Request::List, Err(denied));
    drive.answer(Request::ReadDirectory, Err(denied));
    assert_eq!(drive.pending(), []);
    assert!(!may_exist(&drive), "the only create was refused");
}
