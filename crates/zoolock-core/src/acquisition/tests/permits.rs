//! Semaphore permits.

use super::*;
use crate::record::Size;

const ME: Node = Node { prefix: Prefix::Permit(1), sequence: Sequence(4), czxid: Zxid(20) };
const DENIED: RequestFailure = RequestFailure::Refused(Refusal::Denied);

fn permit(sequence: i32) -> String {
    Prefix::Permit(1).name(Sequence(sequence))
}

fn sized(directory: Zxid, permits: u32) -> Record {
    Record::Semaphore(Size { directory, permits })
}

/// Returns the answer to a read of a semaphore's directory. Its data is `record`, after `version`
/// writes.
fn semaphore(version: i32, record: Record) -> Result<Reply, RequestFailure> {
    Ok(Reply::Directory(Directory { czxid: DIRECTORY, pzxid: LISTED, version, children: 2, record }))
}

fn start(size: u32) -> Drive {
    let mut drive = Drive::of(config(Kind::Permits { take: 1, size }));
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive
}

/// Answers the three requests that read the queue: the listing, the directory's record and the
/// contender's own znode. They are sent together.
fn answer_check(
    drive: &mut Drive,
    listing: Request,
    names: &[i32],
    directory: Result<Reply, RequestFailure>,
) {
    drive.answer(listing, Ok(children(names.iter().map(|number| permit(*number)).collect())));
    drive.answer(Request::ReadDirectory, directory);
    drive.answer(Request::Exists(ME), Ok(mine(ME)));
}

/// Answers the listing and the directory read that are sent with the create.
fn answer_first_check(drive: &mut Drive, names: &[i32], directory: Result<Reply, RequestFailure>) {
    drive.answer(Request::List, Ok(children(names.iter().map(|number| permit(*number)).collect())));
    drive.answer(Request::ReadDirectory, directory);
}

fn watch(sequence: i32, id: u16) -> Request {
    Request::Watch { name: permit(sequence), watch: WatchId(id) }
}

fn other_znode(granted: bool) -> Result<Reply, RequestFailure> {
    let flags = NodeFlags { granted, ..NodeFlags::default() };
    Ok(Reply::Node { czxid: Zxid(15), owner: SessionId(8), version: 0, flags })
}

fn write_granted_flag(version: i32) -> Request {
    Request::MarkGranted { node: ME, version, revoked: false }
}

// ---- the size ----

#[test]
fn missing_size_is_written_and_then_read() {
    let gone = Zxid(2);
    let of_gone = Record::Marker(Marker { directory: gone, ..released(3) });
    for record in [Record::Empty, sized(gone, 5), of_gone] {
        let mut drive = start(3);
        answer_first_check(&mut drive, &[4], semaphore(0, record));
        let size = Size { directory: DIRECTORY, permits: 3 };
        // Another contender may have written the size first.
        drive.answer(Request::WriteSize { size, version: 0 }, Err(RequestFailure::BadVersion));
        answer_check(&mut drive, Request::List, &[4], semaphore(1, sized(DIRECTORY, 3)));
        assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)], "{record:?}");
    }
}

#[test]
fn denied_size_write_fails_and_lost_one_rereads() {
    let write = Request::WriteSize { size: Size { directory: DIRECTORY, permits: 3 }, version: 0 };
    let mut drive = start(3);
    answer_first_check(&mut drive, &[4], semaphore(0, Record::Empty));
    drive.answer(write.clone(), Err(DENIED));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Refused(DENIED))]);

    let mut drive = start(3);
    answer_first_check(&mut drive, &[4], semaphore(0, Record::Empty));
    drive.answer(write, Err(RequestFailure::Unknown));
    drive.wake();
    answer_check(&mut drive, Request::List, &[4], semaphore(1, sized(DIRECTORY, 3)));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
}

#[test]
fn mismatched_size_or_record_fails_acquire() {
    for (record, reason) in [
        (sized(DIRECTORY, 5), Reason::OtherSize(5)),
        (Record::Marker(released(3)), Reason::OtherKind),
        (Record::Foreign, Reason::ForeignRecord),
    ] {
        let mut drive = start(3);
        answer_first_check(&mut drive, &[4], semaphore(1, record));
        assert_eq!(drive.take_reported(), [Action::Failed(reason)], "{record:?}");
    }
}

#[test]
fn held_lock_prevents_the_size_write() {
    let mut drive = start(3);
    drive.answer(Request::List, Ok(children(vec![Prefix::Lock.name(Sequence(3)), ME.name()])));
    drive.answer(Request::ReadDirectory, semaphore(0, Record::Empty));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::OtherKind)]);
    assert_eq!(drive.pending(), [Request::Delete(ME)]);
}

#[test]
fn waiter_adopts_later_resize() {
    let mut drive = start(3);
    answer_first_check(&mut drive, &[1, 2, 3, 4], semaphore(1, sized(DIRECTORY, 3)));
    answer_check(
        &mut drive,
        Request::WatchChildren(WatchId(0)),
        &[1, 2, 3, 4],
        semaphore(2, sized(DIRECTORY, 4)),
    );
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0)), granted(ME, Previous::Unknown)]);
}

#[test]
fn watch_that_has_fired_is_not_removed() {
    let mut drive = start(3);
    answer_first_check(&mut drive, &[1, 2, 3, 4], semaphore(1, sized(DIRECTORY, 3)));
    let names = [1, 2, 3, 4].map(permit).to_vec();
    drive.answer(Request::WatchChildren(WatchId(0)), Ok(children(names)));
    drive.feed(fired(0, false));
    drive.answer(Request::ReadDirectory, semaphore(2, sized(DIRECTORY, 4)));
    drive.answer(Request::Exists(ME), Ok(mine(ME)));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
}

#[test]
fn cancelled_listing_removes_only_a_watch_that_is_set() {
    for (watch, removed) in [(0, vec![]), (5, vec![Action::Unwatch(WatchId(0))])] {
        let mut drive = start(1);
        answer_first_check(&mut drive, &[3, 4], semaphore(1, sized(DIRECTORY, 1)));
        drive.answer(Request::WatchChildren(WatchId(0)), Ok(children(vec![permit(3), permit(4)])));
        drive.feed(fired(watch, false));
        drive.feed(Event::Cancel);
        assert_eq!(drive.take_reported(), removed);
    }
}

// ---- waiting for permits ----

/// The predecessor may have been granted without a wait while the semaphore was larger. Then the
/// predecessor never sets its granted flag, so a watch on the predecessor is not enough.
#[test]
fn waiters_of_a_resized_semaphore_watch_the_children() {
    let mut drive = start(1);
    answer_first_check(&mut drive, &[2, 3, 4], semaphore(2, sized(DIRECTORY, 1)));
    assert_eq!(drive.pending()[0], Request::WatchChildren(WatchId(0)));
}

#[test]
fn granted_predecessor_makes_waiter_watch_children() {
    let mut drive = start(1);
    answer_first_check(&mut drive, &[2, 3, 4], semaphore(1, sized(DIRECTORY, 1)));
    drive.answer(watch(3, 0), other_znode(false));
    drive.feed(fired(0, false));
    drive.answer(watch(3, 1), other_znode(true));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(1))]);
    // The znode of the granted predecessor still exists.
    answer_check(&mut drive, Request::List, &[2, 3, 4], semaphore(1, sized(DIRECTORY, 1)));
    assert_eq!(drive.pending()[0], Request::WatchChildren(WatchId(0)));
}

#[test]
fn early_child_change_triggers_new_listing() {
    for (watch, again) in [(0, true), (5, false)] {
        let mut drive = start(1);
        answer_first_check(&mut drive, &[3, 4], semaphore(1, sized(DIRECTORY, 1)));
        drive.answer(Request::WatchChildren(WatchId(0)), Ok(children(vec![permit(3), permit(4)])));
        drive.answer(Request::ReadDirectory, semaphore(1, sized(DIRECTORY, 1)));
        drive.feed(fired(watch, false));
        drive.answer(Request::Exists(ME), Ok(mine(ME)));
        let lists = drive.pending().iter().any(|request| matches!(request, Request::WatchChildren(_)));
        assert_eq!((lists, drive.take_reported()), (again, vec![]));
    }
}

// ---- the granted flag ----

/// If the children have changed between the listing and the read of the size, the waiter's own
/// znode may have been deleted, and the semaphore enlarged after that. A grant would then be wrong.
/// So the waiter lists the queue and reads the size again.
#[test]
fn size_is_used_only_with_unchanged_children() {
    let mut drive = start(1);
    drive.answer(Request::List, Ok(children(vec![permit(3), ME.name()])));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(100), 1, sized(DIRECTORY, 2))));
    assert_eq!((drive.take_reported(), drive.pending()[0].clone()), (vec![], Request::List));
    drive.answer(Request::List, Ok(children(vec![permit(3)])));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 1, sized(DIRECTORY, 2))));
    drive.answer(Request::Exists(ME), Err(RequestFailure::NoNode));
    assert_eq!(drive.take_reported()[0], Action::Failed(Reason::Broken));
}

/// Returns a holder that was granted after a wait. The write of its granted flag is pending.
fn writing_granted_flag() -> Drive {
    let mut drive = start(1);
    answer_first_check(&mut drive, &[3, 4], semaphore(1, sized(DIRECTORY, 1)));
    answer_check(&mut drive, Request::WatchChildren(WatchId(0)), &[3, 4], semaphore(1, sized(DIRECTORY, 1)));
    drive.feed(fired(0, false));
    answer_check(&mut drive, Request::WatchChildren(WatchId(1)), &[4], semaphore(1, sized(DIRECTORY, 1)));
    assert_eq!(drive.take_reported().last(), Some(&granted(ME, Previous::Unknown)));
    assert_eq!(drive.pending()[0], write_granted_flag(0));
    assert!(matches!(drive.pending()[1..], [Request::Watch { .. }]), "{:?}", drive.pending());
    drive
}

fn own_watch(drive: &Drive, at: usize) -> Request {
    let request = drive.pending()[at].clone();
    assert!(matches!(&request, Request::Watch { name, .. } if *name == ME.name()), "{request:?}");
    request
}

fn own_znode(version: i32, granted: bool) -> Result<Reply, RequestFailure> {
    let flags = NodeFlags { granted, ..NodeFlags::default() };
    Ok(Reply::Node { czxid: ME.czxid, owner: SESSION, version, flags })
}

#[test]
fn overwritten_granted_flag_is_rewritten() {
    let mut drive = writing_granted_flag();
    drive.answer(write_granted_flag(0), Err(RequestFailure::BadVersion));
    let own = own_watch(&drive, 0);
    drive.answer(own, own_znode(1, false));
    drive.answer(write_granted_flag(1), Err(RequestFailure::BadVersion));
    // A failed write is retried after a read of the holder's own znode. The read sets a new watch,
    // so the old watch is removed.
    assert!(matches!(drive.take_reported()[..], [Action::Unwatch(_)]));
    assert_eq!(drive.pending(), [Request::Sleep(10)]);
    drive.wake();
    let own = own_watch(&drive, 0);
    drive.answer(own, own_znode(2, false));
    assert_eq!(drive.pending(), [write_granted_flag(2)]);
}

/// A clean-up in the same directory does not count as such a write, or as a read of the znode.
#[test]
fn granted_flag_is_rewritten_during_a_cleanup() {
    let second = Node { sequence: Sequence(6), czxid: Zxid(26), ..ME };
    let mut drive = Drive::of(config(Kind::Permits { take: 1, size: 1 }));
    drive.answer(Request::Join, Err(RequestFailure::Unknown));
    drive.answer(Request::List, Err(RequestFailure::Unknown));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.wake();
    drive.answer(Request::Join, Ok(Reply::Joined(second)));
    drive.answer(Request::FindMine, Ok(Reply::Mine(vec![ME, second])));
    assert_eq!(drive.sent.remove(0).1, Request::Delete(second));
    answer_check(&mut drive, Request::List, &[3, 4, 6], semaphore(1, sized(DIRECTORY, 1)));
    answer_check(
        &mut drive,
        Request::WatchChildren(WatchId(0)),
        &[3, 4, 6],
        semaphore(1, sized(DIRECTORY, 1)),
    );
    drive.feed(fired(0, false));
    answer_check(&mut drive, Request::WatchChildren(WatchId(1)), &[4, 6], semaphore(1, sized(DIRECTORY, 1)));
    drive.answer(write_granted_flag(0), Err(RequestFailure::BadVersion));
    let own = own_watch(&drive, 0);
    drive.answer(own, own_znode(1, false));
    drive.answer(write_granted_flag(1), Err(RequestFailure::BadVersion));
    assert_eq!(drive.pending(), [Request::Sleep(10)]);
}

#[test]
fn pending_granted_flag_write_is_not_repeated() {
    let mut drive = writing_granted_flag();
    let own = own_watch(&drive, 1);
    let (id, _) = drive.sent.remove(1);
    assert!(matches!(own, Request::Watch { .. }));
    drive.feed(Event::Answer(id, own_znode(0, false)));
    assert_eq!(drive.pending(), [write_granted_flag(0)]);
}

/// During the wait the directory may have been deleted and created again. Then the znode with the
/// waiter's name may be another contender's. So the waiter reads that znode before it deletes it.
#[test]
fn timed_out_permit_waiter_checks_znode_before_delete() {
    for read in [false, true] {
        let mut drive = start(1);
        answer_first_check(&mut drive, &[3, 4], semaphore(1, sized(DIRECTORY, 1)));
        answer_check(
            &mut drive,
            Request::WatchChildren(WatchId(0)),
            &[3, 4],
            semaphore(1, sized(DIRECTORY, 1)),
        );
        drive.feed(fired(0, false));
        if read {
            answer_check(
                &mut drive,
                Request::WatchChildren(WatchId(1)),
                &[3, 4],
                semaphore(1, sized(DIRECTORY, 1)),
            );
        }
        drive.sent.clear();
        drive.feed(Event::TimedOut);
        assert_eq!(drive.pending(), [Request::Sync, Request::Exists(ME)], "after a read: {read}");
    }
}
