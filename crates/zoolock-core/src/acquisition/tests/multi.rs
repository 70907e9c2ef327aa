//! Tests of one acquisition of several locks, each with a fixed sequence of events. The model in
//! `tests/protocol` searches all sequences. A flight is a group of requests that are sent together.

mod beginning;
mod doubts;
mod leaving;
mod moments;
mod retiring;

use std::ops::{Deref, DerefMut};

use super::super::*;
use super::{self as one, SESSION};

const DIRECTORIES: [Zxid; 2] = [Zxid(10), Zxid(11)];
const ME: Zxid = Zxid(50);
/// Sequence numbers of our znodes: 4 in the first directory, 9 in the second.
const NUMBERS: [i32; 2] = [4, 9];

/// A multi-lock of two directories. Dereferences to the drive of one lock, and answers requests by directory.
struct Drive(one::Drive);

impl Drive {
    fn start_with(change: impl FnOnce(&mut Config)) -> Drive {
        let mut config = Config { looks_ahead: true, ..one::config(Kind::Mutex) };
        change(&mut config);
        Drive(one::Drive::of_several(config, 2))
    }

    fn start() -> Drive {
        Drive::start_with(|_| {})
    }

    /// Returns the sole contender in both directories, which holds the multi-lock.
    fn hold() -> Drive {
        let mut drive = Drive::start();
        drive.answer(0, Request::JoinAll, joined(ME));
        drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
        drive.answer(1, Request::ReadDirectory, directory(1, ME, 1, Record::Empty));
        assert_eq!(drive.take_reported(), [granted(Previous::Unknown)]);
        drive.answer(0, watch(0, 4), own(0));
        drive.answer(1, watch(1, 9), own(1));
        drive
    }

    /// Returns a waiter that is the head of the first queue and behind number 8 in the second.
    fn wait() -> Drive {
        let mut drive = Drive::start();
        drive.answer(0, Request::JoinAll, joined(ME));
        drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
        drive.answer(1, Request::ReadDirectory, directory(1, ME, 2, Record::Empty));
        drive.answer(0, watch(0, 4), own(0));
        drive.answer(1, watch(1, 8), theirs(Zxid(40)));
        assert_eq!(drive.take_reported(), []);
        drive
    }

    /// Releases predecessor 8 of the second queue.
    fn release_predecessor(&mut self) {
        self.feed(Event::Fired { watch: WatchId(0x100), deleted: true });
        let record = Record::Marker(marker(1, 8));
        self.answer(1, Request::ReadDirectory, directory(1, Zxid(60), 1, record));
        self.answer(1, Request::Exists(node(1)), own(1));
        self.answer(1, watch(1, 9), own(1));
    }

    /// Answers the oldest pending request of directory `at`. Panics unless it equals `expected`.
    fn answer(&mut self, at: usize, expected: Request, outcome: Result<Reply, RequestFailure>) {
        let here = |(id, _): &(RequestId, Request)| lock_index(*id) == at;
        let oldest = self.sent.iter().position(here).expect("a request is pending");
        let (id, request) = self.sent.remove(oldest);
        assert_eq!(request, expected);
        self.feed(Event::Answer(id, outcome));
    }

    /// Fails every pending request except sleeps, as a lost connection does.
    fn lose_connection(&mut self) {
        let lost = |(_, request): &(RequestId, Request)| !matches!(request, Request::Sleep(_));
        let (lost, kept) = std::mem::take(&mut self.sent).into_iter().partition(lost);
        self.sent = kept;
        let lost: Vec<_> = lost;
        lost.into_iter().for_each(|(id, _)| self.feed(Event::Answer(id, Err(RequestFailure::Unknown))));
    }

    /// Ends every pending sleep.
    fn wake(&mut self) {
        let sleeps = |(_, request): &(RequestId, Request)| matches!(request, Request::Sleep(_));
        let (over, kept): (Vec<_>, _) = std::mem::take(&mut self.sent).into_iter().partition(sleeps);
        self.sent = kept;
        over.into_iter().for_each(|(id, _)| self.feed(Event::Answer(id, Ok(Reply::Done))));
    }

    /// Returns the pending requests with their directory, oldest first.
    fn pending(&self) -> Vec<(usize, Request)> {
        self.sent.iter().map(|(id, request)| (lock_index(*id), request.clone())).collect()
    }
}

impl Deref for Drive {
    type Target = one::Drive;

    fn deref(&self) -> &one::Drive {
        &self.0
    }
}

impl DerefMut for Drive {
    fn deref_mut(&mut self) -> &mut one::Drive {
        &mut self.0
    }
}

fn node_of(at: usize, czxid: Zxid) -> Node {
    Node { prefix: Prefix::Lock, sequence: Sequence(NUMBERS[at]), czxid }
}

fn node(at: usize) -> Node {
    node_of(at, ME)
}

fn joined(czxid: Zxid) -> Result<Reply, RequestFailure> {
    Ok(Reply::AllJoined(vec![node_of(0, czxid), node_of(1, czxid)]))
}

fn directory(at: usize, pzxid: Zxid, children: u32, record: Record) -> Result<Reply, RequestFailure> {
    let czxid = DIRECTORIES[at];
    Ok(Reply::Directory(Directory { czxid, pzxid, version: 3, children, record }))
}

fn marker(at: usize, sequence: i32) -> Marker {
    let (directory, sequence) = (DIRECTORIES[at], Sequence(sequence));
    Marker { directory, state: HolderState::Released, sequence, tracked: false }
}

fn watch(at: u16, sequence: i32) -> Request {
    Request::Watch { name: Prefix::Lock.name(Sequence(sequence)), watch: WatchId(at << 8) }
}

/// Returns the request for a second watch in the directory, while the first watch is in force.
fn another_watch(at: u16, sequence: i32) -> Request {
    Request::Watch { name: Prefix::Lock.name(Sequence(sequence)), watch: WatchId(at << 8 | 1) }
}

fn own(_at: usize) -> Result<Reply, RequestFailure> {
    Ok(Reply::Node { czxid: ME, owner: SESSION, version: 0, flags: NodeFlags::default() })
}

fn theirs(czxid: Zxid) -> Result<Reply, RequestFailure> {
    Ok(Reply::Node { czxid, owner: SessionId(8), version: 0, flags: NodeFlags::default() })
}

fn granted(previous: Previous) -> Action {
    Action::Granted(Grant { node: node(0), previous })
}

fn release(at: usize) -> Request {
    Request::Release { node: node(at), marker: marker(at, NUMBERS[at]), version: Some(3) }
}

fn release_all() -> Request {
    let release = |at| ReleaseOp { node: node(at), marker: Some((marker(at, NUMBERS[at]), Some(3))) };
    Request::ReleaseAll(vec![release(0), release(1)])
}

const DONE: Result<Reply, RequestFailure> = Ok(Reply::Done);
const NO_NODE: Result<Reply, RequestFailure> = Err(RequestFailure::NoNode);

// ---- join and grant ----

#[test]
fn sole_contender_acquires_and_releases_in_one_flight() {
    let flight = [(0, Request::JoinAll), (0, Request::ReadDirectory), (1, Request::ReadDirectory)];
    assert_eq!(Drive::start().pending(), flight);
    let mut drive = Drive::hold();
    assert_eq!(drive.machine.held_node(), Some(node(0)));
    drive.feed(Event::Release(HolderState::Released));
    assert_eq!(drive.machine.held_node(), None);
    drive.answer(0, release_all(), DONE);
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
    assert!(drive.machine.is_over());
}

#[test]
fn grant_after_lease_loss_rechecks_all_znodes() {
    let mut drive = Drive::start();
    drive.lease = false;
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 1, Record::Empty));
    assert_eq!(drive.take_reported(), []);
    drive.answer(0, watch(0, 4), own(0));
    drive.answer(1, watch(1, 9), own(1));
    drive.lease = true;
    drive.feed(Event::LeaseRenewed);
    drive.answer(0, Request::Exists(node(0)), own(0));
    drive.answer(1, Request::Exists(node(1)), own(1));
    assert_eq!(drive.take_reported(), [granted(Previous::Unknown)]);
}

#[test]
fn missing_znode_at_recheck_fails_multi_acquire() {
    // In the second case the directory was recreated, and our name belongs to another contender.
    for found in [NO_NODE, theirs(Zxid(70))] {
        let mut drive = Drive::start();
        drive.lease = false;
        drive.answer(0, Request::JoinAll, joined(ME));
        drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
        drive.answer(1, Request::ReadDirectory, directory(1, ME, 1, Record::Empty));
        drive.answer(0, watch(0, 4), own(0));
        drive.answer(1, watch(1, 9), own(1));
        drive.lease = true;
        drive.feed(Event::LeaseRenewed);
        drive.answer(0, Request::Exists(node(0)), found);
        drive.answer(1, Request::Exists(node(1)), own(1));
        assert_eq!(drive.take_reported(), [Action::Failed(Reason::Broken)]);
    }
}

#[test]
fn busy_try_acquire_deletes_all_znodes() {
    let mut drive = Drive::start_with(|config| config.mode = Mode::Try);
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 2, Record::Empty));
    drive.answer(0, watch(0, 4), own(0));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 2, Record::Empty));
    drive.answer(1, Request::Exists(node(1)), own(1));
    let names = vec![node(1).name(), Prefix::Lock.name(Sequence(8))];
    drive.answer(1, Request::List, Ok(Reply::Children { names, pzxid: ME }));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 2, Record::Empty));
    drive.answer(1, Request::Exists(node(1)), own(1));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Busy)]);
    // The contender was the head of the first queue but never held the lock, so it writes no
    // release marker.
    drive.answer(0, Request::Delete(node(0)), DONE);
    drive.answer(1, Request::Delete(node(1)), DONE);
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

#[test]
fn exhausted_directory_is_retired_and_all_rejoined() {
    let mut drive = Drive::start_with(|config| config.retire_from = Sequence(9));
    drive.answer(0, Request::JoinAll, joined(ME));
    drive.answer(0, Request::ReadDirectory, directory(0, ME, 1, Record::Empty));
    drive.answer(1, Request::ReadDirectory, directory(1, ME, 1, Record::Empty));
    drive.answer(0, Request::Delete(node(0)), DONE);
    drive.answer(1, Request::Delete(node(1)), DONE);
    drive.answer(1, Request::ReadDirectory, directory(1, Zxid(51), 1, Record::Empty));
    drive.wake();
    drive.answer(1, Request::ReadDirectory, directory(1, Zxid(52), 0, Record::Empty));
    drive.answer(1, Request::DeleteDirectory, DONE);
    assert_eq!(drive.pending()[0], (0, Request::JoinAll));
    assert_eq!(drive.take_reported(), []);
}

// ---- lost replies ----

/// Returns a contender that has sent three creates. The replies to the first two were lost. The
/// third has succeeded, and neither of the first two can still arrive after it: it is a barrier. So
/// the contender now searches for its znodes, and the requests `FindMine` are pending.
fn in_doubt() -> Drive {
    let mut drive = Drive::start();
    drive.lose_connection();
    drive.wake();
    drive.lose_connection();
    drive.wake();
    drive.answer(0, Request::JoinAll, joined(Zxid(52)));
    drive
}

#[test]
fn incomplete_sets_are_deleted_and_all_rejoined() {
    let mut drive = in_doubt();
    drive.answer(0, Request::FindMine, Ok(Reply::Mine(vec![node_of(0, Zxid(52))])));
    drive.answer(1, Request::FindMine, NO_NODE);
    drive.answer(0, Request::Delete(node_of(0, Zxid(52))), DONE);
    drive.answer(0, Request::MakeDirectory, DONE);
    drive.answer(1, Request::MakeDirectory, DONE);
    assert_eq!(drive.pending()[0], (0, Request::JoinAll));
}

#[test]
fn failed_search_is_repeated_in_all_directories() {
    let mut drive = in_doubt();
    drive.answer(0, Request::FindMine, Ok(Reply::Mine(vec![node_of(0, Zxid(52))])));
    drive.answer(1, Request::FindMine, Err(RequestFailure::Unknown));
    drive.wake();
    assert_eq!(drive.pending(), [(0, Request::FindMine), (1, Request::FindMine)]);
}

#[test]
fn timeout_in_doubt_deletes_every_znode() {
    let mut drive = Drive::start();
    drive.lose_connection();
    drive.feed(Event::TimedOut);
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::TimedOut)]);
    drive.wake();
    // Even after the timeout the contender sends a second create. The first create may still
    // arrive, but not after the second, so the second is a barrier before the search.
    drive.answer(0, Request::JoinAll, joined(Zxid(51)));
    drive.answer(0, Request::FindMine, Ok(Reply::Mine(vec![node_of(0, ME), node_of(0, Zxid(51))])));
    drive.answer(1, Request::FindMine, Ok(Reply::Mine(vec![node_of(1, ME), node_of(1, Zxid(51))])));
    for at in [0, 1] {
        drive.answer(at, Request::Delete(node(at)), DONE);
        drive.answer(at, Request::Delete(node_of(at, Zxid(51))), DONE);
    }
    assert_eq!(drive.take_reported(), [Action::Finished]);
}
