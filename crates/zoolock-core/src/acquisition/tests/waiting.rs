//! Checks of the queue, and waiting.

use super::*;
use crate::record::Size;

const ME: Node = Node { prefix: Prefix::Lock, sequence: Sequence(4), czxid: Zxid(20) };
const DENIED: RequestFailure = RequestFailure::Refused(Refusal::Denied);

fn own() -> Result<Reply, RequestFailure> {
    Ok(mine(ME))
}

fn directory_read(children: u32, record: Record) -> Result<Reply, RequestFailure> {
    Ok(directory(Zxid(30), children, record))
}

/// Returns a waiter that lists the queue: its predecessor was deleted and left no marker.
fn listing_waiter() -> Drive {
    let mut drive = Drive::wait(ME);
    drive.feed(fired(0, true));
    drive.answer(Request::ReadDirectory, directory_read(2, Record::Empty));
    drive.answer(Request::Exists(ME), own());
    assert_eq!(drive.pending(), [Request::List, Request::ReadDirectory, Request::Exists(ME)]);
    drive
}

#[test]
fn listing_grants_nothing_before_own_znode_check() {
    let mut drive = listing_waiter();
    drive.answer(Request::List, Ok(children(vec![ME.name()])));
    drive.answer(Request::ReadDirectory, directory_read(1, Record::Empty));
    assert_eq!(drive.take_reported(), []);
    drive.answer(Request::Exists(ME), Err(RequestFailure::NoNode));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Broken), Action::Finished]);
}

#[test]
fn deleted_directory_ends_the_listing_waiter() {
    let mut drive = listing_waiter();
    drive.answer(Request::List, Err(RequestFailure::NoNode));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::NoNode));
    drive.answer(Request::Exists(ME), Err(RequestFailure::NoNode));
    assert_eq!(
        (drive.take_reported(), drive.pending()),
        (vec![Action::Failed(Reason::Broken), Action::Finished], vec![])
    );
}

#[test]
fn denied_listing_fails_and_lost_one_is_retried() {
    let mut drive = listing_waiter();
    drive.answer(Request::List, Err(DENIED));
    drive.answer(Request::ReadDirectory, directory_read(2, Record::Empty));
    drive.answer(Request::Exists(ME), own());
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Refused(DENIED))]);

    let mut drive = listing_waiter();
    drive.answer(Request::List, Err(RequestFailure::Unknown));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.answer(Request::Exists(ME), Err(RequestFailure::Unknown));
    drive.wake();
    assert_eq!(drive.pending(), [Request::ReadDirectory, Request::Exists(ME)]);
}

#[test]
fn mutex_is_refused_in_semaphore_directory() {
    let size = Record::Semaphore(Size { directory: DIRECTORY, permits: 3 });
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 1, size)));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::OtherKind)]);
    // The size of an earlier directory with the same name is ignored.
    let size = Record::Semaphore(Size { directory: Zxid(2), permits: 3 });
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 1, size)));
    assert_eq!(drive.take_reported(), [granted(ME, Previous::Unknown)]);
}

/// Returns the duration for which waiter `me` pauses before it lists a directory with `among`
/// children, in milliseconds.
fn listing_delay(me: i32, among: u32) -> u32 {
    let me = node(me, 20);
    let mut drive = Drive::wait(me);
    drive.feed(fired(0, true));
    drive.answer(Request::ReadDirectory, directory_read(among, Record::Empty));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    let [Request::Sleep(moment)] = drive.pending()[..] else { panic!("{:?}", drive.pending()) };
    drive.wake();
    assert_eq!(drive.pending()[0], Request::List);
    moment
}

#[test]
fn listings_of_many_waiters_are_spread_out() {
    let among =
        |many: u32| (1..100).map(|me| listing_delay(me, many)).collect::<std::collections::BTreeSet<_>>();
    // The pauses are spread over a quarter of a millisecond per waiter, at most half a second.
    let (few, most) = (among(200), among(100_000));
    assert!(few.len() > 25 && few.iter().all(|moment| *moment < 50), "{few:?}");
    assert!(most.len() >= 50 && most.iter().all(|moment| *moment < 500), "{most:?}");
    assert!(most.iter().any(|moment| *moment > 250), "{most:?}");
}

#[test]
fn mutex_ignores_granted_flag_of_predecessor() {
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 2, Record::Empty)));
    let flags = NodeFlags { granted: true, ..NodeFlags::default() };
    let other = Reply::Node { czxid: Zxid(15), owner: SessionId(8), version: 0, flags };
    drive.answer(watch(3, 0), Ok(other));
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![]));
}

#[test]
fn watch_pending_at_reconnect_is_set_again() {
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 2, Record::Empty)));
    drive.feed(Event::Disconnected);
    drive.feed(Event::Reconnected);
    drive.answer(watch(3, 0), Ok(theirs()));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0))]);
    drive.answer(watch(3, 1), Ok(theirs()));
    drive.feed(fired(1, true));
    assert_eq!(drive.pending()[0], Request::ReadDirectory);
}

#[test]
fn lost_own_read_behind_younger_predecessor_is_repeated() {
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(ME)));
    drive.answer(Request::ReadDirectory, Ok(directory(ME.czxid, 2, Record::Empty)));
    let younger =
        Reply::Node { czxid: Zxid(21), owner: SessionId(8), version: 0, flags: NodeFlags::default() };
    drive.answer(watch(3, 0), Ok(younger));
    drive.answer(Request::Exists(ME), Err(RequestFailure::Unknown));
    assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0))]);
    drive.wake();
    assert_eq!(drive.pending(), [Request::ReadDirectory, Request::Exists(ME)]);
}

// ---- readers ----

fn reader() -> Node {
    Node { prefix: Prefix::Read, sequence: Sequence(6), czxid: Zxid(20) }
}

/// Returns reader 6, which waited for writer 4. The writer's znode was just deleted. Another reader
/// is queued between the two.
fn reader_after_writer() -> Drive {
    let (me, writer) = (reader(), Prefix::Write.name(Sequence(4)));
    let mut drive = Drive::of(config(Kind::Read));
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    let names = vec![writer.clone(), Prefix::Read.name(Sequence(5)), me.name()];
    drive.answer(Request::List, Ok(children(names)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 3, Record::Empty)));
    drive.answer(Request::Watch { name: writer, watch: WatchId(0) }, Ok(theirs()));
    drive.feed(fired(0, true));
    drive
}

#[test]
fn writer_marker_grants_every_reader_behind_it() {
    let mut drive = reader_after_writer();
    drive.answer(Request::ReadDirectory, directory_read(2, Record::Marker(released(4))));
    drive.answer(Request::Exists(reader()), Ok(mine(reader())));
    assert_eq!(drive.take_reported(), [granted(reader(), Previous::Clean)]);
}

#[test]
fn unwatched_writer_marker_grants_reader_nothing() {
    let mut drive = reader_after_writer();
    drive.answer(Request::ReadDirectory, directory_read(2, Record::Marker(released(2))));
    drive.answer(Request::Exists(reader()), Ok(mine(reader())));
    assert_eq!((drive.take_reported(), drive.pending()[0].clone()), (vec![], Request::List));
}
