//! Tests of one acquisition of one lock, each with a fixed sequence of events. The model in
//! `tests/protocol` searches all sequences.

use super::*;

mod ahead;
mod beginning;
mod claim;
mod edges;
mod far;
mod joining;
mod kinds;
mod multi;
mod permits;
mod releasing;
mod size;
mod waiting;

const SESSION: SessionId = SessionId(7);
const DIRECTORY: Zxid = Zxid(10);
/// The pzxid of every listing: the last change of the children.
const LISTED: Zxid = Zxid(99);

fn config(kind: Kind) -> Config {
    Config {
        session: SESSION,
        kind,
        mode: Mode::Wait,
        tracks_crashes: false,
        delay: 0,
        watch_own_after: 0,
        claim_timeout: 0,
        retire_from: Sequence::RETIRE_FROM,
        names: Names::default(),
        looks_ahead: false,
        id: ContenderId(1),
        rules: Rules::all(),
    }
}

/// A contender with its pending requests and its reported actions.
struct Drive {
    machine: Machine,
    sent: Vec<(RequestId, Request)>,
    reported: Vec<Action>,
    lease: bool,
    /// Set if the caller takes a grant at once.
    claims: bool,
}

impl Drive {
    fn start() -> Drive {
        Drive::start_with(Mode::Wait, Sequence::RETIRE_FROM)
    }

    fn start_with(mode: Mode, retire_from: Sequence) -> Drive {
        Drive::of(Config { mode, retire_from, ..config(Kind::Mutex) })
    }

    fn of(config: Config) -> Drive {
        Drive::of_several(config, 1)
    }

    /// Returns the drive of an acquisition of several locks. The drive in `tests/multi.rs` contains it.
    fn of_several(config: Config, locks: usize) -> Drive {
        let machine = Machine::new(config, locks);
        let mut drive = Drive::with(machine);
        drive.feed(Event::Start);
        drive
    }

    fn with(machine: Machine) -> Drive {
        Drive { machine, sent: Vec::new(), reported: Vec::new(), lease: true, claims: true }
    }

    fn feed(&mut self, event: Event) {
        let mut actions = Vec::new();
        let needed_lease = self.machine.needs_lease();
        self.machine.step(event, self.lease, &mut actions);
        let is_granted = actions.iter().any(|action| matches!(action, Action::Granted(_)));
        assert!(needed_lease || !is_granted, "a grant in the step that ends the rest of the session");
        for action in actions {
            match action {
                Action::Send(id, request) => {
                    assert!(
                        self.sent.iter().all(|(used, _)| *used != id),
                        "request {id:?} is already pending"
                    );
                    self.sent.push((id, request));
                }
                reported => self.reported.push(reported),
            }
        }
        if is_granted && self.claims {
            self.feed(Event::Claimed);
        }
    }

    /// Answers the oldest pending request. Panics unless it equals `expected`.
    fn answer(&mut self, expected: Request, outcome: Result<Reply, RequestFailure>) {
        let (id, request) = self.sent.remove(0);
        assert_eq!(request, expected);
        self.feed(Event::Answer(id, outcome));
    }

    /// Answers a downgrade without a marker, and the read of the reader's znode.
    fn answer_downgrade(&mut self, writer: Node, reader: Result<Node, RequestFailure>) {
        self.answer(Request::Downgrade { node: writer, marker: None }, reader.map(|_| Reply::Done));
        self.answer(Request::FindReader(writer), reader.map(Reply::Joined));
    }

    /// Ends the most recent pending sleep.
    fn wake(&mut self) {
        let at = self.sent.iter().rposition(|(_, request)| matches!(request, Request::Sleep(_)));
        let (id, _) = self.sent.remove(at.expect("a sleep is pending"));
        self.feed(Event::Answer(id, Ok(Reply::Done)));
    }

    /// Returns the reported actions, without the crashes that were found.
    fn take_reported(&mut self) -> Vec<Action> {
        let mut reported = self.take_all_reported();
        reported.retain(|action| !matches!(action, Action::CrashFound { .. }));
        reported
    }

    fn take_all_reported(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.reported)
    }

    /// Returns the pending requests, oldest first.
    fn pending(&self) -> Vec<Request> {
        self.sent.iter().map(|(_, request)| request.clone()).collect()
    }

    /// Returns a sole contender that holds the lock. The watch on its own znode is pending.
    fn hold(me: Node) -> Drive {
        let mut drive = Drive::start();
        drive.answer(Request::Join, Ok(Reply::Joined(me)));
        drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 1, Record::Empty)));
        assert_eq!(drive.take_reported(), [granted(me, Previous::Unknown)]);
        drive
    }

    /// Returns a sole contender that holds the lock and watches its own znode.
    fn hold_and_watch(me: Node) -> Drive {
        let mut drive = Drive::hold(me);
        drive.answer(watch(me.sequence.0, 0), Ok(mine(me)));
        drive
    }

    /// Returns a waiter that watches its predecessor.
    fn wait(me: Node) -> Drive {
        let mut drive = Drive::start();
        drive.answer(Request::Join, Ok(Reply::Joined(me)));
        drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
        drive.answer(watch(me.sequence.0 - 1, 0), Ok(theirs()));
        drive
    }
}

fn node(sequence: i32, czxid: i64) -> Node {
    Node { prefix: Prefix::Lock, sequence: Sequence(sequence), czxid: Zxid(czxid) }
}

fn directory(pzxid: Zxid, children: u32, record: Record) -> Reply {
    Reply::Directory(Directory { czxid: DIRECTORY, pzxid, version: 3, children, record })
}

fn released(sequence: i32) -> Marker {
    Marker {
        directory: DIRECTORY,
        state: HolderState::Released,
        sequence: Sequence(sequence),
        tracked: false,
    }
}

fn watch(sequence: i32, id: u16) -> Request {
    Request::Watch { name: Prefix::Lock.name(Sequence(sequence)), watch: WatchId(id) }
}

fn children(names: Vec<String>) -> Reply {
    Reply::Children { names, pzxid: LISTED }
}

fn mine(me: Node) -> Reply {
    Reply::Node { czxid: me.czxid, owner: SESSION, version: 0, flags: NodeFlags::default() }
}

fn theirs() -> Reply {
    Reply::Node { czxid: Zxid(15), owner: SessionId(8), version: 0, flags: NodeFlags::default() }
}

fn granted(node: Node, previous: Previous) -> Action {
    Action::Granted(Grant { node, previous })
}

fn release(me: Node) -> Request {
    Request::Release { node: me, marker: released(me.sequence.0), version: Some(3) }
}

fn fired(id: u16, deleted: bool) -> Event {
    Event::Fired { watch: WatchId(id), deleted }
}

#[test]
fn sole_contender_acquires_in_one_flight() {
    let me = node(4, 20);
    let mut drive = Drive::hold_and_watch(me);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(release(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

#[test]
fn sole_child_of_another_contender_grants_nothing() {
    let mut drive = Drive::start();
    drive.answer(Request::Join, Ok(Reply::Joined(node(4, 20))));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(21), 1, Record::Empty)));
    assert_eq!(drive.take_reported(), []);
    assert_eq!(drive.sent[0].1, watch(3, 0));
}

#[test]
fn predecessor_marker_grants_without_listing() {
    let me = node(4, 20);
    let mut drive = Drive::wait(me);
    drive.feed(fired(0, true));
    let marker = Record::Marker(released(3));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(30), 9, marker)));
    assert_eq!(drive.take_reported(), []);
    drive.answer(Request::Exists(me), Ok(mine(me)));
    assert_eq!(drive.take_reported(), [granted(me, Previous::Clean)]);
}

#[test]
fn marker_grants_nothing_to_deleted_waiter() {
    for own in [Err(RequestFailure::NoNode), Ok(theirs())] {
        let me = node(4, 20);
        let mut drive = Drive::wait(me);
        drive.feed(fired(0, true));
        drive.answer(Request::ReadDirectory, Ok(directory(Zxid(30), 1, Record::Marker(released(3)))));
        drive.answer(Request::Exists(me), own);
        assert_eq!(drive.take_reported(), [Action::Failed(Reason::Broken), Action::Finished]);
        assert_eq!(drive.sent, []);
    }
}

#[test]
fn waiter_without_marker_lists_and_watches_predecessor() {
    let me = node(4, 20);
    let mut drive = Drive::wait(me);
    drive.feed(fired(0, true));
    let of_another_directory = Marker { directory: Zxid(9), ..released(3) };
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(30), 2, Record::Marker(of_another_directory))));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    let names = ["lock-0000000004", "lock-0000000001"].map(str::to_owned).to_vec();
    drive.answer(Request::List, Ok(children(names)));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(30), 2, Record::Empty)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    assert_eq!(drive.machine.waiting_for(), Some("lock-0000000001"));
    assert_eq!(drive.sent[0].1, watch(1, 0));
}

#[test]
fn try_acquire_fails_busy_behind_predecessor() {
    let me = node(4, 20);
    let mut drive = Drive::start_with(Mode::Try, Sequence::RETIRE_FROM);
    drive.answer(Request::Join, Ok(Reply::Joined(me)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    drive.answer(Request::ReadDirectory, Ok(directory(me.czxid, 2, Record::Empty)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    let names = ["lock-0000000004", "lock-0000000003"].map(str::to_owned).to_vec();
    drive.answer(Request::List, Ok(children(names)));
    drive.answer(Request::ReadDirectory, Ok(directory(Zxid(30), 2, Record::Empty)));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    assert_eq!(drive.take_reported(), [Action::Failed(Reason::Busy)]);
    drive.answer(Request::Delete(me), Ok(Reply::Done));
    assert_eq!(drive.take_reported(), [Action::Finished]);
}

#[test]
fn lost_release_is_not_resent_without_own_znode() {
    let me = node(4, 20);
    for found in [Ok(theirs()), Ok(mine(node(4, 99))), Err(RequestFailure::NoNode)] {
        let mut drive = Drive::hold(me);
        drive.answer(watch(4, 0), Ok(mine(me)));
        drive.feed(Event::Release(HolderState::Released));
        drive.answer(release(me), Err(RequestFailure::Unknown));
        drive.answer(Request::Sync, Ok(Reply::Done));
        drive.answer(Request::Exists(me), found);
        assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
        assert_eq!(drive.sent, []);
    }
}

#[test]
fn read_after_failed_sync_causes_no_delete() {
    let me = node(4, 20);
    let mut drive = Drive::hold_and_watch(me);
    drive.feed(Event::Release(HolderState::Released));
    drive.answer(release(me), Err(RequestFailure::Unknown));
    drive.answer(Request::Sync, Err(RequestFailure::Throttled));
    drive.answer(Request::Exists(me), Ok(mine(me)));
    drive.wake();
    assert_eq!(
        drive.sent.iter().map(|(_, request)| request.clone()).collect::<Vec<_>>(),
        [Request::Sync, Request::Exists(me)]
    );
}

#[test]
fn denied_release_still_deletes_the_znode() {
    let me = node(4, 20);
    let mut drive = Drive::hold_and_watch(me);
    drive.feed(Event::Release(HolderState::Released));
    let denied = || Err(RequestFailure::Refused(Refusal::Denied));
    drive.answer(release(me), denied());
    for (request, outcome) in [(Request::Withdraw(me), denied()), (Request::Delete(me), Ok(Reply::Done))] {
        drive.answer(Request::Sync, Ok(Reply::Done));
        drive.answer(Request::Exists(me), Ok(mine(me)));
        drive.answer(request, outcome);
    }
    assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Clean), Action::Finished]);
}

#[test]
fn holder_without_lease_checks_znode_before_deleting() {
    for release in [Event::Release(HolderState::Released), Event::Cancel] {
        let me = node(4, 20);
        let mut drive = Drive::hold_and_watch(me);
        drive.feed(Event::LeaseLost);
        assert_eq!(drive.take_reported(), [Action::Unwatch(WatchId(0)), Action::Lost(Loss::Unreachable)]);
        drive.feed(release);
        assert_eq!(drive.take_reported(), [Action::Released(ReleaseOutcome::Lost(Loss::Unreachable))]);
        drive.answer(Request::Sync, Ok(Reply::Done));
        drive.answer(Request::Exists(me), Ok(theirs()));
        assert_eq!(drive.take_reported(), [Action::Finished]);
    }
}

#[test]
fn exhausted_directory_is_deleted_and_recreated() {
    for last in [node(100, 20), node(i32::MAX, 20), node(i32::MIN, 20)] {
        let mut drive = Drive::start_with(Mode::Wait, Sequence(100));
        drive.answer(Request::Join, Ok(Reply::Joined(last)));
        drive.answer(Request::ReadDirectory, Ok(directory(last.czxid, 2, Record::Empty)));
        drive.answer(Request::Delete(last), Ok(Reply::Done));
        drive.answer(Request::ReadDirectory, Ok(directory(Zxid(21), 1, Record::Empty)));
        drive.wake();
        drive.answer(Request::ReadDirectory, Ok(directory(Zxid(22), 0, Record::Empty)));
        drive.answer(Request::DeleteDirectory, Ok(Reply::Done));
        drive.answer(Request::Join, Err(RequestFailure::NoNode));
        drive.answer(Request::ReadDirectory, Err(RequestFailure::NoNode));
        drive.answer(Request::MakeDirectory, Ok(Reply::Done));
        assert_eq!(drive.take_reported(), []);
        assert_eq!(drive.sent[0].1, Request::Join);
    }
}

/// A server with one other contender, number 3. `cancel_at` removes that contender once no request
/// is pending.
#[derive(Default)]
struct Server {
    zxid: i64,
    next: i32,
    mine: Vec<Node>,
    other_is_there: bool,
}

impl Server {
    fn answer(&mut self, request: &Request) -> Result<Reply, RequestFailure> {
        match request {
            Request::Join => {
                self.zxid += 1;
                self.next += 1;
                self.mine.push(node(self.next, self.zxid));
                Ok(Reply::Joined(node(self.next, self.zxid)))
            }
            Request::ReadDirectory => {
                let children = self.mine.len() as u32 + u32::from(self.other_is_there);
                Ok(directory(Zxid(self.zxid), children, Record::Empty))
            }
            Request::List => {
                let other = self.other_is_there.then_some(Sequence(3));
                let all = self.mine.iter().map(|node| node.sequence).chain(other);
                Ok(Reply::Children { names: all.map(|s| Prefix::Lock.name(s)).collect(), pzxid: Zxid(0) })
            }
            Request::Barrier => Ok(Reply::Done),
            Request::FindMine => Ok(Reply::Mine(self.mine.clone())),
            Request::Watch { name, .. } if name == "lock-0000000003" && self.other_is_there => Ok(theirs()),
            Request::Watch { name, .. } => self.find(|node| *name == node.name()).map(mine),
            Request::Exists(own) => self.find(|node| node.sequence == own.sequence).map(mine),
            Request::Delete(own) | Request::Release { node: own, .. } => {
                let sequence = &own.sequence;
                self.find(|node| node.sequence == *sequence)?;
                self.mine.retain(|node| node.sequence != *sequence);
                self.zxid += 1;
                Ok(Reply::Done)
            }
            _ => Ok(Reply::Done),
        }
    }

    fn find(&self, is: impl Fn(&Node) -> bool) -> Result<Node, RequestFailure> {
        self.mine.iter().copied().find(is).ok_or(RequestFailure::NoNode)
    }
}

/// Runs an acquisition and cancels it before request number `at` is answered.
///
/// Replies to the requests in `lost` are `Unknown`. The server executes these requests if
/// `carried_out` is set. Returns false if the run ended before request `at`.
fn cancel_at(at: usize, lost: &[usize], carried_out: bool) -> bool {
    let mut server = Server { zxid: 20, next: 3, mine: Vec::new(), other_is_there: true };
    let mut drive = Drive::start();
    let mut cancelled = false;
    for answered in 0.. {
        assert!(answered < 100, "acquisition does not end");
        if answered == at {
            drive.feed(Event::Cancel);
            cancelled = true;
        }
        if drive.reported.contains(&Action::Finished) {
            break;
        }
        if drive.sent.is_empty() {
            if server.other_is_there {
                server.other_is_there = false;
                server.zxid += 1;
                drive.feed(fired(0, true));
            } else {
                drive.feed(Event::Cancel);
            }
            continue;
        }
        let (id, request) = drive.sent.remove(0);
        let is_lost = lost.contains(&answered) && !matches!(request, Request::Sleep(_));
        let outcome =
            if is_lost && !carried_out { Err(RequestFailure::Unknown) } else { server.answer(&request) };
        drive.feed(Event::Answer(id, if is_lost { Err(RequestFailure::Unknown) } else { outcome }));
    }
    assert_eq!(server.mine, [], "cancelled at {at}, lost {lost:?}, carried out: {carried_out}");
    cancelled
}

#[test]
fn cancelled_acquire_leaves_no_znode_despite_lost_replies() {
    let mut moments = 0;
    while cancel_at(moments, &[], true) {
        moments += 1;
    }
    assert!(moments > 8, "only {moments} points to cancel at");
    for at in 0..moments + 6 {
        for first in 0..moments + 6 {
            for second in first..moments + 6 {
                for carried_out in [false, true] {
                    cancel_at(at, &[first, second], carried_out);
                }
            }
        }
    }
}

#[test]
fn session_expiry_during_release_reports_loss() {
    let mut drive = Drive::hold(node(0, 20));
    drive.feed(Event::Release(HolderState::Released));
    drive.feed(Event::SessionOver(SessionEnd::Expired));
    let lost = ReleaseOutcome::Lost(Loss::SessionOver(SessionEnd::Expired));
    assert_eq!(drive.take_reported(), [Action::Released(lost), Action::Finished]);
}
