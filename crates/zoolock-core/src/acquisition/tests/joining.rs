//! Joining, the search after a lost create reply, and directories near their last sequence number.

use super::*;

const DENIED: RequestFailure = RequestFailure::Refused(Refusal::Denied);

/// Returns a contender with one lost create reply and a second create pending.
fn in_doubt(retire_from: Sequence) -> Drive {
    let mut drive = Drive::start_with(Mode::Wait, retire_from);
    drive.answer(Request::Join, Err(RequestFailure::Unknown));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.wake();
    drive
}

fn doubting() -> Drive {
    in_doubt(Sequence::RETIRE_FROM)
}

fn found(nodes: &[Node]) -> Result<Reply, RequestFailure> {
    Ok(Reply::Mine(nodes.to_vec()))
}

#[test]
fn cancelled_acquire_does_not_retry_failed_create() {
    let mut drive = Drive::start();
    drive.feed(Event::Cancel);
    drive.answer(Request::Join, Err(RequestFailure::Throttled));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Throttled));
    assert_eq!(drive.pending(), [Request::Sleep(10)]);
    drive.wake();
    assert_eq!((drive.take_reported(), drive.pending()), (vec![Action::Finished], vec![]));
}

#[test]
fn cancel_during_the_pause_ends_without_a_znode() {
    let mut drive = Drive::start();
    drive.answer(Request::Join, Err(RequestFailure::Throttled));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Throttled));
    drive.feed(Event::Cancel);
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

#[test]
fn refused_create_fails_when_search_finds_nothing() {
    let mut drive = doubting();
    drive.answer(Request::Join, Err(DENIED));
    drive.answer(Request::Barrier, Err(RequestFailure::NoNode));
    drive.answer(Request::FindMine, Err(RequestFailure::NoNode));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Refused(DENIED)), Action::Finished]);
}

#[test]
fn lost_barrier_is_repeated_with_the_create() {
    for failure in [RequestFailure::Unknown, RequestFailure::Throttled] {
        let mut drive = doubting();
        drive.answer(Request::Join, Err(DENIED));
        drive.answer(Request::Barrier, Err(failure));
        drive.wake();
        assert_eq!(drive.pending(), [Request::Join]);
    }
}

#[test]
fn denied_search_keeps_last_created_znode() {
    let mut drive = doubting();
    drive.answer(Request::Join, Ok(Reply::Joined(node(6, 26))));
    drive.answer(Request::FindMine, Err(DENIED));
    assert_eq!(drive.machine.node(0), Some(node(6, 26)));
}

#[test]
fn found_znode_near_number_limit_is_deleted() {
    let (last, mut drive) = (node(101, 26), in_doubt(Sequence(100)));
    drive.answer(Request::Join, Ok(Reply::Joined(last)));
    drive.answer(Request::FindMine, found(&[last]));
    assert_eq!(drive.pending(), [Request::Delete(last), Request::ReadDirectory]);

    // The sequence counter of the directory has reached its maximum, so every create fails with
    // `NodeExists`.
    let mut drive = doubting();
    drive.answer(Request::Join, Err(RequestFailure::NodeExists));
    drive.answer(Request::FindMine, found(&[]));
    assert_eq!(drive.pending(), [Request::ReadDirectory]);
}

/// The answer proves that the first create has left no znode, so there is no search.
#[test]
fn missing_directory_in_doubt_is_created() {
    let mut drive = doubting();
    drive.answer(Request::Join, Err(RequestFailure::NoNode));
    assert_eq!(drive.pending(), [Request::MakeDirectory]);
}

/// The second create was confirmed, and another client deleted its znode before the search.
#[test]
fn empty_search_joins_again() {
    let mut drive = doubting();
    drive.answer(Request::Join, Ok(Reply::Joined(node(6, 26))));
    drive.answer(Request::FindMine, found(&[]));
    assert_eq!(drive.pending(), [Request::Join, Request::ReadDirectory]);
}

/// A release ignores the pending reads of the holder, but not its pending clean-ups.
#[test]
fn release_waits_for_the_delete_of_a_second_znode() {
    let (me, second) = (node(4, 20), node(6, 26));
    let mut drive = doubting();
    drive.answer(Request::Join, Ok(Reply::Joined(second)));
    drive.answer(Request::FindMine, found(&[me, second]));
    let (delete, request) = drive.sent.remove(0);
    assert_eq!(request, Request::Delete(second));
    drive.answer(Request::ReadDirectory, Ok(directory(LISTED, 2, Record::Marker(released(3)))));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    drive.answer(watch(4, 0), Ok(mine(me)));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Clean)]);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(release(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean)]);
    drive.feed(Event::Answer(delete, Ok(Reply::Done)));
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

/// Returns a contender that retires a directory, and has deleted its own znode there. Other
/// contenders remain there.
fn retiring(mode: Mode) -> Drive {
    let last = node(100, 20);
    let mut drive = Drive::start_with(mode, Sequence(100));
    drive.answer(Request::Join, Ok(Reply::Joined(last)));
    drive.answer(Request::ReadDirectory, Ok(directory(last.czxid, 2, Record::Empty)));
    drive.answer(Request::Delete(last), Ok(Reply::Done));
    assert_eq!(drive.pending().last(), Some(&Request::ReadDirectory));
    drive
}

#[test]
fn retirement_rejoins_missing_directory_and_reports_denial() {
    let mut drive = retiring(Mode::Wait);
    drive.answer(Request::ReadDirectory, Err(RequestFailure::NoNode));
    assert_eq!(drive.pending()[0], Request::Join);

    let mut drive = retiring(Mode::Wait);
    drive.answer(Request::ReadDirectory, Err(DENIED));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Refused(DENIED)), Action::Finished]);
}

/// The sequence counter of the directory has reached its maximum.
#[test]
fn create_refused_at_number_limit_retires_the_directory() {
    let mut drive = Drive::start();
    drive.answer(Request::Join, Err(RequestFailure::NodeExists));
    assert_eq!((drive.take_reported(), drive.pending()), (vec![], vec![Request::ReadDirectory]));
}

#[test]
fn failed_retirement_read_is_retried() {
    let mut drive = retiring(Mode::Wait);
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.wake();
    assert_eq!(drive.pending(), [Request::ReadDirectory]);
}

#[test]
fn occupied_retiring_directory_is_joined_again() {
    let mut drive = retiring(Mode::Wait);
    drive.poll_until_listing(2);
    // The contender leaves in the end, so the other child is not the cause yet.
    drive.answer(Request::List, listed(&["other-lock", "lock-0000000099"]));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(21), 2, Record::Empty)));
    assert_eq!((drive.take_reported(), drive.pending()[0].clone()), (vec![], Request::Join));

    // Without permission to list, only a new znode shows whether the directory was replaced.
    let mut drive = retiring(Mode::Wait);
    drive.poll_until_listing(1);
    drive.answer(Request::List, Err(DENIED));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(21), 1, Record::Empty)));
    assert_eq!((drive.take_reported(), drive.pending()[0].clone()), (vec![], Request::Join));
}

#[test]
fn lasting_child_of_retired_directory_is_named() {
    let child = "other-lock".to_owned();
    let occupied = [Action::Failed(Reason::Occupied(0, child)), Action::Finished];
    for mode in [Mode::Wait, Mode::Try] {
        let mut drive = retiring(mode);
        if mode == Mode::Wait {
            drive.poll_until_listing(2);
        } else {
            drive.answer(Request::List, listed(&["other-lock", "lock-0000000099"]));
            drive.answer(Request::ReadDirectory, Ok(directory(Zxid(21), 2, Record::Empty)));
            assert_eq!(drive.take_reported(), [Action::Failed(Reason::Busy), Action::Finished]);
            drive = retiring(mode);
        }
        drive.answer(Request::List, listed(&["z", "other-lock"]));
        drive.answer(Request::ReadDirectory, Ok(directory(Zxid(21), 2, Record::Empty)));
        assert_eq!(drive.take_reported(), occupied, "{mode:?}");
    }
    // The directory was replaced, or the child was deleted, between the two reads.
    for (czxid, left, next) in [(DIRECTORY.0, 0, Request::DeleteDirectory), (60, 1, Request::Join)] {
        let mut drive = retiring(Mode::Wait);
        drive.poll_until_listing(1);
        drive.answer(Request::List, listed(&["other-lock"]));
        let (czxid, pzxid, record) = (Zxid(czxid), Zxid(61), Record::Empty);
        let seen = Directory { czxid, pzxid, version: 0, children: left, record };
        drive.answer(Request::ReadDirectory, Ok(Reply::Directory(seen)));
        assert_eq!((drive.take_reported(), drive.pending()[0].clone()), (vec![], next));
    }
}

fn listed(names: &[&str]) -> Result<Reply, RequestFailure> {
    Ok(children(names.iter().map(|name| (*name).to_owned()).collect()))
}

impl Drive {
    /// Lets the contender poll a retired directory with this many children, until it lists them.
    fn poll_until_listing(&mut self, left: u32) {
        let mut polls = 0;
        while self.pending()[0] == Request::ReadDirectory {
            polls += 1;
            assert!(polls < 30, "contender waits forever");
            self.answer(Request::ReadDirectory, Ok(directory(Zxid(21), left, Record::Empty)));
            self.wake();
        }
        assert_eq!(polls, 20);
    }
}

/// The pending delete will remove the found znode, so a lock held through that znode would be lost.
#[test]
fn search_ignores_znode_being_deleted() {
    let (last, me) = (node(100, 20), node(0, 40));
    let mut drive = Drive::start_with(Mode::Wait, Sequence(100));
    drive.answer(Request::Join, Ok(Reply::Joined(last)));
    drive.answer(Request::ReadDirectory, Ok(directory(last.czxid, 2, Record::Empty)));
    // The delete is still pending.
    let delete = drive.sent.remove(0);
    assert_eq!(delete.1, Request::Delete(last));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::NoNode));
    drive.answer(Request::Join, Err(RequestFailure::Unknown));
    drive.answer(Request::ReadDirectory, Err(RequestFailure::Unknown));
    drive.wake();
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::FindMine, found(&[last, me]));
    assert_eq!(drive.machine.node(0), Some(me));
}

#[test]
fn each_doubtful_delete_is_checked_separately() {
    let nodes = [node(4, 20), node(5, 21), node(6, 26)];
    let mut drive = doubting();
    drive.feed(Event::Cancel);
    drive.answer(Request::Join, Ok(Reply::Joined(nodes[2])));
    drive.answer(Request::FindMine, found(&nodes));
    assert_eq!(drive.pending(), nodes.map(Request::Delete));
    drive.answer(Request::Delete(nodes[0]), Err(RequestFailure::Unknown));
    drive.answer(Request::Delete(nodes[1]), Err(RequestFailure::Unknown));
    drive.answer(Request::Delete(nodes[2]), Ok(Reply::Done));
    let looks = [nodes[0], nodes[1]].map(|node| [Request::Sync, Request::Exists(node)]);
    assert_eq!(drive.pending(), looks.concat());
    // A failed sync for the first znode does not affect the second.
    drive.answer(Request::Sync, Err(RequestFailure::Throttled));
    drive.answer(Request::Exists(nodes[0]), Err(RequestFailure::NoNode));
    drive.answer(Request::Sync, Ok(Reply::Done));
    drive.answer(Request::Exists(nodes[1]), Ok(mine(nodes[1])));
    assert!(drive.pending().contains(&Request::Delete(nodes[1])), "{:?}", drive.pending());
    drive.wake();
    drive.answer(Request::Delete(nodes[1]), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), []);
    drive.answer(Request::Sync, Ok(Reply::Done));
    drive.answer(Request::Exists(nodes[0]), Err(RequestFailure::NoNode));
    assert_eq!(drive.take_reported(), [Action::Finished]);
}
